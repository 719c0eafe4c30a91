"""The digest of cases and golden values is that of the files, and no promised id is lost."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.spec import ROOT, Spec, load_spec
from goldformer.spec.edition import read_editions, read_version_file
from goldformer.spec.goldenfile import read_header
from goldformer.spec.making.promises import (
    collect_ids,
    list_broken_promises,
    list_stale_stamps,
    locate_ids,
    read_ids,
    record_ids,
    stamp_components,
    write_stamps,
)
from spoiling import keep


def read(root: Path) -> Spec:
    return load_spec.__wrapped__(root)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def test_the_digests_are_those_of_the_files(spec: Spec):
    assert list(list_stale_stamps(spec)) == []
    file = read_version_file(ROOT)
    stamps = [(name, stamp) for entry in file.editions.values() for name, stamp in entry.components.items()]
    assert sum(stamp.cases for _, stamp in stamps) == len(spec.cases)
    assert sorted(name for name, _ in stamps) == sorted(spec.contracts)


def test_texts_and_golden_files_are_of_these_versions():
    for name, entry in read_version_file(ROOT).editions.items():
        text = (ROOT / entry.text).read_text(encoding="utf-8")
        assert f"This is version {entry.version} of the edition `{name}`." in text
        heads = {read_header(ROOT / "golden" / f"{component}.json") for component in entry.components}
        assert heads == {(name, entry.version)}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("cases/softmax.yaml", "fill: 0, shape: [2, 3]", "fill: 1, shape: [2, 3]"),
        ("cases/softmax.yaml", "id: sm-five", "id: sm-six"),
        ("cases/softmax.yaml", "expect: {error: scores}", "expect: {error: mask}"),
        ("contracts/softmax.yaml", "output: {kind: float", "output: {kind: ids"),
    ],
)
def test_what_decides_a_verdict_changes_the_digest(small_spec: Path, file: str, old: str, new: str):
    before = read_editions(small_spec)["small"]
    spec = read(small_spec)
    edit(small_spec / file, old, new)
    (problem,) = list_stale_stamps(spec)
    assert (problem.field, problem.line) == ("softmax", 7)
    assert "run goldformer coverage --write" in problem.message
    assert write_stamps(spec) == [small_spec / "version.json"]
    assert list(list_stale_stamps(spec)) == []
    assert read_editions(small_spec)["small"].digest != before.digest


def test_words_sources_and_kills_do_not(spec_copy: Path):
    keep(spec_copy, ["softmax"])
    before = stamp_components(read(spec_copy))["softmax"]
    edit(spec_copy / "cases/softmax.yaml", "    title: ", "    title: Now ")
    edit(spec_copy / "cases/softmax.yaml", "    source: ", "    meant_for: []\n    source: ")
    edit(spec_copy / "golden/softmax.json", '"kills": [', '"kills": ["softmax-unstable", ')
    assert stamp_components(read(spec_copy))["softmax"] == before
    edit(spec_copy / "golden/softmax.json", '"error_scale": ', '"error_scale": 1')
    assert stamp_components(read(spec_copy))["softmax"] != before


def test_a_golden_file_of_another_version_is_named_and_written_again(spec_copy: Path):
    edit(spec_copy / "version.json", '"version": "', '"version": "9')
    spec = read(spec_copy)
    stale = [problem.file.name for problem in list_stale_stamps(spec)]
    assert len(stale) == sum(contract.edition == "2017" for contract in spec.contracts.values())
    changed = write_stamps(spec)
    assert {path.name for path in changed} == set(stale)
    assert {read_header(spec_copy / "golden" / name)[1][0] for name in stale} == {"9"}
    assert re.search(r'"values"', (spec_copy / "golden/softmax.json").read_text(encoding="utf-8"))


def test_no_promised_id_is_lost(spec: Spec):
    assert list(list_broken_promises(spec)) == []
    promised = read_ids(ROOT)
    assert len(promised.clauses) > 130
    assert len(promised.cases) > 1000
    assert len(promised.mistakes) > 200
    of_empty_rows = [option for option in promised.options if option.startswith("empty_row: ")]
    assert of_empty_rows == ["empty_row: nan", "empty_row: uniform", "empty_row: zeros"]


def test_an_id_that_is_gone_is_named_until_it_is_withdrawn(small_spec: Path):
    spec = read(small_spec)
    assert record_ids(spec)
    assert not record_ids(spec)
    edit(small_spec / "cases/softmax.yaml", "id: sm-five", "id: sm-six")
    edit(small_spec / "conventions.yaml", "square: ", "other: ")
    spec = read(small_spec)
    lost = list(list_broken_promises(spec))
    assert [(problem.field, problem.message.split()[0]) for problem in lost] == [
        ("cases", "'sm-five'"), ("options", "'root:"),
    ]  # fmt: skip
    path = locate_ids(small_spec)
    data = json.loads(path.read_text(encoding="utf-8"))
    data["withdrawn"] = {"sm-five": "it was sm-six", "root: square": "nobody has it", "sm-shape": "not yet"}
    path.write_text(json.dumps(data), encoding="utf-8")
    (again,) = list_broken_promises(spec)
    assert again.message.startswith("'sm-shape' is in use")


def test_new_ids_are_recorded_and_nothing_else_is_lost(small_spec: Path):
    record_ids(read(small_spec))
    edit(small_spec / "cases/softmax.yaml", "id: sm-five", "id: sm-six")
    spec = read(small_spec)
    assert record_ids(spec)
    promised = read_ids(small_spec)
    assert {"sm-five", "sm-six"} <= set(promised.cases)
    assert set(collect_ids(spec)["clauses"]) == set(promised.clauses)


def test_the_commands_name_what_is_stale(small_spec: Path):
    run = CliRunner().invoke
    edit(small_spec / "cases/softmax.yaml", "fill: 0, shape: [5]", "fill: 1, shape: [5]")
    load_spec.cache_clear()
    result = run(main, ["lint", "--spec", str(small_spec)])
    assert result.exit_code == 1
    assert "version.json:7: softmax: is not what cases/softmax.yaml" in result.stdout
    assert run(main, ["coverage", "--spec", str(small_spec), "--write"]).exit_code == 0
    assert "version.json" not in run(main, ["lint", "--spec", str(small_spec)]).stdout


def test_every_contract_lists_its_clauses(spec: Spec):
    assert all(contract.clauses for contract in spec.contracts.values())
    shown = {clause for contract in spec.contracts.values() for clause in contract.clauses}
    assert shown <= set(spec.clauses)

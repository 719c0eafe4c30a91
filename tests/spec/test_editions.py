"""Two editions in one spec: what names them, what keeps them apart, and the errors of files that mix them up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.spec import Spec, SpecError, load_spec
from goldformer.spec.edition import join_editions
from goldformer.spec.making.lint import lint
from goldformer.spec.making.promises import list_stale_stamps, write_stamps
from goldformer.spec.making.readme import readme

MODERN = """\
# Halves

### HALF-1 · MUST · Half of it

Half of every element.

Source: this spec.
"""
CONTRACT = """\
component: half
edition: modern
title: Half
formula: x/2
depends_on: []
inputs:
  x: {kind: float, shape: ["...", n]}
outputs:
  output: {kind: float, shape: ["...", n]}
clauses: [HALF-1]
"""
CASES = """\
component: half
cases:
  - id: half-shape
    title: A shape
    clauses: [HALF-1]
    source: derived
    sizes: {lead: [2], n: 3}
    inputs: {x: {fill: 0}}
    expect: {output: shape}
"""


@pytest.fixture
def root(small_spec: Path) -> Path:
    """The small spec with a second edition, `modern`, of one component."""
    file = small_spec / "version.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    data["editions"]["modern"] = {"version": "0.1", "text": "modern.md", "components": {}}
    file.write_text(json.dumps(data), encoding="utf-8")
    (small_spec / "modern.md").write_text(MODERN, encoding="utf-8")
    (small_spec / "contracts" / "half.yaml").write_text(CONTRACT, encoding="utf-8")
    (small_spec / "cases" / "half.yaml").write_text(CASES, encoding="utf-8")
    write_stamps(read(small_spec))
    return small_spec


def read(root: Path) -> Spec:
    return load_spec.__wrapped__(root)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def read_problems(root: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_spec.__wrapped__(root, whole=True)
    return [str(problem).removeprefix(f"{root}/") for problem in caught.value.problems]


def test_a_component_knows_its_edition_and_the_first_is_the_default(root: Path):
    spec = read(root)
    assert [spec.edition_of(name).edition for name in ("softmax", "half")] == ["small", "modern"]
    assert spec.default_edition.edition == "small"
    assert {id_: clause.edition for id_, clause in spec.clauses.items() if id_ in ("SM-1", "HALF-1")} == {
        "SM-1": "small", "HALF-1": "modern",
    }  # fmt: skip


def test_the_editions_of_components_stand_in_the_order_of_the_spec(root: Path):
    spec = read(root)
    small, modern = spec.editions.values()
    assert spec.editions_of(["half", "softmax", "half"]) == (small, modern)
    assert spec.editions_of(["half"]) == (modern,)
    assert spec.editions_of([]) == (small,)
    assert join_editions((small, modern)) == f"small/1.0, cases {small.digest}; modern/0.1, cases {modern.digest}"


def test_a_second_edition_leaves_the_digest_of_the_first(root: Path):
    before = read(root).editions
    edit(root / "cases" / "half.yaml", "fill: 0", "fill: 1")
    (problem,) = list_stale_stamps(read(root))
    assert problem.field == "half"
    assert write_stamps(read(root)) == [root / "version.json"]
    after = read(root).editions
    assert after["small"] == before["small"]
    assert after["modern"].digest != before["modern"].digest


def test_the_page_and_the_lint_name_both(root: Path):
    spec = read(root)
    page = readme(spec)
    assert f"\n- edition {spec.editions['small']}: 1 component, 5 clauses\n" in page
    assert f"\n- edition {spec.editions['modern']}: 1 component, 1 clause\n" in page
    load_spec.cache_clear()
    assert " in small/1.0 and modern/0.1: " in CliRunner().invoke(main, ["lint", "--spec", str(root)]).stdout


def test_a_clause_of_another_edition_is_named(root: Path):
    edit(root / "contracts" / "softmax.yaml", "depends_on: []", "depends_on: []\nclauses: [HALF-1]")
    found = [str(problem).removeprefix(f"{root}/") for problem in lint(read(root))]
    message = "has HALF-1 of the edition modern, and softmax is of small: remove it"
    assert f"contracts/softmax.yaml:1: clauses: {message}" in found
    # The clauses of the default edition hold for all.
    edit(root / "contracts" / "half.yaml", "[HALF-1]", "[HALF-1, CALL-1]")
    assert not [line for line in map(str, lint(read(root))) if "contracts/half.yaml" in line and "edition" in line]


@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        (
            "contracts/half.yaml", "edition: modern", "edition: modem",
            "contracts/half.yaml:2: edition: 'modem' is not in version.json, which has small and modern",
        ),
        (
            "cases/half.yaml", "[HALF-1]", "[HALF-2]",
            "cases/half.yaml:5: half-shape.clauses: HALF-2 is no clause of transformer.md or modern.md",
        ),
        (
            "modern.md", "### HALF-1", "### SM-1",
            "modern.md:3: SM-1: first stands on line 3 of transformer.md: give one of the two another id",
        ),
        ("modern.md", "### HALF-1", "## HALF-1", "modern.md:1: file: holds no clause"),
        (
            "version.json", '"modern.md"', '"modem.md"',
            "version.json:15: editions.modern.text: is 'modem.md', and there is no such file next to version.json: "
            "write its clauses into that file",
        ),
        (
            "version.json", '"modern.md"', '"transformer.md"',
            "version.json:15: editions.modern.text: is 'transformer.md', the text of another edition: give each "
            "edition a text of its own",
        ),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named(root: Path, file: str, old: str, new: str, problem: str):
    edit(root / file, old, new)
    assert problem in read_problems(root)


def test_a_golden_file_of_the_other_edition_is_named(spec_copy: Path):
    edit(spec_copy / "golden" / "softmax.json", '"edition": "2017"', '"edition": "2018"')
    (problem,) = list_stale_stamps(read(spec_copy))
    version = read(spec_copy).editions["2017"].version
    assert str(problem) == (
        f"{spec_copy}/golden/softmax.json:1: version: is not 2017/{version} of version.json: "
        "run goldformer coverage --write"
    )

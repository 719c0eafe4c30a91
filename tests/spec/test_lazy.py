"""Each file of the spec is read when something asks for it first, and by nobody else."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.conformance.judging.applicability import plan
from goldformer.spec import Spec, SpecError, load_spec
from goldformer.spec.load import Cases
from spoiling import edit, keep, load

SOFTMAX = "sm-four-axes"


def read_lazily(root: Path) -> Spec:
    return load_spec.__wrapped__(root)


@pytest.fixture
def torn(spec_copy: Path) -> Path:
    """A spec in which only the contracts, the conventions and what softmax needs can be read."""
    kept = ("conventions", "documents", "softmax")
    for path in (*spec_copy.glob("*.yaml"), *(spec_copy / "cases").iterdir(), *(spec_copy / "golden").iterdir()):
        if path.stem not in kept:
            path.write_text("[", encoding="utf-8")
    return spec_copy


def test_a_component_is_read_from_its_own_files(torn: Path, spec: Spec):
    read = read_lazily(torn).cases_of("softmax")
    assert [case.id for case in read] == [case.id for case in spec.cases_of("softmax")]
    assert [case.kills for case in read] == [case.kills for case in spec.cases_of("softmax")]


def test_a_case_is_found_in_its_own_file(torn: Path, spec: Spec):
    cases = read_lazily(torn).cases
    assert cases[SOFTMAX].title == spec.cases[SOFTMAX].title
    assert SOFTMAX in cases
    assert "sm-nowhere" not in cases
    with pytest.raises(KeyError, match="sm-nowhere"):
        cases["sm-nowhere"]


def test_what_is_planned_is_read_and_nothing_else(torn: Path):
    spec = read_lazily(torn)
    everything = plan(spec, ["softmax"])
    assert plan(spec, (), [SOFTMAX, "sm-one-element"]) == [c for c in everything if c.id in (SOFTMAX, "sm-one-element")]
    assert plan(spec, ["softmax"], [SOFTMAX]) == [spec.cases[SOFTMAX]]
    assert plan(spec, ["causal_mask"], [SOFTMAX]) == []
    assert plan(spec, (), ["sm-nowhere"]) == []


@pytest.mark.parametrize("table", ["mistakes", "properties", "errata"])
def test_a_table_that_cannot_be_read_is_refused_when_it_is_asked_for(torn: Path, table):
    spec = read_lazily(torn)
    with pytest.raises(SpecError, match=rf"{table}\.yaml:2: file: is not YAML"):
        len(getattr(spec, table))


def test_all_files_are_read_when_all_cases_are_asked_for(torn: Path):
    spec = read_lazily(torn)
    with pytest.raises(SpecError) as error:
        list(spec.cases)
    named = {problem.file.stem for problem in error.value.problems}
    assert named == set(spec.components) - {"softmax"}


def test_a_command_says_what_is_wrong_with_a_file_that_it_comes_to_read(torn: Path):
    result = CliRunner().invoke(main, ["mistakes", "--spec", str(torn)])
    assert result.exit_code == 2
    file = torn.resolve() / "mistakes.yaml"
    assert result.output == f"goldformer: {file}:2: file: is not YAML: did not find expected node content\n"


def test_cases_stand_in_the_order_of_the_components(spec: Spec):
    places = [spec.components.index(case.component) for case in spec.cases.values()]
    assert places == sorted(places)
    assert list(spec.cases) == [case.id for name in spec.components for case in spec.cases_of(name)]


def test_further_cases_come_behind_and_nothing_is_read_for_them(torn: Path):
    spec = read_lazily(torn)
    mine = replace(spec.cases[SOFTMAX], id="mine")
    more = spec.with_cases({"mine": mine})
    assert more.cases_of("softmax") == (*spec.cases_of("softmax"), mine)
    assert more.cases["mine"] is mine
    assert more.with_cases({"yours": mine}).cases["mine"] is mine
    assert "mine" not in spec.cases


def test_further_cases_come_behind_those_of_a_plain_mapping(spec: Spec):
    one = spec.cases[SOFTMAX]
    few = replace(spec, cases={one.id: one})
    assert few.cases_of("softmax") == (one,)
    assert few.cases_of("causal_mask") == ()
    assert list(few.with_cases({"mine": one}).cases) == [SOFTMAX, "mine"]


def test_what_kills_a_mistake_is_looked_for_in_one_component_first(torn: Path, spec: Spec):
    assert next(read_lazily(torn).cases_killing("softmax-whole-array", "softmax")).component == "softmax"
    found = [case.id for case in spec.cases_killing("scale-bwd", "softmax")]
    assert found
    assert sorted(found) == sorted(case.id for case in spec.cases.values() if "scale-bwd" in case.kills)
    one = replace(spec.cases[SOFTMAX], id="mine", kills=("scale-bwd",))
    assert [case.id for case in spec.with_cases({"mine": one}).cases_killing("scale-bwd", "softmax")] == [
        *found,
        "mine",
    ]
    few = replace(spec, cases={"mine": one, SOFTMAX: spec.cases[SOFTMAX]})
    assert list(few.cases_killing("scale-bwd", "softmax")) == [one]


# Workers of grading are sent the spec, whatever was read of it until then.
def test_a_spec_can_be_sent_before_and_after_it_is_read(spec_copy: Path):
    keep(spec_copy, ["softmax", "causal_mask"])
    spec = read_lazily(spec_copy)
    for _ in range(2):
        sent = pickle.loads(pickle.dumps(spec))
        assert isinstance(sent.cases, Cases)
        assert list(sent.cases) == list(spec.cases)
        assert sent.mistakes.keys() == spec.mistakes.keys()


def test_problems_can_be_sent(torn: Path):
    with pytest.raises(SpecError) as error:
        len(read_lazily(torn).errata)
    sent = pickle.loads(pickle.dumps(error.value))
    assert (str(sent), sent.problems) == (str(error.value), error.value.problems)


#: References that nobody follows who checks one component: the lint reads everything, and follows them.
UNFOLLOWED = [
    ("cases/softmax.yaml", "meant_for: [softmax-whole-array]", "meant_for: [softmax-nowhere]"),
    ("golden/softmax.json", '"kills": ["softmax-whole-array"]', '"kills": ["softmax-nowhere"]'),
    ("properties.yaml", "catches: [softmax-unstable]", "catches: [softmax-nowhere]"),
    ("conventions.yaml", "clause: PE-6", "clause: PE-66"),
]


@pytest.mark.parametrize(("file", "old", "new"), UNFOLLOWED, ids=[file for file, _, _ in UNFOLLOWED])
def test_reading_all_of_it_follows_every_reference(spec_copy: Path, file, old, new):
    keep(spec_copy, ["softmax"])
    edit(spec_copy, file, old, new)
    assert len(read_lazily(spec_copy).cases) > 10
    with pytest.raises(SpecError, match=re.escape(file)):
        load(spec_copy)

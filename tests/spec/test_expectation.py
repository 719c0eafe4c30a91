"""Check the expectations that a random output may have; the loader refuses the rest, naming file, line and field."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from goldformer.spec import Spec, SpecError
from goldformer.spec.model import ANY, Statistic, Wanted
from spoiling import bring, edit_golden, keep, load

DROPOUT, XAVIER = "dropout", "xavier_uniform"
ATTENTION = "scaled_dot_product_attention"


@pytest.fixture
def copy(spec_copy: Path) -> Path:
    """A spec to be spoilt, with the case files of what is drawn."""
    keep(spec_copy, [DROPOUT, XAVIER, "softmax"])
    return spec_copy


def edit(root: Path, component: str, id_: str, old: str, new: str) -> int:
    """Replace the first `old` behind the line of an id, and say on which line `expect` stands."""
    path = root / "cases" / f"{component}.yaml"
    if not path.exists():
        bring(root, component)
    text = path.read_text(encoding="utf-8")
    start = text.index(f"id: {id_}\n")
    place = text.index(old, start, text.find("\n  - id: ", start))
    path.write_text(text[:place] + new + text[place + len(old) :], encoding="utf-8")
    return text.count("\n", 0, text.index("expect:", start)) + 1


def refusals(root: Path, *, underived: bool = False) -> list[str]:
    with pytest.raises(SpecError, match=re.escape(str(root))) as error:
        load(root, underived=underived)
    return [str(problem).removeprefix(f"{root}/") for problem in error.value.problems]


def test_the_copy_loads_as_it_is(copy: Path):
    case = load(copy).cases["do-tenth"]
    names: tuple[Statistic, ...] = ("zeros", "mean", "mean_square", "largest")
    assert case.expect == {"output": Wanted("statistics", statistics=names)}
    golden = case.golden.options[ANY]["output"]
    assert tuple(golden.within) == names
    assert golden.values.tolist() == [0.1, 1, 1.1111111111111111, 1.1111111111111111]


ALL_FOUR = "{statistics: [zeros, mean, mean_square, largest]}"
RANDOM = "is random: ask for its statistics or for its shape"
FIXED = "is not random: ask for all of it, for probes or for its shape"
UNKNOWN_LAW = (
    "has a known distribution where query is 0, there is no mask, and each row of value has at most one 1 and "
    "zeros elsewhere"
)

#: What: component, case, the text and its replacement, the output in `expect`, what is said of it.
REFUSED = {
    "statistics of a component that draws nothing": (
        "softmax", "sm-four-axes", "{output: all}", "{output: {statistics: [mean]}}", "output", FIXED,
    ),
    "statistics without training": (
        DROPOUT, "do-evaluation", "{output: all}", "{output: {statistics: [mean]}}", "output", FIXED,
    ),
    "statistics at a rate of 0": (
        DROPOUT, "do-nothing-dropped", "{output: all}", "{output: {statistics: [mean]}}", "output", FIXED,
    ),
    "all of a random output": (DROPOUT, "do-tenth", ALL_FOUR, "all", "output", RANDOM),
    "probes of a random output": (DROPOUT, "do-tenth", ALL_FOUR, "{probes: [[0, 0, 0]]}", "output", RANDOM),
    "drawn probes of a random weight": (
        XAVIER, "xu-wide", "{statistics: [mean, mean_square, largest]}", "{drawn: 3, seed: 1}", "weight", RANDOM,
    ),
    "the largest of unequal elements": (
        DROPOUT, "do-three-tenths", "mean_square]", "mean_square, largest]", "output",
        "has no largest: the elements have 33 magnitudes, not one",
    ),
    "the largest of few": (
        DROPOUT, "do-one-row", "n: 8192", "n: 39", "output",
        "has no largest: there are so few elements that all may be dropped",
    ),
    "zeros among any numbers": (
        XAVIER, "xu-wide", "[mean, mean_square", "[zeros, mean, mean_square", "weight",
        "has no zeros: an element that may be any number is 0 only by rounding",
    ),
    "a statistic twice": (
        DROPOUT, "do-tenth", "[zeros, mean,", "[zeros, mean, mean,", "output",
        "names a statistic twice: zeros, mean, mean, mean_square, largest",
    ),
    "weights under dropout": (
        ATTENTION, "sdpa-dropout-each-weight", "{output: {stat", "{weights: shape, scores: all, output: {stat", "", "",
    ),
    "weights under dropout, all of them": (
        ATTENTION, "sdpa-dropout-each-weight", "{output: {stat", "{weights: all, output: {stat", "weights",
        "is not specified where weights are dropped",
    ),
    "weights that mix": (
        ATTENTION, "sdpa-dropout-sum", "query: {fill: 0}", "query: {fill: 1}", "output", UNKNOWN_LAW,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("component", "id_", "old", "new", "output", "message"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_of_a_random_output_is_refused_at_its_line(
    copy: Path, component, id_, old, new, output, message
):
    line = edit(copy, component, id_, old, new)
    if not output:
        # A shape, and what comes before the weights, may be asked for.
        assert load(copy, underived=True).cases[id_].expect["scores"].form == "all"
        return
    (refusal,) = [text for text in refusals(copy, underived=True) if "is no working case of this file" not in text]
    index = int(re.search(r"cases\[(\d+)\]", refusal)[1])
    assert refusal == f"cases/{component}.yaml:{line}: cases[{index}].expect.{output}: {id_}: {message}"


@pytest.mark.parametrize(
    ("old", "new", "field", "message"),
    [
        (
            "[zeros, mean,", "[zeros, median,", "expect.output.statistics[1]",
            "Input should be 'zeros', 'mean', 'mean_square' or 'largest', got 'median'",
        ),
        (ALL_FOUR, "{statistics: []}", "expect.output.statistics",
         "List should have at least 1 item after validation, not 0, got []"),
        (ALL_FOUR, "{statistics: [mean], seed: 1}", "expect.output.seed",
         "does not go with the other keys that are here"),
    ],
    ids=["unknown", "none", "with a seed"],
)  # fmt: skip
def test_a_statistic_that_is_none_is_refused_at_its_line(copy: Path, old, new, field, message):
    line = edit(copy, DROPOUT, "do-tenth", old, new)
    assert f"cases/dropout.yaml:{line}: cases[0].{field}: {message}" in refusals(copy)


def golden_refusal(copy: Path) -> str:
    # The error cases fall with their base.
    return re.split(r"[:.] ?do-tenth: ", refusals(copy)[0])[1]


def test_golden_statistics_are_those_that_the_case_asks_for(copy: Path):
    edit_golden(copy, "do-tenth", '"zeros": {"value": 0.1, "within": 0.0165},', "")
    asked = "the case asks for zeros, mean, mean_square, largest: run goldformer derive"
    assert golden_refusal(copy) == f"output has the statistics mean, mean_square, largest, {asked}"


def test_golden_values_are_no_statistics(copy: Path):
    path = copy / "golden/dropout.json"
    text = path.read_text(encoding="utf-8")
    block = re.search(r'"statistics": \{\n( {12}.*\n)+ {10}\}', text)[0]
    path.write_text(text.replace(block, '"values": [1, 2]', 1), encoding="utf-8")
    asked = "the case asks for zeros, mean, mean_square, largest: run goldformer derive"
    assert golden_refusal(copy) == f"output has the statistics none, {asked}"


def test_statistics_are_no_golden_values(copy: Path):
    values = '"values": [-1.0625, -0.125, 0.96875, 1.1875, 1.5, 1.0625, -1.5]'
    edit_golden(copy, "do-evaluation-one-row", values, '"statistics": {"mean": {"value": 0, "within": 1}}')
    (refusal,) = refusals(copy)
    said = "output has the statistics mean, the case asks for none: run goldformer derive"
    assert refusal.endswith(f": cases.do-evaluation-one-row: {said}")


@pytest.mark.parametrize(
    ("old", "new"),
    [("rate: 0.1", "rate: 0.2"), ("seed: 1", "seed: 2"), ("fill: 1", "fill: 2"), ("[8, 25]", "[8, 26]")],
)
def test_whatever_decides_a_statistic_makes_its_golden_values_stale(copy: Path, old, new):
    edit(copy, DROPOUT, "do-tenth", old, new)
    assert golden_refusal(copy) == "was changed after its golden values were derived: run goldformer derive"


def test_every_output_that_is_drawn_is_asked_for_its_statistics(spec: Spec):
    forms = {(name, want.form) for case in spec.cases_of(XAVIER) for name, want in case.expect.items()}
    # The bias is zeros, which nobody draws.
    assert forms == {("weight", "statistics"), ("bias", "all")}

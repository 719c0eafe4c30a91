"""The statements of transformer.md about its data are true: axes, keys, numbers of the tolerance, versions, changes."""

from __future__ import annotations

import re

import pytest

from goldformer.adapters import DTYPES
from goldformer.conformance.judging.tolerance import AVERAGE, COMMON, LEAST_ROWS, tolerance
from goldformer.spec import ROOT, Spec
from goldformer.spec.case_schema import (
    AllParamsModel,
    AllUniformModel,
    CaseModel,
    ChangeModel,
    DrawnModel,
    ErrorModel,
    ProbesModel,
    RangeModel,
    RealModel,
    StatisticsModel,
)
from goldformer.spec.contractfile import ArrayEntry, BlockEntry, ContractFile
from goldformer.spec.draw import Dyadic, Fill, Mask, Uniform, Values
from goldformer.spec.goldenfile import GoldenArrayModel, GoldenCaseModel, GoldenStatisticsModel
from goldformer.spec.model import AttributeEntry
from goldformer.spec.oracle.draws import ROUNDOFF, SAMPLES
from goldformer.spec.oracle.rounding import ELEMENT, SLACK, SMALLEST, TF32, UNIT_ROUNDOFF, Rounding
from goldformer.spec.oracle.truth import MOST_SAMPLED

TEXT = (ROOT / "transformer.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def rows(section: str, heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without the heading."""
    _, _, after = SECTIONS[section].partition(f"| {heading} |")
    assert after, f"{section} has no table with {heading!r} in front"
    lines = after.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_axis_of_a_contract_is_explained(spec: Spec):
    explained = {name for row in rows("How to read the data", "name") for name in re.findall(r"\w+", row[0])}
    arrays = [
        array
        for contract in spec.contracts.values()
        for array in (*contract.inputs.values(), *contract.params.values(), *contract.outputs.values())
    ]
    axes = {symbol for array in arrays for axis in array.shape.axes for symbol in axis.symbols}
    assert len(axes) > 15
    assert axes <= explained


@pytest.mark.parametrize(
    ("heading", "models"),
    [
        ("key of a case", [CaseModel]),
        ("key in a golden file", [GoldenCaseModel, GoldenArrayModel, GoldenStatisticsModel]),
    ],
)
def test_every_key_of_the_data_is_explained(heading, models):
    explained = {key for row in rows("How to read the data", heading) for key in re.findall(r"`(\w+)`", row[0])}
    keys = {key for model in models for key in model.model_fields} - {"expect"}
    assert keys <= explained
    assert explained <= keys


@pytest.mark.parametrize(
    "model",
    [ContractFile, ArrayEntry, AttributeEntry, BlockEntry, Dyadic, Uniform, Values, Fill,
     Mask, AllParamsModel, AllUniformModel, RangeModel, ProbesModel, DrawnModel, RealModel, StatisticsModel,
     ErrorModel, ChangeModel],
    ids=lambda model: model.__name__,
)  # fmt: skip
def test_every_key_of_contracts_and_recipes_is_explained(model):
    text = SECTIONS["How to read the data"] + SECTIONS["The drawing of inputs"]
    shown = " ".join(re.findall(r"`[^`\n]+`", text))
    assert not {key for key in model.model_fields if not re.search(rf"\b{key}\b", shown)}


def test_the_numbers_of_the_tolerance_are_those_in_force():
    section = "Golden values and tolerance"
    assert rf"\text{{slack}} = {SLACK:g}" in SECTIONS[section]
    assert f"on {SAMPLES} samples" in SECTIONS[section]
    assert ROUNDOFF == 2.0**-34
    assert "ρ = 2^−34" in SECTIONS[section]
    limits = rf"\le {ELEMENT:g}, \qquad", rf"\le {AVERAGE:g} \Big(1", rf"\le {COMMON:g}\,u"
    assert all(limit in SECTIONS[section] for limit in limits)
    assert f"outputs of at least {LEAST_ROWS} rows" in SECTIONS[section]
    assert f"at most 2^{MOST_SAMPLED.bit_length() - 1} numbers" in SECTIONS[section]
    dtypes = re.search(r"\| dtype \| (.+) \|", SECTIONS[section])[1].split(" | ")
    powers = {row[0]: [2.0 ** int(cell.removeprefix("2^").replace("−", "-")) for cell in row[1:]]
              for row in rows(section, "dtype")}  # fmt: skip
    # TF32 is no dtype: it is the precision of products of float32, where a run allows it.
    assert dict(zip(dtypes, powers["u"], strict=True)) | {TF32: 2.0**-11} == UNIT_ROUNDOFF
    assert dict(zip(dtypes, powers["m"], strict=True)) | {TF32: 2.0**-149} == SMALLEST
    assert dict(zip(dtypes, powers["w"], strict=True)) == {dtype: Rounding.of(dtype).sums for dtype in dtypes}


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_formulas_of_the_tolerance_are_those_in_force(dtype):
    """Computed as the text has it: slack · (u · scale + m), and slack · (w · scale + (u − w) · max|golden| + m)."""
    u, m, scale, largest = UNIT_ROUNDOFF[dtype], SMALLEST[dtype], 3.25, 7.5
    w = min(u, UNIT_ROUNDOFF["float32"])
    assert tolerance(dtype, scale, largest) == pytest.approx(4 * (u * scale + m), rel=1e-12)
    assert tolerance(dtype, scale, largest, "float32") == pytest.approx(
        4 * (w * scale + (u - w) * largest + m), rel=1e-12
    )


def test_the_newest_version_is_that_of_the_text():
    [version] = re.findall(r"^This is version (\d+\.\d+) of the edition `2017`\.", TEXT, re.MULTILINE)
    assert re.findall(r"^\*\*(\d+\.\d+)\*\*", SECTIONS["Changes"], re.MULTILINE)[0] == version


def test_changes_name_clauses_that_exist(spec: Spec):
    named = {id_ for row in rows("Changes", "clauses") for id_ in re.findall(r"[A-Z]+-\d+", row[0])}
    assert len(named) > 20
    assert named <= set(spec.clauses)


#: The clauses of version 1.0, by the letters of their ids: numbered from 1 to this.
FIRST = {
    "CALL": 7, "NUM": 1, "SM": 4, "SDPA": 10, "MASK": 7, "EMB": 3, "PE": 9, "MHA": 9, "FMHA": 4, "SHA": 7, "SEQ": 2,
    "FFN": 2, "LN": 4, "LAYER": 5, "STACK": 2, "MODEL": 6, "OUT": 2, "DEC": 6, "BEAM": 5, "LOSS": 6, "GRAD": 3,
    "INIT": 2, "DROP": 3,
}  # fmt: skip


def test_no_id_is_lost_and_changes_name_the_new_ones(spec: Spec):
    first = {f"{letters}-{number}" for letters, last in FIRST.items() for number in range(1, last + 1)}
    assert first <= set(spec.clauses)
    named = {id_ for row in rows("Changes", "clauses") for id_ in re.findall(r"[A-Z]+-\d+", row[0])}
    own = {id_ for id_, clause in spec.clauses.items() if clause.edition == "2017"}
    assert own - first - named == set(), "name them under Changes in transformer.md"


def test_the_second_text_has_the_newest_version_and_names_the_clauses_of_its_first(spec: Spec):
    text = (ROOT / spec.editions["decoder-only"].text).read_text(encoding="utf-8")
    (versions,) = re.findall(r"^## Changes\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^\*\*(\d+\.\d+)\*\*", versions, re.MULTILINE)[0] == spec.editions["decoder-only"].version
    ranges = re.findall(r"([A-Z]+)-1 … \1-(\d+)", versions)
    named = {f"{letters}-{number}" for letters, last in ranges for number in range(1, int(last) + 1)}
    named |= set(re.findall(r"[A-Z]+-\d+", versions))
    assert {id_ for id_, clause in spec.clauses.items() if clause.edition == "decoder-only"} == named


def test_a_refusal_is_asked_for_in_the_words_that_the_text_sets(spec: Spec):
    assert 'with the words "is an error" or "are an error"' in SECTIONS["Conformance"]
    asking = {id_ for id_, clause in spec.clauses.items() if clause.demands_refusal}
    assert {"CALL-6", "CALL-8", "SDPA-9", "EMB-2", "LAYER-1", "SHA-10"} <= asking
    # What may be an error, and what may be refused, need not be.
    assert not asking & {"PE-4", "PE-7", "CALL-7", "CALL-9", "SM-1"}


def test_the_words_of_a_clause_have_no_formula(spec: Spec) -> None:
    clause = spec.clauses["SDPA-2"]
    assert clause.text.count("$$") == 2
    assert clause.words == clause.text.partition("\n\n$$")[0]
    assert not [id_ for id_, other in spec.clauses.items() if "$$" in other.words or not other.words.strip()]

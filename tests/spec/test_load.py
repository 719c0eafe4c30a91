"""The loader reads what is changed in a way that matters to no value; tests/refusals has what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from spoiling import bring, edit, keep, load

#: Case files that load in milliseconds; `bring` adds another one.
KEPT = ["causal_mask", "padding_mask", "softmax"]


@pytest.fixture
def copy(spec_copy: Path) -> Path:
    """A spec to be spoilt, with the case files that are quick to load."""
    keep(spec_copy, KEPT)
    return spec_copy


def test_the_copy_loads_as_it_is(copy: Path):
    assert {case.component for case in load(copy).cases.values()} == set(KEPT)


# ── one recipe for all parameters but some ──

DECODED = "greedy-ends-at-step-2"
BUT = "but: {w_vocab: {draw: dyadic, seed: 10645, range: [-2, 2], step: 1/16}}"


def test_parameters_under_but_have_recipes_of_their_own(copy: Path):
    file, name = bring(copy, "greedy_decode"), "decoder.0.norm_1.gamma"
    plain = load(copy).cases[DECODED].param_arrays
    edit(copy, file, BUT, BUT[:-1] + f", {name}: {{fill: 1}}, b_vocab: {{fill: 2}}}}", DECODED)
    changed = load(copy, underived=True).cases[DECODED].param_arrays
    assert changed[name].tolist() == [1] * 6
    # Biases are left out but for the one that is written.
    assert changed.keys() - plain.keys() == {"b_vocab"}
    assert [n for n in plain if plain[n].tolist() != changed[n].tolist()] == [name]


# ── what may change without a refusal ──


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("title: Scores of several", "title: Rows of many"),
        ("[SM-1, SM-2]", "[SM-2]"),
        ("source: derived", "source: {document: java, rows: [J1]}"),
        ("    meant_for: [softmax-whole-array]\n", "    # a comment\n    meant_for: [softmax-unstable]\n"),
    ],
    ids=["title", "clauses", "source", "meant_for"],
)
def test_what_decides_no_value_needs_no_new_derivation(copy: Path, old, new):
    edit(copy, "cases/softmax.yaml", old, new, "sm-four-axes")
    assert load(copy).cases["sm-four-axes"].golden is not None


def test_stale_golden_values_are_left_out_where_deriving_starts(copy: Path):
    edit(copy, "cases/softmax.yaml", "[0, 1, 3]", "[0, 1, 2]", "sm-one-row-by-hand")
    cases = load(copy, underived=True).cases
    assert [case.id for case in cases.values() if case.golden is None and not case.error] == ["sm-one-row-by-hand"]


def test_a_new_option_of_a_convention_makes_its_golden_values_stale(copy: Path):
    bring(copy, "scaled_dot_product_attention")
    edit(copy, "conventions.yaml", "      nan: weights", "      mean: another\n      nan: weights")
    stale = [case.id for case in load(copy, underived=True).cases.values() if case.golden is None and not case.error]
    assert stale == [
        "sdpa-empty-row",
        "sdpa-empty-row-one-sample",
        "sdpa-empty-row-by-query",
        "sdpa-heads-empty-row",
        "sdpa-heads-empty-queries-in-front",
    ]


def test_a_case_that_is_silent_on_a_convention_is_one_of_its_default(copy: Path):
    bring(copy, "layer_norm")
    edit(copy, "cases/layer_norm.yaml", "    convention: [layer_norm_eps, norm_divisor]\n", "", "ln-every-bit")
    case = load(copy, underived=True).cases["ln-every-bit"]
    assert case.only_with["layer_norm_eps"] == "1e-5"


def test_a_refusal_holds_for_every_option(spec):
    assert not any(case.only_with for case in spec.cases_of("layer_norm") if case.error)


def test_a_place_is_a_thread_a_file_or_a_repository(copy: Path):
    places = (
        "Kyubyong/transformer#60",
        "Kyubyong/transformer:modules.py (read, lines 1 and 2)",
        "Kyubyong/transformer",
    )
    edit(copy, "mistakes.yaml", "Kyubyong/transformer#60 (claimed)", "\n      - ".join(places), "scale-missing")
    assert load(copy).mistakes["scale-missing"].seen == places

"""A case that is blind to one of its arguments is found, and so is one that only says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from goldformer.conformance.judging.tolerance import tolerance
from goldformer.spec import Case, Spec, load_spec
from goldformer.spec.draw import Argument, Dyadic, Fill, Ids
from goldformer.spec.making.plain import PlainCase
from goldformer.spec.making.vacuity import ENOUGH, find_vacuous
from goldformer.spec.model import ANY, Blind, Golden

COMPONENTS = sorted(load_spec().contracts)
MEND = ": choose inputs that show it, or say why not in blind"
NOTHING = "nothing that is compared moves with "

MHA = "mha-distinct-sizes"
ENCODER = "encs-two-layers"


def altered(case: Case, *, inputs: Any = None, params: Any = None, **fields: Any) -> Case:
    """A case with other recipes for some arguments, in the shapes that they have; it says nothing of blindness."""
    recipes = {
        group: {**old, **(new or {})}
        for group, old, new in (("inputs", case.inputs, inputs), ("params", case.params, params))
    }
    return replace(case, **{"blind": (), **recipes, **fields})


def find_problems(spec: Spec, case: Case) -> list[str]:
    """Return the problems found in a case, without the advice that ends each."""
    found = list(find_vacuous(replace(spec, cases={case.id: case})))
    assert all(problem.file == case.place.file and problem.line == case.place.line for problem in found)
    return [f"{problem.field}: {problem.message}".removeprefix(f"{case.id}: ").removesuffix(MEND) for problem in found]


def zeros(case: Case, *names: str) -> Mapping[str, Argument]:
    return {name: Argument(Fill(fill=0), {**case.inputs, **case.params}[name].shape) for name in names}


def one_output(case: Case, name: str, values: Any) -> Golden:
    """The golden half of a case whose output `name` has these values."""
    outputs = case.golden.options[ANY]
    array = replace(outputs[name], values=np.asarray(values))
    return replace(case.golden, options={ANY: {**outputs, name: array}})


# ── arguments ──


def test_a_case_that_shows_everything_is_not_found(spec: Spec):
    for id_ in (MHA, ENCODER, "sdpa-walkthrough-3x2", "ce-padding-id-3", "mask-causal-4", "greedy-distinct-sizes"):
        assert find_problems(spec, altered(spec.cases[id_])) == [], id_


def test_each_layer_counts(spec: Spec):
    case = spec.cases[ENCODER]
    query = "encoder.1.self_attention"
    dead = altered(case, params=zeros(case, f"{query}.w_q", f"{query}.b_q"))
    assert find_problems(spec, dead) == [
        f"{NOTHING}{query}.w_q, {query}.b_q, {query}.w_k set to zero",
        f"{NOTHING}{query}.b_q in reverse order",
        f"{NOTHING}{query}.w_q, {query}.w_k transposed",
    ]


def test_of_many_names_the_first_are_listed(spec: Spec):
    case = spec.cases[ENCODER]
    ends = [f"encoder.{layer}.{part}" for layer in (0, 1) for part in ("self_attention.w_o", "self_attention.b_o")]
    [found, *_] = find_problems(spec, altered(case, params=zeros(case, *ends)))
    names = ", ".join(f"encoder.0.self_attention.{name}" for name in ("w_q", "b_q", "w_k", "w_v"))
    assert found == f"{NOTHING}{names} and 10 more set to zero"


def test_a_symmetric_matrix_and_a_vector_of_one_value_are_found(spec: Spec):
    case = spec.cases["mha-symmetric-weights"]
    other = spec.cases["mha-uniform-heads-as-keys"]
    assert find_problems(spec, altered(case)) == [f"{NOTHING}w_q, w_k, w_v, w_o transposed"]
    assert other.params["b_o"].shape == (15,)
    assert f"{NOTHING}b_o in reverse order" in find_problems(
        spec, altered(other, params={"b_o": Argument(Fill(fill=0.5), (15,))})
    )


def test_an_input_of_zeros_is_found(spec: Spec):
    case = spec.cases["pe-d-6"]
    assert find_problems(spec, altered(case)) == [f"{NOTHING}x set to zero"]


@pytest.mark.parametrize(
    ("fill", "found"), [(True, "mask True everywhere"), (False, "mask False everywhere")], ids=["nothing", "all"]
)
def test_a_mask_hides_something_and_leaves_something(spec: Spec, fill, found):
    case = spec.cases["sdpa-mask-full"]
    assert find_problems(spec, altered(case)) == []
    mask = altered(case, inputs={"mask": Argument.of(np.full(case.inputs["mask"].shape, fill))})
    assert [text for text in find_problems(spec, mask) if "mask" in text] == [NOTHING + found]


def test_what_a_mask_hides_has_to_show(spec: Spec):
    case = spec.cases["sdpa-masked-keys-far-below"]
    assert find_problems(spec, altered(case)) == [f"{NOTHING}mask True everywhere"]


def test_ids_that_could_be_any_are_found(spec: Spec):
    assert f"{NOTHING}the ids of targets raised by one" in find_problems(spec, altered(spec.cases["ce-uniform-logits"]))


def test_ids_without_padding_are_found(spec: Spec):
    case = spec.cases["tf-one-layer-each"]
    full = altered(
        case,
        inputs={
            name: Argument(Ids(draw="ids", seed=1, range=(1, 12)), case.inputs[name].shape) for name in case.inputs
        },
    )
    assert find_problems(spec, full) == [f"{NOTHING}padding taken for words"]


# ── how far is far enough ──


def test_a_hundred_tolerances_are_enough():
    assert tolerance("float32", 1.0, 0.0) * 100 == pytest.approx(ENOUGH)


def test_what_rounding_could_hide_does_not_show(spec: Spec):
    assert find_problems(spec, altered(spec.cases["sdpa-tiny-scores"])) == [f"{NOTHING}query, key set to zero"]


# ── outputs ──


def test_an_output_of_one_value_is_found(spec: Spec):
    case = spec.cases[MHA]
    weights = case.golden.options[ANY]["weights"].values
    alike = replace(case, golden=one_output(case, "weights", np.full_like(weights, 0.2)))
    assert find_problems(spec, alike) == ["weights is one value everywhere"]


def test_weights_that_are_all_0_or_1_are_found(spec: Spec):
    case = spec.cases[MHA]
    weights = case.golden.options[ANY]["weights"].values
    hard = replace(case, golden=one_output(case, "weights", np.round(weights)))
    assert find_problems(spec, hard) == ["weights is 0 or 1 everywhere"]


# ── gradients, chance and decoding ──


def test_a_gradient_shows_its_own_argument(spec: Spec):
    """A parameter that is only added has a gradient of its own and moves no other."""
    case = spec.cases["enc-gradient"]
    assert find_problems(spec, altered(case)) == []
    outputs = {name: array for name, array in case.golden.options["post"].items() if name != "norm_2.beta"}
    without = replace(case, golden=replace(case.golden, options={"post": outputs}))
    assert find_problems(spec, without) == [
        f"{NOTHING}norm_2.beta set to zero",
        f"{NOTHING}norm_2.beta in reverse order",
    ]


def test_a_random_output_shows_what_its_law_depends_on(spec: Spec):
    assert find_problems(spec, altered(spec.cases["sdpa-dropout-sum"])) == [f"{NOTHING}query, key set to zero"]
    assert find_problems(spec, spec.cases["do-half"]) == []
    # With another value in the place of 0 there is no law to judge by, so that the case could not be.
    assert find_problems(spec, altered(spec.cases["do-half"], inputs=zeros(spec.cases["do-half"], "x"))) == [
        f"{NOTHING}x set to zero"
    ]


@pytest.mark.parametrize("id_", ["greedy-distinct-sizes", "beam-three-sources"])
def test_decoding_shows_its_parameters_in_the_scores(spec: Spec, id_):
    case = spec.cases[id_]
    attention = "decoder.0.self_attention"
    dead = altered(case, params=zeros(case, f"{attention}.w_o"))
    names = ", ".join(f"{attention}.{name}" for name in ("w_q", "w_k", "w_v", "w_o"))
    assert find_problems(spec, dead)[0] == f"{NOTHING}{names} set to zero"


@pytest.mark.parametrize("padding", [0, 99])
def test_what_fills_the_places_behind_the_end_is_no_word(spec: Spec, padding):
    case = spec.cases["greedy-padding-beyond-the-table"]
    assert case.attributes["pad_id"] == 9
    filled = replace(case, attributes={**case.attributes, "pad_id": padding})
    assert [text for text in find_problems(spec, filled) if "set to zero" in text] == []


def plain(spec: Spec, case: Case) -> PlainCase:
    return PlainCase(case, spec.contracts[case.component], spec.conventions)


@pytest.mark.sample(10)
@pytest.mark.parametrize("component", COMPONENTS)
def test_plain_numbers_are_the_golden_ones(component: str, spec: Spec):
    compared = 0
    for case in spec.cases_of(component):
        if case.golden is None or case.full_size or case.cotangent is not None:
            continue
        how = plain(spec, case)
        if how.is_random or {"ids", "scores"} <= set(how.contract.outputs):
            continue
        for name, values in how.compute({}).items():
            golden = how.golden[name]
            within = 64 * 2.0**-53 * golden.error_scale
            np.testing.assert_allclose(values, golden.values, rtol=0, atol=within, err_msg=f"{case.id} {name}")
        compared += 1
    # Searches decide, and a draw is judged by its statistics.
    assert (compared == 0) == (component in {"beam_search", "greedy_decode", "xavier_uniform"})


def test_a_slope_is_the_golden_gradient_along_one_direction(spec: Spec):
    case = spec.cases["sdpa-gradient"]
    how = plain(spec, case)
    slopes = how.compute({})
    assert set(slopes) == set(how.golden)
    for name, golden in how.golden.items():
        weights = Dyadic(draw="dyadic", seed=0, range=(-1, 1), step="1/256").build(name, golden.values.shape)
        assert float(slopes[name]) == pytest.approx(np.sum(weights * golden.values), rel=1e-12)


def test_a_slope_goes_by_the_places_that_are_compared(spec: Spec):
    """Where no query may see a key, its gradient is 0; elsewhere it is not."""
    case = spec.cases["sdpa-gradient-exactly-zero"]
    assert {name: float(slope) for name, slope in plain(spec, case).compute({}).items()} == {"key": 0, "value": 0}
    [array, *others] = case.golden.options[ANY].values()
    elsewhere = replace(case, golden=replace(case.golden, options={ANY: {"key": replace(array, indices=((0, 0, 0),))}}))
    assert len(others) == 1
    assert float(plain(spec, elsewhere).compute({})["key"]) != 0


def test_the_words_that_were_found_are_scored_as_they_were_found(spec: Spec):
    case = spec.cases["greedy-distinct-sizes"]
    how = plain(spec, case)
    there = how.golden["token_scores"].values
    found = how.compute({})["scores"]
    np.testing.assert_allclose(found, there[there != 0], rtol=0, atol=1e-12)


# ── reasons ──


def reason(*parts: str) -> tuple[Blind, ...]:
    return (Blind(to=parts, because="that is its point"),)


@pytest.mark.parametrize(
    "parts",
    [
        ("encoder.0.self_attention.w_q", "encoder.0.self_attention.b_q", "encoder.0.self_attention.w_k"),
        ("encoder.0.self_attention",),
        ("encoder.0.self_attention", "encoder.0.self_attention.w_q"),
    ],
    ids=["full names", "a part of the names", "both"],
)
def test_a_reason_covers_what_its_names_are_part_of(spec: Spec, parts):
    case = spec.cases[ENCODER]
    attention = [name for name in case.params if name.startswith("encoder.0.self_attention.")]
    dead = zeros(case, *(attention if len(parts) < 3 else [n for n in attention if n[-3:] in ("w_q", "b_q")]))
    assert find_problems(spec, altered(case, params=dead, blind=reason(*parts))) == []


def test_a_reason_that_covers_too_much_is_found(spec: Spec):
    case = spec.cases["mha-symmetric-weights"]
    wide = replace(case, blind=reason("w_q", "w_k", "w_v", "w_o", "b_q"))
    assert find_problems(spec, wide) == [
        "mha-symmetric-weights.blind: says that nothing shows of b_q, but b_q does: leave it out"
    ]
    case = spec.cases["tf-first-step"]
    wide = replace(case, blind=reason("w_q", "b_q", "w_k"))
    first = "encoder.0.self_attention"
    assert find_problems(spec, wide) == [
        f"tf-first-step.blind: says that nothing shows of {name}, but {first}.{name} does: leave it out"
        for name in ("w_q", "b_q", "w_k")
    ]


def test_a_reason_for_an_output_and_for_padding_can_be_given_and_can_be_wrong(spec: Spec):
    silent = replace(spec.cases["mask-padding-none"], blind=reason("ids", "mask", "padding"))
    assert find_problems(spec, silent) == []
    telling = next(c for c in spec.cases_of("padding_mask") if c.golden is not None and not c.blind)
    assert find_problems(spec, replace(telling, blind=reason("mask", "padding"))) == [
        f"{telling.id}.blind: says that nothing shows of {name}, but {name} does: leave it out"
        for name in ("mask", "padding")
    ]


def with_reason(spec: Spec, name: str, why: str | None) -> Spec:
    """The spec in which the contract of multi-head attention calls one parameter blind, or does not."""
    contract = spec.contracts["multi_head_attention"]
    params = {**contract.params, name: replace(contract.params[name], blind=why)}
    contracts = {**spec.contracts, contract.component: replace(contract, params=params)}
    return replace(spec, contracts=contracts)


def test_what_the_contract_calls_blind_needs_no_reason_in_each_case(spec: Spec):
    case = spec.cases["mha-gradient"]
    assert spec.contracts["multi_head_attention"].params["b_k"].blind
    assert find_problems(spec, case) == []
    assert find_problems(with_reason(spec, "b_k", None), case) == [
        f"{NOTHING}b_k set to zero",
        f"{NOTHING}b_k in reverse order",
        "b_k is one value everywhere",
    ]


def test_a_step_on_the_way_may_show_what_the_contract_calls_blind(spec: Spec):
    assert "k" in spec.cases[MHA].expect
    assert find_problems(spec, spec.cases[MHA]) == []


def test_a_contract_that_calls_blind_what_shows_is_found(spec: Spec):
    [found, *_] = find_problems(with_reason(spec, "b_v", "it is said to"), spec.cases[MHA])
    assert found == f"{MHA}.b_v: moves heads, output, v, but the contract calls b_v blind"

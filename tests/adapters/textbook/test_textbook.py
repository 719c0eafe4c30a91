"""The textbook gives the golden values: its formulas, read by NumPy, against numbers that balls have proven."""

import re
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

import reference_functions
from goldformer.adapters.builtin import reference
from goldformer.adapters.builtin import textbook as textbook_adapter
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.spec import load_spec
from goldformer.spec.formulas.options import OPTIONS, find_steps
from goldformer.spec.shapes import ContractViolation

SPEC = load_spec()
#: The most numbers of a call: larger calls have the same formulas, and take a hundred times as long.
LARGEST = 3000
#: The most cases of a component, every second or third one if there are more: each is a model that decodes.
MOST = 60
#: The options that replace a step, each with the first two components that have it.
CHOICES = [
    (name, option, component)
    for (name, option), steps in OPTIONS.items()
    if steps and option != SPEC.conventions[name].default
    for component in [c for c, contract in SPEC.contracts.items() if name in contract.conventions][:2]
]
textbook = build_textbook()


def judge(component, dtype, *layers, most=None, seeds=(), **declared):
    """The verdicts of the small cases of a component, on the textbook with steps replaced."""
    made = build_textbook(*layers, only=component, CONVENTIONS=declared)
    bench = Bench(SPEC, Adapter.from_object(made, "mine", SPEC), dtype, "cpu", Policy(strict=True))
    cases = [case for case in SPEC.cases_of(component) if case.size <= LARGEST or case.random]
    if seeds:
        cases = [replace(c, attributes={**c.attributes, "seed": seed}) for c in cases if c.random for seed in seeds]
    cases = cases[:: 1 + len(cases) // MOST]
    judged = (verdict for case in cases if (verdict := check_case(case, bench)).reason != "convention")
    return list(islice(judged, most))


def list_bad(verdicts):
    return [(verdict.check, verdict.message) for verdict in verdicts if verdict.bad]


@pytest.mark.parametrize("module", [textbook_adapter, reference], ids=["textbook", "reference"])
def test_the_adapters_have_every_component(module, spec):
    adapter = Adapter.from_object(module, "mine", spec)
    assert [*adapter.functions] == [*spec.contracts]
    assert not adapter.broken


@pytest.mark.parametrize("component", SPEC.contracts)
def test_the_textbook_gives_the_golden_values(component):
    verdicts = judge(component, "float64")
    assert any(verdict.is_judged for verdict in verdicts)
    assert list_bad(verdicts) == []


@pytest.mark.parametrize("component", SPEC.contracts)
def test_the_textbook_keeps_to_half_types(component):
    assert list_bad(judge(component, "float16", most=12)) == []


@pytest.mark.parametrize(("name", "option", "component"), CHOICES, ids=lambda part: part)
def test_the_textbook_gives_the_golden_values_of_an_option(name, option, component):
    assert list_bad(judge(component, "float64", find_steps(name, option), most=8, **{name: option})) == []


@pytest.mark.parametrize("component", ["dropout", "scaled_dot_product_attention", "xavier_uniform"])
def test_random_results_pass_with_other_seeds_too(component):
    verdicts = judge(component, "float32", seeds=range(10))
    assert len(verdicts) >= 10
    assert list_bad(verdicts) == []


def test_a_last_norm_without_parameters_scales_by_1_and_shifts_by_0():
    case = SPEC.cases["encs-two-layers"]
    given = {**case.input_arrays, **case.attributes, "params": case.param_arrays}
    normed = build_textbook(find_steps("final_norm", "after_stack")).encoder(**given)["output"]
    plain = textbook.encoder(**given)["output"]
    unit = {"gamma": np.ones(plain.shape[-1]), "beta": np.zeros(plain.shape[-1])}
    assert np.array_equal(normed, textbook.layer_norm(plain, params=unit))


# Gradients: an independent witness of those that no golden value holds


def gradients_of(function, given, cotangent):
    """The gradients of PyTorch with respect to each array of numbers, by name."""

    def track(thing):
        if isinstance(thing, dict):
            return {name: track(value) for name, value in thing.items()}
        return torch.tensor(thing, requires_grad=thing.dtype == float) if isinstance(thing, np.ndarray) else thing

    given = track(given)
    function(given).backward(torch.tensor(cotangent))
    leaves = {**given, **given["params"]}
    return {n: t.grad for n, t in leaves.items() if isinstance(t, torch.Tensor) and t.grad is not None}


@pytest.mark.parametrize("component", ["encoder_layer", "decoder"])
def test_gradients_under_the_option_pre_are_those_of_autograd(component):
    case = next(c for c in SPEC.cases_of(component) if c.cotangent is not None)
    given = {**case.input_arrays, **case.attributes, "params": case.param_arrays}
    function = getattr(reference_functions, component)
    expected = gradients_of(lambda g: function(**g, norm_first=True).output, given, case.cotangent_array)
    book = build_textbook(OPTIONS["norm_placement", "pre"])
    got = getattr(book, f"{component}_gradient")(**given, cotangent=case.cotangent_array)
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=1e-10, err_msg=name)


def test_under_the_option_fixed_the_row_of_the_padding_has_no_gradient():
    book = build_textbook(OPTIONS["pad_row", "fixed"])
    given = {"ids": np.array([[0, 4, 4], [1, 4, 0]]), "params": {"table": np.arange(18.0).reshape(6, 3)}}
    cotangent = np.ones((2, 3, 3))
    got = book.token_embedding_gradient(**given, cotangent=cotangent, pad_id=4)["table"]
    assert got.tolist() == [[2] * 3, [1] * 3, [0] * 3, [0] * 3, [0] * 3, [0] * 3]


# Refusals: the contract says which argument is refused, and test_shapes has what it says

X = np.ones((3, 5, 4))
REFUSED = [
    (lambda: textbook.layer_norm(X, params={}), "gamma is missing"),
    (lambda: textbook.layer_norm(X, params={"gamma": np.ones(3), "beta": np.ones(3)}),
     "gamma has an axis of 3 where d_model = 4 by x"),
    (lambda: textbook.one_hot(np.array([[18]]), vocab=18), "ids[0, 0] is 18, outside 0 … 17 (vocab)"),
    (lambda: textbook.one_hot(np.array([[0]]), vocab=0), "vocab is 0, less than 1"),
    (lambda: textbook.scaled_dot_product_attention(X, X, X, np.ones((5, 5))), "mask is float64, not boolean"),
    (lambda: textbook.dropout(X, rate=1.5, training=True, seed=1), "rate is 1.5, more than 1"),
    (lambda: textbook.dropout(X[:, :0], rate=0.0, training=True, seed=1), "x is empty: its shape is (3, 0, 4)"),
    (lambda: textbook.cached_attention(X[None], X[None], X[None, :, :2]),
     "value has an axis of 2 where seq = 5 by query"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_refusals_name_the_argument(call, message):
    with pytest.raises(ContractViolation, match=f"^{re.escape(message)}$"):
        call()


def test_a_later_call_of_a_session_has_the_mask_of_all_tokens_so_far():
    first, second = np.ones((1, 2, 3, 4)), np.ones((1, 2, 1, 4))
    state = textbook.cached_attention(first, first, first)["state"]
    mask = np.ones((1, 1, 1, 4), bool)
    assert textbook.cached_attention(second, second, second, mask, state)["output"].shape == (1, 2, 1, 4)
    with pytest.raises(ContractViolation, match=r"^mask has an axis of 4 where seq = 1 by query$"):
        textbook.cached_attention(second, second, second, mask)

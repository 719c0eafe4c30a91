"""The textbook's backward passes against autograd through the reference, and the mistakes that they make possible."""

import numpy as np
import pytest
import torch

from goldformer.adapters.builtin import reference
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook import Textbook
from goldformer.conformance.engine import Bench, check_case
from goldformer.conformance.invoke import name_outputs
from goldformer.conformance.verdict import Status

textbook = Textbook()


def draw(seed, *shape):
    return np.random.default_rng(seed).integers(-64, 65, shape) / 32


def some(seed, *shape):
    """A mask with an empty row, the first."""
    mask = np.random.default_rng(seed).random(shape) < 0.6
    mask[..., 0] = True
    mask[..., 0, :] = False
    return mask


QUERIES = {"query": draw(1, 3, 2, 4, 5), "key": draw(2, 3, 2, 7, 5), "value": draw(3, 3, 2, 7, 6)}
SQUARE = {"params": {f"w_{role}": draw(i, 5, 5) for i, role in enumerate("qkv", 10)}}
FEED = {"w_1": draw(20, 4, 7), "b_1": draw(21, 7), "w_2": draw(22, 7, 4), "b_2": draw(23, 4)}
BARE = {name: array for name, array in FEED.items() if name.startswith("w")}
TARGETS = np.array([[3, 0, 1], [2, 2, 1]])

CALLS = {
    "softmax": ("softmax", {"scores": draw(5, 2, 3, 4)}),
    "attention": ("scaled_dot_product_attention", QUERIES),
    "attention, a mask": ("scaled_dot_product_attention", QUERIES | {"mask": some(6, 3, 1, 4, 7)}),
    "single head": ("single_head_attention", {"x": draw(7, 6, 5), "causal": False} | SQUARE),
    "single head, causal": ("single_head_attention", {"x": draw(7, 6, 5), "causal": True} | SQUARE),
    "embedding": ("token_embedding", {"ids": np.array([[0, 4, 4], [1, 4, 0]]), "params": {"table": draw(8, 6, 3)}}),
    "feed-forward": ("feed_forward", {"x": draw(9, 2, 3, 4), "params": FEED}),
    "feed-forward, no biases": ("feed_forward", {"x": draw(9, 2, 3, 4), "params": BARE}),
    "layer norm": ("layer_norm", {"x": draw(30, 2, 3, 5), "params": {"gamma": draw(31, 5), "beta": draw(32, 5)}}),
    "layer norm, one row": ("layer_norm", {"x": draw(30, 5), "params": {"gamma": draw(31, 5), "beta": draw(32, 5)}}),
    "loss": ("cross_entropy", {"logits": draw(33, 2, 3, 5), "targets": TARGETS, "pad_id": 2}),
}


def tracked(thing):
    """Tensors that autograd follows, of the same form."""
    if isinstance(thing, dict):
        return {name: tracked(value) for name, value in thing.items()}
    return torch.tensor(thing, requires_grad=thing.dtype == float) if isinstance(thing, np.ndarray) else thing


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_backward_passes_are_those_of_autograd(call, spec):
    component, arguments = call
    given = tracked(arguments)
    contract = spec.contracts[component]
    output = name_outputs(getattr(reference, component)(**given), contract)[contract.first_output]
    cotangent = draw(40, *output.shape) + 0.25
    output.backward(torch.tensor(cotangent))
    leaves = {**given, **given.get("params", {})}
    expected = {n: t.grad for n, t in leaves.items() if isinstance(t, torch.Tensor) and t.requires_grad}

    got = getattr(textbook, f"{component}_gradient")(**arguments, cotangent=cotangent)
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_gradients_have_the_dtype_of_the_inputs(call, dtype):
    component, arguments = call

    def narrowed(thing):
        if isinstance(thing, dict):
            return {name: narrowed(value) for name, value in thing.items()}
        return thing.astype(dtype) if isinstance(thing, np.ndarray) and thing.dtype == float else thing

    given = narrowed(arguments)
    returned = getattr(textbook, component)(**given)
    first = next(iter(returned.values())) if isinstance(returned, dict) else returned
    first = first[0] if isinstance(first, tuple) else first
    got = getattr(textbook, f"{component}_gradient")(**given, cotangent=np.ones_like(first))
    assert {gradient.dtype for gradient in got.values()} == {np.dtype(dtype)}


# Every step can be replaced: a mistake is an override of a line or two


class WithoutTheRowTerm(Textbook):
    def row_term(self, weights, gradient):
        return 0.0


class DiagonalAlone(Textbook):
    def row_term(self, weights, gradient):
        return gradient * weights


class WithoutTheScale(Textbook):
    def scores_gradient(self, scaled, sizes):
        return scaled


class ThroughTheMask(Textbook):
    def seen_gradient(self, gradient, mask):
        return gradient


class LastRowWins(Textbook):
    def add_rows(self, table, ids, rows):
        table[ids] += rows


class ThroughTheRelu(Textbook):
    def activation_gradient(self, inner, gradient):
        return gradient


class ConstantStatistics(Textbook):
    def statistics_gradient(self, normal, gradient):
        return 0.0


class FirstAxisAlone(Textbook):
    def sum_of_rows(self, rows):
        return rows.sum(axis=0)


class SumOfLosses(Textbook):
    def mean_gradient(self, gradient, counted):
        return gradient


MISTAKES = {
    "softmax-bwd": WithoutTheRowTerm,
    "softmax-bwd-diagonal": DiagonalAlone,
    "scale-bwd": WithoutTheScale,
    "mask-bwd": ThroughTheMask,
    "emb-bwd-overwrite": LastRowWins,
    "relu-bwd": ThroughTheRelu,
    "ln-bwd": ConstantStatistics,
    "ln-bwd-rank": FirstAxisAlone,
    "ce-bwd-sum": SumOfLosses,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_fails_just_the_cases_that_claim_it(mistake, spec):
    bench = Bench(spec, Adapter.from_object(MISTAKES[mistake](), mistake, spec), "float64", "cpu")
    verdicts = [check_case(case, bench) for case in spec.cases.values() if case.cotangent is not None]
    judged = [v for v in verdicts if v.status is not Status.SKIPPED]
    assert [v.check for v in judged if v.bad] == [v.check for v in judged if mistake in v.catches]
    assert any(v.bad for v in judged)

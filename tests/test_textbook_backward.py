"""The textbook's backward passes against autograd through the reference, and the mistakes that they make possible."""

import numpy as np
import pytest
import torch

from goldformer.adapters.builtin import reference
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook import Textbook
from goldformer.conformance.engine import Bench, check_case
from goldformer.conformance.invoke import name_outputs
from goldformer.conformance.properties import check_property
from goldformer.conformance.run import load_properties
from goldformer.conformance.verdict import Status

STEP = "single_head_attention_step"

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


@pytest.mark.parametrize("causal", [False, True])
def test_three_steps_are_those_of_torch(causal):
    x, output_gradient = draw(50, 6, 5) / 2, draw(51, 6, 5) / 2
    leaves = {name: torch.tensor(array / 2, requires_grad=True) for name, array in SQUARE["params"].items()}
    tracked_x = torch.tensor(x, requires_grad=True)
    optimiser = torch.optim.SGD(leaves.values(), lr=0.1)
    for _ in range(3):
        optimiser.zero_grad()
        tracked_x.grad = None
        output = reference.single_head_attention(tracked_x, causal=causal, params=leaves)["output"]
        output.backward(torch.tensor(output_gradient))
        optimiser.step()

    given = {"causal": causal, "learning_rate": 0.1, "steps": 3}
    params = {name: array / 2 for name, array in SQUARE["params"].items()}
    got = textbook.single_head_attention_step(x, output_gradient, **given, params=params)
    for name, expected in {"x_gradient": tracked_x.grad, **leaves}.items():
        np.testing.assert_allclose(got[name], expected.detach(), rtol=0, atol=1e-13, err_msg=name)


STEP_ARGUMENTS = {
    "x": draw(50, 6, 5), "output_gradient": draw(51, 6, 5), "causal": True, "learning_rate": 0.1, "steps": 1, **SQUARE,
}  # fmt: skip
REFUSED = [
    ({"steps": 0}, "steps: 0, but training takes at least one step"),
    ({"learning_rate": -0.1}, "learning_rate: -0.1, but a step goes against the gradient, by 0 or more"),
    ({"learning_rate": float("nan")}, "learning_rate: nan, but a step"),
    ({"output_gradient": draw(51, 1, 5)}, r"output_gradient: shape \(1, 5\) is not \(seq, d_model\): seq is 6 in x"),
    ({"params": {**SQUARE["params"], "w_k": draw(1, 5, 4)}}, "w_k: shape .* d_model is 5 in x"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_refusals_name_the_argument(changed, message):
    with pytest.raises(ValueError, match=message):
        textbook.single_head_attention_step(**STEP_ARGUMENTS | changed)


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


class AgainstTheSign(Textbook):
    def moved(self, weight, gradient, learning_rate):
        return weight + learning_rate * gradient


class InputGradientAfterTheStep(Textbook):
    def weights_behind(self, before, after):
        return after


class OneWeightAfterTheOther(Textbook):
    def single_head_attention_step(self, x, output_gradient, *, causal, learning_rate, steps, params):
        weights, before = dict(params), dict(params)
        for _ in range(steps):
            before = dict(weights)
            for name in ("w_q", "w_k", "w_v"):
                gradients = self.single_head_attention_gradient(x, output_gradient, causal=causal, params=weights)
                weights[name] = self.moved(weights[name], gradients[name], learning_rate)
        gradients = self.single_head_attention_gradient(x, output_gradient, causal=causal, params=before)
        return {"x_gradient": gradients["x"], **weights}


class NeverCleared(Textbook):
    def cleared(self, gradients, earlier):
        return {name: gradient + earlier.get(name, 0) for name, gradient in gradients.items()}


class FirstForwardPass(Textbook):
    def forward_pass(self, x, weights, earlier, *, causal):
        return earlier or super().forward_pass(x, weights, earlier, causal=causal)


MISTAKES = {
    "sgd-sign": AgainstTheSign,
    "sgd-input-gradient-after-step": InputGradientAfterTheStep,
    "sgd-sequential": OneWeightAfterTheOther,
    "sgd-accumulated": NeverCleared,
    "sgd-forward-stale": FirstForwardPass,
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
    backward = [case for case in spec.cases.values() if case.cotangent is not None or case.component == STEP]
    verdicts = [check_case(case, bench) for case in backward if case.error is None]
    judged = [v for v in verdicts if v.status is not Status.SKIPPED]
    assert [v.check for v in judged if v.bad] == [v.check for v in judged if mistake in v.catches]
    assert any(v.bad for v in judged)


@pytest.mark.parametrize(
    ("mistake", "failing"),
    [
        ("sgd-sign", "shas-gradient"),
        ("sgd-input-gradient-after-step", "shas-gradient"),
        ("sgd-sequential", "shas-gradient"),
        ("sgd-accumulated", "shas-one-by-one"),
        ("sgd-forward-stale", "shas-one-by-one"),
    ],
)
@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_a_property_fails_too(mistake, failing, dtype, spec):
    load_properties()
    bench = Bench(spec, Adapter.from_object(MISTAKES[mistake](), mistake, spec), dtype, "cpu")
    verdicts = [check_property(prop, STEP, bench) for prop in spec.properties.values() if prop.component == STEP]
    assert [v.check for v in verdicts if v.bad] == [failing]


def test_steps_of_an_adapter_that_returns_the_input_gradient_alone_are_not_compared(spec):
    class InputGradientAlone:
        ARRAYS = "numpy"

        def single_head_attention_step(self, **given):
            return textbook.single_head_attention_step(**given)["x_gradient"]

    load_properties()
    bench = Bench(spec, Adapter.from_object(InputGradientAlone(), "alone", spec), "float64", "cpu")
    verdict = check_property(spec.properties["shas-one-by-one"], STEP, bench)
    assert (verdict.status, verdict.message) == (Status.SKIPPED, "alone does not return w_q, w_k, w_v")

"""Gradient cases: by autograd, by a hand-written backward function, and what goes wrong on the way."""

from __future__ import annotations

import re

import pytest
import torch
import torch.utils.checkpoint

from goldformer.adapters import Adapter
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.verdict import Status

CASE = "sdpa-gradient-masked"


def attend(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1) @ value


class ByAutograd:
    ARRAYS = "torch"
    scaled_dot_product_attention = staticmethod(attend)


class InACheckpoint(ByAutograd):
    """It trains by `loss.backward()`, and refuses torch.autograd.grad."""

    def scaled_dot_product_attention(self, query, key, value, mask=None):
        return torch.utils.checkpoint.checkpoint(attend, query, key, value, mask, use_reentrant=True)


class CutsTheGraph(ByAutograd):
    @staticmethod
    def scaled_dot_product_attention(query, key, value, mask=None):
        return attend(query, key.detach(), value, mask)


class WithoutAGraph(ByAutograd):
    @staticmethod
    @torch.no_grad()
    def scaled_dot_product_attention(query, key, value, mask=None):
        return attend(query, key, value, mask)


class ByHand:
    """The textbook with a backward pass of its own; `row_term` and `scaled` are the two classic mistakes."""

    ARRAYS = "numpy"
    row_term = True
    scaled = True

    def scaled_dot_product_attention_gradient(self, query, key, value, cotangent, mask=None):
        import numpy as np

        root = np.asarray(query.shape[-1] ** 0.5, dtype=query.dtype)
        scores = np.where(True if mask is None else mask, query @ key.swapaxes(-1, -2) / root, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        d_weights = cotangent @ value.swapaxes(-1, -2)
        row = (d_weights * weights).sum(-1, keepdims=True) if self.row_term else 0
        d_scores = (weights * (d_weights - row)).astype(query.dtype)
        d_scores = d_scores / root if self.scaled else d_scores
        return {"query": d_scores @ key, "key": d_scores.swapaxes(-1, -2) @ query,
                "value": weights.swapaxes(-1, -2) @ cotangent}  # fmt: skip


class WithoutTheRowTerm(ByHand):
    row_term = False


class WithoutTheScale(ByHand):
    scaled = False


class ReturnsATuple(ByHand):
    def scaled_dot_product_attention_gradient(self, query, key, value, cotangent, mask=None):
        return tuple(super().scaled_dot_product_attention_gradient(query, key, value, cotangent, mask).values())


class ForgetsTheKey(ByHand):
    def scaled_dot_product_attention_gradient(self, query, key, value, cotangent, mask=None):
        gradients = super().scaled_dot_product_attention_gradient(query, key, value, cotangent, mask)
        del gradients["key"]
        return gradients


@pytest.fixture
def verdict_of(spec):
    def check(kind, case=CASE, dtype="float64"):
        adapter = Adapter.from_object(kind(), kind.__name__, spec)
        return check_case(spec.cases[case], Bench(spec, adapter, dtype, "cpu"))

    return check


@pytest.mark.parametrize("kind", [ByAutograd, ByHand, InACheckpoint])
@pytest.mark.parametrize("case", ["sdpa-gradient", "sdpa-gradient-masked"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_right_gradients_pass(verdict_of, kind, case, dtype):
    verdict = verdict_of(kind, case, dtype)
    assert verdict.status is Status.PASSED, verdict.message
    assert verdict.ratio <= 0.5


@pytest.mark.parametrize("kind", [WithoutTheRowTerm, WithoutTheScale])
def test_the_classic_mistakes_fail_by_far(verdict_of, kind):
    verdict = verdict_of(kind)
    assert (verdict.status, verdict.reason) == (Status.FAILED, "wrong-value")
    assert [d.output for d in verdict.differences] == ["gradient of query", "gradient of key"]
    assert verdict.ratio > 1e6


def test_a_cut_graph_is_named_with_what_no_gradient_reaches(verdict_of):
    verdict = verdict_of(CutsTheGraph)
    assert (verdict.status, verdict.reason) == (Status.FAILED, "no-gradient")
    assert (
        verdict.message
        == "no gradient reaches key: it is never used, or the graph is cut (detach, .data, a copy, no_grad)"
    )


def test_a_result_without_a_graph_is_told_how_to_decline_gradients(verdict_of):
    verdict = verdict_of(WithoutAGraph)
    assert (verdict.status, verdict.reason) == (Status.FAILED, "no-gradient")
    assert verdict.message == (
        "the result has no graph (detach, .data, a copy, no_grad). If it has no backward pass, as a kernel may, "
        "declare GRADIENTS = False"
    )


def test_an_empty_mapping_of_a_backward_function_has_no_graph_to_speak_of(verdict_of):
    class Empty(ByHand):
        def scaled_dot_product_attention_gradient(self, query, key, value, cotangent, mask=None):
            return {}

    verdict = verdict_of(Empty)
    assert (verdict.status, verdict.reason) == (Status.FAILED, "no-gradient")
    assert verdict.message.startswith("no gradient reaches query, key, value: ")


def test_a_backward_pass_by_hand_is_found_in_the_graph_too(verdict_of):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    class InAFunction(ByAutograd):
        def scaled_dot_product_attention(self, query, key, value, mask=None):
            return attend(query, key, Doubled.apply(value), mask) / 2

    found = {thing: verdict_of(thing).by_hand for thing in (ByAutograd, ByHand, InAFunction, InACheckpoint)}
    assert found == {ByAutograd: False, ByHand: True, InAFunction: True, InACheckpoint: False}


def test_a_parameter_of_the_implementation_keeps_its_own_gradient(verdict_of):
    zero, training = torch.nn.Parameter(torch.zeros(())), torch.ones(())
    zero.grad = training

    class HasAParameter(ByAutograd):
        def scaled_dot_product_attention(self, query, key, value, mask=None):
            return attend(query, key, value, mask) + zero.to(query)

    assert verdict_of(HasAParameter).status is Status.PASSED
    assert zero.grad is training
    assert training == 1


def test_whatever_a_backward_pass_raises_is_an_error_of_the_implementation(verdict_of):
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            raise KeyError("weights")

    class InAFunction(ByAutograd):
        def scaled_dot_product_attention(self, query, key, value, mask=None):
            return attend(query, key, Raises.apply(value), mask)

    verdict = verdict_of(InAFunction)
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "raised")
    assert verdict.message == "backward raised KeyError: 'weights'"
    assert 'raise KeyError("weights")' in verdict.detail


def test_code_that_declares_no_gradients_is_not_asked_for_them(verdict_of):
    class ForwardOnly(WithoutAGraph):
        GRADIENTS = False

    verdict = verdict_of(ForwardOnly)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-implemented")
    assert verdict.message == "the adapter declares GRADIENTS = False: it has no backward pass"


def test_numpy_without_a_backward_function_is_not_implemented(verdict_of):
    class Forward:
        ARRAYS = "numpy"

        def scaled_dot_product_attention(self, query, key, value, mask=None):
            return value

    verdict = verdict_of(Forward)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-implemented")
    expected = "numpy does not differentiate by itself: provide scaled_dot_product_attention_gradient"
    assert verdict.message == expected


def test_a_backward_function_returns_a_mapping_of_all_gradients(verdict_of):
    verdict = verdict_of(ReturnsATuple)
    expected = "scaled_dot_product_attention_gradient returned a tuple: return a mapping of argument name to gradient"
    assert (verdict.status, verdict.message) == (Status.FAILED, expected)
    assert verdict_of(ForgetsTheKey).message.startswith("no gradient reaches key")


def test_an_empty_row_that_spoils_gradients_fails(verdict_of):
    class Spoils(ByAutograd):
        @staticmethod
        def scaled_dot_product_attention(query, key, value, mask=None):
            scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
            scores = scores + torch.zeros_like(scores).masked_fill(~mask, -torch.inf)
            weights = torch.softmax(scores, dim=-1)
            # Cleaned on the way forward only.
            return torch.where(weights.isnan(), 1 / key.shape[-2], weights) @ value

    verdict = verdict_of(Spoils, "sdpa-gradient-empty-row")
    assert (verdict.status, verdict.reason) == (Status.FAILED, "not-finite")
    assert "empty-row-nan-grad" in verdict.catches


def test_an_output_of_another_shape_has_no_gradient(verdict_of):
    """The cotangent would be broadcast, and the gradient be that of something else."""

    class OneRow(ByAutograd):
        @staticmethod
        def scaled_dot_product_attention(query, key, value, mask=None):
            return attend(query, key, value, mask)[..., :1, :]

    verdict = verdict_of(OneRow)
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "raised")
    shapes = r"the output has the shape \(\d+, 1, \d+\), its gradient \(\d+, \d+, \d+\)"
    assert re.fullmatch(f"backward raised RuntimeError: {shapes}", verdict.message)

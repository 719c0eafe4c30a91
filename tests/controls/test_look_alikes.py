"""Right numbers in other forms: CALL-1 and the protocol say which of them are results, and nothing else decides."""

from __future__ import annotations

import collections
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from goldformer.adapters import Adapter
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.verdict import Status

PASSED, FAILED = Status.PASSED, Status.FAILED
HEADS = "mha-distinct-sizes"


class Attended(NamedTuple):
    output: torch.Tensor
    weights: torch.Tensor


class Tagged(torch.Tensor):
    """A subclass, as libraries of named or quantised tensors have."""


def attend(query, key, value, mask=None, *, num_heads, params):
    q, k, v = (
        (x @ params[f"w_{role}"] + params[f"b_{role}"]).unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for x, role in zip((query, key, value), "qkv", strict=True)
    )
    weights = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1)
    return (weights @ v).transpose(1, 2).flatten(2) @ params["w_o"] + params["b_o"], weights


def in_memory_order_of_its_own(output):
    return output.permute(2, 0, 1).contiguous().permute(1, 2, 0)


def in_a_longer_buffer(output):
    return torch.cat([output, output], dim=-1)[..., : output.shape[-1]]


BY_NAME = "; a tuple holds output, weights in this order: return other outputs as a mapping by name"
#: What is returned instead of (output, weights), and what becomes of it: "" passes, anything else is the message.
FORMS = {
    "tuple": (lambda output, weights: (output, weights), ""),
    "list": (lambda output, weights: [output, weights], ""),
    "named_tuple": (Attended, ""),
    "ordered_dict": (lambda output, weights: collections.OrderedDict(weights=weights, output=output), ""),
    "user_dict": (lambda output, weights: collections.UserDict(output=output), ""),
    "output_alone": (lambda output, weights: output, ""),
    "one_in_a_tuple": (lambda output, weights: (output,), ""),
    "one_in_a_list": (lambda output, weights: [output], ""),
    "weights_not_asked_for": (lambda output, weights: (output, None), ""),
    "memory_order_of_its_own": (
        lambda output, weights: (in_memory_order_of_its_own(output), weights.mT.clone().mT),
        "",
    ),
    "view_of_a_buffer": (lambda output, weights: in_a_longer_buffer(output), ""),
    "part_of_a_graph": (lambda output, weights: output + output.new_zeros(()).requires_grad_(), ""),
    "parameter": (lambda output, weights: nn.Parameter(output), ""),
    "subclass": (lambda output, weights: output.as_subclass(Tagged), ""),
    "negated_view": (lambda output, weights: torch._neg_view(-output), ""),
    "in_inference_mode": (lambda output, weights: torch.inference_mode()(torch.clone)(output), ""),
    "weights_averaged": (
        lambda output, weights: (output, weights.mean(1)),
        f"weights has shape (3, 4, 5), must be (batch, heads, q_seq, kv_seq) = (3, 2, 4, 5){BY_NAME}",
    ),
    "weights_of_flat_heads": (
        lambda output, weights: (output, weights.flatten(0, 1)),
        f"weights has shape (6, 4, 5), must be (batch, heads, q_seq, kv_seq) = (3, 2, 4, 5){BY_NAME}",
    ),
    "sequence_first": (
        lambda output, weights: output.transpose(0, 1),
        "output has shape (4, 3, 11), must be (batch, q_seq, d_model) = (3, 4, 11)",
    ),
    "numbers": (lambda output, weights: output.tolist(), "output is a list: return a torch.Tensor"),
    "numpy_array": (lambda output, weights: output.float().numpy(), "output is an ndarray: return a torch.Tensor"),
    "nothing": (lambda output, weights: None, "returned None: return output"),
}


@pytest.fixture
def verdict_of(spec):
    def check(case, function, dtype="float32", arrays="torch"):
        thing = SimpleNamespace(ARRAYS=arrays, **{spec.cases[case].component: function})
        return check_case(spec.cases[case], Bench(spec, Adapter.from_object(thing, "mine", spec), dtype, "cpu"))

    return check


@pytest.mark.sample(15)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("form", "message"), FORMS.values(), ids=FORMS)
def test_a_form_of_the_outputs(form, message, dtype, verdict_of):
    def multi_head_attention(**given):
        return form(*attend(**given))

    verdict = verdict_of(HEADS, multi_head_attention, dtype)
    assert (verdict.status, verdict.message) == (FAILED if message else PASSED, message)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float32_results_of_half_inputs_are_another_dtype(dtype, verdict_of):
    def multi_head_attention(**given):
        return attend(**given)[0].float()

    verdict = verdict_of(HEADS, multi_head_attention, dtype)
    assert (verdict.status, verdict.reason) == (FAILED, "wrong-dtype")
    assert verdict.message.startswith(f"output is float32, must be {dtype}, as the inputs are")


# One number


def loss_of(logits, targets, pad_id):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=pad_id)


def test_a_loss_without_axes_is_an_array_of_no_axes(verdict_of):
    def check(form):
        return verdict_of("ce-distinct-sizes", lambda logits, targets, pad_id: form(loss_of(logits, targets, pad_id)))

    assert check(lambda loss: loss).status is PASSED
    assert check(lambda loss: loss.item()).message == "loss is a float: return a torch.Tensor"
    assert check(lambda loss: loss[None]).message == "loss has shape (1,), must be () = ()"


@pytest.mark.parametrize("form", [np.asarray, lambda loss: loss], ids=["array", "scalar"])
def test_a_scalar_of_numpy_is_an_array_of_no_axes(form, verdict_of):
    def cross_entropy(logits, targets, *, pad_id):
        moved = logits - logits.max(-1, keepdims=True)
        rows = moved - np.log(np.exp(moved).sum(-1, keepdims=True))
        return form(-np.take_along_axis(rows, targets[..., None], -1)[targets != pad_id].mean())

    assert verdict_of("ce-distinct-sizes", cross_entropy, arrays="numpy").status is PASSED


# Integers


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_ids_are_integers_of_any_width(dtype, verdict_of):
    def one_hot(ids, *, vocab):
        return F.one_hot(ids, vocab).to(getattr(torch, dtype))

    assert verdict_of("hot-distinct-sizes", one_hot).status is PASSED
    assert (
        verdict_of("hot-distinct-sizes", lambda ids, *, vocab: np.eye(vocab, dtype=dtype)[ids], arrays="numpy").ratio
        == 0
    )


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "float32"), (torch.bool, "bool")])
def test_numbers_that_are_not_integers_are_no_ids(dtype, name, verdict_of):
    verdict = verdict_of("hot-distinct-sizes", lambda ids, *, vocab: F.one_hot(ids, vocab).to(dtype))
    assert (verdict.status, verdict.reason) == (FAILED, "wrong-dtype")
    assert verdict.message == f"output is {name}, must be an integer dtype"


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_a_mask_of_numbers_is_no_mask(dtype, verdict_of):
    verdict = verdict_of("mask-causal-4", lambda *, q_seq, kv_seq: torch.ones(q_seq, kv_seq, dtype=dtype).tril())
    assert (verdict.status, verdict.reason) == (FAILED, "wrong-dtype")

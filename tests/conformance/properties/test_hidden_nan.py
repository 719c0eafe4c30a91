"""A NaN that a mask hides is noted of right code where it reaches the output, and never fails it."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.support.runs import make_run

from comparisons import remark_lines
from goldformer.adapters import Adapter, find_adapter
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.reports.remarks import HIDDEN_NAN, make_remarks

ATTENTION = "scaled_dot_product_attention"
LAYERS = ("encoder_layer", "decoder_layer", "encoder", "decoder")


@pytest.fixture
def judge(spec):
    """The verdict on calls in between, in a strict run, of a function or of an adapter by name."""

    def check(adapter, component=ATTENTION, arrays="torch", dtype="float32"):
        if isinstance(adapter, str):
            adapter = find_adapter(adapter, spec)
        else:
            thing = SimpleNamespace(ARRAYS=arrays, CONVENTIONS={"empty_row": "unspecified"}, **{component: adapter})
            adapter = Adapter.from_object(thing, "mine.py", spec)
        return check_property(
            spec.properties["no-memory"], component, Bench(spec, adapter, dtype, "cpu", Policy(strict=True))
        )

    return check


def masked_fill(query, key, value, mask=None):
    """Replaces the scores that the mask hides."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = scores if mask is None else scores.masked_fill(~mask, -1e9)
    return scores.softmax(-1) @ value


def additive(query, key, value, mask=None):
    """Adds a large negative number to the scores that the mask hides."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = scores if mask is None else scores + torch.zeros(mask.shape, dtype=scores.dtype).masked_fill(~mask, -1e9)
    return scores.softmax(-1) @ value


def replaced_in_numpy(query, key, value, mask=None):
    scores = query @ key.swapaxes(-1, -2) / query.dtype.type(query.shape[-1] ** 0.5)
    scores = scores if mask is None else np.where(mask, scores, scores.dtype.type(-1e9))
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ value


def added_in_numpy(query, key, value, mask=None):
    scores = query @ key.swapaxes(-1, -2) / query.dtype.type(query.shape[-1] ** 0.5)
    scores = scores if mask is None else scores + np.where(mask, 0, -1e9).astype(scores.dtype)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ value


def skips_hidden_keys(query, key, value, mask=None):
    """As a kernel that never loads a key that no query of the sample sees."""
    if mask is None:
        return masked_fill(query, key, value)
    seen = mask.expand(*query.shape[:-1], key.shape[-2]).any(-2)[..., None]
    return masked_fill(query, torch.where(seen, key, 0), torch.where(seen, value, 0), mask)


def refuses_nan(query, key, value, mask=None):
    if any(array.isnan().any() for array in (query, key, value)):
        raise ValueError("NaN")
    return masked_fill(query, key, value, mask)


@pytest.mark.parametrize(
    ("function", "arrays", "found"),
    [
        (masked_fill, "torch", ("value",)),
        (additive, "torch", ("key", "value")),
        (replaced_in_numpy, "numpy", ("value",)),
        (added_in_numpy, "numpy", ("key", "value")),
        (skips_hidden_keys, "torch", ()),
        (refuses_nan, "torch", ()),
    ],
)
def test_the_inputs_in_which_a_hidden_nan_reaches_the_output_are_noted_and_nothing_fails(
    judge, function, arrays, found
):
    verdict = judge(function, arrays=arrays)
    assert (verdict.status, verdict.bad, verdict.hidden_nan) == (Status.PASSED, False, found)


@pytest.mark.parametrize("component", [ATTENTION, "multi_head_attention", "fused_multi_head_attention", *LAYERS])
def test_layers_of_the_reference_are_looked_at_too(judge, component):
    verdict = judge("reference", component)
    assert verdict.status is Status.PASSED
    assert verdict.hidden_nan == {
        "fused_multi_head_attention": ("x",), "encoder_layer": ("x",), "encoder": ("x",),
        "decoder_layer": ("x", "memory"), "decoder": ("x", "memory"),
    }.get(component, ("value",))  # fmt: skip


def test_the_rows_of_hidden_tokens_themselves_are_left_out(judge):
    """Each token attends to itself only, so that a NaN stays in the row that the mask hides."""

    def fused(x, mask=None, *, num_heads, params):
        return x @ params["w_o"]

    assert judge(fused, "fused_multi_head_attention").hidden_nan == ()


def test_what_has_no_mask_is_not_called_with_nan(judge):
    seen = []

    def softmax(scores):
        seen.append(bool(scores.isnan().any()))
        return scores.softmax(-1)

    assert judge(softmax, "softmax").hidden_nan == ()
    assert seen
    assert not any(seen)


def test_code_that_fails_has_no_note(judge):
    calls = []

    def drifts(query, key, value, mask=None):
        calls.append(1)
        return masked_fill(query, key, value, mask) + len(calls)

    verdict = judge(drifts)
    assert (verdict.status, verdict.hidden_nan) == (Status.FAILED, ())


def test_the_note_names_each_input_with_its_components_once_for_all_dtypes(judge, spec):
    one, other = judge(masked_fill), judge(additive)
    verdicts = [one, replace(one, dtype="float64"), replace(other, component="multi_head_attention")]
    remarks = make_remarks(make_run(verdicts), {}, spec, whole=True)
    (text,) = [remark.text for remark in remarks if remark.label == HIDDEN_NAN]
    assert text == (
        "a NaN in padding reaches the output although the mask hides it, in value of "
        "scaled_dot_product_attention, multi_head_attention (0 · NaN); in key of multi_head_attention (its scores stay "
        "NaN): fill padding with finite numbers"
    )
    assert "Hidden NaN" not in " ".join(remark_lines([judge(skips_hidden_keys)], spec))


def test_the_note_survives_json(judge):
    verdict = judge(additive)
    assert Verdict.from_json(json.loads(json.dumps(verdict.as_json()))) == verdict

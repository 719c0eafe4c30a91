"""Code that is right in exact arithmetic and widely used, and that a clause rules out: where, and nowhere else."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from controls import HALF, Control, judge
from goldformer.conformance.judging.verdict import Status


def fill_of_minus_1e9(query, key, value, mask=None):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    scores = scores if mask is None else scores.masked_fill(~mask, -1e9)
    return torch.softmax(scores, -1) @ value


def nan_made_zero(query, key, value, mask=None):
    """The weights are zeros, but NaN has been on the way: its gradient is NaN, and no fill stops it."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + torch.zeros_like(scores[..., :1]).where(mask, -math.inf)
    return torch.softmax(scores, -1).nan_to_num() @ value


def mask_after_the_softmax(query, key, value, mask=None):
    """Renormalised; what a masked key adds to the gradients cancels but for rounding.

    Where hidden scores are so far above the kept ones that these underflow, nothing is left to renormalise.
    """
    weights = torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]), -1)
    if mask is not None:
        kept = weights * mask
        total = kept.sum(-1, keepdim=True)
        weights = torch.where(total > 0, kept / total.where(total > 0, 1), 1 / weights.shape[-1])
    return weights @ value


def lowest_number_added(query, key, value, mask=None, *, num_heads, params):
    """As Hugging Face has it: an empty row is uniform since the sum swallows its scores, but it has gradients."""
    bias = {name: 0 if params.get(name) is None else params[name] for name in ("b_q", "b_k", "b_v", "b_o")}
    q, k, v = (
        (x @ params[f"w_{role}"] + bias[f"b_{role}"]).unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for x, role in zip((query, key, value), "qkv", strict=True)
    )
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores + (1 - mask.to(scores.dtype)) * torch.finfo(scores.dtype).min
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2) @ params["w_o"] + bias["b_o"]


def exponent_less_the_logarithm(scores):
    """As SciPy's softmax was until 1.9."""
    return torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))


def log_sum_exp_less_the_logit(logits, targets, *, pad_id):
    """Its losses are right; its gradient is the one above."""
    losses = torch.logsumexp(logits, -1) - logits.gather(-1, targets[..., None])[..., 0]
    return losses[targets != pad_id].mean()


def squares_less_the_squared_mean(x, *, params):
    """As Flax's LayerNorm has it unless asked for another."""
    mean = x.mean(-1, keepdim=True)
    variance = (x.square().mean(-1, keepdim=True) - mean.square()).clamp(min=0)
    return (x - mean) * torch.rsqrt(variance + 1e-5) * params["gamma"] + params["beta"]


def table_in_float32(x):
    """A buffer in torch's default dtype, added to whatever comes."""
    seq, d_model = x.shape[-2:]
    rate = torch.exp(torch.arange(0, d_model, 2, device=x.device) * (-math.log(10000.0) / d_model))
    angle = torch.arange(seq, device=x.device)[:, None] * rate
    return (x + torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :d_model]).to(x.dtype)


SDPA, MHA = "scaled_dot_product_attention", "multi_head_attention"
ZEROS = {"empty_row": "zeros"}
UNDERFLOW = "sdpa-hidden-scores-twelve-thousand-above"
#: Scores around a thousand or more, and the shift by 64.
LARGE = {"sm-a-thousand", "sm-ten-thousand", "sm-about-minus-twelve-thousand", "sm-shifted-past-the-exponential"}
SHIFTED = LARGE | {
    "sm-all-about-minus-twenty",
    "sm-all-below-minus-a-million",
    "sm-saturated",
    "sm-shifted-pair",
    "sm-equal-elements",
    "sm-shift",
    "sm-simplex",
}
#: By clause: the code, what it declares, the dtypes, the checks that accuse it, and those that may.
RULED_OUT: dict[str, tuple[Any, ...]] = {
    "GRAD-3 NaN on the way": (SDPA, nan_made_zero, ZEROS, ("float32", *HALF), {"sdpa-gradient-empty-row-zeros"}),
    "GRAD-2 rounding left": (
        SDPA, mask_after_the_softmax, {}, ("float64", "float32"), {"sdpa-gradient-exactly-zero", UNDERFLOW},
        {"sdpa-hidden-gradient"},
    ),
    "SM-3 kept scores underflow": (
        SDPA, mask_after_the_softmax, {}, ("float16",), {"sdpa-heads-large-scores", "sdpa-self-large-scores"},
        {"sdpa-gradient-exactly-zero", "sdpa-hidden-gradient"},
    ),
    "GRAD-3 gradients of an empty row": (MHA, lowest_number_added, {}, ("float32", *HALF), {"mha-gradient-empty-row"}),
    "SM-4 digits lost": (
        "softmax", exponent_less_the_logarithm, {}, ("float64", "float32", "float16"), LARGE, SHIFTED,
    ),
    # The logarithm of the length of a long row is rounded to 8 bits.
    "SM-4 digits lost in 8 bits": (
        "softmax", exponent_less_the_logarithm, {}, ("bfloat16",), LARGE, SHIFTED | {"sm-long-row"},
    ),
    "SM-4 digits lost in a gradient": (
        "cross_entropy", log_sum_exp_less_the_logit, {}, ("bfloat16",), {"ce-gradient-saturated"},
    ),
}  # fmt: skip


def accused(spec, control, dtype):
    return {v.check for v in judge(spec, control, dtype) if v.bad}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("row", "dtype"),
    [(row, dtype) for row in RULED_OUT.values() for dtype in row[3]],
    ids=[f"{name}-{dtype}" for name, row in RULED_OUT.items() for dtype in row[3]],
)
def test_what_a_clause_rules_out_is_accused_there_alone(row, dtype, spec):
    component, function, conventions, _, always, *sometimes = row
    found = accused(spec, Control("borderline", {component: function}, conventions, (dtype,)), dtype)
    assert always <= found <= always.union(*sometimes)


@pytest.mark.parametrize("dtype", ["float64", "float32", *HALF])
def test_a_variance_that_cancels_is_advised_against_alone(dtype, spec):
    verdicts = list(judge(spec, Control("squares", {"layer_norm": squares_less_the_squared_mean}), dtype))
    assert not [v.check for v in verdicts if v.bad]
    advised = {v.check for v in verdicts if v.reason == "advice"} - {"ln-no-channels"}
    far = {"ln-a-thousandth-apart", "ln-mean-a-hundred-times-the-spread", "ln-rows"}
    assert advised <= far
    assert ("ln-a-thousandth-apart" in advised) == (dtype in ("float64", "float32"))


def test_a_table_in_float32_is_too_coarse_for_float64_alone(spec):
    control = Control("table_in_float32", {"positional_encoding": table_in_float32})
    assert not accused(spec, control, "float32") | accused(spec, control, "bfloat16")
    assert "pe-5000" in accused(spec, control, "float64")


def test_a_fill_that_float16_cannot_hold_raises_where_there_is_a_mask(spec):
    control = Control("fill", {SDPA: fill_of_minus_1e9})
    verdicts = [v for v in judge(spec, control, "float16") if v.kind == "case" and v.status is not Status.SKIPPED]
    masked = {v.check for v in verdicts if v.bad}
    assert masked == {v.check for v in verdicts if "mask" in spec.cases[v.check].inputs}
    assert {v.reason for v in verdicts if v.bad} == {"raised"}
    assert all("Half without overflow" in v.message for v in verdicts if v.bad)

"""Scaled dot-product attention done otherwise: no case and no property may accuse it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from controls import FINE, HALF, NUMPY, controls_of, in_each_dtype

COMPONENT = "scaled_dot_product_attention"
ZEROS, NAN = {"empty_row": "zeros"}, {"empty_row": "nan"}


def finished(scores, mask, value, fill=None):
    """Mask with the dtype's lowest number, take the softmax, weigh the values."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min if fill is None else fill)
    weights = torch.softmax(scores, -1)
    return weights @ value, weights


def everywhere(mask, query, key):
    """The mask for every score."""
    shape = (*query.shape[:-1], key.shape[-2])
    return torch.ones(shape, dtype=torch.bool, device=query.device) if mask is None else mask.expand(shape)


def root(query):
    return math.sqrt(query.shape[-1])


def scale_on_q(query, key, value, mask=None):
    return finished((query / root(query)) @ key.transpose(-1, -2), mask, value)


def scale_multiplied(query, key, value, mask=None):
    return finished(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, mask, value)


def fourth_root_scales(query, key, value, mask=None):
    fourth = query.shape[-1] ** 0.25
    return finished((query / fourth) @ (key / fourth).transpose(-1, -2), mask, value)


def fill_of_minus_1e9(query, key, value, mask=None):
    return finished(query @ key.transpose(-1, -2) / root(query), mask, value, -1e9)


def fill_of_the_dtypes_lowest(query, key, value, mask=None):
    return finished(query @ key.transpose(-1, -2) / root(query), mask, value)


def fill_of_minus_infinity(query, key, value, mask=None):
    return finished(query @ key.transpose(-1, -2) / root(query), mask, value, -math.inf)


def bias_of_minus_infinity(query, key, value, mask=None):
    scores = query @ key.transpose(-1, -2) / root(query)
    if mask is not None:
        scores = scores + torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -math.inf)
    weights = torch.softmax(scores, -1)
    return weights @ value, weights


def fill_of_minus_infinity_then_zeros(query, key, value, mask=None):
    """The fill passes no gradient on, so it stops the NaN of an empty row."""
    _, weights = finished(query @ key.transpose(-1, -2) / root(query), mask, value, -math.inf)
    weights = weights.nan_to_num()
    return weights @ value, weights


def empty_rows_opened_and_zeroed(query, key, value, mask=None):
    """No row is ever without a key in the softmax, so no NaN reaches the gradients either."""
    if mask is None:
        return finished(query @ key.transpose(-1, -2) / root(query), None, value)
    some = mask.any(-1, keepdim=True)
    output, weights = finished(query @ key.transpose(-1, -2) / root(query), mask | ~some, value, -math.inf)
    return output * some, weights * some


def mask_after_softmax_then_renormalised(query, key, value, mask=None):
    """Uniform where no key is kept; where the kept ones underflow it is lost, as cases in other dtypes show."""
    weights = torch.softmax(query @ key.transpose(-1, -2) / root(query), -1)
    if mask is not None:
        kept = weights * mask
        total = kept.sum(-1, keepdim=True)
        weights = torch.where(total > 0, kept / total, torch.full_like(weights, 1 / weights.shape[-1]))
    return weights @ value, weights


def online_softmax_in_blocks(query, key, value, mask=None):
    """Blocks of two keys, with a running maximum and total, as flash attention has it."""
    wide, rows = torch.promote_types(query.dtype, torch.float32), query.shape[:-1]
    top, total = query.new_full((*rows, 1), -math.inf, dtype=wide), query.new_zeros((*rows, 1), dtype=wide)
    output = query.new_zeros((*rows, value.shape[-1]), dtype=wide)
    kept = everywhere(mask, query, key)
    for start in range(0, key.shape[-2], 2):
        block = slice(start, start + 2)
        scores = query.to(wide) @ key[..., block, :].to(wide).transpose(-1, -2) / root(query)
        scores = scores.masked_fill(~kept[..., block], torch.finfo(query.dtype).min)
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        powers, shrink = torch.exp(scores - higher), torch.exp(top - higher)
        total = total * shrink + powers.sum(-1, keepdim=True)
        output = output * shrink + powers @ value[..., block, :].to(wide)
        top = higher
    return ((output / total).to(query.dtype),)


def accumulates_in_float32(query, key, value, mask=None):
    wide = torch.promote_types(query.dtype, torch.float32)
    wide_outputs = finished(query.to(wide) @ key.to(wide).transpose(-1, -2) / root(query), mask, value.to(wide))
    return tuple(x.to(query.dtype) for x in wide_outputs)


def softmax_alone_in_float32(query, key, value, mask=None):
    scores = query @ key.transpose(-1, -2) / root(query)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    _, weights = finished(wide, mask, value.to(wide.dtype))
    weights = weights.to(query.dtype)
    return weights @ value, weights


def sums_in_reverse(query, key, value, mask=None):
    """Widths from last to first in the scores, keys from last to first in the softmax and in the sum."""
    scores = query.flip(-1) @ key.flip(-1).flip(-2).transpose(-1, -2) / root(query)
    turned = None if mask is None else mask.expand(*mask.shape[:-1], key.shape[-2]).flip(-1)
    output, weights = finished(scores, turned, value.flip(-2))
    return output, weights.flip(-1)


def einsum(query, key, value, mask=None):
    scores = torch.einsum("...qd,...kd->...qk", query, key) / root(query)
    _, weights = finished(scores, mask, value)
    return torch.einsum("...qk,...kv->...qv", weights, value), weights


def one_query_at_a_time(query, key, value, mask=None):
    kept = everywhere(mask, query, key)
    rows = [
        finished(query[..., i : i + 1, :] @ key.transpose(-1, -2) / root(query), kept[..., i : i + 1, :], value)
        for i in range(query.shape[-2])
    ]
    return tuple(torch.cat(parts, -2) for parts in zip(*rows, strict=True))


def log_softmax_then_exp(query, key, value, mask=None):
    scores = query @ key.transpose(-1, -2) / root(query)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.log_softmax(scores, -1).exp()
    return weights @ value, weights


def powers_of_masked_keys_set_to_zero(query, key, value, mask=None):
    """The maximum over all keys, the powers times the mask, as masked softmaxes without a fill are."""
    scores = query @ key.transpose(-1, -2) / root(query)
    kept = everywhere(mask, query, key)
    top = scores.masked_fill(~kept, -math.inf).amax(-1, keepdim=True).clamp(min=torch.finfo(scores.dtype).min)
    powers = torch.where(kept, scores - top, -math.inf).exp()
    total = powers.sum(-1, keepdim=True)
    weights = powers / total.where(total > 0, 1)
    return weights @ value, weights


def weights_of_exponents_less_their_logarithm(query, key, value, mask=None):
    """P = exp(S − LSE), as the backward pass of flash attention has it."""
    scores = query @ key.transpose(-1, -2) / root(query)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    top = scores.amax(-1, keepdim=True)
    weights = torch.exp(scores - top - torch.logsumexp(scores - top, -1, keepdim=True))
    return weights @ value, weights


def dropped(weights, dropout_rate, seed):
    with torch.random.fork_rng():
        torch.manual_seed(0 if seed is None else seed)
        return F.dropout(weights, dropout_rate)


def weights_dropped(query, key, value, mask=None, dropout_rate=0.0, seed=None):
    """As the Annotated Transformer has it: the weights that are returned are those after dropout."""
    _, weights = finished(query @ key.transpose(-1, -2) / root(query), mask, value)
    weights = dropped(weights, dropout_rate, seed)
    return weights @ value, weights


def torchs_own(query, key, value, mask=None, dropout_rate=0.0, seed=None):
    with torch.random.fork_rng():
        torch.manual_seed(0 if seed is None else seed)
        mask = mask if mask is None else mask[(None,) * (query.ndim - mask.ndim)]
        return (F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout_rate),)


def numpy_from_scratch(query, key, value, mask=None):
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1]).astype(query.dtype)
    if mask is not None:
        scores = np.where(mask, scores, np.finfo(scores.dtype).min)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return weights @ value, weights


def numpy_einsum_in_float64(query, key, value, mask=None):
    q, k, v = (x.astype(np.float64) for x in (query, key, value))
    scores = np.einsum("...id,...jd->...ij", q, k) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + np.where(mask, 0, -1e300)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    return np.einsum("...ij,...jd->...id", weights, v).astype(query.dtype), weights.astype(query.dtype)


EVERYWHERE = (
    scale_on_q, scale_multiplied, fourth_root_scales, fill_of_the_dtypes_lowest,
    online_softmax_in_blocks, sums_in_reverse, einsum, one_query_at_a_time, weights_dropped,
)  # fmt: skip
WITH_ZEROS = (
    fill_of_minus_infinity_then_zeros, empty_rows_opened_and_zeroed, powers_of_masked_keys_set_to_zero, torchs_own,
)  # fmt: skip
CONTROLS = [
    *controls_of(COMPONENT, EVERYWHERE),
    *controls_of(COMPONENT, (log_softmax_then_exp, weights_of_exponents_less_their_logarithm), dtypes=FINE),
    *controls_of(COMPONENT, (mask_after_softmax_then_renormalised,), dtypes=("bfloat16",), gradients=False),
    *controls_of(COMPONENT, (fill_of_minus_1e9,), dtypes=("float64", "float32", "bfloat16")),
    *controls_of(COMPONENT, WITH_ZEROS, conventions=ZEROS),
    *controls_of(COMPONENT, (fill_of_minus_infinity, bias_of_minus_infinity), conventions=NAN),
    *controls_of(COMPONENT, (accumulates_in_float32, softmax_alone_in_float32), dtypes=HALF),
    *controls_of(COMPONENT, (numpy_from_scratch, numpy_einsum_in_float64), dtypes=NUMPY, arrays="numpy"),
]


@pytest.mark.sample(12)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_attention_done_otherwise(control, dtype, acquitted):
    acquitted(control, dtype)

"""Mistakes in grouped-query attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from goldformer.adapters.textbook.checked import check_arguments
from goldformer.conformance.diagnosis.mistakes.heads import ignore_fault
from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, arithmetic, as_array, number
from goldformer.spec.formulas.attention import (
    Adjustment,
    adjust_scores,
    scale_scores,
    score_divisor,
    weigh_keys,
    weigh_sinks,
)
from goldformer.spec.formulas.grouped import (
    find_shared_heads,
    grouped_query_attention,
    share_heads,
    share_values,
)
from goldformer.spec.formulas.options import tile_heads
from goldformer.spec.formulas.steps import around, replacing

Attended = Callable[..., dict[str, Array]]


@mistake("gqa-first-head", instead_of=share_heads)
def read_first_head(x: Array, heads: int) -> Array:
    """Return the first head of keys or values for every query head, (batch, heads, kv_seq, width)."""
    find_shared_heads(heads, x.shape[1])  # refuses heads that do not divide
    return x[:, [0] * heads]


@mistake("gqa-values-tiled", instead_of=share_values)
def tile_values(value: Array, heads: int) -> Array:
    """Return the heads of values repeated as a whole, (batch, heads, kv_seq, d_v)."""
    return value[:, tile_heads(heads, value.shape[1])]


@mistake("gqa-no-divisibility", instead_of=find_shared_heads)
def scale_index(heads: int, kv_heads: int) -> Array:
    """Return h·kv_heads // heads, which is an index for any numbers of heads."""
    return np.arange(heads) * kv_heads // heads


mistake("gqa-no-divisibility", around=check_arguments)(partial(ignore_fault, at="key"))


@mistake("gqa-queries-reduced", around=grouped_query_attention)
def add_up_queries(
    original: Attended,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *more: Array | None,
    **rest: Any,
) -> dict[str, Array]:
    """Return attention of the sum of the queries of each group, with as many heads as there are heads of keys."""
    batch, _, *last = query.shape
    return original(query.reshape(batch, key.shape[1], -1, *last).sum(axis=2), key, value, mask, *more, **rest)


@mistake("gqa-heads-out-of-order", around=grouped_query_attention)
def merge_groups_last(
    original: Attended,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *more: Array | None,
    **rest: Any,
) -> dict[str, Array]:
    """Return attention whose output has the first query heads of all groups first, then the second ones."""
    attended = original(query, key, value, mask, *more, **rest)
    output = attended["output"]
    batch, heads, *last = output.shape
    groups = output.reshape(batch, key.shape[1], -1, *last)
    return attended | {"output": groups.swapaxes(1, 2).reshape(batch, heads, *last)}


@mistake("gqa-scale-kv-heads", around=grouped_query_attention)
def scale_by_width_per_key_head(
    original: Attended,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *more: Array | None,
    **rest: Any,
) -> dict[str, Array]:
    """Return attention whose scores are divided by the root of all query channels over the heads of keys."""

    def divide(width: Callable[[Mapping[str, Any]], Array | float], sizes: Mapping[str, Any]) -> Array | float:
        return width(sizes) * math.sqrt(query.shape[1] / key.shape[1])

    with replacing({score_divisor: around(divide)}):
        return original(query, key, value, mask, *more, **rest)


@mistake("gqa-mask-by-key-head", around=grouped_query_attention)
def mask_by_key_head(
    original: Attended,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *more: Array | None,
    **rest: Any,
) -> dict[str, Array]:
    """Return attention in which a query head is masked as the query head with the index of its head of keys is."""
    if mask is not None and mask.ndim == 4 and mask.shape[1] == query.shape[1]:
        mask = mask[:, find_shared_heads(query.shape[1], key.shape[1])]
    return original(query, key, value, mask, *more, **rest)


# What a call says of its scores


@mistake("scale-argument-dropped", instead_of=scale_scores)
def divide_by_root(scores: Array, scale: float, sizes: Mapping[str, Any]) -> Array:
    """Return the scores divided by √d_k."""
    return as_array(scores / score_divisor(sizes))


@mistake("scale-argument-besides-root", around=scale_scores)
def scale_twice(original: Callable[..., Array], scores: Array, scale: float, sizes: Mapping[str, Any]) -> Array:
    """Return the scores times the scale, divided by √d_k too."""
    return as_array(original(scores, scale, sizes) / score_divisor(sizes))


@mistake("softcap-after-mask", around=grouped_query_attention)
def cap_masked(
    original: Attended,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *more: Array | None,
    **rest: Any,
) -> dict[str, Array]:
    """Return attention whose hidden scores are capped too, to −softcap."""
    softcap = rest.get("softcap")
    if mask is None or softcap is None:
        return original(query, key, value, mask, *more, **rest)

    def adjust(adjusted: Callable[..., Array], scaled: Array, _: Array | None, adjustment: Adjustment) -> Array:
        capped = adjusted(scaled, None, adjustment)
        return np.where(mask, capped, capped.dtype.type(-softcap))

    with replacing({adjust_scores: around(adjust)}):
        return original(query, key, value, None, *more, **rest)


# The logits of a model have a cap of their own, which is computed by the same step.
@mistake("softcap-dropped", around=adjust_scores)
def leave_uncapped(original: Callable[..., Array], scaled: Array, mask: Array | None, adjustment: Adjustment) -> Array:
    """Return the scores without their cap."""
    return original(scaled, mask, replace(adjustment, softcap=None))


@mistake("softcap-times-logit", around=adjust_scores)
def multiply_by_score(
    original: Callable[..., Array], scaled: Array, mask: Array | None, adjustment: Adjustment
) -> Array:
    """Return s·tanh(s/softcap) in the place of capped scores."""
    if adjustment.softcap is not None:
        scaled = as_array(scaled * np.tanh(scaled / number(adjustment.softcap)))
    return original(scaled, mask, replace(adjustment, softcap=None))


@mistake("bias-dropped", around=adjust_scores)
def leave_out_bias(original: Callable[..., Array], scaled: Array, mask: Array | None, adjustment: Adjustment) -> Array:
    """Return the scores without their bias."""
    return original(scaled, mask, replace(adjustment, bias=None))


@mistake("bias-before-scale", around=grouped_query_attention)
def scale_bias(
    original: Attended,
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *more: Array | None,
    **rest: Any,
) -> dict[str, Array]:
    """Return attention whose bias is scaled with the scores."""
    if rest.get("bias") is not None:
        scale = rest.get("scale")
        rest["bias"] = rest["bias"] * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    return original(query, key, value, mask, *more, **rest)


@mistake("sinks-dropped", instead_of=weigh_sinks)
def leave_out_sinks(scores: Array, mask: Array | None, sinks: Array) -> Array:
    """Return the weights of the keys without a sink."""
    return weigh_keys(scores, mask)


@mistake("sinks-max-shift", around=weigh_sinks)
def shift_scores_only(original: Callable[..., Array], scores: Array, mask: Array | None, sinks: Array) -> Array:
    """Return weights in whose denominator the sink stands next to powers of scores less their maximum."""
    # What hidden keys have does not count.
    plain = arithmetic().decide(scores)
    seen = plain if mask is None else np.where(mask, plain, -np.inf)
    largest = np.maximum(seen.max(-1, keepdims=True), np.finfo(plain.dtype).min / 2)
    shifted = np.where(np.isfinite(seen.max(-1, keepdims=True)), scores - largest, scores)
    return original(shifted.astype(scores.dtype), mask, sinks)


@mistake("sinks-twice", around=weigh_sinks)
def count_sinks_twice(original: Callable[..., Array], scores: Array, mask: Array | None, sinks: Array) -> Array:
    """Return weights whose denominator has each sink twice."""
    return original(scores, mask, sinks + sinks.real.dtype.type(math.log(2)))

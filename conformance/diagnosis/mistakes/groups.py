"""Mistakes in grouped-query attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.attention import score_divisor
from goldformer.spec.formulas.checks import Array
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


@mistake("gqa-queries-reduced", around=grouped_query_attention)
def add_up_queries(
    original: Attended, query: Array, key: Array, value: Array, mask: Array | None = None
) -> dict[str, Array]:
    """Return attention of the sum of the queries of each group, with as many heads as there are heads of keys."""
    batch, _, *rest = query.shape
    return original(query.reshape(batch, key.shape[1], -1, *rest).sum(axis=2), key, value, mask)


@mistake("gqa-heads-out-of-order", around=grouped_query_attention)
def merge_groups_last(
    original: Attended, query: Array, key: Array, value: Array, mask: Array | None = None
) -> dict[str, Array]:
    """Return attention whose output has the first query heads of all groups first, then the second ones."""
    attended = original(query, key, value, mask)
    output = attended["output"]
    batch, heads, *rest = output.shape
    groups = output.reshape(batch, key.shape[1], -1, *rest)
    return attended | {"output": groups.swapaxes(1, 2).reshape(batch, heads, *rest)}


@mistake("gqa-scale-kv-heads", around=grouped_query_attention)
def scale_by_width_per_key_head(
    original: Attended, query: Array, key: Array, value: Array, mask: Array | None = None
) -> dict[str, Array]:
    """Return attention whose scores are divided by the root of all query channels over the heads of keys."""

    def divide(width: Callable[[Mapping[str, Any]], Array | float], sizes: Mapping[str, Any]) -> Array | float:
        return width(sizes) * math.sqrt(query.shape[1] / key.shape[1])

    with replacing({score_divisor: around(divide)}):
        return original(query, key, value, mask)


@mistake("gqa-mask-by-key-head", around=grouped_query_attention)
def mask_by_key_head(
    original: Attended, query: Array, key: Array, value: Array, mask: Array | None = None
) -> dict[str, Array]:
    """Return attention in which a query head is masked as the query head with the index of its head of keys is."""
    if mask is not None and mask.ndim == 4 and mask.shape[1] == query.shape[1]:
        mask = mask[:, find_shared_heads(query.shape[1], key.shape[1])]
    return original(query, key, value, mask)

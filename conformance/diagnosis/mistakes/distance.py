"""Mistakes in what the distance between positions decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.attention import query_positions
from goldformer.spec.formulas.distance import (
    alibi_bias,
    bias_distance,
    count_words,
    is_near,
    key_distance,
    position_ids,
    sliding_window_mask,
    slope_exponent,
    window_length,
)
from goldformer.spec.formulas.options import align_last
from goldformer.spec.formulas.steps import instead, replacing

# Sliding windows


@mistake("window-two-sided", around=sliding_window_mask)
def look_ahead(original: Callable[..., Array], *, q_seq: int, kv_seq: int, window: int) -> Array:
    """Return True where a key is near the query, before or after it, (q_seq, kv_seq)."""
    original(q_seq=q_seq, kv_seq=kv_seq, window=window)  # refuses bad sizes
    return np.asarray(np.abs(key_distance(q_seq, kv_seq)) < window_length(window))


@mistake("window-sign", around=is_near)
def negate_distance(original: Callable[[Array, int], Array], distance: Array, window: int) -> Array:
    """Return True where the query is not too far before the key."""
    return original(-distance, window)


@mistake("window-one-short", around=window_length)
def shorten_window(original: Callable[[int], int], window: int) -> int:
    """Return one key less than the query should see."""
    return original(window) - 1


# ALiBi

#: The option under which queries come after cached keys.
CACHED: Final = {"causal_corner": "bottom_right"}


@mistake("alibi-sign", around=alibi_bias)
def reward_distance(original: Callable[[Array], Array], like: Array) -> Array:
    """Return the bias with the other sign."""
    return -original(like)


@mistake("alibi-slope-exponent", instead_of=slope_exponent)
def count_heads_from_zero(head: int, heads: int) -> float:
    """Return 8h/heads for head h."""
    return 8 * head / heads


@mistake("alibi-decode-zero", around=bias_distance)
def build_over_the_query(original: Callable[[int, int], Array], q_seq: int, kv_seq: int) -> Array:
    """Return the distance of the queries from one another, which is 0 of a single one, for all keys."""
    return np.zeros((1, kv_seq), dtype=np.int64) if q_seq == 1 else original(q_seq, kv_seq)


@mistake("alibi-offset-range", around=alibi_bias, conventions=CACHED)
def end_at_the_length(original: Callable[[Array], Array], like: Array) -> Array:
    """Return the rows of the queries at the positions from kv_seq − q_seq to q_seq − 1."""
    _, q_seq, kv_seq = like.shape
    with replacing({query_positions: instead(align_last)}):
        return original(like)[:, : max(2 * q_seq - kv_seq, 0)]


@mistake("alibi-half-precision", instead_of=bias_distance, conventions=CACHED)
def round_positions(q_seq: int, kv_seq: int) -> Array:
    """Return the difference of positions that are held in float16."""
    query, key = (positions.astype(np.float16) for positions in (align_last(q_seq, kv_seq), np.arange(kv_seq)))
    return np.asarray(query[:, None] - key).astype(np.int64)


# Positions of words


@mistake("position-ids-shared", instead_of=count_words)
def count_places(mask: Array) -> Array:
    """Return the number of places up to each place and at it, (batch, seq)."""
    return np.broadcast_to(np.arange(1, mask.shape[-1] + 1), mask.shape)


@mistake("position-ids-from-one", around=count_words)
def count_one_more(original: Callable[[Array], Array], mask: Array) -> Array:
    """Return one word more than there is."""
    return original(mask) + 1


@mistake("position-ids-first-row", around=position_ids)
def share_first_row(original: Callable[[Array], Array], mask: Array) -> Array:
    """Return the positions of the first sample for all samples, (batch, seq)."""
    return np.broadcast_to(original(mask)[:1], mask.shape)


@mistake("position-ids-batch-axis", instead_of=count_words)
def count_samples(mask: Array) -> Array:
    """Return the number of samples up to each, itself included, that have a word at a place, (batch, seq)."""
    return np.cumsum(mask, axis=0)


@mistake("position-ids-padding-subtracted", instead_of=count_words)
def subtract_padding(mask: Array) -> Array:
    """Return the number of places up to each, less the number of padded ones in the whole sample, (batch, seq)."""
    return np.asarray(np.arange(1, mask.shape[-1] + 1) - (~mask).sum(axis=-1, keepdims=True))

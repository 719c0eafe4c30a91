"""Positions and their distances: sliding windows, ALiBi, and the positions of words themselves."""

from typing import Any

import numpy as np

from goldformer.spec.formulas.arrays import Array, arithmetic, number, ratio
from goldformer.spec.formulas.attention import causal_mask, query_positions
from goldformer.spec.formulas.steps import step


@step
def sliding_window_mask(*, q_seq: int, kv_seq: int, window: int) -> Array:
    """Return True where a query sees a key, (q_seq, kv_seq): no later key, and of the others the last ones."""
    return causal_mask(q_seq=q_seq, kv_seq=kv_seq) & is_near(key_distance(q_seq, kv_seq), window)


@step
def key_distance(q_seq: int, kv_seq: int) -> Array:
    """Return by how many positions each key is before each query, (q_seq, kv_seq); negative for later keys."""
    return query_positions(q_seq, kv_seq)[:, None] - np.arange(kv_seq)


@step
def is_near(distance: Array, window: int) -> Array:
    """Return True where a key is not too far before the query."""
    return np.asarray(distance < window_length(window))


@step
def window_length(window: int) -> int:
    """Return the number of keys that a query sees, its own among them."""
    return window


# ALiBi


@step
def alibi_bias(like: Array) -> Array:
    """Return −m·(i − j) for query i and key j, with a slope m for each head, (heads, q_seq, kv_seq)."""
    heads, q_seq, kv_seq = like.shape
    distance = arithmetic().numbers(bias_distance(q_seq, kv_seq), like.dtype)
    slopes: list[Any] = [head_slope(head, heads) for head in range(heads)]
    return np.stack([distance * -arithmetic().refine(slope) for slope in slopes])


@step
def bias_distance(q_seq: int, kv_seq: int) -> Array:
    """Return what the slopes multiply, as integers (ALIBI-6), (q_seq, kv_seq)."""
    return key_distance(q_seq, kv_seq)


@step
def head_slope(head: int, heads: int) -> float:
    """Return the slope of a head: that among as many heads as the next power of two below, then among twice as many."""
    power = 1 << (heads.bit_length() - 1)
    return geometric_slope(head, power) if head < power else geometric_slope(2 * (head - power), 2 * power)


@step
def geometric_slope(head: int, heads: int) -> float:
    """Return the slope of a head in the geometric sequence of all heads."""
    return arithmetic().power(number(2), -slope_exponent(head, heads))


@step
def slope_exponent(head: int, heads: int) -> float:
    """Return 8(h + 1)/heads, the power of 1/2 that is the slope of head h (ALIBI-2)."""
    return ratio(8 * (head + 1), heads)


# Positions of words


@step
def position_ids(mask: Array) -> Array:
    """Return the number of words before each word of its sample, (batch, seq); the mask is True at words."""
    return place_padding(mask, count_words(mask) - 1)


@step
def count_words(mask: Array) -> Array:
    """Return the number of words up to each place and at it, (batch, seq)."""
    return np.cumsum(mask, axis=-1)


@step
def place_padding(mask: Array, counted: Array) -> Array:
    """Return the positions, of which padding has 1, (batch, seq); `counted` has those of words."""
    return np.where(mask, counted, 1)

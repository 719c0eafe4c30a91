"""Grouped-query attention, in which several query heads share one head of keys and values."""

from dataclasses import dataclass

import numpy as np

from goldformer.spec.formulas.arrays import Array, as_array
from goldformer.spec.formulas.attention import Adjustment, scaled_dot_product_attention
from goldformer.spec.formulas.distance import sliding_window_mask
from goldformer.spec.formulas.rms import rms_norm
from goldformer.spec.formulas.steps import step


@step
def grouped_query_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    sinks: Array | None = None,
    gamma_q: Array | None = None,
    gamma_k: Array | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> dict[str, Array]:
    """Return output (batch, heads, q_seq, d_v); weights, scores and scaled_scores, (batch, heads, q_seq, kv_seq)."""
    query, key, value = normalise_heads(query, key, value, gamma_q, gamma_k)
    heads = query.shape[1]
    shared = (query, share_keys(key, heads), share_values(value, heads), mask)
    if all(given is None for given in (bias, sinks, scale, softcap)):
        return scaled_dot_product_attention(*shared)
    return scaled_dot_product_attention(*shared, adjustment=Adjustment(scale, softcap, bias, sinks))


@step
def normalise_heads(
    query: Array, key: Array, value: Array, gamma_q: Array | None, gamma_k: Array | None
) -> tuple[Array, Array, Array]:
    """Return queries and keys, with each head normalised where there is a gain, and values as they are."""
    return normalise_rows(query, gamma_q), normalise_rows(key, gamma_k), value


@step
def normalise_rows(heads: Array, gamma: Array | None) -> Array:
    """Return heads of queries or keys, each token's channels normalised within each head (QKN-1)."""
    return heads if gamma is None else rms_norm(heads, params={"gamma": gamma})


@step
def share_keys(key: Array, heads: int) -> Array:
    """Return the keys that each query head reads, (batch, heads, kv_seq, d_k)."""
    return share_heads(key, heads)


@step
def share_values(value: Array, heads: int) -> Array:
    """Return the values that each query head reads, (batch, heads, kv_seq, d_v)."""
    return share_heads(value, heads)


@step
def share_heads(x: Array, heads: int) -> Array:
    """Return the head of keys or values that each query head reads, (batch, heads, kv_seq, width)."""
    return x[:, find_shared_heads(heads, x.shape[1])]


@step
def find_shared_heads(heads: int, kv_heads: int) -> Array:
    """Return for each query head the index of the head that it reads, h // (heads/kv_heads)."""
    return np.arange(heads) // group_size(heads, kv_heads)


@step
def group_size(heads: int, kv_heads: int) -> int:
    """Return how many query heads share one head of keys (GQA-2)."""
    return heads // kv_heads


# Within a layer


@dataclass(frozen=True, slots=True)
class Scores:
    """Settings of the scores of a layer: the window of keys that a query sees, the scale and the soft cap."""

    window: int | None = None
    scale: float | None = None
    softcap: float | None = None


@step
def attend_to_seen(query: Array, key: Array, value: Array, seen: Array, scores: Scores) -> dict[str, Array]:
    """Return the results of attention to the keys that are seen and in the window, with the scores of the layer."""
    if scores.window is not None:
        seen = hide_far(seen, scores.window)
    return grouped_query_attention(query, key, value, seen, scale=scores.scale, softcap=scores.softcap)


@step
def hide_far(seen: Array, window: int) -> Array:
    """Return the mask without the keys before the window of each query; the last queries are those of a call."""
    new, so_far = seen.shape[-2:]
    return as_array(seen & sliding_window_mask(q_seq=so_far, kv_seq=so_far, window=window)[-new:])

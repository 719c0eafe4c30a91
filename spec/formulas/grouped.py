"""Grouped-query attention, in which several query heads share one head of keys and values."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.attention import Adjustment, scaled_dot_product_attention
from goldformer.spec.formulas.checks import Array, axis_sizes
from goldformer.spec.formulas.distance import sliding_window_mask
from goldformer.spec.formulas.rms import rms_norm
from goldformer.spec.formulas.steps import step

# The axes of the arguments, as axis_sizes reads them
GROUPED: Final = {
    "query": "batch heads q_seq d_k",
    "key": "batch kv_heads kv_seq d_k",
    "value": "batch kv_heads kv_seq d_v",
    "bias": "? heads q_seq kv_seq",
    "sinks": "? heads",
    "gamma_q": "? d_k",
    "gamma_k": "? d_k",
}
#: The gains of the norms of queries and keys, which have both where they have one
QK_NORM: Final = {"gamma_q": "d_k", "gamma_k": "d_k"}


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
    if softcap is not None and not float(softcap) > 0:
        raise ValueError(f"softcap: {float(softcap)} is not above 0; leave it out for scores without a cap")
    axis_sizes(GROUPED, query=query, key=key, value=value, bias=bias, sinks=sinks, gamma_q=gamma_q, gamma_k=gamma_k)
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
    """Return how many query heads share one head of keys; raise if the heads do not divide (GQA-2)."""
    if heads % kv_heads:
        raise ValueError(f"key: {heads} heads of queries do not divide into {kv_heads} equal groups")
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

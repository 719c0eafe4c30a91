"""Softmax, scaled dot-product attention, and its masks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from goldformer.spec.formulas.arrays import Array, arithmetic, multiply, number, root
from goldformer.spec.formulas.randomness import drop_elements, find_dropout
from goldformer.spec.formulas.steps import step

# Softmax and attention


@step
def softmax(scores: Array) -> Array:
    """Return exp(s − max) / Σ exp(s − max) over the last axis, (..., n)."""
    # A masked score is the lowest finite number. Minus the maximum it overflows to −inf, whose power 0 is right.
    # With a fill of −inf an empty row becomes NaN, without a warning, as in the frameworks.
    with np.errstate(over="ignore", invalid="ignore"):
        powers = raise_powers(scores)
        return powers / powers.sum(axis=-1, keepdims=True)


@step
def raise_powers(scores: Array) -> Array:
    """Return exp(s − max), so that no power overflows (SM-4)."""
    return arithmetic().exponentials(scores)


@dataclass(frozen=True, slots=True, eq=False)
class Adjustment:
    """Settings of the scores of a call: scale, cap, a bias to add, (heads, q_seq, kv_seq), and sinks, (heads)."""

    scale: float | None = None
    softcap: float | None = None
    bias: Array | None = None
    sinks: Array | None = None


AS_IT_IS: Final = Adjustment()


@step
def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    dropout_rate: float | None = None,
    seed: int | None = None,
    adjustment: Adjustment = AS_IT_IS,
) -> dict[str, Array]:
    """Return output (..., q_seq, d_v); weights, scores and scaled_scores, each (..., q_seq, kv_seq)."""
    sizes = find_sizes(query, key, value)
    scores = score_keys(query, key)
    scaled = (
        scores / score_divisor(sizes) if adjustment.scale is None else scale_scores(scores, adjustment.scale, sizes)
    )
    mask = None if mask is None else np.broadcast_to(mask, scores.shape)
    adjusted = adjust_scores(scaled, mask, adjustment)
    weights = weigh_keys(adjusted, mask) if adjustment.sinks is None else weigh_sinks(adjusted, mask, adjustment.sinks)
    if dropout_rate is None:
        dropout_rate, seed = find_dropout()
    kept = weights if dropout_rate is None else drop_weights(weights, scaled, mask, dropout_rate, seed)
    output = sum_values(kept, value)
    return {"output": output, "weights": weights, "scores": scores, "scaled_scores": scaled}


def find_sizes(query: Array, key: Array, value: Array) -> dict[str, Any]:
    """Return the size of each axis, and under "..." the leading ones."""
    *lead, q_seq, d_k = query.shape
    return {"...": tuple(lead), "q_seq": q_seq, "kv_seq": key.shape[-2], "d_k": d_k, "d_v": value.shape[-1]}


@step
def score_keys(query: Array, key: Array) -> Array:
    """Return the dot product of every query with every key, (..., q_seq, kv_seq)."""
    return multiply(query, key.swapaxes(-1, -2))


@step
def score_divisor(sizes: Mapping[str, Any]) -> float | Array:
    """Return √d_k; `sizes` has the size of each axis, and under "..." the leading ones, (batch, heads)."""
    return root(sizes["d_k"])


@step
def scale_scores(scores: Array, scale: float, sizes: Mapping[str, Any]) -> Array:
    """Return the scores times the scale of the call, in place of 1/√d_k (SCORE-1)."""
    del sizes
    return scores * number(scale)


@step
def adjust_scores(scaled: Array, mask: Array | None, adjustment: Adjustment) -> Array:
    """Return the scaled scores, capped and with their bias, before the mask (SCORE-2, SCORE-3)."""
    del mask
    capped = scaled if adjustment.softcap is None else cap_scores(scaled, number(adjustment.softcap))
    return capped if adjustment.bias is None else capped + adjustment.bias


@step
def cap_scores(scaled: Array, softcap: Any) -> Array:
    """Return softcap·tanh(s/softcap)."""
    return np.tanh(scaled / softcap) * softcap


@step
def weigh_sinks(scores: Array, mask: Array | None, sinks: Array) -> Array:
    """Return the weights of the keys next to the sink of their head, (..., q_seq, kv_seq)."""
    column = np.ones((*scores.shape[:-1], 1), dtype=np.bool_)
    logits = np.where(column, sinks[:, None, None], arithmetic().constant(0, scores))
    mask = None if mask is None else np.concatenate([mask, column], axis=-1)
    return weigh_keys(np.concatenate([scores, logits], axis=-1), mask)[..., :-1]


@step
def weigh_keys(scaled: Array, mask: Array | None) -> Array:
    """Return the softmax of the scores where the mask is True, (..., q_seq, kv_seq)."""
    return softmax_over_keys(scaled if mask is None else fill_masked(scaled, mask))


@step
def softmax_over_keys(scores: Array) -> Array:
    """Return the softmax over the keys, the last axis (SDPA-3)."""
    return softmax(scores)


@step
def fill_masked(scaled: Array, mask: Array) -> Array:
    """Replace the scores by the fill where the mask is False."""
    # A fill beyond the dtype becomes −inf.
    with np.errstate(over="ignore"):
        fill = arithmetic().constant(mask_fill(scaled.dtype), scaled)
    return np.where(mask, scaled, fill)


@step
def mask_fill(dtype: npt.DTypeLike) -> float:
    """Return the lowest finite number; the softmax of a row that holds nothing else is uniform (SDPA-7)."""
    return arithmetic().lowest(dtype)


@step
def drop_weights(weights: Array, scaled: Array, mask: Array | None, rate: float, seed: int | None) -> Array:
    """Return the weights after dropout; they are not normalised again (DROP-3)."""
    del scaled, mask
    return drop_elements(weights, rate, seed)


@step
def sum_values(weights: Array, value: Array) -> Array:
    """Return the sum of the value rows, each times its weight, (..., q_seq, d_v)."""
    return multiply(weights, value)


# Masks


@step
def causal_mask(*, q_seq: int, kv_seq: int) -> Array:
    """Return True where a query sees a key, (q_seq, kv_seq); the diagonal starts top left."""
    return can_see(query_positions(q_seq, kv_seq)[:, None], np.arange(kv_seq))


@step
def query_positions(q_seq: int, kv_seq: int) -> Array:
    """Return the position of each query among the keys, 0 … q_seq − 1."""
    del kv_seq
    return np.arange(q_seq)


@step
def can_see(query: Array, key: Array) -> Array:
    """Return True where the position of the key is not after that of the query."""
    return np.asarray(key <= query)


@step
def padding_mask(ids: Array, *, pad_id: int) -> Array:
    """Return True where ids is not padding, (batch, 1, 1, seq) for all heads and all queries."""
    return np.asarray(ids != pad_id)[:, None, None, :]

"""Mistakes in softmax, scaled dot-product attention and its masks."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, arithmetic, as_array
from goldformer.spec.formulas.attention import (
    can_see,
    causal_mask,
    fill_masked,
    mask_fill,
    padding_mask,
    raise_powers,
    scaled_dot_product_attention,
    score_divisor,
    softmax,
    softmax_over_keys,
    sum_values,
    weigh_keys,
)
from goldformer.spec.formulas.randomness import drop_elements
from goldformer.spec.formulas.steps import Step


@mistake("softmax-unstable", instead_of=raise_powers)
def keep_scores(scores: Array) -> Array:
    """Return the exponentials of the scores as they are, which overflow."""
    return as_array(np.exp(scores))


@mistake("softmax-whole-array", instead_of=softmax)
def softmax_of_everything(scores: Array) -> Array:
    """Return a softmax whose maximum and sum are those of the whole array."""
    powers = np.exp(scores - scores.max(initial=-np.inf))
    return as_array(powers / powers.sum())


@mistake("softmax-one-maximum", instead_of=raise_powers)
def subtract_one_maximum(scores: Array) -> Array:
    """Return the exponentials of the scores minus the largest one of the whole array."""
    return as_array(np.exp(scores - scores.max(initial=-np.inf)))


@mistake("softmax-logsumexp", instead_of=softmax)
def subtract_logarithm_of_sum(scores: Array) -> Array:
    """Return exp(scores − logsumexp(scores)), with a logarithm that is rounded at the size of the scores."""
    largest = scores.max(axis=-1, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        logarithm = largest + np.log(np.exp(scores - largest).sum(axis=-1, keepdims=True))
        return as_array(np.exp(scores - logarithm))


# The scale


@mistake("scale-missing", instead_of=score_divisor)
def divide_by_one(sizes: Mapping[str, Any]) -> float:
    """Return 1: the scores are not divided."""
    return 1.0


@mistake("scale-multiply", instead_of=score_divisor)
def divide_by_inverse_root(sizes: Mapping[str, Any]) -> float:
    """Return d_k to the power −1/2, by which one multiplies."""
    return float(sizes["d_k"] ** -0.5)


@mistake("scale-no-root", instead_of=score_divisor)
def divide_by_width(sizes: Mapping[str, Any]) -> float:
    """Return d_k."""
    return float(sizes["d_k"])


@mistake("scale-seq-len", instead_of=score_divisor)
def divide_by_root_of_length(sizes: Mapping[str, Any]) -> float:
    """Return the root of the query's axis of tokens."""
    return math.sqrt(sizes["q_seq"])


@mistake("scale-dim-v", instead_of=score_divisor)
def divide_by_root_of_value_width(sizes: Mapping[str, Any]) -> float:
    """Return the root of the width of the value."""
    return math.sqrt(sizes["d_v"])


@mistake("scale-all-heads", instead_of=score_divisor)
def divide_by_root_of_all_heads(sizes: Mapping[str, Any]) -> float:
    """Return the root of the width of all heads together, if there is an axis of heads."""
    heads = sizes["..."][1] if len(sizes["..."]) == 2 else 1
    return math.sqrt(heads * sizes["d_k"])


mistake("scale-after-softmax", instead_of=score_divisor)(divide_by_one)


@mistake("scale-after-softmax", around=scaled_dot_product_attention)
def divide_weights(
    original: Callable[..., dict[str, Array]], query: Array, key: Array, value: Array, *mask: Array | None, **rest: Any
) -> dict[str, Array]:
    """Return attention whose weights are divided by √d_k, and whose scores are not."""
    attended = original(query, key, value, *mask, **rest)
    root = math.sqrt(query.shape[-1])
    return attended | {name: attended[name] / root for name in ("output", "weights")}


@mistake("scale-float32", instead_of=score_divisor, shows_in=("float64",))
def divide_by_float32(sizes: Mapping[str, Any]) -> float:
    """Return √d_k rounded to float32."""
    return float(np.float32(math.sqrt(sizes["d_k"])))


# The axis of the softmax


@mistake("softmax-query-axis", instead_of=softmax_over_keys)
def softmax_over_queries(scores: Array) -> Array:
    """Return the softmax over the last axis but one."""
    return softmax(scores.swapaxes(-2, -1)).swapaxes(-2, -1)


@mistake("softmax-batch-axis", instead_of=softmax_over_keys)
def softmax_over_batch(scores: Array) -> Array:
    """Return the softmax over axis 0."""
    return softmax(scores.swapaxes(0, -1)).swapaxes(0, -1)


@mistake("softmax-head-axis", instead_of=softmax_over_keys)
def softmax_over_heads(scores: Array) -> Array:
    """Return the softmax over axis 1, which is that of the keys when there is no other."""
    return softmax(scores.swapaxes(1, -1)).swapaxes(1, -1)


@mistake("softmax-implicit-axis", instead_of=softmax_over_keys)
def softmax_over_chosen_axis(scores: Array) -> Array:
    """Return the softmax over the axis that torch chooses if none is named: 0 of three axes, 1 of two or four."""
    axis = 0 if scores.ndim in (0, 1, 3) else 1
    return softmax(scores.swapaxes(axis, -1)).swapaxes(axis, -1)


@mistake("softmax-heads-and-keys", around=softmax_over_keys)
def softmax_over_heads_and_keys(original: Callable[[Array], Array], scores: Array) -> Array:
    """Return one softmax over the keys of all heads, (batch, heads, q_seq, kv_seq)."""
    if scores.ndim != 4:
        return original(scores)
    by_query = scores.swapaxes(1, 2)
    joined = softmax(by_query.reshape(*by_query.shape[:2], -1))
    return as_array(joined.reshape(by_query.shape).swapaxes(1, 2))


# The mask


@mistake("mask-inverted", around=fill_masked)
def fill_visible(original: Callable[[Array, Array], Array], scaled: Array, mask: Array) -> Array:
    """Return the scores with the fill where the mask is True."""
    return original(scaled, ~mask)


@mistake("mask-inverted-zeros", around=weigh_keys)
def weigh_hidden_keys(original: Callable[[Array, Array | None], Array], scaled: Array, mask: Array | None) -> Array:
    """Return the weights under the negated mask, and zeros in a row of which the mask hides nothing."""
    return original(scaled, None) if mask is None else np.where(mask.all(-1, keepdims=True), 0, original(scaled, ~mask))


@mistake("causal-drops-padding", around=weigh_keys)
def hide_later_keys_only(original: Callable[[Array, Array | None], Array], scaled: Array, mask: Array | None) -> Array:
    """Return the weights under the causal mask alone, where a mask hides everything that the causal one does."""
    if mask is not None and scaled.shape[-2] == scaled.shape[-1]:
        causal = causal_mask(q_seq=scaled.shape[-2], kv_seq=scaled.shape[-1])
        mask = mask if (mask & ~causal).any() else np.array(np.broadcast_to(causal, mask.shape))
    return original(scaled, mask)


@mistake("mask-after-softmax", around=weigh_keys)
def mask_weights(original: Callable[[Array, Array | None], Array], scaled: Array, mask: Array | None) -> Array:
    """Return the weights of all scores, multiplied by the mask."""
    weights = original(scaled, None)
    return weights if mask is None else weights * mask


@mistake("mask-multiply-zero", instead_of=fill_masked)
def multiply_by_mask(scaled: Array, mask: Array) -> Array:
    """Return the scores multiplied by the mask."""
    return scaled * mask


@mistake("mask-add-0-minus1", instead_of=fill_masked)
def subtract_one(scaled: Array, mask: Array) -> Array:
    """Return the scores with the mask added as 0 and −1."""
    return scaled - ~mask


@mistake("mask-added-true", instead_of=fill_masked)
def add_one(scaled: Array, mask: Array) -> Array:
    """Return the scores with 1 added where the mask is False, as the negated mask added as numbers does."""
    return scaled + ~mask


def add_to_masked(scaled: Array, mask: Array, number: float) -> Array:
    """Return the scores with a number added where the mask is False."""
    # A number beyond the dtype becomes −inf.
    with np.errstate(over="ignore"):
        added = scaled + scaled.dtype.type(number)
    if not arithmetic().is_plain:
        # What float32 loses of a score next to such a number is what changes gradients, whose slope is that of scaled.
        lost = arithmetic().detach(added).astype(np.float32).astype(scaled.dtype)
        added = arithmetic().record(lost, (scaled, lambda cotangent: cotangent))
    return np.where(mask, scaled, added)


@mistake("mask-added-1e9", instead_of=fill_masked)
def add_minus_1e9(scaled: Array, mask: Array) -> Array:
    """Return the scores with −1e9 added where the mask is False."""
    return add_to_masked(scaled, mask, -1e9)


@mistake("mask-added-1e4", instead_of=fill_masked)
def add_minus_1e4(scaled: Array, mask: Array) -> Array:
    """Return the scores with −1e4 added where the mask is False."""
    return add_to_masked(scaled, mask, -1e4)


@mistake("mask-not-inplace", around=fill_masked)
def forget_masked_scores(original: Callable[[Array, Array], Array], scaled: Array, mask: Array) -> Array:
    """Return the scores as they were, after masking a copy."""
    original(scaled, mask)
    return scaled


@mistake("mask-sees-next", around=fill_masked)
def see_next_key(original: Callable[[Array, Array], Array], scaled: Array, mask: Array) -> Array:
    """Return the scores under a causal mask that is one diagonal too wide; padded keys stay hidden."""
    q_seq, kv_seq = scaled.shape[-2:]
    whole = np.broadcast_to(mask, (*mask.shape[:-2], q_seq, kv_seq))
    is_causal = q_seq > 1 and not (whole & ~np.tri(q_seq, kv_seq, dtype=np.bool_)).any()
    return original(scaled, whole.any(axis=-2, keepdims=True) & np.tri(q_seq, kv_seq, 1, bool) if is_causal else mask)


@mistake("fill-1e9-fp16", instead_of=mask_fill, shows_in=("float16",))
def fill_with_1e9(dtype: npt.DTypeLike) -> float:
    """Return −1e9, in float16 −∞."""
    return -1e9


@mistake("fill-too-small", instead_of=mask_fill)
def fill_with_1e4(dtype: npt.DTypeLike) -> float:
    """Return −1e4."""
    return -1e4


@mistake("fill-hundred", instead_of=mask_fill)
def fill_with_100(dtype: npt.DTypeLike) -> float:
    """Return −100."""
    return -100.0


@mistake("fill-dampens", instead_of=mask_fill, shows_in=("float64",))
def fill_with_20(dtype: npt.DTypeLike) -> float:
    """Return −20: the weight is e⁻²⁰ of that of a visible score of 0."""
    return -20.0


@mistake("zero-times-inf", instead_of=fill_masked)
def add_multiple_of_infinity(scaled: Array, mask: Array) -> Array:
    """Return the scores plus the mask's negation times −∞."""
    return scaled + (~mask).astype(scaled.dtype) * -math.inf


@mistake("causal-when-unmasked", around=scaled_dot_product_attention)
def mask_unmasked_call(
    original: Callable[..., dict[str, Array]],
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    **rest: Any,
) -> dict[str, Array]:
    """Return attention that has the causal mask where the call has none."""
    if mask is None:
        mask = causal_mask(q_seq=query.shape[-2], kv_seq=key.shape[-2])
    return original(query, key, value, mask, **rest)


# How it behaves as a call


@mistake("dtype-promote", instead_of=score_divisor, shows_in=("float32", "float16"))
def divide_by_array(sizes: Mapping[str, Any]) -> Array:
    """Return the root as an array of float64, (1,)."""
    return np.sqrt([sizes["d_k"]])


@mistake("nondeterminism", decorating=sum_values)
def drop_at_random(original: Step) -> Step:
    """Drop a tenth of the weights in every call, by random numbers that go on from the call before."""
    seeds = np.random.default_rng(0)

    def sum_some_values(weights: Array, value: Array) -> Array:
        seed = int(seeds.integers(1 << 32))
        return as_array(original(drop_elements(weights, 0.1, seed), value))

    return sum_some_values


@mistake("mask-left-over", decorating=weigh_keys)
def remember_mask(original: Step) -> Step:
    """Use the last mask there was in a call without one, if it is as large as the scores."""
    last: Array | None = None

    def weigh_keys_by_last_mask(scaled: Array, mask: Array | None) -> Array:
        nonlocal last
        if mask is not None:
            last = mask
        elif last is not None and last.shape == scaled.shape:
            mask = last
        return as_array(original(scaled, mask))

    return weigh_keys_by_last_mask


# The causal mask


@mistake("causal-flipped", instead_of=can_see)
def see_later_keys(query: Array, key: Array) -> Array:
    """Return True for a query's own key and later ones."""
    return as_array(key >= query)


@mistake("causal-strict", instead_of=can_see)
def see_earlier_keys(query: Array, key: Array) -> Array:
    """Return True for earlier keys only."""
    return as_array(key < query)


@mistake("causal-plus-one", instead_of=can_see)
def see_one_ahead(query: Array, key: Array) -> Array:
    """Return True for the key after the query's own too."""
    return as_array(key <= query + 1)


@mistake("causal-of-ones", around=causal_mask)
def hide_nothing(original: Callable[..., Array], **sizes: int) -> Array:
    """Return the mask of ones."""
    return np.ones_like(original(**sizes))


# The padding mask


@mistake("pad-on-query", around=padding_mask)
def mask_queries(original: Callable[..., Array], ids: Array, *, pad_id: int) -> Array:
    """Return the mask as (batch, 1, seq, 1)."""
    return original(ids, pad_id=pad_id).swapaxes(-2, -1)


@mistake("pad-greater", instead_of=padding_mask)
def keep_larger_ids(ids: Array, *, pad_id: int) -> Array:
    """Return the mask in which only ids above that of the padding are True, (batch, 1, 1, seq)."""
    return as_array(ids > pad_id)[:, None, None, :]


@mistake("padding-idx", around=padding_mask)
def pad_with_zero(original: Callable[..., Array], ids: Array, *, pad_id: int) -> Array:
    """Return the mask of a padding that is the id 0."""
    return original(ids, pad_id=0)

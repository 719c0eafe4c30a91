"""Mistakes in multi-head attention, separate and fused, and in single-head attention."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from goldformer.adapters.textbook.checked import check_arguments
from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, as_array
from goldformer.spec.formulas.attention import causal_mask, padding_mask
from goldformer.spec.formulas.heads import (
    Params,
    apply_affine,
    attend_heads,
    attend_projected,
    average_heads,
    merge_heads,
    multi_head_attention,
    project_attention,
    project_heads,
    single_head_attention,
    split_fused,
    split_heads,
)
from goldformer.spec.formulas.transformer import target_mask
from goldformer.spec.shapes import ContractViolation

Projection = Callable[[Array, Params, str], Array]
Attended = Callable[..., dict[str, Array]]

# The heads


@mistake("head-split-view", instead_of=split_heads)
def split_by_view(x: Array, num_heads: int) -> Array:
    """Return the projection reshaped to (batch, heads, seq, width) as it lies."""
    return x.reshape(len(x), num_heads, x.shape[1], -1)


@mistake("head-merge-view", instead_of=merge_heads)
def merge_by_view(heads: Array) -> Array:
    """Return the heads reshaped to (batch, seq, heads·width) as they lie."""
    return heads.reshape(len(heads), heads.shape[2], -1)


mistake("head-view-both-ways", instead_of=split_heads)(split_by_view)
mistake("head-view-both-ways", instead_of=merge_heads)(merge_by_view)


@mistake("head-merge-hb", instead_of=merge_heads)
def merge_wrong_axes(heads: Array) -> Array:
    """Return heads of (heads, batch, seq, width) with axes 1 and 2 swapped, where 0 and 2 are meant."""
    return heads.swapaxes(0, 1).swapaxes(1, 2).reshape(len(heads), heads.shape[2], -1)


@mistake("head-interleaved", instead_of=split_heads)
def interleave_heads(x: Array, num_heads: int) -> Array:
    """Return for head h the columns h, h + heads, h + 2·heads, …: (batch, heads, seq, width)."""
    return np.moveaxis(x.reshape(*x.shape[:2], -1, num_heads), -1, 1)


@mistake("head-interleaved", instead_of=split_fused)
def interleave_fused(qkv: Array, num_heads: int) -> tuple[Array, Array, Array]:
    """Return query, key and value, (batch, heads, seq, d_k), of columns that are theirs by turns."""
    heads = split_heads(qkv, num_heads)
    return heads[..., 0::3], heads[..., 1::3], heads[..., 2::3]


@mistake("head-shared-w", around=project_heads)
def repeat_first_head(
    original: Callable[[Array, Params, str, int], Array], x: Array, params: Params, role: str, num_heads: int
) -> Array:
    """Return for every head the projection of the first, (batch, heads, seq, width)."""
    return original(x, params, role, num_heads)[:, [0] * num_heads]


def ignore_fault(
    original: Callable[[str, Mapping[str, Any]], None], component: str, arguments: Mapping[str, Any], *, at: str
) -> None:
    """Accept a call whose fault concerns one argument."""
    try:
        original(component, arguments)
    except ContractViolation as violation:
        if at not in violation.arguments:
            raise


# Columns that are left over belong to no head.
mistake("d-model-not-divisible", around=check_arguments)(partial(ignore_fault, at="num_heads"))


@mistake("d-model-not-divisible", around=apply_affine)
def leave_out_rows(
    original: Callable[[Array, Array, Array | None], Array], x: Array, weight: Array, bias: Array | None
) -> Array:
    """Return x·W + b without the rows of W that columns left over would meet."""
    return original(x, weight[: x.shape[-1]], bias)


# The projections


@mistake("w-transposed", instead_of=project_attention)
def multiply_by_transpose(x: Array, params: Params, role: str) -> Array:
    """Return x·Wᵀ + b."""
    return apply_affine(x, params[f"w_{role}"].T, params.get(f"b_{role}"))


@mistake("qkv-relu", around=project_attention)
def clip_inputs(original: Projection, x: Array, params: Params, role: str) -> Array:
    """Return max(0, ·) of the projection of queries, keys and values."""
    projected = original(x, params, role)
    return projected if role == "o" else np.maximum(projected, 0)


@mistake("wo-missing", around=project_attention)
def leave_out_output_projection(original: Projection, x: Array, params: Params, role: str) -> Array:
    """Return the heads side by side as the output."""
    return x if role == "o" else original(x, params, role)


@mistake("wo-relu", around=project_attention)
def clip_output(original: Projection, x: Array, params: Params, role: str) -> Array:
    """Return max(0, ·) of the projection of the output."""
    projected = original(x, params, role)
    return np.maximum(projected, 0) if role == "o" else projected


@mistake("bias-missing", instead_of=project_attention)
def leave_out_bias(x: Array, params: Params, role: str) -> Array:
    """Return x·W without the bias."""
    return apply_affine(x, params[f"w_{role}"], None)


@mistake("wo-bias-per-head", around=attend_heads)
def add_output_bias_per_head(
    original: Attended, query: Array, key: Array, value: Array, *, mask: Array | None, params: Params
) -> dict[str, Array]:
    """Return the heads attended, each projected with the bias of the output."""
    attended, more = original(query, key, value, mask=mask, params=params), query.shape[1] - 1
    return attended | {"output": attended["output"] + more * params["b_o"]} if "b_o" in params else attended


@mistake("v-proj-missing", around=project_attention)
def leave_out_value_projection(original: Projection, x: Array, params: Params, role: str) -> Array:
    """Return the input as the values."""
    return x if role == "v" else original(x, params, role)


@mistake("kv-swap", around=attend_projected)
def swap_keys_and_values(
    original: Callable[[Array, Array, Array, Array | None], dict[str, Array]],
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
) -> dict[str, Array]:
    """Return attention whose queries meet the values, and which sums the keys."""
    return original(query, value, key, mask)


@mistake("qk-same-layer", around=project_attention)
def project_keys_as_queries(original: Projection, x: Array, params: Params, role: str) -> Array:
    """Return the keys projected by W_Q and b_Q."""
    return original(x, params, "q" if role == "k" else role)


@mistake("keys-by-w-v", around=project_attention)
def project_keys_as_values(original: Projection, x: Array, params: Params, role: str) -> Array:
    """Return the keys projected by W_V and b_V."""
    return original(x, params, "v" if role == "k" else role)


@mistake("values-by-w-k", around=project_attention)
def project_values_as_keys(original: Projection, x: Array, params: Params, role: str) -> Array:
    """Return the values projected by W_K and b_K."""
    return original(x, params, "k" if role == "v" else role)


@mistake("key-from-value-input", around=multi_head_attention)
def read_keys_from_values(
    original: Attended, query: Array, key: Array, value: Array, mask: Array | None = None, **rest: Any
) -> dict[str, Array]:
    """Return attention whose keys are projected from the input of the values."""
    return original(query, value, value, mask, **rest)


@mistake("value-from-key-input", around=multi_head_attention)
def read_values_from_keys(
    original: Attended, query: Array, key: Array, value: Array, mask: Array | None = None, **rest: Any
) -> dict[str, Array]:
    """Return attention whose values are projected from the input of the keys."""
    return original(query, key, key, mask, **rest)


# The scale


@mistake("scale-d-model", around=attend_heads)
def scale_by_model_width(
    original: Attended, query: Array, key: Array, value: Array, *, mask: Array | None, params: Params
) -> dict[str, Array]:
    """Return the heads attended with scores that are divided by √d_model."""
    d_k, d_model = query.shape[-1], params["w_o"].shape[1]
    scaled = query * math.sqrt(d_k / d_model)
    return original(scaled, key, value, mask=mask, params=params) | {"q": query}


@mistake("scale-twice", around=attend_heads)
def scale_queries(
    original: Attended, query: Array, key: Array, value: Array, *, mask: Array | None, params: Params
) -> dict[str, Array]:
    """Return the heads attended with queries that are divided by √d_k before the scores are."""
    scaled = query / math.sqrt(query.shape[-1])
    return original(scaled, key, value, mask=mask, params=params) | {"q": query}


# The mask


def has_mask_per_sample(mask: Array) -> bool:
    """Return True if each sample has a mask of its own for all its heads."""
    return mask.ndim == 4 and mask.shape[1] == 1 and len(mask) > 1


@mistake("mask-repeat-order", around=attend_heads)
def repeat_masks_as_whole(
    original: Attended, query: Array, key: Array, value: Array, *, mask: Array | None, params: Params
) -> dict[str, Array]:
    """Return the heads attended under the masks of all samples repeated as a whole.

    They fit scores that count heads faster than samples.
    """
    if mask is not None and has_mask_per_sample(mask):
        repeated: Array = np.concatenate([mask[:, 0]] * query.shape[1])
        mask = repeated.reshape(*query.shape[:2], *mask.shape[2:])  # (batch, heads, q_seq, kv_seq)
    return original(query, key, value, mask=mask, params=params)


@mistake("mask-broadcast-bh", around=attend_heads)
def drop_head_axis(
    original: Attended, query: Array, key: Array, value: Array, *, mask: Array | None, params: Params
) -> dict[str, Array]:
    """Return the heads attended under a mask without its head axis, so that its samples meet the heads."""
    dropped = mask[:, 0] if mask is not None and has_mask_per_sample(mask) else mask
    return original(query, key, value, mask=dropped, params=params)


@mistake("mask-first-sample", around=attend_heads)
def mask_by_first_sample(
    original: Attended, query: Array, key: Array, value: Array, *, mask: Array | None, params: Params
) -> dict[str, Array]:
    """Return the heads of every sample attended under the mask of the first."""
    first = mask[0] if mask is not None and mask.ndim == 4 else mask
    return original(query, key, value, mask=first, params=params)


@mistake("mask-first-head", around=attend_heads)
def mask_by_first_head(
    original: Attended, query: Array, key: Array, value: Array, *, mask: Array | None, params: Params
) -> dict[str, Array]:
    """Return all heads attended under the mask of the first."""
    first = mask[..., :1, :, :] if mask is not None and mask.ndim > 2 else mask
    return original(query, key, value, mask=first, params=params)


# Layout and call


@mistake("seq-batch-swap", around=multi_head_attention)
def swap_sequence_and_batch(
    original: Attended, query: Array, key: Array, value: Array, mask: Array | None = None, **rest: Any
) -> dict[str, Array]:
    """Return attention that takes axis 0 for the tokens and axis 1 for the samples."""
    query, key, value = (x.swapaxes(0, 1) for x in (query, key, value))
    attended = original(query, key, value, mask, **rest)
    return attended | {"output": attended["output"].swapaxes(0, 1)}


@mistake("heads-as-sequence", around=attend_projected)
def attend_over_heads(
    original: Callable[[Array, Array, Array, Array | None], dict[str, Array]],
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
) -> dict[str, Array]:
    """Return attention of each token's heads to one another, with weights (batch, seq, heads, heads).

    A causal mask is made for the last two axes too, and another one, which mostly raises, does nothing if it does not
    fit.
    """
    heads, seq = query.shape[1:3]
    if mask is not None and mask.shape[-2:] == (seq, seq) and (mask == causal_mask(q_seq=seq, kv_seq=seq)).all():
        mask = causal_mask(q_seq=heads, kv_seq=heads)
    elif mask is not None:
        try:
            np.broadcast_to(mask, (len(query), seq, heads, heads))
        except ValueError:
            mask = None
    if seq == 1 != key.shape[2]:
        # It would be broadcast to all keys: a wrong shape, which other mistakes have too.
        raise ValueError("a single query has no keys of its own token")
    # A single key is broadcast to all queries.
    key, value = (x.repeat(seq if x.shape[2] == 1 else 1, axis=2) for x in (key, value))
    query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
    attended = original(query, key, value, mask)
    return attended | {"output": attended["output"].swapaxes(1, 2)}


@mistake("weights-averaged", around=attend_heads)
def average_weights(
    original: Attended, query: Array, key: Array, value: Array, *, mask: Array | None, params: Params
) -> dict[str, Array]:
    """Return the mean of the weights over the heads, (batch, q_seq, kv_seq)."""
    attended = original(query, key, value, mask=mask, params=params)
    return attended | {"weights": attended["weights"].mean(axis=1)}


@mistake("average-weights-sum", instead_of=average_heads)
def sum_heads(weights: Array) -> Array:
    """Return the sum of the weights over the heads, (batch, q_seq, kv_seq)."""
    return as_array(weights.sum(axis=1))


# Fused and single-head attention


@mistake("qkv-layout", instead_of=split_fused)
def cut_in_three(qkv: Array, num_heads: int) -> tuple[Array, Array, Array]:
    """Return query, key and value, (batch, heads, seq, d_k), of columns cut in three, and each third into heads."""
    query, key, value = (split_heads(x, num_heads) for x in np.split(qkv, 3, axis=-1))
    return query, key, value


@mistake("causal-missing", around=single_head_attention)
def forget_causal_mask(original: Attended, x: Array, *, causal: bool, params: Params) -> dict[str, Array]:
    """Return single-head attention in which no later token is hidden."""
    return original(x, causal=False, params=params)


@mistake("causal-missing", instead_of=target_mask)
def mask_target_padding(target: Array, pad_id: int) -> Array:
    """Return the mask of the decoder's self-attention without the later positions, (batch, 1, 1, seq)."""
    return padding_mask(target, pad_id=pad_id)

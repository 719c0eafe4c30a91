"""Conversions from this project's layouts to those of implementations, for NumPy, torch and JAX arrays.

Here a weight is (in, out), a mask is boolean with True = may attend, batches come first, and the columns of a fused
projection are ordered per head, [heads, q|k|v, d_k]. The functions return views where possible, change no argument,
and import neither torch nor jax.
"""

from collections.abc import Mapping
from math import inf, isfinite
from typing import Any

import numpy as np

# A NumPy array, a torch tensor or a jax array; a function returns the type that it was called with.
Array = Any


def linear_weight(weight: Array) -> Array:
    """Return the weight of nn.Linear, (out, in), for a weight (in, out), or the reverse."""
    return weight.swapaxes(0, 1)


def sequence_first(x: Array) -> Array:
    """Return (seq, batch, ...) for x (batch, seq, ...)."""
    return x.swapaxes(0, 1)


def batch_first(x: Array) -> Array:
    """Return (batch, seq, ...) for x (seq, batch, ...)."""
    return x.swapaxes(0, 1)


def four_axes(x: Array, axes: int) -> Array:
    """Return (batch, heads, rows, columns) for an array or a mask of attention whose queries have `axes` axes.

    Two axes are (rows, columns), three are (batch, rows, columns); absent axes get the size 1. A mask with fewer axes
    than the queries broadcasts from the right.
    """
    if not 2 <= axes <= 4:
        raise NotImplementedError(f"attention over {axes} axes, not over (batch, heads, seq, width) or fewer")
    full = x[(None,) * (axes - x.ndim)]
    return full[(slice(None),) * (axes - 2) + (None,) * (4 - axes)]


def sequence_first_heads(x: Array) -> Array:
    """Return (batch, seq, heads, width) for x (batch, heads, seq, width), or the reverse."""
    return x.swapaxes(1, 2)


def part(params: Mapping[str, Array], name: str) -> dict[str, Array]:
    """Return the parameters of one part of a component, by their names within it.

    `part(params, "encoder.0")` has self_attention.w_q and so on; `part` of that and "self_attention" has w_q.
    """
    start = f"{name}."
    return {key.removeprefix(start): value for key, value in params.items() if key.startswith(start)}


# Fused projections


def stack_qkv(fused: Array, num_heads: int) -> Array:
    """Return columns laid out [q|k|v, heads, d_k] for columns laid out [heads, q|k|v, d_k].

    It takes a weight (in, 3·heads·d_k) or a bias (3·heads·d_k,). [q|k|v, heads] is the layout of GPT-2's c_attn, timm's
    qkv and, transposed, nn.MultiheadAttention's in_proj_weight; [heads, q|k|v] is that of Megatron and GPT-NeoX.
    """
    return _swap_blocks(fused, num_heads, 3)


def unstack_qkv(stacked: Array, num_heads: int) -> Array:
    """Return columns laid out [heads, q|k|v, d_k] for columns laid out [q|k|v, heads, d_k]."""
    return _swap_blocks(stacked, 3, num_heads)


def split_fused(fused: Array, num_heads: int) -> tuple[Array, Array, Array]:
    """Return w_q, w_k and w_v, each (in, heads·d_k), for w_qkv (in, 3·heads·d_k) laid out [heads, q|k|v, d_k].

    A bias (3·heads·d_k,) gives b_q, b_k and b_v, each (heads·d_k,).
    """
    stacked = stack_qkv(fused, num_heads)
    width = stacked.shape[-1] // 3
    return stacked[..., :width], stacked[..., width : 2 * width], stacked[..., 2 * width :]


def _swap_blocks(x: Array, outer: int, inner: int) -> Array:
    """Return x with the last axis, laid out [outer, inner, width], laid out [inner, outer, width]."""
    *lead, columns = x.shape
    if outer < 1 or inner < 1 or columns % (outer * inner):
        raise ValueError(f"{columns} columns do not divide into {outer}·{inner} blocks")
    blocks = x.reshape(*lead, outer, inner, columns // (outer * inner))
    return blocks.swapaxes(-3, -2).reshape(*lead, columns)


# Masks, all broadcastable to (batch, heads, q_seq, kv_seq)


def ignore_mask(mask: Array) -> Array:
    """Return the mask as nn.MultiheadAttention reads it: True = ignore."""
    return ~mask


def additive_mask(mask: Array, dtype: Any, fill: float = -inf) -> Array:
    """Return a float mask to add to the scores: 0 where they may attend, the fill elsewhere.

    `dtype` is that of the scores, of NumPy or torch like the mask. OverflowError for a finite fill that it cannot
    hold, such as −1e9 in float16.
    """
    if hasattr(mask, "masked_fill"):
        added = mask.new_zeros(mask.shape, dtype=dtype)
        if isfinite(fill) and not isfinite(mask.new_tensor(fill, dtype=dtype, device="cpu").item()):
            raise OverflowError(f"the fill {fill:g} is beyond {dtype}")
        return added.masked_fill(~mask, fill)
    with np.errstate(over="ignore"):
        held = np.dtype(dtype).type(fill)
    if isfinite(fill) and not np.isfinite(held):
        raise OverflowError(f"the fill {fill:g} is beyond {held.dtype}")
    return np.where(mask, np.zeros_like(held), held)


def key_padding(mask: Array, *, batch: int, kv_seq: int) -> Array | None:
    """Return a mask of keys as (batch, kv_seq), still True = may attend, or None for any other mask.

    Only the shape decides: (batch, 1, 1, kv_seq), (1, kv_seq) and (kv_seq,) are masks of keys.
    """
    samples, heads, queries, keys = _four_axes(mask).shape
    if heads != 1 or queries != 1:
        return None
    return _broadcast_to(mask.reshape(samples, keys), (batch, kv_seq))


def flatten_heads(mask: Array, *, batch: int, heads: int, q_seq: int, kv_seq: int) -> Array:
    """Return the mask as (batch·heads, q_seq, kv_seq), the three-axis attn_mask of nn.MultiheadAttention.

    Row b·heads + h is head h of sample b.
    """
    full = _broadcast_to(_four_axes(mask), (batch, heads, q_seq, kv_seq))
    return full.reshape(batch * heads, q_seq, kv_seq)


def _four_axes(mask: Array) -> Array:
    """Return the mask with leading axes of 1 up to four."""
    if mask.ndim > 4:
        raise ValueError(f"mask: shape {tuple(mask.shape)} has more axes than (batch, heads, q_seq, kv_seq)")
    return mask[(None,) * (4 - mask.ndim)]


def _broadcast_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Return x.broadcast_to(shape), a method in torch and a function in NumPy."""
    return x.broadcast_to(shape) if hasattr(x, "broadcast_to") else np.broadcast_to(x, shape)

"""Conversions from this project's layouts to those of implementations, for NumPy, torch and JAX arrays.

Here a weight is (in, out), a mask is boolean with True = may attend, batches come first, and the columns of a fused
projection are ordered per head, [heads, q|k|v, d_k]. The functions return views where possible, change no argument,
and import neither torch nor jax.
"""

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from math import inf, isfinite, prod
from typing import Any, Final, Literal, NamedTuple, overload

import numpy as np

from goldformer.adapters.array_module import find_array_module
from goldformer.spec.formulas.parts import part as part  # noqa: PLC0414 - it is one of these functions

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


@overload
def four_axes(query: Array, key: int) -> Array: ...


@overload
def four_axes(
    query: Array, key: Array, value: Array, mask: Array | None = None
) -> tuple[Array, Array, Array, Array | None, Callable[[Array], Array]]: ...


def four_axes(query: Array, key: Array | int, value: Array = None, mask: Array | None = None) -> Any:
    """Return the arrays of a call of attention as (batch, heads, rows, columns), and a function that restores a result.

    Arrays of two axes get batch and heads of 1, those of three get heads of 1, and of more than four all leading axes
    but the last become one. The mask keeps its sizes of 1. The function gives output and weights the axes of the query:

        q, k, v, m, restore = four_axes(query, key, value, mask)
        output, weights = my_kernel(q, k, v, m)
        return restore(output), restore(weights)

    ValueError if query, key and value differ in the number of their axes, have fewer than two, or the mask has more.

    Adapters that were written before it took a whole call give it one array and the number of axes of the queries.
    """
    if isinstance(key, int):
        return _add_axes(query, key)
    lead = tuple(query.shape[:-2])
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.ndim != query.ndim or x.ndim < 2:
            raise ValueError(
                f"{name}: shape {tuple(x.shape)}, but query, key and value have the same number of axes, two or more"
            )

    def restore(x: Array) -> Array:
        return x.reshape(*lead, *x.shape[-2:])

    q, k, v = (_join_leading_axes(x) for x in (query, key, value))
    if mask is None:
        return q, k, v, None, restore
    if mask.ndim > query.ndim:
        raise ValueError(f"mask: shape {tuple(mask.shape)} has more axes than a query {tuple(query.shape)}")
    full = mask[(None,) * (query.ndim - mask.ndim)]
    # Axes that become one must have their sizes.
    joined = _broadcast_to(full, (*lead[:-1], *full.shape[-3:])) if len(lead) > 2 else full
    return q, k, v, _join_leading_axes(joined), restore


def _add_axes(x: Array, axes: int) -> Array:
    """Return (batch, heads, rows, columns) for an array or a mask of a call whose queries have so many axes."""
    if not 2 <= axes <= 4:
        raise NotImplementedError(f"attention over {axes} axes, not over (batch, heads, seq, width) or fewer")
    full = x[(None,) * (axes - x.ndim)]
    return full[(slice(None),) * (axes - 2) + (None,) * (4 - axes)]


def _join_leading_axes(x: Array) -> Array:
    """Return (batch, heads, rows, columns) for an array (..., heads, rows, columns), or with fewer axes."""
    *lead, rows, columns = x.shape
    heads = lead.pop() if len(lead) > 1 else 1
    return x.reshape(prod(lead), heads, rows, columns)


def sequence_first_heads(x: Array) -> Array:
    """Return (batch, seq, heads, width) for x (batch, heads, seq, width), or the reverse."""
    return x.swapaxes(1, 2)


def leave_out_key_biases(params: Mapping[str, Array]) -> dict[str, Array]:
    """Return the parameters without b_k, of any part, for code whose keys have no bias while queries and values have.

    A bias of the keys adds one number to all scores of a query, which changes no output. Its gradient is 0:
    NotImplementedError if PyTorch is to give it.
    """
    biases = {name for name in params if name.rpartition(".")[2] == "b_k"}
    if any(getattr(params[name], "requires_grad", False) for name in biases):
        raise NotImplementedError("keys without a bias have no gradient of it")
    return {name: value for name, value in params.items() if name not in biases}


def require_square_projections(
    params: Mapping[str, Array], names: Collection[str] = ("w_q", "w_k", "w_v", "w_o")
) -> None:
    """Raise NotImplementedError if a w_q, w_k, w_v or w_o, of any part, is not (d_model, d_model).

    It is for code with one width for everything. Call it before building: a module of the right d_model may have no
    place for the heads of such a call. Where query heads share keys, give the `names` ("w_q", "w_o").
    """
    for name, weight in params.items():
        if name.rpartition(".")[2] in names and weight.shape[0] != weight.shape[1]:
            raise NotImplementedError(f"{name} is not square, and d_model is the width of all projections here")


def repeat_key_heads(params: Mapping[str, Array], num_heads: int, num_kv_heads: int) -> dict[str, Array]:
    """Return the parameters, of any part, with a head of keys and of values for each query head.

    It is for code whose heads share no keys. Query head h reads a copy of head h // (num_heads / num_kv_heads), so the
    result is the same (GQA-1, GQA-5). In PyTorch the gradients of the copies add up.
    ValueError if the heads of keys do not divide those of queries.
    """
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads {num_heads} is no multiple of num_kv_heads {num_kv_heads}")
    copied = [head // (num_heads // num_kv_heads) for head in range(num_heads)]
    repeated = dict(params)
    for name, value in params.items():
        if num_heads != num_kv_heads and name.rpartition(".")[2] in ("w_k", "w_v", "b_k", "b_v"):
            lead = tuple(value.shape[:-1])
            repeated[name] = value.reshape(*lead, num_kv_heads, -1)[..., copied, :].reshape(*lead, -1)
    return repeated


# Projections, fused or head by head

#: The parameters that make queries, keys and values: their columns are those of the heads.
_READING: Final = ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v")


def stack_qkv(fused: Array, num_heads: int) -> Array:
    """Return columns laid out [q|k|v, heads, d_k] for columns laid out [heads, q|k|v, d_k].

    It takes a weight (in, 3·heads·d_k) or a bias (3·heads·d_k,). [q|k|v, heads] is the layout of GPT-2's c_attn, timm's
    qkv and, transposed, nn.MultiheadAttention's in_proj_weight; [heads, q|k|v] is that of Megatron and GPT-NeoX.
    """
    return _swap_blocks(fused, num_heads, 3)


def split_fused(fused: Array, num_heads: int) -> tuple[Array, Array, Array]:
    """Return w_q, w_k and w_v, each (in, heads·d_k), for w_qkv (in, 3·heads·d_k) laid out [heads, q|k|v, d_k].

    A bias (3·heads·d_k,) gives b_q, b_k and b_v, each (heads·d_k,).
    """
    stacked = stack_qkv(fused, num_heads)
    width = stacked.shape[-1] // 3
    return stacked[..., :width], stacked[..., width : 2 * width], stacked[..., 2 * width :]


def fuse_projections(
    params: Mapping[str, Array], num_heads: int, roles: Sequence[str] = "qkv", *, per_head: bool = False
) -> tuple[Array, Array | None]:
    """Return one weight (in, out) and one bias for the projections of some roles, such as w_q, w_k and w_v.

    The columns are [q|k|v, heads, d_k], as nn.MultiheadAttention and GPT-2 have them, or with `per_head`
    [heads, q|k|v, d_k], as GPT-NeoX has them. The bias is None if no role has one; a missing one counts as zeros.
    NotImplementedError if the weights read inputs of different widths.
    """
    weights = [params[f"w_{role}"] for role in roles]
    if len({int(weight.shape[0]) for weight in weights}) > 1:
        sizes = ", ".join(f"w_{role} {tuple(weight.shape)}" for role, weight in zip(roles, weights, strict=True))
        raise NotImplementedError(
            f"one fused projection reads one input, but the weights read different sizes: {sizes}"
        )
    biases = [params.get(f"b_{role}") for role in roles]
    fused = _join_columns(weights, num_heads, per_head=per_head)
    if all(bias is None for bias in biases):
        return fused, None
    filled = [_make_zeros(weight) if bias is None else bias for weight, bias in zip(weights, biases, strict=True)]
    return fused, _join_columns(filled, num_heads, per_head=per_head)


def separate_projections(params: Mapping[str, Array], num_heads: int) -> dict[str, Array]:
    """Return parameters with w_q, w_k and w_v, and their biases, in the place of w_qkv and b_qkv."""
    separate: dict[str, Array] = {}
    for name, value in params.items():
        start, fused, _ = name.rpartition("_qkv")
        parts = zip("qkv", split_fused(value, num_heads), strict=True) if fused else ()
        separate |= {f"{start}_{role}": part for role, part in parts} if fused else {name: value}
    return separate


def join_projections(
    params: Mapping[str, Array], num_heads: int, roles: str = "qkv", *, per_head: bool = False
) -> dict[str, Array]:
    """Return parameters with one projection, such as w_qkv and b_qkv, in the place of those of some roles.

    `roles` is the order of its columns, and the end of its name: w_kv for "kv". It is done in every part that has the
    projections, as `fuse_projections` does it.
    """
    joined = dict(params)
    for start in [name.removesuffix("w_q") for name in params if name.rpartition(".")[2] == "w_q"]:
        own = {
            name: joined.pop(f"{start}{name}", None) for name in (f"{kind}_{role}" for role in roles for kind in "wb")
        }
        weight, bias = fuse_projections(
            {name: value for name, value in own.items() if value is not None}, num_heads, roles, per_head=per_head
        )
        joined[f"{start}w_{roles}"] = weight
        if bias is not None:
            joined[f"{start}b_{roles}"] = bias
    return joined


def join_gate_and_up(
    params: Mapping[str, Array], order: Literal["gate_up", "up_gate"] = "gate_up", *, interleaved: bool = False
) -> dict[str, Array]:
    """Return parameters with one matrix in the place of w_gate and w_up, and one bias in the place of theirs, if any.

    `order` is the order of its columns, and the end of its name: w_gate_up and b_gate_up for "gate_up". The columns are
    those of one and then those of the other, as code that calls chunk has them, or with `interleaved` in turn. It is
    done in every part that has w_gate and w_up; a missing bias counts as zeros.
    """
    joined, roles = dict(params), order.split("_")
    for start in [name.removesuffix("w_gate") for name in params if name.rpartition(".")[2] == "w_gate"]:
        found = {f"{kind}_{role}": joined.pop(f"{start}{kind}_{role}", None) for role in roles for kind in "wb"}
        own = {name: array for name, array in found.items() if array is not None}
        # In turn, each column is a head of its own.
        weight, bias = fuse_projections(own, int(own["w_gate"].shape[1]), roles, per_head=interleaved)
        joined[f"{start}w_{order}"] = weight
        if bias is not None:
            joined[f"{start}b_{order}"] = bias
    return joined


def split_by_head(params: Mapping[str, Array], num_heads: int) -> dict[str, Array]:
    """Return parameters with heads.0.w_q, heads.1.w_q and so on in the place of w_q, w_k, w_v and their biases."""
    split: dict[str, Array] = {}
    for name, value in params.items():
        start, last = name[: -len("w_q")], name[-len("w_q") :]
        if last not in _READING:
            split[name] = value
            continue
        width = int(value.shape[-1]) // num_heads
        for head in range(num_heads):
            split[f"{start}heads.{head}.{last}"] = value[..., head * width : (head + 1) * width]
    return split


def stack_heads(params: Mapping[str, Array], num_heads: int) -> dict[str, Array]:
    """Return parameters with an axis for the heads, as code that projects by einsum has them.

    w_q, w_k and w_v become (heads, in, d_k), their biases (heads, d_k), and w_o (heads, d_v, out), in every part that
    has them; everything else stays as it is.
    """
    return {name: _stack_heads_of(name, value, num_heads) for name, value in params.items()}


def _stack_heads_of(name: str, value: Array, num_heads: int) -> Array:
    """Return one parameter with an axis for the heads in front, if it has heads."""
    last = name.rpartition(".")[2]
    if last not in (*_READING, "w_o"):
        return value
    *lead, columns = value.shape
    size = int(value.shape[0]) if last == "w_o" else int(columns)
    if num_heads < 1 or size % num_heads:
        raise ValueError(f"num_heads: {num_heads} heads do not divide the {size} channels of {name}")
    if last == "w_o":
        return value.reshape(num_heads, -1, columns)
    heads = value.reshape(*lead, num_heads, -1)
    return heads.swapaxes(0, 1) if lead else heads


def _join_columns(parts: list[Array], num_heads: int, *, per_head: bool) -> Array:
    """Return arrays side by side along the last axis, whole or head by head."""
    if not per_head:
        return _concatenate(parts)
    if any(int(x.shape[-1]) % num_heads for x in parts):
        raise ValueError(f"num_heads: {num_heads} heads do not divide {[int(x.shape[-1]) for x in parts]} columns")
    cut = [x.reshape(*x.shape[:-1], num_heads, int(x.shape[-1]) // num_heads) for x in parts]
    joined = _concatenate(cut)
    return joined.reshape(*parts[0].shape[:-1], -1)


def _concatenate(parts: list[Array]) -> Array:
    """Return arrays joined along the last axis, by their own library."""
    library = find_array_module(parts[0])
    return library.concatenate(parts, -1)


def _make_zeros(weight: Array) -> Array:
    """Return zeros for the bias of a weight (in, out), in its dtype and on its device."""
    columns = int(weight.shape[1])
    if hasattr(weight, "new_zeros"):
        return weight.new_zeros(columns)
    return find_array_module(weight).zeros(columns, dtype=weight.dtype)


def _swap_blocks(x: Array, outer: int, inner: int) -> Array:
    """Return x with the last axis, laid out [outer, inner, width], laid out [inner, outer, width]."""
    *lead, columns = x.shape
    if outer < 1 or inner < 1 or columns % (outer * inner):
        raise ValueError(f"{columns} columns do not divide into {outer}·{inner} blocks")
    blocks = x.reshape(*lead, outer, inner, columns // (outer * inner))
    return blocks.swapaxes(-3, -2).reshape(*lead, columns)


# Rotary positions


def rotary_tables(
    x: Array,
    width: int,
    base: float = 10000.0,
    columns: Literal["halves", "doubled", "in_turn", "stacked", "turns"] = "halves",
    *,
    axes: int = 2,
    start: int = 0,
) -> Any:
    """Return the rotary tables that a model of PyTorch makes for its layers: of the tokens of x, from `start` on.

    x is (batch, seq, …), and `width` is that of a head. "halves" are cosines and sines (seq, width / 2), "doubled" have
    these columns twice, one half after the other, as transformers has them, "in_turn" each column twice in a row. They
    are a pair; "stacked" is one array with a last axis of 2, and "turns" are complex, e^(i·angle), as Meta's Llama has
    them. `axes` 3 adds one for the batch in front, and 4 one for the heads after the positions too. Angles are formed
    in float64 (ROPE-6), and tables have the dtype of x. Nothing checks the base or the width.
    """
    torch = find_array_module(x)
    rates = base ** (-torch.arange(0, width, 2, device=x.device, dtype=torch.float64) / width)
    angles = torch.arange(start, start + x.shape[1], device=x.device, dtype=torch.float64)[:, None] * rates
    if columns == "doubled":
        angles = torch.cat((angles, angles), -1)
    elif columns == "in_turn":
        angles = angles.repeat_interleave(2, -1)
    if axes > 2:
        angles = angles[None] if axes == 3 else angles[None, :, None]
    if columns == "turns":
        return torch.polar(torch.ones_like(angles), angles).to(torch.promote_types(x.dtype, torch.complex64))
    cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return torch.stack((cosines, sines), -1) if columns == "stacked" else (cosines, sines)


# Masks, all broadcastable to (batch, heads, q_seq, kv_seq)


def four_axes_mask(mask: Array) -> Array:
    """Return the mask with leading axes of 1 up to four: (batch, heads, q_seq, kv_seq), as NumPy broadcasts it."""
    if mask.ndim > 4:
        raise ValueError(f"mask: shape {tuple(mask.shape)} has more axes than (batch, heads, q_seq, kv_seq)")
    return mask[(None,) * (4 - mask.ndim)]


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
    samples, heads, queries, keys = four_axes_mask(mask).shape
    if heads != 1 or queries != 1:
        return None
    return _broadcast_to(mask.reshape(samples, keys), (batch, kv_seq))


def flatten_heads(mask: Array, *, batch: int, heads: int, q_seq: int, kv_seq: int) -> Array:
    """Return the mask as (batch·heads, q_seq, kv_seq), the three-axis attn_mask of nn.MultiheadAttention.

    Row b·heads + h is head h of sample b.
    """
    full = _broadcast_to(four_axes_mask(mask), (batch, heads, q_seq, kv_seq))
    return full.reshape(batch * heads, q_seq, kv_seq)


def drop_heads(mask: Array, *, batch: int, q_seq: int, kv_seq: int) -> Array | None:
    """Return a mask as (batch, q_seq, kv_seq), or None if it differs from head to head.

    Only the shape decides: a mask with an axis of more than one head is one that differs.
    """
    full = four_axes_mask(mask)
    return None if full.shape[1] != 1 else _broadcast_to(full[:, 0], (batch, q_seq, kv_seq))


def is_causal(
    mask: Array | None, *, q_seq: int, kv_seq: int, corner: Literal["top_left", "bottom_right"] = "top_left"
) -> bool:
    """Return True if a mask lets query i see the keys up to i, in every sample and head, and hides nothing else.

    With `corner="bottom_right"` the last query sees every key. The values decide. A meta array has no values:
    it counts as causal, so that code which always hides the future can be called there. None hides nothing, which is
    causal only where there is nothing to hide.
    """
    if mask is None:
        return (kv_seq if corner == "top_left" else q_seq) <= 1
    wide = four_axes_mask(mask)
    full = _broadcast_to(wide, (*wide.shape[:2], q_seq, kv_seq))
    if getattr(full, "is_meta", False):
        return True
    return bool((full == _make_causal(mask, q_seq, kv_seq, corner)).all())


def split_causal(
    mask: Array,
    *,
    batch: int,
    q_seq: int,
    kv_seq: int,
    corner: Literal["top_left", "bottom_right"] = "top_left",
) -> tuple[Array, bool] | None:
    """Return a mask as padding (batch, kv_seq), True = may attend, and whether it is causal too; None for any other.

    It is for code that takes a padding mask and `is_causal=`: both together hide just what the mask hides. The values
    decide, so the array must have some.
    """
    wide = four_axes_mask(mask)
    full = _broadcast_to(wide, (batch, wide.shape[1], q_seq, kv_seq))
    padding = full.any(axis=2).any(axis=1)  # the keys that any query of any head sees
    seen = padding[:, None, None, :]
    for causal, allowed in ((False, seen), (True, seen & _make_causal(mask, q_seq, kv_seq, corner))):
        if bool((full == allowed).all()):
            return padding, causal
    return None


def read_lengths(mask: Array, *, batch: int, kv_seq: int) -> Array | None:
    """Return the number of keys that each sample sees, (batch,), or None if a mask hides more than the end of samples.

    The values decide, so the array must have some.
    """
    queries = int(four_axes_mask(mask).shape[2])
    split = split_causal(mask, batch=batch, q_seq=queries, kv_seq=kv_seq)
    if split is None or split[1]:
        return None
    padding = split[0]
    # Padding at the end: no key is seen after one that is hidden.
    gaps = padding[:, 1:] & ~padding[:, :-1]
    return None if bool(gaps.any()) else padding.sum(axis=1)


def _make_causal(mask: Array, q_seq: int, kv_seq: int, corner: str) -> Array:
    """Return the causal mask (q_seq, kv_seq) as an array of the library and on the device of `mask`."""
    offset = kv_seq - q_seq if corner == "bottom_right" else 0
    causal = np.tri(q_seq, kv_seq, offset, dtype=bool)
    return mask.new_tensor(causal) if hasattr(mask, "new_tensor") else causal


def _broadcast_to(mask: Array, shape: tuple[int, ...]) -> Array:
    """Return mask.broadcast_to(shape), a method in torch and a function in NumPy; ValueError if it does not fit."""
    sizes = tuple(mask.shape)
    if len(sizes) != len(shape) or any(size not in (1, wanted) for size, wanted in zip(sizes, shape, strict=True)):
        raise ValueError(
            f"mask: shape {sizes} does not broadcast to {shape}; q_seq is the number of queries, kv_seq that of keys, "
            "which differ in cross-attention"
        )
    return mask.broadcast_to(shape) if hasattr(mask, "broadcast_to") else np.broadcast_to(mask, shape)


# The state of a module

#: The shapes of a weight in a layer: nn.Linear (out, in), GPT-2's Conv1D (in, out), nn.Conv1d of width 1 (out, in, 1).
#: The lines of a mapping of our parameters to those of a module.
Names = Mapping[str, str | tuple[str, ...]]


def nest_names(names: Names, ours: str, theirs: str) -> dict[str, str | tuple[str, ...]]:
    """Return the lines of one layer as lines of something larger that holds it.

    `nest_names(LAYER, "encoder.*", "layers.*")` makes "norm_1.gamma": "ln1.weight" into "encoder.*.norm_1.gamma":
    "layers.*.ln1.weight". A * stands for the number of a layer. An empty name adds nothing on its side, as for a module
    that only wraps another: `nest_names(MODEL, "", "wrapped")`.
    """
    start, place = (f"{name}." if name else "" for name in (ours, theirs))
    return {f"{start}{key}": tuple(f"{place}{name}" for name in _list_places(value)) for key, value in names.items()}


#: The declarations: a module has a parameter that calls may not have, or it has no place for one that calls may have.
_WITH: Final = {
    **dict.fromkeys(("norm.gamma", "encoder_norm.gamma", "decoder_norm.gamma"), "final_norm: after_stack"),
    "position_table": "positions: learned",
}
_WITHOUT: Final = {"w_vocab": "output_layer: tied", "b_vocab": "output_layer: without_bias"}


def map_state(
    names: Names,
    params: Mapping[str, Array],
    module: Any = None,
    *,
    transpose: bool = True,
    other_sizes: Literal["refuse", "skip", "take"] = "refuse",
) -> dict[str, Array]:
    """Return the parameters of a call by the names of a module, as `functional_call(…, strict=True)` takes them.

    `names` has a line for each projection, norm and table: {"self_attention.w_q": "attn.query.weight",
    "norm_1.gamma": "ln1.weight", "table": ("src.weight", "tgt.weight")}. The bias of a projection and the beta of a
    norm follow from their lines, as attn.query.bias and ln1.bias. A * stands for the number of a layer. Weights w_… are
    transposed on their way to a name that ends in "weight", unless `transpose` is False.

    ValueError says so if two parameters go to one name, unless they are one array.

    With the module (an nn.Module, or a mapping of its names to arrays) the state also holds its buffers, its parameters
    that are not trained, such as a table of positions, and zeros for each bias that the call does not have. ValueError
    lists the names that do not fit on either side, and the sizes.
    NotImplementedError says that the module has no place for the call's biases. A constructor may fix some sizes:
    `other_sizes="skip"` makes these a NotImplementedError too, and "take" passes them on, which works
    where the module does not read its own sizes.
    """
    lines = _complete_lines(names)
    own, buffers = _list_arrays(module, lines)
    state: dict[str, Array] = {}
    sources: dict[str, str] = {}
    problems, refused = [], []
    given = {**params, **_make_missing_biases(params, lines, own)}
    for key, value in given.items():
        places = _find_places(key, lines)
        if not places:
            text = f"{key}: names has no line for it"
            declared = f"; a module without it is declared by {_WITHOUT[key]}" if key in _WITHOUT else ""
            problems.append(_suggest(text, key, (line.ours for line in lines)) + declared)
        for place, follows in places:
            first = sources.setdefault(place, key)
            if given[first] is not value:
                problems.append(_describe_collision(place, first, key))
            elif own and place not in own and follows:
                declared = _WITHOUT.get(key, "the convention biases")
                refused.append(f"{key}: the module has no {place}, which is declared by {declared}")
            elif own and place not in own:
                problems.append(_suggest(f"{place}: the module has no such parameter", place, own))
            else:
                state[place] = _fit_layout(value, key, place, own.get(place), transpose=transpose)
    problems += _describe_unfilled(own, state, lines)
    unlike = [
        f"{place}: the module has {tuple(own[place].shape)}, the call {tuple(value.shape)}"
        for place, value in state.items()
        if place in own and tuple(own[place].shape) != tuple(value.shape)
    ]
    if other_sizes != "take":
        (problems if other_sizes == "refuse" else refused).extend(unlike)
    if problems:
        raise ValueError("\n  ".join(("the parameters of the call and those of the module do not fit:", *problems)))
    if refused:
        raise NotImplementedError(f"the module cannot hold the parameters of the call: {'; '.join(refused)}")
    return {**buffers, **state}


def _fit_layout(value: Array, key: str, place: str, own: Any, *, transpose: bool) -> Array:
    """Return a parameter as the module lays it out; `own` is the module's, if it is there."""
    # A weight with an axis for the heads is no matrix.
    turn = transpose and _is_weight(key) and place.endswith("weight") and value.ndim == 2
    turned = linear_weight(value) if turn else value
    # nn.Conv1d of width 1 has one more axis.
    return turned[..., None] if own is not None and len(own.shape) == turned.ndim + 1 else turned


class _Line(NamedTuple):
    """A line of names: our name, theirs, and whether it follows from another line."""

    ours: str
    theirs: tuple[str, ...]
    follows: bool


def _list_places(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


def _is_weight(key: str) -> bool:
    return key.rpartition(".")[2].startswith("w_")


def _name_companion(key: str) -> str | None:
    """Return the name of the bias of a weight, or of the beta of a gamma, or None."""
    start, dot, last = key.rpartition(".")
    if last.startswith("w_"):
        return f"{start}{dot}b_{last.removeprefix('w_')}"
    return f"{start}{dot}beta" if last == "gamma" else None


def _complete_lines(names: Names) -> list[_Line]:
    """Return the lines of names and those that follow from them: biases next to weights."""
    lines = [_Line(ours, _list_places(theirs), follows=False) for ours, theirs in names.items()]
    for ours, theirs, _ in tuple(lines):
        companion = _name_companion(ours)
        places = tuple(f"{place.removesuffix('weight')}bias" for place in theirs if place.endswith("weight"))
        if companion is not None and companion not in names and places:
            lines.append(_Line(companion, places, follows=True))
    return lines


def _find_places(key: str, lines: Iterable[_Line]) -> list[tuple[str, bool]]:
    """Return the module's names for one of ours, each with whether its line follows from another."""
    found = []
    for line in lines:
        if match := _match(line.ours, key):
            numbers = match.groups()
            for place in line.theirs:
                pieces = place.split("*")
                filled = pieces[0] + "".join(
                    f"{number}{rest}" for number, rest in zip(numbers, pieces[1:], strict=False)
                )
                found.append((filled, line.follows))
    return found


def _describe_collision(place: str, first: str, second: str) -> str:
    """Return what is wrong where two of our parameters go to one of a module, and what to write instead."""
    text = f"{place}: {first} and {second} both go there, and it holds one"
    if {first, second} == {"table", "w_vocab"}:
        return f"{text}; a module that ties them is declared by {_WITHOUT['w_vocab']}"
    if all(name.rpartition(".")[2] in _READING for name in (first, second)):
        return f"{text}; join_projections makes one projection of several"
    return f"{text}: give each its own name"


def _make_missing_biases(
    params: Mapping[str, Array], lines: Iterable[_Line], own: Mapping[str, Any]
) -> dict[str, Array]:
    """Return zeros for the biases that the module has and the call does not."""
    listed = list(lines)
    missing = {}
    # A tied table maps to the vocabulary, and its bias follows from it.
    tied = {"w_vocab": params["table"].T} if "table" in params and "w_vocab" not in params else {}
    for key, weight in {**params, **tied}.items():
        bias = _name_companion(key) if _is_weight(key) else None
        if bias and bias not in params and any(place in own for place, _ in _find_places(bias, listed)):
            missing[bias] = _make_zeros(weight)
    return missing


def _list_arrays(module: Any, lines: Iterable[_Line]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the parameters and the buffers of a module by name; a mapping has parameters only.

    Parameters without a line that are not trained, next to others that are, count as buffers.
    """
    if module is None:
        return {}, {}
    if isinstance(module, Mapping):
        return module, {}
    # A parameter that is tied has several names.
    own, buffers = (dict(find(remove_duplicate=False)) for find in (module.named_parameters, module.named_buffers))
    if any(array.requires_grad for array in own.values()):
        mapped = [theirs for line in lines for theirs in line.theirs]
        fixed = [place for place, array in own.items() if not array.requires_grad]
        buffers |= {place: own.pop(place) for place in fixed if not any(_match(theirs, place) for theirs in mapped)}
    return own, buffers


def _describe_unfilled(own: Mapping[str, Any], state: Mapping[str, Any], lines: Iterable[_Line]) -> list[str]:
    """Return a line for each parameter of a module that the call does not fill, under any of its names."""
    listed = list(lines)
    filled = {id(own[place]) for place in state if place in own}
    mapped = [place for line in listed for place in line.theirs]
    texts = []
    for place, array in own.items():
        if id(array) in filled:
            continue
        sources = [line.ours for line in listed if any(_match(theirs, place) for theirs in line.theirs)]
        declared = f", which is declared by {_WITH[sources[0]]}" if sources and sources[0] in _WITH else ""
        if sources:
            texts.append(f"{place}: the call has no {sources[0]}{declared}")
        else:
            texts.append(_suggest(f"{place}: names has no line that fills it", place, mapped))
    return texts


def _match(pattern: str, name: str) -> re.Match[str] | None:
    """Match a name with a line's pattern; each * is a group for the number of a layer."""
    return _compile(pattern).fullmatch(name)


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(re.escape(pattern).replace(r"\*", r"(\d+)"))


def _suggest(text: str, name: str, known: Iterable[str]) -> str:
    """Return a text, and the known name that is nearest to the one it is about."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.8)
    return f"{text}. Did you mean {close[0]}?" if close else text

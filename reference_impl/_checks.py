"""What every public function asks of its arguments, and the sentences it refuses them with.

TypeError    an argument of the wrong kind: not a tensor, not floating point, not boolean, mixed dtypes
ValueError   a size, a shape, a head count or a device that does not fit
IndexError   a token id outside the table

Shapes are written as the contracts write them: one name per axis, the same name for the same size
everywhere in a call, a leading "..." for any further axes.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

# A tensor as it came from the caller, so of any type yet, and the names of its axes.
Named: TypeAlias = Mapping[str, tuple[Any, str]]
Size: TypeAlias = int | tuple[int, ...]


def check_tensors(required: Named, optional: Named | None = None) -> None:
    """Refuse tensors whose kinds, dtypes, devices or shapes do not fit together.

    The first tensor sets the dtype and the device, and the first use of an axis name sets its size.
    """
    given = {name: pair for name, pair in (optional or {}).items() if pair[0] is not None}
    first_name, (first, _) = next(iter(required.items()))
    bound: dict[str, tuple[Size, str]] = {}
    for name, (tensor, axes) in {**required, **given}.items():
        check_floating(name, tensor)
        check_alike(name, tensor, first_name, first)
        check_axes(name, tensor, axes, bound)


def check_floating(name: str, tensor: Any) -> None:
    """Refuse what is no floating-point tensor."""
    check_is_tensor(name, tensor)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} has dtype {tensor.dtype} and must be floating point: convert it with {name}.float()")


def check_is_tensor(name: str, tensor: Any) -> None:
    """Refuse what is no tensor."""
    if not isinstance(tensor, Tensor):
        fix = "it cannot be left out" if tensor is None else f"convert it with torch.as_tensor({name})"
        raise TypeError(f"{name} is of type {type(tensor).__name__} and must be a torch.Tensor: {fix}")


def check_alike(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Refuse two tensors of different dtype or on different devices."""
    if tensor.dtype != other.dtype:
        raise TypeError(
            f"{name} has dtype {tensor.dtype} and must have that of {other_name}, {other.dtype}: "
            f"convert it with {name}.to({other.dtype})"
        )
    check_same_device(name, tensor, other_name, other)


def check_same_device(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Refuse two tensors on different devices."""
    if tensor.device != other.device:
        raise ValueError(
            f"{name} is on {tensor.device} and must be on the device of {other_name}, {other.device}: "
            f"move it with {name}.to('{other.device}')"
        )


def check_axes(name: str, tensor: Tensor, axes: str, bound: dict[str, tuple[Size, str]]) -> None:
    """Refuse a shape that contradicts the sizes in ``bound``, and add the sizes that it names first.

    ``bound`` maps an axis name to its size and to the tensor that set it; "..." stands for a tuple.
    """
    names, shape = axes.split(), tuple(tensor.shape)
    asked = f"({', '.join(names)})"
    trailing = [axis for axis in names if axis != "..."]
    leading = len(shape) - len(trailing)
    if leading < 0 or (leading > 0 and "..." not in names):
        count = f"at least {len(trailing)}" if "..." in names else f"{len(trailing)}"
        raise ValueError(
            f"{name} has shape {shape} and must be {asked}: "
            f"reshape it to {count} {'axis' if len(trailing) == 1 else 'axes'}"
        )
    if 0 in shape:
        raise ValueError(
            f"{name} has shape {shape} and must be {asked} without an empty axis: leave empty batches and sequences out"
        )

    # Pairs and no dict: a square matrix has one name twice.
    sizes: list[tuple[str, Size]] = [("...", shape[:leading])] if "..." in names else []
    sizes += zip(trailing, shape[leading:], strict=True)
    for axis, size in sizes:
        wanted, owner = bound.setdefault(axis, (size, name))
        if size != wanted:
            # nn.Linear keeps (out, in); of all misfits of a weight this is the likeliest.
            hint = " (weights are (in, out): transpose those of nn.Linear)" if name.startswith("w_") else ""
            raise ValueError(
                f"{name} has shape {shape} and must be {asked} with {axis}={wanted} as in {owner}: "
                f"make the two agree{hint}"
            )


def check_mask(mask: Any, scores: Tensor) -> None:
    """Refuse a mask that is not boolean, or that does not broadcast to the scores."""
    check_is_tensor("mask", mask)
    if mask.dtype != torch.bool:
        raise TypeError(
            f"mask has dtype {mask.dtype} and must be torch.bool, True = may attend: "
            f"convert a mask of ones and zeros with mask != 0, an additive mask of 0 and -inf with mask == 0"
        )
    check_same_device("mask", mask, "query", scores)
    shape, target = tuple(mask.shape), tuple(scores.shape)
    tail = target[len(target) - len(shape) :]
    if len(shape) > len(target) or any(size not in (1, full) for size, full in zip(shape, tail, strict=True)):
        raise ValueError(
            f"mask has shape {shape} and must broadcast to the scores, (..., q_seq, kv_seq) = {target}: "
            f"give it size 1 on the axes it repeats along, such as mask[:, None] for all heads of a sample"
        )


def check_positive_int(name: str, value: Any) -> None:
    """Refuse a size that is not a whole number of at least 1."""
    check_int(name, value)
    if value < 1:
        raise ValueError(f"{name}={value} must be at least 1: pass a positive size")


def check_int(name: str, value: Any) -> None:
    """Refuse what is no int; True and False are none here, though Python has them as 1 and 0."""
    # Tracers that keep sizes symbolic hand over torch.SymInt.
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__} and must be an int: pass int({name})")


def check_bool(name: str, value: Any) -> None:
    """Refuse a switch that is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__} and must be a bool: pass True or False")


def check_heads_divide(num_heads: Any, width: int, of: str) -> None:
    """Refuse a head count that does not cut ``width`` into equal blocks."""
    check_positive_int("num_heads", num_heads)
    if width % num_heads != 0:
        raise ValueError(
            f"num_heads={num_heads} does not divide the width {width} of {of}: choose a divisor of {width}"
        )


def check_ids(ids: Any) -> None:
    """Refuse ids that are not a (batch, seq) tensor of int64 or int32."""
    check_is_tensor("ids", ids)
    # uint8 is left out on purpose: torch indexes with it as with a mask.
    if ids.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"ids has dtype {ids.dtype} and must be torch.int64 or torch.int32: convert it with ids.long()")
    check_axes("ids", ids, "batch seq", {})


def check_ids_in_table(ids: Tensor, vocab: int) -> None:
    """Refuse an id that is no row of a table of ``vocab`` rows."""
    # The only check that reads values. While torch.compile traces there are none to read, and the branch
    # would break the graph; on the meta device there never are. On CUDA reading costs a synchronisation
    # and is done all the same: there an unchecked bad id kills the context of the whole process.
    if torch.compiler.is_compiling() or ids.is_meta:
        return
    outside = (ids < 0) | (ids >= vocab)
    if outside.any():
        position = outside.nonzero()[0].tolist()
        raise IndexError(
            f"ids{position}={ids[tuple(position)].item()} must lie in 0 … {vocab - 1}, the rows of table: "
            f"use the vocabulary that the table was made for, or a longer table"
        )

"""Checks of arguments, and the messages that refuse them.

TypeError    an argument of the wrong kind: not a tensor, not floating point, not boolean, mixed dtypes,
             a parameter that is missing or unknown
ValueError   a size, a shape, a number, a head count or a device that does not fit
IndexError   a token id outside the vocabulary

Shapes are written as in the contracts: one name per axis, the same name for the same size everywhere in a call,
a leading "..." for any further axes. Checks of ids are in _checks_ids, those of mappings of parameters in
_checks_params.
"""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

# An argument as it came from the caller, not yet known to be a tensor, and the names of its axes.
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
        check_same_dtype_and_device(name, tensor, first_name, first)
        check_axes(name, tensor, axes, bound)


def check_floating(name: str, tensor: Any) -> None:
    """Refuse anything but a floating-point tensor."""
    check_is_tensor(name, tensor)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} has dtype {tensor.dtype} and must be floating point: convert it with {name}.float()")


def check_is_tensor(name: str, tensor: Any) -> None:
    """Refuse anything but a tensor."""
    if not isinstance(tensor, Tensor):
        fix = "it cannot be left out" if tensor is None else f"convert it with torch.as_tensor({name})"
        raise TypeError(f"{name} is of type {type(tensor).__name__} and must be a torch.Tensor: {fix}")


def check_same_dtype_and_device(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
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

    # Pairs, not a dict: a square matrix has one name twice.
    sizes: list[tuple[str, Size]] = [("...", shape[:leading])] if "..." in names else []
    sizes += zip(trailing, shape[leading:], strict=True)
    for axis, size in sizes:
        wanted, owner = bound.setdefault(axis, (size, name))
        if size != wanted:
            # nn.Linear keeps (out, in); so this is the most frequent error in a weight.
            weight = name.rpartition(".")[2].startswith("w_")
            hint = " (weights are (in, out): transpose those of nn.Linear)" if weight else ""
            raise ValueError(
                f"{name} has shape {shape} and must be {asked} with {axis}={wanted} as in {owner}: "
                f"make the two agree{hint}"
            )


def check_mask(name: str, mask: Any, axes: str, shape: tuple[int, ...], other_name: str, other: Tensor) -> None:
    """Refuse a mask that is not boolean, not on the device of ``other``, or does not broadcast to the scores.

    ``axes`` and ``shape`` are those of the scores.
    """
    check_is_tensor(name, mask)
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{name} has dtype {mask.dtype} and must be torch.bool, True = may attend: "
            f"convert a mask of ones and zeros with {name} != 0, an additive mask of 0 and -inf with {name} == 0"
        )
    check_same_device(name, mask, other_name, other)
    own = tuple(mask.shape)
    tail = shape[len(shape) - len(own) :]
    if len(own) > len(shape) or any(size not in (1, full) for size, full in zip(own, tail, strict=True)):
        raise ValueError(
            f"{name} has shape {own} and must broadcast to the scores, ({', '.join(axes.split())}) = {shape}: "
            f"give it size 1 on the axes it repeats along, such as {name}[:, None] for all heads of a sample"
        )


def check_positive_int(name: str, value: Any) -> None:
    """Refuse a size that is not an int of at least 1."""
    check_int(name, value)
    if value < 1:
        raise ValueError(f"{name}={value} must be at least 1: pass a positive size")


def check_at_most(name: str, value: int, other_name: str, other: int) -> None:
    """Refuse a number that is larger than another argument."""
    if value > other:
        raise ValueError(f"{name}={value} must be at most {other_name}={other}: lower the one or raise the other")


def check_choice(name: str, value: Any, options: tuple[str, ...]) -> None:
    """Refuse a value that is not among the options."""
    if value not in options:
        known = ", ".join(repr(option) for option in options)
        raise ValueError(f"{name}={value!r} must be one of {known}: pass one of these")


def check_int(name: str, value: Any) -> None:
    """Refuse anything but an int, and also True and False, which are ints in Python."""
    # Tracers that keep sizes symbolic hand over torch.SymInt.
    if isinstance(value, bool) or not isinstance(value, int | torch.SymInt):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__} and must be an int: pass int({name})")


def check_seed(name: str, value: Any) -> None:
    """Refuse a seed that is not an int of at least 0."""
    check_int(name, value)
    if value < 0:
        raise ValueError(f"{name}={value} must be at least 0: pass any number that is")


def check_bool(name: str, value: Any) -> None:
    """Refuse anything but True and False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__} and must be a bool: pass True or False")


def check_heads_divide(num_heads: Any, width: int, of: str) -> None:
    """Refuse a head count that does not cut ``width`` into equal blocks."""
    check_positive_int("num_heads", num_heads)
    if width % num_heads != 0:
        raise ValueError(
            f"num_heads={num_heads} does not divide the width {width} of {of}: choose a divisor of {width}"
        )


def check_fraction(name: str, value: Any) -> None:
    """Refuse anything but a number from 0 to 1."""
    check_number(name, value)
    # Not value < 0 or value > 1, which lets NaN pass.
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value} must lie in 0 … 1: pass the part of the whole, 0.1 for ten percent")


def check_positive_number(name: str, value: Any) -> None:
    """Refuse anything but a finite number above 0."""
    check_number(name, value)
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={value} must be finite and above 0: pass a small number such as 1e-5")


def check_not_negative(name: str, value: Any) -> None:
    """Refuse anything but a finite number of at least 0."""
    check_number(name, value)
    if not 0 <= value < math.inf:
        raise ValueError(f"{name}={value} must be finite and at least 0: pass a small number such as 0.01")


def check_number(name: str, value: Any) -> None:
    """Refuse anything but a float or an int."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}={value!r} is of type {type(value).__name__} and must be a float: pass float({name})")

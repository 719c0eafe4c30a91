"""Checks of arguments before the computation: axes that agree, ids that exist, masks that fit."""

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def axis_sizes(table: Mapping[str, str], /, **arrays: Array | None) -> dict[str, Any]:
    """Return the size of each axis; ValueError names the argument that does not fit the table.

    The table lists the axes of every argument. "?" marks an optional one, "..." stands for any leading axes.
    """
    shapes = [None if (array := arrays.get(name)) is None else array.shape for name in table]
    return _solve_axes(tuple(table), tuple(table.values()), tuple(shapes)).copy()


@lru_cache(maxsize=1 << 14)
def _solve_axes(
    names: tuple[str, ...], lines: tuple[str, ...], shapes: tuple[tuple[int, ...] | None, ...]
) -> dict[str, Any]:
    """Solve the axes of arguments of these shapes; cached, because a model asks for the same ones in each layer."""
    sizes: dict[str, Any] = {}
    seen_in: dict[str, str] = {}
    for name, line, given in zip(names, lines, shapes, strict=True):
        optional, axes = parse_axes(line)
        if given is None:
            if optional:
                continue
            raise ValueError(f"{name}: missing; it is ({', '.join(axes)})")
        shape: tuple[Any, ...] = given
        if axes[0] == "..." and len(shape) >= len(axes) - 1:
            lead = len(shape) - len(axes) + 1
            shape = (shape[:lead], *shape[lead:])
        if len(shape) != len(axes):
            raise ValueError(f"{name}: shape {given} is not ({', '.join(axes)})")
        empty = 0 in given
        for axis, size in zip(axes, shape, strict=True):
            if empty and 0 in (size if isinstance(size, tuple) else (size,)):
                raise ValueError(f"{name}: shape {given} is empty along {axis}")
            if axis not in sizes:
                sizes[axis], seen_in[axis] = size, name
            elif sizes[axis] != size:
                raise ValueError(
                    f"{name}: shape {given} is not ({', '.join(axes)}): {axis} is {sizes[axis]} in {seen_in[axis]}"
                )
    return sizes


@cache
def parse_axes(line: str) -> tuple[bool, tuple[str, ...]]:
    """Parse a line of a table: return True if the argument is optional, and its axes."""
    return line.startswith("?"), tuple(line.removeprefix("? ").split())


def require_one(name: str, number: int, what: str) -> None:
    """Raise ValueError unless the number is 1 or more; `what` gives the reason."""
    if number < 1:
        raise ValueError(f"{name}: {number}, but {what}")


def check_integers(name: str, ids: Array) -> None:
    """Raise TypeError unless ids are whole numbers."""
    if not np.issubdtype(ids.dtype, np.integer):
        raise TypeError(f"{name}: dtype {ids.dtype}, but ids are integers")


def check_ids(name: str, ids: Array, vocab: int, where: str) -> None:
    """Raise unless ids are whole numbers in 0 … vocab − 1; `where` names the table that they index."""
    check_integers(name, ids)
    for end in (ids.min(), ids.max()):
        if not 0 <= end < vocab:
            raise IndexError(f"{name}: {end} is not in 0 … {vocab - 1}, {where}")


def broadcast_mask(name: str, mask: Array, shape: tuple[int, ...]) -> Array:
    """Return the mask broadcast to the shape of the scores; raise if it does not fit."""
    if mask.dtype != np.bool_:
        raise TypeError(f"{name}: dtype {mask.dtype}, but a mask is boolean, True = may attend")
    try:
        return np.broadcast_to(mask, shape)
    except ValueError:
        message = f"{name}: shape {mask.shape} does not broadcast to the scores' {shape}"
        raise ValueError(message) from None

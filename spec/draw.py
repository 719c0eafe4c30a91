"""Recipes of arrays, and the generator that transformer.md defines in words: FNV-1a, SplitMix64, a grid or all bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from goldformer.spec.strict import Items, Name, StrictModel

Array = NDArray[Any]
Kind = Literal["float", "bool", "ids"]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15

#: The number of elements that are drawn at once.
_PIECE = 1 << 15


def stream(seed: int, name: str, count: int, start: int = 0) -> NDArray[np.uint64]:
    """Return `count` outputs of SplitMix64 from output `start` on; its state begins as FNV-1a of "<seed>/<name>"."""
    state = 14695981039346656037
    for byte in f"{seed}/{name}".encode():
        state = ((state ^ byte) * 1099511628211) & _MASK
    with np.errstate(over="ignore"):
        z = np.uint64(state) + np.arange(start + 1, start + count + 1, dtype=np.uint64) * np.uint64(_GAMMA)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def _pieces(seed: int, name: str, count: int) -> Iterator[tuple[slice, NDArray[np.uint64]]]:
    """Yield the stream piece by piece: a full-size model would not fit into the cache at once."""
    for start in range(0, count, _PIECE):
        piece = slice(start, min(start + _PIECE, count))
        yield piece, stream(seed, name, piece.stop - start, start)


def _choose(bits: NDArray[np.uint64], limit: int) -> NDArray[np.int64]:
    """Return the integers of `below` for a piece of the stream."""
    return (((bits >> np.uint64(32)) * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)


def below(limit: int, seed: int, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Draw integers 0 ≤ k < limit ≤ 2³², row-major."""
    array = np.empty(math.prod(shape), dtype=np.int64)
    for piece, bits in _pieces(seed, name, array.size):
        array[piece] = _choose(bits, limit)
    return array.reshape(shape)


@cache
def grid(low: str, high: str, width: str) -> tuple[Fraction, Fraction, Fraction]:
    """Parse the ends and the step of a Dyadic recipe; ValueError unless bfloat16 holds that grid."""
    lo, hi, step = Fraction(low), Fraction(high), Fraction(width)
    power = step.numerator * step.denominator
    if power <= 0 or power & (power - 1):
        raise ValueError(f"step {step} is not a power of two such as 1/32")
    ends = (lo / step, hi / step)
    if any(end.denominator != 1 or abs(end) > 256 for end in ends) or lo >= hi:
        raise ValueError(
            f"range [{lo}, {hi}] with step {step} has ends at {ends[0]} and {ends[1]} steps: "
            "both must be whole, rising and at most 256 in size, so that bfloat16 holds every element"
        )
    return lo, hi, step


@cache
def interval(low: str, high: str) -> tuple[float, float]:
    """Parse the ends of a Uniform recipe; ValueError unless rounding is the same in every language."""
    lo, hi = Fraction(low), Fraction(high)
    power = (hi - lo).numerator * (hi - lo).denominator
    if lo >= hi or power & (power - 1):
        raise ValueError(f"range [{lo}, {hi}] has the width {hi - lo}: write ends that are a power of two apart")
    if any((end / (hi - lo) * 256).denominator != 1 or abs(end) > 256 * (hi - lo) for end in (lo, hi)):
        raise ValueError(
            f"range [{lo}, {hi}] has an end that is no multiple of a 256th of its width, or more than 256 widths from 0"
        )
    return float(lo), float(hi)


@cache
def ramp(first: str, last: str, low: str, high: str, width: str) -> tuple[Fraction, Fraction]:
    """Parse the ends of the ramp of a Dyadic recipe; ValueError unless its sums stay on a grid that bfloat16 holds."""
    ends = Fraction(first), Fraction(last)
    for end in ends:
        try:
            grid(str(Fraction(low) + end), str(Fraction(high) + end), width)
        except ValueError as error:
            raise ValueError(f"with {end} of the ramp added, the {error}") from error
    return ends


# ── recipes ──


#: How to write an array of booleans, and one of ids.
BOOLEANS: Final = "{values: [[true, false], …]}, {lengths: […], shape: […]} or {causal: true, shape: […]}"
_INSTEAD: Final = {
    "bool": f"booleans: write {BOOLEANS}",
    "ids": "whole numbers: write {values: [3, 1, …]} or {draw: ids, seed: 1, range: [0, 9]}",
}

Ends = Annotated[Items[float | int], Field(min_length=2, max_length=2)]


class Recipe(StrictModel):
    """The recipe of an array of a case, as its file says it. The shape is the contract's unless one is written."""

    shape: Items[str | int] | None = None

    def build(self, name: str, shape: tuple[int, ...]) -> Array:
        """Build the array; the argument's `name` selects its random stream."""
        raise NotImplementedError


class Values(Recipe):
    """Written out: nested lists, or one number. A decimal is that decimal, which float64 holds to the nearest."""

    values: list[Any]

    def read(self, kind: Kind) -> Array:
        """Return the numbers; ValueError if they are of another kind."""
        try:
            array = np.array(self.values)
        except ValueError as error:
            raise ValueError("has rows of unequal length") from error
        allowed = {"float": "fiu", "bool": "b", "ids": "iu"}[kind]
        if array.dtype.kind not in allowed and array.size:
            text = _find_text(self.values)
            what = f"the text {text[:60]!r}" if text else f"{array.dtype} values"
            raise ValueError(f"holds {what} where the contract says {kind}")
        return _require_finite(array.astype({"float": np.float64, "bool": np.bool_, "ids": np.int64}[kind]))


def _find_text(values: Any) -> str:
    """Return the first text in nested lists, or ""."""
    if isinstance(values, list):
        return next(filter(None, map(_find_text, values)), "")
    return values if isinstance(values, str) else ""


def _require_finite(array: Array) -> Array:
    if not np.isfinite(array).all():
        raise ValueError("holds an infinity or NaN: write finite numbers")
    return array


def _refuse_boolean(fill: Any) -> Any:
    if isinstance(fill, bool):
        raise PydanticCustomError("fill", f"expected a number; write booleans as {BOOLEANS}")
    return fill


class Fill(Recipe):
    """One number everywhere, of an array of floats."""

    fill: Annotated[float | int, BeforeValidator(_refuse_boolean)]

    def build(self, name: str, shape: tuple[int, ...]) -> Array:  # noqa: ARG002
        """Build the array."""
        return np.full(shape, self.fill, dtype=np.float64)


class Dyadic(Recipe):
    """Drawn by the generator of transformer.md; `step` is a power of two such as 1/32.

    `like` names another argument, under whose name it is drawn: with one seed and one shape both are equal. `ramp` are
    the numbers that are added to the first row and to the last, and in between to the others.
    """

    draw: Literal["dyadic"]
    seed: int
    range: Ends
    step: str | int
    like: Name | None = None
    ramp: Ends | None = None

    @field_validator("step")
    @classmethod
    def _check_step(cls, step: str | int) -> str | int:
        if isinstance(step, str) and "e" in step.lower():
            # Fraction would compute 10 to that power, digit by digit.
            raise ValueError("a step is written without an exponent, such as 1/32")
        try:
            Fraction(step)
        except ZeroDivisionError as error:
            raise ValueError("a step cannot be divided by zero") from error
        return step

    @property
    def grid(self) -> tuple[Fraction, Fraction, Fraction]:
        """The ends and the step of the numbers that are drawn."""
        return grid(*map(str, self.range), str(self.step))

    @property
    def ends_of_ramp(self) -> tuple[Fraction, Fraction]:
        """The numbers that are added to the first row and to the last."""
        return ramp(*map(str, self.ramp or (0, 0)), *map(str, self.range), str(self.step))

    def build(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw the array; every element is exact in all tested dtypes."""
        lo, hi, step = self.grid
        points, first = int((hi - lo) / step) + 1, int(lo / step)
        array = np.empty(math.prod(shape), dtype=np.float64)
        for piece, bits in _pieces(self.seed, self.like or name, array.size):
            np.multiply(_choose(bits, points) + first, float(step), out=array[piece])
        array = array.reshape(shape)
        return array if self.ramp is None else array + self._make_ramp(shape[-2])[:, None]

    def _make_ramp(self, rows: int) -> NDArray[np.float64]:
        """Return the number that is added to each row: whole steps, as exact as the drawn numbers."""
        *_, step = self.grid
        start, stop = (int(end / step) for end in self.ends_of_ramp)
        steps = start + (stop - start) * np.arange(rows) // max(rows - 1, 1)
        return steps.astype(np.float64) * np.float64(step)


class Uniform(Recipe):
    """Drawn by the generator of transformer.md with all bits of float64, between two ends a power of two apart.

    `like` is as for `draw: dyadic`.
    """

    draw: Literal["uniform"]
    seed: int
    range: Ends
    like: Name | None = None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the numbers that are drawn."""
        return interval(*map(str, self.range))

    def build(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Draw the array: lo + (hi − lo)·k/2⁵³. hi − lo is a power of 2, so only the sum rounds."""
        lo, hi = self.ends
        array = np.empty(math.prod(shape), dtype=np.float64)
        for piece, bits in _pieces(self.seed, self.like or name, array.size):
            np.multiply(bits >> np.uint64(11), (hi - lo) * 2.0**-53, out=array[piece])
        array += lo
        return array.reshape(shape)


class Ids(Recipe):
    """Integers drawn from range[0] to range[1], both included."""

    draw: Literal["ids"]
    seed: int
    range: Annotated[Items[int], Field(min_length=2, max_length=2)]

    def build(self, name: str, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Draw the array."""
        lo, hi = self.range
        return lo + below(hi - lo + 1, self.seed, name, shape)


class Blocks(StrictModel):
    """Whole blocks of `size` queries and `size` keys: `keep` has a row for each block of queries."""

    size: Annotated[int, Field(ge=1)]
    keep: Annotated[Items[Items[Annotated[int, Field(ge=0, le=1)]]], Field(min_length=1)]


class Mask(Recipe):
    """True at (b, …, i, j) when j < lengths[b] and, if causal, j ≤ i, and keep[i // size][j // size] of the blocks."""

    lengths: Items[int] | None = None
    causal: bool = False
    blocks: Blocks | None = None
    shape: Items[str | int]

    def build(self, name: str, shape: tuple[int, ...]) -> NDArray[np.bool_]:  # noqa: ARG002
        """Build the mask."""
        keep = np.ones(shape, dtype=bool)
        columns = np.arange(shape[-1])
        if self.lengths is not None:
            keep &= columns < np.reshape(self.lengths, (-1,) + (1,) * (len(shape) - 1))
        if self.causal:
            keep &= columns <= np.arange(shape[-2])[:, None]
        if self.blocks is not None:
            blocks, size = np.array(self.blocks.keep, dtype=bool), self.blocks.size
            keep &= blocks[np.arange(shape[-2])[:, None] // size, columns // size]
        return keep


def check(recipe: Recipe, kind: Kind, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless an array of a kind and a shape follows from a recipe."""
    match recipe:
        case Fill() if kind != "float":
            raise ValueError(f"has fill: {recipe.fill}, which makes floats, but must hold {_INSTEAD[kind]}")
        case Fill():
            _require_finite(np.array(float(recipe.fill)))
        case Ids() if recipe.range[0] > recipe.range[1]:
            raise ValueError(f"range {[*recipe.range]} falls: write the smaller end first")
        case Ids() if max(map(abs, recipe.range)) >= 2**31:
            raise ValueError(f"range {[*recipe.range]} is too wide: write ends below 2147483648 in size")
        case Uniform():
            _ = recipe.ends
        case Dyadic() if recipe.ramp is not None and len(shape) < 2:
            raise ValueError(f"has a ramp, but its shape {shape} has no axis of rows")
        case Dyadic():
            _ = recipe.grid, recipe.ends_of_ramp
        case Mask() if recipe.lengths is not None and len(recipe.lengths) != shape[0]:
            raise ValueError(f"has {len(recipe.lengths)} lengths for a first axis of {shape[0]}")
        case Mask() if recipe.causal and len(shape) < 2:
            raise ValueError(f"is causal, but its shape {shape} has no axis of queries")
        case Mask() if recipe.blocks is not None:
            _check_blocks(recipe.blocks, shape)


def _check_blocks(blocks: Blocks, shape: tuple[int, ...]) -> None:
    expected, keep = tuple(-(-size // blocks.size) for size in shape[-2:]), blocks.keep
    if len(expected) < 2 or any(len(row) != expected[1] for row in keep) or len(keep) != expected[0]:
        what = f"rows of {' and '.join(map(str, sorted({len(row) for row in keep})))}"
        raise ValueError(
            f"has blocks of {blocks.size} for the shape {shape}: write {expected[0]} rows of {expected[-1]} for keep, "
            f"not {len(keep)} {what}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Argument:
    """An array of a case: its recipe and its shape, or the array itself if its numbers are written out."""

    made_of: Recipe | Array
    shape: tuple[int, ...]

    @classmethod
    def of(cls, array: Array) -> Argument:
        """Return an argument whose numbers are written out; its array becomes read-only."""
        return cls(array, array.shape)

    def __str__(self) -> str:
        made_of = {} if isinstance(self.made_of, np.ndarray) else self.made_of.model_dump(exclude_defaults=True)
        return ", ".join(f"{key}: {value}" for key, value in {**made_of, "shape": self.shape}.items())

    @property
    def written(self) -> Array | None:
        """The array if its numbers are written out."""
        return self.made_of if isinstance(self.made_of, np.ndarray) else None

    def build(self, name: str) -> Array:
        """Build the array, read-only; the argument's `name` selects its random stream."""
        array = self.made_of if isinstance(self.made_of, np.ndarray) else self.made_of.build(name, self.shape)
        array.flags.writeable = False
        return array

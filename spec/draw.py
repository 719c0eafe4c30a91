"""Input recipes and the generator that transformer.md defines in words: FNV-1a, SplitMix64, a grid or all bits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, eq=False)
class Values:
    """Written out; a decimal is that decimal, which float64 holds to the nearest."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.array.shape


@dataclass(frozen=True, slots=True)
class Fill:
    """One number everywhere."""

    value: float
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Dyadic:
    """Drawn from lo, lo + step, …, hi; with `like` under the name of that argument, so that both may be equal.

    With `ramp`, the second last axis has numbers added that go from its first number to its second.
    """

    seed: int
    lo: Fraction
    hi: Fraction
    step: Fraction
    shape: tuple[int, ...]
    like: str | None = None
    ramp: tuple[Fraction, Fraction] | None = None


@dataclass(frozen=True, slots=True)
class Uniform:
    """Drawn between lo and hi with all bits of float64; `like` as for Dyadic."""

    seed: int
    lo: float
    hi: float
    shape: tuple[int, ...]
    like: str | None = None


@dataclass(frozen=True, slots=True)
class Ids:
    """Integers drawn from lo, …, hi."""

    seed: int
    lo: int
    hi: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mask:
    """True at (b, …, i, j) when j < lengths[b] and, if causal, j ≤ i, and if blocks[i // size][j // size] is."""

    lengths: tuple[int, ...] | None
    causal: bool
    shape: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...] | None = None
    size: int = 1


Recipe = Values | Fill | Dyadic | Uniform | Ids | Mask


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


def dyadic(recipe: Dyadic, name: str) -> NDArray[np.float64]:
    """Draw the array of a Dyadic recipe; every element is exact in all tested dtypes."""
    points = int((recipe.hi - recipe.lo) / recipe.step) + 1
    first = int(recipe.lo / recipe.step)
    array = np.empty(math.prod(recipe.shape), dtype=np.float64)
    for piece, bits in _pieces(recipe.seed, name, array.size):
        np.multiply(_choose(bits, points) + first, float(recipe.step), out=array[piece])
    array = array.reshape(recipe.shape)
    return array if recipe.ramp is None else array + _make_ramp(recipe, recipe.ramp)[:, None]


def _make_ramp(recipe: Dyadic, ends: tuple[Fraction, Fraction]) -> NDArray[np.float64]:
    """Return the number that is added to each row: whole steps, as exact as the drawn numbers."""
    start, stop = (int(end / recipe.step) for end in ends)
    rows = recipe.shape[-2]
    steps = start + (stop - start) * np.arange(rows) // max(rows - 1, 1)
    return steps.astype(np.float64) * np.float64(recipe.step)


def uniform(recipe: Uniform, name: str) -> NDArray[np.float64]:
    """Draw the array of a Uniform recipe: lo + (hi − lo)·k/2⁵³. hi − lo is a power of 2, so only the sum rounds."""
    array = np.empty(math.prod(recipe.shape), dtype=np.float64)
    for piece, bits in _pieces(recipe.seed, name, array.size):
        np.multiply(bits >> np.uint64(11), (recipe.hi - recipe.lo) * 2.0**-53, out=array[piece])
    array += recipe.lo
    return array.reshape(recipe.shape)


def mask(recipe: Mask) -> NDArray[np.bool_]:
    """Build the boolean array of a Mask recipe."""
    keep = np.ones(recipe.shape, dtype=bool)
    columns = np.arange(recipe.shape[-1])
    if recipe.lengths is not None:
        lengths = np.asarray(recipe.lengths).reshape((-1,) + (1,) * (len(recipe.shape) - 1))
        keep &= columns < lengths
    if recipe.causal:
        keep &= columns <= np.arange(recipe.shape[-2])[:, None]
    if recipe.blocks is not None:
        blocks = np.array(recipe.blocks, dtype=bool)
        keep &= blocks[np.arange(recipe.shape[-2])[:, None] // recipe.size, columns // recipe.size]
    return keep


def build(recipe: Recipe, name: str) -> Array:
    """Build the array of a recipe, read-only; the argument's `name` selects its random stream."""
    array: Array
    match recipe:
        case Values():
            array = recipe.array
        case Fill():
            array = np.full(recipe.shape, recipe.value, dtype=np.float64)
        case Dyadic():
            array = dyadic(recipe, recipe.like or name)
        case Uniform():
            array = uniform(recipe, recipe.like or name)
        case Ids():
            array = recipe.lo + below(recipe.hi - recipe.lo + 1, recipe.seed, name, recipe.shape)
        case Mask():
            array = mask(recipe)
    array.flags.writeable = False
    return array


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

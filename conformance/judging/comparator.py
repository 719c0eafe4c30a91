"""The one comparator: an output against its expected values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.conformance.judging.grid import cut_window
from goldformer.conformance.judging.tolerance import Tolerance
from goldformer.conformance.judging.verdict import Difference, Element, Limit

Floats = NDArray[np.float64]

#: The numbers of an output that are judged together at once.
_BLOCK: Final = 1 << 20


def compare(
    output: str,
    actual: NDArray[np.generic],
    expected: NDArray[np.generic],
    tolerance: Tolerance | float,
    indices: tuple[tuple[int, ...], ...] | None = None,
) -> Difference:
    """Measure |actual − expected| ÷ tolerance everywhere, and as a whole; `wrong` is 0 when all of it is at most 1.

    NaN agrees with NaN and infinity with itself. If the tolerance is 0, anything but equality is infinitely wrong. With
    `indices`, both arrays hold only the elements at these indices. If no element is wrong by itself but the output is
    as a whole, all of its elements count.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    limits = tolerance if isinstance(tolerance, Tolerance) else Tolerance(tolerance)
    ratios = _find_ratios(actual, expected, limits)
    flat = ratios.ravel()
    largest, limit = float(flat.max(initial=0.0)), Limit.ELEMENT
    if largest <= 1.0:
        whole, kind = _judge_whole(actual, expected, limits)
        if whole > largest:
            largest, limit = whole, kind
        if largest <= 1.0:
            return Difference(output, 0, flat.size, limits.largest, largest, None, None)
    wrong = np.flatnonzero(flat > 1.0) if limit is Limit.ELEMENT else np.arange(flat.size)

    def element(position: int) -> Element:
        place = indices[position] if indices else tuple(int(i) for i in np.unravel_index(position, ratios.shape))
        return Element(place, expected.ravel()[position].item(), actual.ravel()[position].item())

    furthest = int(flat.argmax())
    first, worst = element(int(wrong[0])), element(furthest)
    bound = float(np.broadcast_to(limits.element, ratios.shape).ravel()[furthest])
    grid = cut_window(expected, actual, worst.index) if indices is None else None
    is_zero = actual.dtype.kind == "f" and not actual.any()
    return Difference(output, len(wrong), flat.size, bound, largest, first, worst, grid, is_zero, limit)


def find_wrong_places(
    actual: NDArray[np.generic],
    expected: NDArray[np.generic],
    tolerance: Tolerance | float,
    indices: tuple[tuple[int, ...], ...] | None = None,
) -> list[tuple[int, ...]]:
    """Return the places of the elements that are wrong by themselves, as `compare` counts them."""
    limits = tolerance if isinstance(tolerance, Tolerance) else Tolerance(tolerance)
    wrong = np.argwhere(_find_ratios(np.asarray(actual), np.asarray(expected), limits) > 1.0)
    return [indices[int(place[0])] if indices else tuple(place.tolist()) for place in wrong]


def find_ratio(actual: NDArray[np.generic], expected: NDArray[np.generic], tolerance: Tolerance | float) -> float:
    """Return the ratio of the `Difference` of two arrays, without the elements that differ."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    limits = tolerance if isinstance(tolerance, Tolerance) else Tolerance(tolerance)
    largest = float(_find_ratios(actual, expected, limits).max(initial=0.0))
    return max(largest, _judge_whole(actual, expected, limits)[0]) if largest <= 1.0 else largest


def _find_ratios(actual: NDArray[np.generic], expected: NDArray[np.generic], limits: Tolerance) -> Floats:
    """Return |actual − expected| ÷ tolerance everywhere."""
    if expected.dtype.kind in "biu":
        return np.where(actual == expected, 0.0, math.inf)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        # Outputs may be large: all is computed in one array.
        ratios = np.asarray(np.subtract(actual, expected, dtype=np.float64))
        np.abs(ratios, out=ratios)
        equal = ratios == 0
        np.divide(ratios, limits.element, out=ratios)
        ratios[equal] = 0.0
        if np.isfinite(ratios).all():
            return ratios
        agree = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        ratios[agree] = 0.0
    ratios[np.isnan(ratios)] = math.inf
    return ratios


def _judge_whole(actual: NDArray[np.generic], expected: NDArray[np.generic], limits: Tolerance) -> tuple[float, Limit]:
    """Return the largest share of the tolerance that all errors use together, or those of a row, and which it is."""
    if limits.row is None:
        return 0.0, Limit.ELEMENT
    count, squares, size, shared, in_row = 0, 0.0, 0.0, 0.0, 0.0
    for made, right, variance in _cut(actual, expected, limits.row):
        there = np.isfinite(right) & (variance > 0)
        weight = np.divide(1.0, variance, where=there, out=np.zeros(there.shape))
        wanted = np.where(there, right, 0.0)
        error = np.where(there, made, 0.0) - wanted
        sizes, factors = (np.sum(wanted * other * weight, axis=-1) for other in (wanted, error))
        count += int(np.count_nonzero(there))
        squares += float(np.sum(error**2 * weight))
        size += float(sizes.sum())
        shared += float(factors.sum())
        in_row += float(np.sum(np.divide(factors**2, sizes, where=sizes > 0, out=np.zeros(sizes.shape))))
    return max(
        (math.sqrt(squares / max(count, 1)) / limits.average, Limit.AVERAGE),
        (abs(shared) / size / limits.common if size else 0.0, Limit.COMMON),
        (math.sqrt(in_row / limits.rows) / (limits.average * limits.in_row), Limit.ROW),
        key=lambda share: share[0],
    )


def _cut(*arrays: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Yield arrays of one shape block by block, so that what is computed of them takes little memory."""
    width = arrays[0].shape[-1] if arrays[0].ndim else 1
    rows = [array.reshape(-1, max(width, 1)) for array in arrays]
    step = max(1, _BLOCK // max(width, 1))
    for start in range(0, len(rows[0]), step):
        yield tuple(array[start : start + step] for array in rows)

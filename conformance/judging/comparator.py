"""The one comparator: an output against its expected values."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from goldformer.conformance.judging.grid import cut_window
from goldformer.conformance.judging.verdict import Difference, Element


def compare(
    output: str,
    actual: NDArray[np.generic],
    expected: NDArray[np.generic],
    tolerance: float,
    indices: tuple[tuple[int, ...], ...] | None = None,
) -> Difference:
    """Measure |actual − expected| ÷ tolerance everywhere; `wrong` is 0 when all of it is at most 1.

    NaN agrees with NaN and infinity with itself. If the tolerance is 0, anything but equality is infinitely wrong. With
    `indices`, both arrays hold only the elements at these indices.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    ratios = _find_ratios(actual, expected, tolerance)
    if isinstance(ratios, float):
        return Difference(output, 0, np.broadcast(actual, expected).size, tolerance, ratios, None, None)
    flat = ratios.ravel()
    wrong = np.flatnonzero(flat > 1.0)
    largest = float(flat.max(initial=0.0))
    if not len(wrong):
        return Difference(output, 0, flat.size, tolerance, largest, None, None)

    def element(position: int) -> Element:
        place = indices[position] if indices else tuple(int(i) for i in np.unravel_index(position, ratios.shape))
        return Element(place, expected.ravel()[position].item(), actual.ravel()[position].item())

    first, worst = element(int(wrong[0])), element(int(flat.argmax()))
    grid = cut_window(expected, actual, worst.index) if indices is None else None
    is_zero = actual.dtype.kind == "f" and not actual.any()
    return Difference(output, len(wrong), flat.size, tolerance, largest, first, worst, grid, is_zero)


def find_ratio(actual: NDArray[np.generic], expected: NDArray[np.generic], tolerance: float) -> float:
    """Return the ratio of the `Difference` of two arrays, without the elements that differ."""
    ratios = _find_ratios(np.asarray(actual), np.asarray(expected), tolerance, largest_only=True)
    return ratios if isinstance(ratios, float) else float(ratios.max(initial=0.0))


def _find_ratios(
    actual: NDArray[np.generic], expected: NDArray[np.generic], tolerance: float, *, largest_only: bool = False
) -> NDArray[np.float64] | float:
    """Return |actual − expected| ÷ tolerance everywhere, or only the largest if that is asked for or is at most 1."""
    if expected.dtype.kind in "biu":
        return np.where(actual == expected, 0.0, math.inf)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        error = np.abs(actual.astype(np.float64, copy=False) - expected.astype(np.float64, copy=False))
        largest = float(error.max(initial=0.0))
        # Most outputs are right and finite. NaN is not below infinity, and goes on: it may agree with NaN.
        if largest < math.inf and (largest_only or largest <= tolerance):
            return largest / tolerance if tolerance else math.inf if largest else 0.0
        agree = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
        ratios = np.where(agree, 0.0, error / tolerance if tolerance else math.inf)
    return np.where(np.isnan(ratios), math.inf, ratios)

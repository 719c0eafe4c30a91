"""Windows of wrong outputs: a few rows and columns around the worst element, small enough to store and to draw."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from goldformer.conformance.judging.verdict import Grid

#: The largest number of rows and of columns of a window.
SIDE: Final = 12


def cut_window(expected: NDArray[np.generic], actual: NDArray[np.generic], worst: tuple[int, ...]) -> Grid | None:
    """Cut the rows and columns around an element, in the last two axes; None without axes or numbers."""
    if expected.ndim == 0 or expected.dtype.kind not in "fiub" or actual.dtype.kind not in "fiub":
        return None
    if expected.ndim == 1:
        inner = _cut_axes((expected[None], actual[None]), (0, *worst))
        return Grid((), inner.origin[1:], inner.shape[1:], inner.expected, inner.got)
    lead, place = worst[:-2], worst[-2:]
    inner = _cut_axes((expected[lead], actual[lead]), place)
    return Grid(lead, inner.origin, inner.shape, inner.expected, inner.got)


def _cut_axes(both: tuple[NDArray[np.generic], NDArray[np.generic]], place: tuple[int, ...]) -> Grid:
    shape = both[0].shape
    # The worst in the middle, unless an edge is near.
    origin = tuple(max(0, min(at - SIDE // 2, size - SIDE)) for at, size in zip(place, shape, strict=True))
    cut = tuple(slice(start, start + SIDE) for start in origin)
    expected, actual = (tuple(tuple(map(float, row)) for row in array[cut].tolist()) for array in both)
    return Grid((), origin, shape, expected, actual)

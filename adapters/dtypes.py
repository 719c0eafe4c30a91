"""Dtypes by their names, bfloat16 included: NumPy arrays that hold their values, and rounding to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: The NumPy dtype that holds the values of each dtype. NumPy has no bfloat16; every bfloat16 is also a float32.
NUMPY_DTYPES: Final[Mapping[str, type[np.generic]]] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.float32,
    "int64": np.int64,
    "bool": np.bool_,
}


@dataclass(frozen=True, eq=False)
class WireArray:
    """An array of any dtype, as the protocol sends it; the dtype of `values` is `NUMPY_DTYPES[dtype]`.

    `texts` keeps its JSON by encoding: an array that is sent again is not encoded again.
    """

    dtype: str
    values: Array
    texts: dict[str, bytes] = field(default_factory=dict, init=False, repr=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its axes."""
        return self.values.shape


def round_to_dtype(values: Array, dtype: str) -> Array:
    """Round float64 values once to a float dtype, half to even; values beyond its range become infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = values.astype(NUMPY_DTYPES[dtype])
    return _to_bfloat16(values, nearest) if dtype == "bfloat16" else nearest


def _to_bfloat16(values: Array, nearest: Array) -> Array:
    """Round to bfloat16 from `nearest`, the values in float32, as if the float64 values were rounded once."""
    bits = nearest.view(np.uint32)
    tie = (bits & 0xFFFF) == 0x8000
    away = np.where(values > nearest, np.float32(np.inf), np.float32(-np.inf))
    nearest = np.where(tie & (values != nearest), np.nextafter(nearest, away), nearest)
    bits = nearest.view(np.uint32)
    with np.errstate(over="ignore"):
        upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    cut: Array = np.where(np.isnan(nearest), nearest, upper.view(np.float32))
    return cut


def choose_filler(kind: str, number: float) -> float | int:
    """Return what stands for a number in memory of a kind: itself in floats, "f"; in others 1 for NaN, else 0."""
    return number if kind == "f" else int(math.isnan(number))

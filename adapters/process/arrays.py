"""Arrays that are sent between processes: a dtype's name and values, bfloat16 included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: The NumPy dtype that holds the values of each dtype; NumPy has no bfloat16, and every one is a float32.
HELD_AS: Final[Mapping[str, type[np.generic]]] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": np.float32,
    "int64": np.int64,
    "bool": np.bool_,
}


@dataclass(frozen=True, eq=False)
class WireArray:
    """An array of the protocol: the values are of the NumPy dtype that HELD_AS gives for `dtype`."""

    dtype: str
    values: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """Its lengths."""
        return self.values.shape


def rounded(values: Array, dtype: str) -> Array:
    """Float64 values rounded once to a float dtype, half to even, and infinite beyond its range."""
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = values.astype(HELD_AS[dtype])
    return _to_bfloat16(values, nearest) if dtype == "bfloat16" else nearest


def _to_bfloat16(values: Array, nearest: Array) -> Array:
    """The nearest float32 cut to its upper half, as one rounding of the float64 values and not as two."""
    bits = nearest.view(np.uint32)
    tie = (bits & 0xFFFF) == 0x8000
    away = np.where(values > nearest, np.float32(np.inf), np.float32(-np.inf))
    nearest = np.where(tie & (values != nearest), np.nextafter(nearest, away), nearest)
    bits = nearest.view(np.uint32)
    with np.errstate(over="ignore"):
        upper = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    cut: Array = np.where(np.isnan(nearest), nearest, upper.view(np.float32))
    return cut


class Wire:
    """WireArray: what the functions of an implementation in another process take and give."""

    name = "wire"
    type_name = "WireArray"
    dtypes: tuple[str, ...] = ("float64", "float32", "float16", "bfloat16")
    devices: tuple[str, ...] = ("cpu",)
    differentiates = False

    def unavailable(self, device: str) -> str | None:
        """What is sent between processes lies in memory."""
        return None if device == "cpu" else f"an implementation in another process is given no arrays on {device}"

    def make(self, array: Array, dtype: str, device: str) -> WireArray:
        """Floats rounded to `dtype`; ids and masks as they are."""
        del device
        if array.dtype.kind == "f":
            return WireArray(dtype, rounded(array, dtype))
        return WireArray("bool" if array.dtype.kind == "b" else "int64", array)

    def is_array(self, thing: Any) -> bool:
        """Nothing else is sent."""
        return isinstance(thing, WireArray)

    def dtype(self, array: Any) -> str:
        """As the protocol names it."""
        return str(array.dtype)

    def device(self, array: Any) -> str:
        """Always cpu."""
        del array
        return "cpu"

    def numpy(self, array: Any) -> Array:
        """Its values, floats widened."""
        values: Array = array.values
        return values.astype(np.float64) if values.dtype.kind == "f" else values

    def same(self, one: Any, other: Any) -> bool:
        """Equal values; NaN equals NaN."""
        floats = one.values.dtype.kind == "f"
        return bool(one.dtype == other.dtype and np.array_equal(one.values, other.values, equal_nan=floats))

    def differentiate(
        self, run: Callable[[Mapping[str, Any]], Any], leaves: Mapping[str, Any], cotangent: Any
    ) -> dict[str, Any] | None:
        """No graph reaches into another process."""
        del run, leaves, cotangent
        return None

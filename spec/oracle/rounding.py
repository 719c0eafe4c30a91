"""The rounding of honest code: the variance that each operation adds to its result.

Code in a dtype rounds the result of each operation to it, each time by up to one unit roundoff, uniformly. A sum inside
an operation, such as those of a product of matrices, runs in float32 at least. variances.py and samples.py
carry this through the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: Unit roundoffs: half the distance from 1 to the next number.
UNIT_ROUNDOFF: Final[Mapping[str, float]] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "tf32": 2.0**-11,
}

#: The smallest positive subnormal: what underflow can cost.
SMALLEST: Final[Mapping[str, float]] = {
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
    "tf32": 2.0**-149,
}

#: The largest error of one element, in standard deviations.
ELEMENT: Final = 9.0
#: The largest error of what has one scale, the largest deviation of 64 honest evaluations, in units of that.
SLACK: Final = 4.0

#: The significant bits of each dtype.
_BITS: Final[Mapping[str, int]] = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8, "tf32": 24}

#: The precision of float32 whose matrix products round their factors to eleven bits, as GPUs offer it. It is no dtype.
TF32: Final = "tf32"


def is_half(dtype: str) -> bool:
    """Return True for float16 and bfloat16."""
    return dtype != TF32 and UNIT_ROUNDOFF[dtype] > UNIT_ROUNDOFF["float32"]


@dataclass(frozen=True, slots=True)
class Rounding:
    """The rounding of code in a dtype: the unit roundoffs of results and of sums, and what underflow costs.

    `factors` is the unit roundoff of the factors of matrix products; 0 if they are multiplied as they are.
    """

    dtype: str
    results: float
    sums: float
    smallest: float
    factors: float = 0.0

    @classmethod
    def of(cls, dtype: str, sums: str = "float32") -> Rounding:
        """Return the rounding of code in `dtype` whose sums run in the finer of `dtype` and `sums`."""
        unit = UNIT_ROUNDOFF["float32" if dtype == TF32 else dtype]
        factors = UNIT_ROUNDOFF[TF32] if dtype == TF32 else 0.0
        return cls(dtype, unit, min(unit, UNIT_ROUNDOFF[sums]), SMALLEST[dtype], factors)

    def of_result(self, value: Floats) -> Floats:
        """Return the variance of rounding these results: uniform within one unit roundoff. 0 needs no rounding."""
        variance: Floats = np.square(value)
        variance *= self.results**2 / 3
        variance += (value != 0) * (self.smallest**2 / 3)
        return variance

    def of_sum(self, total: Floats, squares: Floats, count: int) -> Floats:
        """Return the variance of a sum of `count` terms, whose squares add up to `squares`, in a random order.

        A partial sum of k terms is k/n of the total plus a bridge. Its expected squares add up to
        n/3·S² + n/6·(Q − S²/n) over all k. Each term rounds once: Q more.
        """
        bridge = np.maximum(squares - total**2 / max(count, 1), 0.0)
        walk: Floats = count / 3 * total**2 + count / 6 * bridge
        return self.sums**2 / 3 * (walk + squares)

    def of_products(self, total: Floats, squares: Floats, start: Floats | float, count: int) -> Floats:
        """Return the variance of a sum of products, whose squares add up to `squares`.

        `start` is the square of what it begins with. Factors of products may be rounded too. Zeros round nothing.
        """
        summed: Floats = self.of_sum(total, squares + start, count) * (squares != 0)
        return summed + 2 * self.factors**2 / 3 * squares

    def shows_products_of(self, count: int) -> bool:
        """Return True unless sums of that many products are so fine that no result shows their roundoffs."""
        return self.factors > 0 or self.sums * math.sqrt(count) > 0.01 * self.results

    def of_reading(self, values: Floats) -> Floats | None:
        """Return the variance of reading decimals, of which the dtype rounds those it cannot hold; None without any."""
        # Decimals are few bits, which float64 holds, or need not be binary numbers at all.
        bits = _BITS[self.dtype] if self.dtype != "float64" else _BITS["float32"]
        mantissa = np.ldexp(np.frexp(values)[0], bits)
        rounded = mantissa != np.rint(mantissa)
        return np.where(rounded, self.of_result(values), 0.0) if rounded.any() else None


@dataclass(slots=True)
class Run:
    """One evaluation of a formula: how the code rounds, and the largest number on the way."""

    rounding: Rounding
    peak: float = 0.0

    def round(self, value: Floats) -> Floats:
        """Return the variance of rounding the results of an operation."""
        self.peak = max(self.peak, float(np.abs(value).max(initial=0.0)))
        return self.rounding.of_result(value)

"""The largest distance of an honest result from its golden value: arithmetic, not taste.

What rounding explains of an output follows from the formula (spec/oracle/rounding.py): a variance for each element. A
result is judged by its largest error. In half types it is also judged by the mean of the squares of all errors, and by
the factor that all of its elements have in common, or those of a row where only single elements are rounded. No mistake
is as small as the rounding of finer types, where a constant that is rounded once, or terms that are lost beside a long
sum, are errors that all elements share. Gradients and statistics have one error scale for all of an output instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.model import GoldenArray
from goldformer.spec.oracle.rounding import ELEMENT, SLACK, SMALLEST, UNIT_ROUNDOFF, is_half
from goldformer.spec.oracle.truth import OutputRounding

Array = NDArray[Any]

#: The largest finite number; a case whose intermediates are larger cannot run in that dtype.
LARGEST: Final[Mapping[str, float]] = {
    "float64": (2 - 2.0**-52) * 2.0**1023,
    "float32": (2 - 2.0**-23) * 2.0**127,
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
}

#: The limits, one each for the whole suite, besides ELEMENT and SLACK of the oracle. Tests hold the pool of correct
#: implementations to less (tests/conformance/judging/test_tolerance.py), and wrong ones beyond them.
#: The root mean square of all errors in half types, in standard deviations; few rows may have more in common.
AVERAGE: Final = 1.7
#: The factor that all elements have in common, in unit roundoffs of a half type, and the least rows that show one.
COMMON: Final = 1.5
LEAST_ROWS: Final = 16

#: The dtype to whose tolerances a result may be right. Only float64 has one: the tolerances of float16 and bfloat16
#: are so wide that mistakes hide in them. A result that is wrong in float32 and right to them may be either, so it
#: counts as wrong.
COARSER: Final[Mapping[str, str]] = {"float64": "float32"}


@dataclass(frozen=True, eq=False)
class Tolerance:
    """The limits of what rounding explains in an output.

    `element` is the largest error of each element, or of all; 0 means exact. `row` is the mean variance of the row of
    each element, None if only elements are judged. `rows` is their number, `common` the largest common factor, and
    `in_row` the largest root mean square of those of single rows, in standard deviations of that of independent errors.
    """

    element: Array | float
    row: Array | None = None
    rows: int = 1
    common: float = math.inf
    in_row: float = math.inf

    @property
    def largest(self) -> float:
        """The largest error that any element may have."""
        return float(np.max(self.element, initial=0.0))

    @property
    def average(self) -> float:
        """The largest root mean square of all errors, in standard deviations."""
        return AVERAGE * (1 + 2 / math.sqrt(self.rows))


def limit_rounding(golden: GoldenArray, at_least: str | None, dtype: str) -> Tolerance:
    """Return what rounding to a dtype explains in an output; `at_least` as for `tolerance`."""
    if golden.rounding is None:
        return Tolerance(tolerance(dtype, golden.error_scale, golden.magnitude, at_least))
    variance = golden.rounding(dtype)
    if variance is None:
        return Tolerance(0.0)
    # Where the errors of scores overflow their exponentials, rounding explains any result.
    variance = np.nan_to_num(variance, nan=math.inf, posinf=math.inf)
    # An element near 0 by chance has a small variance, which holds only to first order: its row counts for half.
    row = np.broadcast_to(variance.mean(-1, keepdims=True) if variance.ndim else variance, variance.shape)
    element = np.asarray(variance + row)
    element *= ELEMENT**2 / 2
    np.sqrt(element, out=element)
    if not is_half(dtype):
        return Tolerance(golden.select(element))
    rows = math.prod(variance.shape[:-1])
    if golden.indices is not None:
        rows = len({place[:-1] for place in golden.indices})
    common = COMMON * UNIT_ROUNDOFF[dtype] if rows >= LEAST_ROWS else math.inf
    in_row = math.inf
    if at_least is not None and golden.indices is None and isinstance(golden.rounding, OutputRounding):
        in_row = _spread_rows(golden.rounding.call.inputs.values(), dtype)
    return Tolerance(golden.select(element), golden.select(row), max(rows, 1), common, in_row)


def _spread_rows(inputs: Iterable[Array], dtype: str) -> float:
    """Return the spread of the factor that a row's errors share where only single elements are rounded, in deviations.

    Equal digits are rounded alike: the errors of a row are as independent as it has elements of different digits.
    """
    largest = 0.0
    for rows in (np.atleast_1d(array) for array in inputs if array.dtype.kind == "f" and array.size):
        digits = np.sort(np.rint(np.abs(np.frexp(rows)[0]) / UNIT_ROUNDOFF[dtype]), axis=-1)
        different = 1 + np.count_nonzero(np.diff(digits, axis=-1), axis=-1).min()
        largest = max(largest, math.sqrt(rows.shape[-1] / different))
    return largest or math.inf


def find_visible(golden: GoldenArray, limits: Tolerance) -> float | None:
    """Return the smallest relative change of a whole output that its tolerance shows; None if it is exact."""
    if limits.row is None:
        return None
    there = np.isfinite(golden.values)
    size = float(np.mean(np.square(golden.values[there]))) if there.any() else 0.0
    return limits.average * math.sqrt(float(np.mean(limits.row[there])) / size) if size else None


def find_smallest_normal(dtype: str) -> float:
    """Return the smallest number that a dtype holds with all of its digits."""
    return SMALLEST[dtype] / (2 * UNIT_ROUNDOFF[dtype])


def least_margin(dtype: str) -> float:
    """Return the margin up to which rounding to a dtype may turn a decision: 2 · slack · u(dtype).

    Slack bounds how far other honest code moves a number. A decision compares two of them, which may move
    towards each other, and a decision that turns is not slightly off but wrong: so twice as far.
    """
    return 2 * SLACK * UNIT_ROUNDOFF[dtype]


def tolerance(dtype: str, error_scale: float, magnitude: float, at_least: str | None = None) -> float:
    """Return the bound slack · u(dtype) · error_scale; a scale of 0 gives 0, which means exact.

    With `at_least` (PE-5), the scale counts roundoffs of that dtype when it is the finer one, and
    the result's own rounding to `dtype`, u(dtype) · magnitude, comes on top.
    """
    if error_scale == 0.0:
        return 0.0
    unit = UNIT_ROUNDOFF[dtype]
    working = min(unit, UNIT_ROUNDOFF[at_least]) if at_least else unit
    return SLACK * (working * error_scale + (unit - working) * magnitude + SMALLEST[dtype])

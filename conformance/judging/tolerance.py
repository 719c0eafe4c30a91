"""The largest distance of an honest result from its golden value: arithmetic, not taste."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Unit roundoffs: half the distance from 1 to the next number.
UNIT_ROUNDOFF: Final[Mapping[str, float]] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}

#: The smallest positive subnormal: what underflow can cost, whatever the scale.
SMALLEST: Final[Mapping[str, float]] = {
    "float64": 2.0**-1074,
    "float32": 2.0**-149,
    "float16": 2.0**-24,
    "bfloat16": 2.0**-133,
}

#: The largest finite number; a case whose intermediates are larger cannot run in that dtype.
LARGEST: Final[Mapping[str, float]] = {
    "float64": (2 - 2.0**-52) * 2.0**1023,
    "float32": (2 - 2.0**-23) * 2.0**127,
    "float16": 65504.0,
    "bfloat16": (2 - 2.0**-7) * 2.0**127,
}

#: One for the whole suite. An error scale is the largest deviation of 64 honest evaluations; other
#: honest code sums in another order, divides elsewhere, rounds twice. tests/conformance/judging/test_tolerance.py holds
#: the pool of correct implementations to half of this, and a wrong one far beyond it.
SLACK: Final = 4.0


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

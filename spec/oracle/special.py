"""Functions and constants that NumPy does not have for every kind of number that runs the formulas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, Final

import numpy as np

#: π to more digits than any ball shows: 448 bits are 135 of them.
_PI_DIGITS: Final = (
    "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798214808651"
    "3282306647093844609550582231725359408128481117450284102701938521105559644622948954930381964"
)


def _expand(digits: str, terms: int) -> Iterator[float]:
    """Yield the floats whose exact sum is a decimal, the largest first."""
    rest = Fraction(digits)
    for _ in range(terms):
        part = float(rest)
        rest -= Fraction(part)
        yield part


_PI: Final = tuple(_expand(_PI_DIGITS, 10))


def pi(number: Callable[[int | float], Any]) -> Any:
    """Return π as a number: the small terms first, so that only the last sum rounds."""
    *small, last = [number(part) for part in reversed(_PI)]
    return last + sum(small[1:], small[0])


def _compute_erf(value: Any) -> Any:
    if hasattr(value, "erf"):
        return value.erf()
    if isinstance(value, complex):
        # The imaginary part of a plain number is its derivative.
        slope = 2 / math.sqrt(math.pi) * math.exp(-(value.real**2))
        return complex(math.erf(value.real), slope * value.imag)
    return math.erf(value)


#: The error function as a ufunc, so that arrays with operations of their own know it.
ERF: Final[np.ufunc] = np.frompyfunc(_compute_erf, 1, 1)


def erf(x: Any) -> Any:
    """Compute the error function of each element; an ordinary array keeps its dtype."""
    made = ERF(x)
    return made.astype(x.dtype) if isinstance(x, np.ndarray) else made

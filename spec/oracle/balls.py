"""Ball arithmetic: golden values with a proof."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import flint
import numpy as np
from numpy.typing import NDArray

#: Bits of a ball. No case that is proven element by element loses more than 140 of them.
PRECISION: Final = 256
#: Bits of a ball in a model of full size: each of its layers widens an enclosure by about 20 bits.
FULL_SIZE: Final = 448
#: The bits of float32. A decimal that is no binary number fills all 53 bits of a float64.
FEW_BITS: Final = 24
#: Significant decimal digits of a golden value.
DIGITS: Final = 17

flint.ctx.prec = PRECISION


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """Set the precision of balls, in bits, until the block ends."""
    before, flint.ctx.prec = flint.ctx.prec, bits
    try:
        yield
    finally:
        flint.ctx.prec = before


class Unproven(Exception):
    """An enclosure too wide for what a golden value needs: for its digits, or for a decision."""


def exact(value: int | float) -> Any:
    """Return an integer, a float that means itself, or NaN as a ball of radius 0."""
    return flint.arb(value)


def read(value: float) -> Any:
    """Return an input as it is meant: 0.3 is three tenths, not the float nearest to it.

    A number of few bits means itself. Every drawn number is one (a point of a dyadic grid has at most nine), and its
    shortest decimal form need not be exact: 17·2⁻²⁴ is 1.013278961181640625e-06, which Python prints with 17 digits.
    """
    return exact(value) if _significant_bits(value) <= FEW_BITS else ratio(Fraction(repr(value)))


def _significant_bits(value: float) -> int:
    numerator, _ = abs(value).as_integer_ratio()
    return numerator.bit_length() - (numerator & -numerator).bit_length() + 1 if numerator else 0


def ratio(fraction: Fraction) -> Any:
    """Return a ball around a fraction, which need not be a binary one."""
    return flint.arb(fraction.numerator) / flint.arb(fraction.denominator)


def decimal(ball: Any) -> str:
    """Format a ball with DIGITS significant digits; Unproven unless the enclosure proves all of them."""
    if not ball.is_finite():
        return "nan" if math.isnan(float(ball)) else str(float(ball))
    if ball.contains(0) and bool(abs(ball) < flint.arb(2) ** (-PRECISION // 2)):
        return "0"  # an exact zero, or a cancellation proven to lie below 10⁻³⁸
    text = str(ball.mid().str(DIGITS, radius=False))
    written = Fraction(text)
    if not written:
        raise Unproven(f"{ball} is not proven to be 0")
    exponent = Decimal(text).adjusted()
    unit = Fraction(10) ** (exponent - DIGITS + 1)
    distance = abs(ball - ratio(written))
    # Half a unit, and a little more for the rounding of the decimal conversion itself.
    limit = unit * Fraction(50001, 100000)
    if not bool(distance < ratio(limit)):
        raise Unproven(f"{ball} is not proven to be {text}")
    return text


def decimals(balls: NDArray[Any]) -> list[str]:
    """Format every ball, row-major."""
    return [decimal(ball) for ball in balls.ravel()]


def widest(balls: NDArray[Any]) -> float:
    """Return the largest radius of the finite balls."""
    return float(np.max([float(b.rad()) for b in balls.ravel() if b.is_finite()], initial=0.0))

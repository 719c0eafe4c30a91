"""Dual numbers over balls or draws: golden gradients from the clauses' own formulas, without autograd.

A Dual carries a value and its derivatives by every input of the call. The product rule and its like
are all there is: one formula, run on duals, gives the derivatives of everything it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.oracle.draws import SAMPLES, Draw
from goldformer.spec.oracle.special import pi

Objects = NDArray[Any]
#: Derivatives by every input: an object array of balls, or one Draw of that many rows; None stands for zeros.
Tangent = Any

#: The most rows of tangents of draws that are computed together: hundreds of tangents are held at once.
_ROWS: Final = 200


class Dual:
    """A value and its tangent, under the elementary operations that the formulas use."""

    __slots__ = ("tangent", "value")

    def __init__(self, value: Any, tangent: Tangent = None) -> None:
        self.value = value
        self.tangent = tangent

    def _record_slope(self, slope: float) -> None:
        """Record a slope that honest code forms on the way to a gradient, though the product rule here does not."""
        if self.tangent is not None and isinstance(self.value, Draw):
            Draw.peak = max(Draw.peak, abs(slope))

    def _chain(self, value: Any, slope: Any) -> Dual:
        """Return f(self), given its value and the derivative `slope` there."""
        return Dual(value, None if self.tangent is None else self.tangent * slope)

    def __add__(self, other: Any) -> Dual:
        if not isinstance(other, Dual):
            return Dual(self.value + other, self.tangent)
        return Dual(self.value + other.value, _sum(self.tangent, other.tangent))

    __radd__ = __add__

    def __neg__(self) -> Dual:
        return Dual(-self.value, None if self.tangent is None else -self.tangent)

    def __sub__(self, other: Any) -> Dual:
        return self.__add__(-other)

    def __mul__(self, other: Any) -> Dual:
        if not isinstance(other, Dual):
            return self._chain(self.value * other, other)
        mine, theirs = self._chain(0, other.value).tangent, other._chain(0, self.value).tangent
        return Dual(self.value * other.value, _sum(mine, theirs))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Dual:
        if not isinstance(other, Dual):
            return Dual(self.value / other, None if self.tangent is None else self.tangent / other)
        quotient = self.value / other.value
        mine = None if self.tangent is None else self.tangent / other.value
        theirs = None if other.tangent is None else other.tangent * (-quotient / other.value)
        # The slope of 1/x, for code that multiplies by the reciprocal.
        other._record_slope(float(other.value) ** -2)
        return Dual(quotient, _sum(mine, theirs))

    def __float__(self) -> float:
        return float(self.value)

    def detach(self) -> Dual:
        """Return the value as a constant, without derivatives."""
        return Dual(self.value)

    def exp(self) -> Dual:
        """Apply (e^x)' = e^x."""
        value = self.value.exp()
        return self._chain(value, value)

    def log(self) -> Dual:
        """Apply (log x)' = 1/x."""
        return Dual(self.value.log(), None if self.tangent is None else self.tangent / self.value)

    def tanh(self) -> Dual:
        """Apply (tanh x)' = 1 − tanh² x."""
        value = self.value.tanh()
        return self._chain(value, value * -value + 1)

    def erf(self) -> Dual:
        """Apply (erf x)' = 2/√π · e^(−x²)."""
        slope = (self.value * -self.value).exp() * 2
        return self._chain(self.value.erf(), slope / pi(self._make_constant).sqrt())

    def _make_constant(self, value: float) -> Any:
        """Return an exact number of the kind of the value: a draw, or a ball."""
        return Draw.exact(value) if isinstance(self.value, Draw) else type(self.value)(value)

    def sin(self) -> Dual:
        """Apply (sin x)' = cos x."""
        return Dual(self.value.sin(), None if self.tangent is None else self.tangent * self.value.cos())

    def cos(self) -> Dual:
        """Apply (cos x)' = −sin x."""
        return Dual(self.value.cos(), None if self.tangent is None else self.tangent * -self.value.sin())

    def sqrt(self) -> Dual:
        """Apply (√x)' = 1/(2√x)."""
        root = self.value.sqrt()
        # The slopes of √x, and of 1/√x for code that divides by it.
        self._record_slope(0.5 / float(root))
        self._record_slope(0.5 / float(root) ** 3)
        return Dual(root, None if self.tangent is None else self.tangent / (root + root))


def _sum(one: Tangent, other: Tangent) -> Tangent:
    if one is None or other is None:
        return other if one is None else one
    return one + other


class _UnitDraw(Draw):
    """Some rows of the k-th unit tangent, made when they are used: those of all inputs would take tens of megabytes."""

    __slots__ = ("k", "rows")

    def __init__(self, rows: range, k: int) -> None:
        self.rows, self.k, self.zero = rows, k, False

    @property
    def samples(self) -> NDArray[np.float64]:  # type: ignore[override]
        """A row for each input: ones in its own row, and zeros."""
        samples = np.zeros((len(self.rows), SAMPLES))
        if self.k in self.rows:
            samples[self.rows.index(self.k)] = 1.0
        return samples


def unit_draw(rows: range, k: int) -> Draw:
    """Return rows of the k-th unit tangent, as one Draw."""
    return _UnitDraw(rows, k)


def unit_balls(ball: Callable[[int], Any]) -> Callable[[range, int], Objects]:
    """Return a function that makes rows of the k-th unit tangent as an array of balls."""

    def unit(rows: range, k: int) -> Objects:
        tangent = np.empty(len(rows), dtype=object)
        tangent[:] = [ball(int(row == k)) for row in rows]
        return tangent

    return unit


def gradients(
    formula: Callable[[Callable[[Any], Any], Callable[[float], Any]], Mapping[str, Objects]],
    arrays: Mapping[str, NDArray[np.float64]],
    cotangent: Objects,
    output: str,
    number: Callable[[Any], Any],
    read: Callable[[float], Any],
    unit: Callable[[range, int], Tangent],
) -> dict[str, Objects]:
    """Return the gradient of Σ cotangent·output by every element of `arrays`, as arrays of elements.

    `formula(number, read)` runs the component's formula on elements made by these two; `read` is
    called once for each element of `arrays`, in order. `unit(rows, k)` are rows of the k-th unit tangent.
    """
    count = sum(array.size for array in arrays.values())

    def differentiate(rows: range) -> Tangent:
        made = 0

        def seed(value: float) -> Dual:
            nonlocal made
            made += 1
            return Dual(read(value), unit(rows, made - 1))

        outputs = formula(lambda value: Dual(number(value)), seed)
        assert made == count, "every input element is made once, in the order of `arrays`"
        total: Tangent = None
        # A loss has no axes; NumPy hands such an array out as its element.
        weights, results = (np.asarray(a, dtype=object).ravel() for a in (cotangent, outputs[output]))
        for weight, result in zip(weights, results, strict=True):
            if result.tangent is not None:
                total = _sum(total, result.tangent * weight)
        return total

    total = Draw.compute_in_parts(count, _ROWS, differentiate) if unit is unit_draw else differentiate(range(count))
    return _split_tangent(total, arrays)


def _split_tangent(total: Tangent, arrays: Mapping[str, NDArray[np.float64]]) -> dict[str, Objects]:
    """Cut one long tangent into arrays of their inputs' shapes."""
    rows = [Draw(samples) for samples in total.samples] if isinstance(total, Draw) else list(total)
    cut: dict[str, Objects] = {}
    for name, array in arrays.items():
        mine, rows = rows[: array.size], rows[array.size :]
        block = np.empty(array.size, dtype=object)
        block[:] = mine
        cut[name] = block.reshape(array.shape)
    return cut

"""The rounding error of honest code to first order: float64 values, and the variance of the error of each element.

`Rounded` runs the formulas unchanged, in one pass. Errors count as independent, but for those that a total has
from its own terms: in a softmax most of them cancel. That holds where sums are long; samples.py is for small calls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.formulas.arrays import Valued
from goldformer.spec.oracle.rounding import UNIT_ROUNDOFF, Floats, Run
from goldformer.spec.oracle.special import ERF, erf


class Propagation(Run):
    """One evaluation of a formula on arrays with variances."""

    def hold(self, values: Any) -> Rounded:
        """Take numbers that the dtype holds exactly."""
        return Rounded(np.asarray(values, dtype=np.float64), None, self)

    def read(self, values: Any) -> Rounded:
        """Read decimals: the dtype rounds those that it cannot hold."""
        exact = np.asarray(values, dtype=np.float64)
        return Rounded(exact, self.rounding.of_reading(exact), self)


#: Errors of a logarithm beyond this leave nothing of a number.
_LARGEST_SPREAD: Final = 20.0


@dataclass(frozen=True, slots=True)
class _Shares:
    """The origin of the errors of quotients by their own total: those of the terms, by element, and of the total."""

    terms: Floats
    total: Floats
    quotient: Floats


class Rounded(Valued):
    """An array in float64 with the variance of the rounding error of each element, None where all are exact.

    NumPy's functions that the formulas use know it. `terms` are what this is the total of.
    """

    __slots__ = ("how", "shares", "terms", "variance")

    def __init__(
        self,
        value: Floats,
        variance: Floats | None,
        how: Propagation,
        terms: Rounded | None = None,
        shares: _Shares | None = None,
    ) -> None:
        self.value = value
        self.variance = variance
        self.how = how
        self.terms = terms
        self.shares = shares

    # ── what arrays have ──

    @property
    def T(self) -> Rounded:  # noqa: N802 - NumPy's name
        """The transpose."""
        return self._move(lambda a: a.T)

    def astype(self, dtype: Any) -> NDArray[Any]:
        """Return the values alone."""
        return self.value.astype(dtype, copy=False)

    def detach(self) -> Rounded:
        """Return the same array: it carries no derivatives."""
        return self

    def reshape(self, *shape: Any) -> Rounded:
        """Return the elements in another shape."""
        return self._move(lambda a: a.reshape(*shape))

    def swapaxes(self, one: int, other: int) -> Rounded:
        """Return the array with two axes swapped."""
        return self._move(lambda a: a.swapaxes(one, other))

    def __getitem__(self, places: Any) -> Rounded:
        return self._move(lambda a: a[places])

    def __setitem__(self, places: Any, other: Any) -> None:
        value, variance = _parts(other)
        if variance is not None and self.variance is None:
            self.variance = np.zeros(self.shape)
        self.value[places] = value
        if self.variance is not None:
            self.variance[places] = 0.0 if variance is None else variance

    def __iter__(self) -> Iterator[Rounded]:
        return (self[place] for place in range(len(self)))

    def __float__(self) -> float:
        return float(self.value)

    def _move(self, move: Callable[[Any], Any]) -> Rounded:
        """Return the same elements at other places."""
        return Rounded(move(self.value), None if self.variance is None else move(self.variance), self.how)

    def _round(self, value: Floats, carried: Floats | None) -> Rounded:
        """Return the result of an operation, with the errors that its arguments had, rounded."""
        variance = self.how.round(value)
        if carried is not None:
            variance += carried
        return Rounded(value, variance, self.how)

    def multiply(self, w: Rounded, b: Rounded | None = None) -> Rounded:
        """Return x·W + b. Code adds b at the end, or begins the sum with it."""
        product = self.value @ w.value
        variance = self.how.round(product)
        squares, of_w = None, np.square(w.value)
        if self.shares is not None:
            variance += _average_variance(self.shares, w, product)
        elif self.variance is not None:
            variance += self.variance @ of_w
        if w.variance is not None:
            variance += np.square(self.value) @ w.variance
        count = self.shape[-1]
        if self.how.rounding.shows_products_of(count):
            squares = np.square(self.value) @ of_w
        if b is None:
            total = product
        else:
            total = product + b.value
            variance += self.how.round(total) * ~(_is_zero(b) | (product == 0))
            variance += _or_zero(b.variance)
            count += 1
        if squares is not None:
            start = 0.0 if b is None else np.square(b.value)
            variance += self.how.rounding.of_products(total, squares, start, count)
        return Rounded(total, variance, self.how)

    def refine(self, dtype: str) -> Rounded:
        """Return this as code has it that computes in the finer of two dtypes, and rounds to its own at the end.

        Only for what no sum is in: all of its errors are in proportion to the unit roundoff.
        """
        finer = UNIT_ROUNDOFF[dtype] / self.how.rounding.results
        if finer >= 1 or self.variance is None:
            return self
        return self._round(self.value, self.variance * finer**2)

    # ── NumPy's functions ──

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc not in _UFUNCS:
            return NotImplemented
        return _UFUNCS[ufunc](*(self._adopt(x) for x in inputs))

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function not in _FUNCTIONS:
            return NotImplemented
        return _FUNCTIONS[function](*arguments, **options)

    def _adopt(self, other: Any) -> Rounded:
        """Return an operand as this kind of array."""
        return other if isinstance(other, Rounded) else Rounded(np.asarray(other, dtype=np.float64), None, self.how)

    def sum(self, axis: int | None = None, *, keepdims: bool = False) -> Rounded:
        """Add the elements along an axis."""
        value = self.value.sum(axis, keepdims=keepdims)
        count = self.size // max(value.size, 1)
        variance = self.how.round(value)
        if self.how.rounding.shows_products_of(count):
            squares = np.square(self.value).sum(axis, keepdims=keepdims)
            variance += self.how.rounding.of_sum(value, squares, count)
        if self.variance is not None:
            variance += self.variance.sum(axis, keepdims=keepdims)
        return Rounded(value, variance, self.how, terms=self if keepdims and axis == -1 else None)


def _parts(array: Any) -> tuple[Any, Any]:
    """Return the values and the variances of an array, None for the variances of an ordinary one."""
    return (array.value, array.variance) if isinstance(array, Rounded) else (np.asarray(array), None)


def _total(*variances: Floats | None) -> Floats | None:
    """Return the sum of those variances that there are."""
    there = [variance for variance in variances if variance is not None]
    return sum(there[1:], there[0]) if there else None


def _times(variance: Floats | None, factor: Any) -> Floats | None:
    return None if variance is None else variance * factor


def _is_zero(x: Rounded) -> NDArray[np.bool_]:
    """Find the elements that are exactly 0."""
    zero = x.value == 0
    return np.asarray(zero if x.variance is None else zero & (x.variance == 0))


def _add(x: Rounded, y: Rounded) -> Rounded:
    value = x.value + y.value
    variance = x.how.round(value)
    variance *= ~(_is_zero(x) | _is_zero(y))  # adding 0 rounds nothing
    for carried in (x.variance, y.variance):
        if carried is not None:
            variance += carried
    return Rounded(value, variance, x.how)


def _subtract(x: Rounded, y: Rounded) -> Rounded:
    return _add(x, _negate(y))


def _negate(x: Rounded) -> Rounded:
    return Rounded(-x.value, x.variance, x.how)


def _multiply(x: Rounded, y: Rounded) -> Rounded:
    if x is y:
        return x._round(np.square(x.value), _times(x.variance, 4 * np.square(x.value)))
    carried = _total(_times(x.variance, np.square(y.value)), _times(y.variance, np.square(x.value)))
    return x._round(x.value * y.value, carried)


def _divide(x: Rounded, y: Rounded) -> Rounded:
    with np.errstate(invalid="ignore", divide="ignore"):
        value = x.value / y.value
        if y.terms is x and x.variance is not None and y.variance is not None:
            return _divide_by_total(value, x, y)
        carried = _total(x.variance, _times(y.variance, np.square(value)))
        return x._round(value, None if carried is None else carried / np.square(y.value))


def _divide_by_total(value: Floats, x: Rounded, total: Rounded) -> Rounded:
    """Divide terms by their own total: an error of the largest term is in both, and cancels."""
    assert x.variance is not None, "the caller looked"
    assert total.variance is not None, "the caller looked"
    square = np.square(total.value)
    terms = x.variance / square
    of_total = np.maximum(total.variance - x.variance.sum(-1, keepdims=True), 0.0) / square
    quotient = x.how.round(value)
    shared = terms.sum(-1, keepdims=True) + of_total
    carried = np.maximum(terms * (1 - 2 * value) + np.square(value) * shared, 0.0)
    return Rounded(value, carried + quotient, x.how, shares=_Shares(terms, of_total, quotient))


def _exp(x: Rounded) -> Rounded:
    value = np.exp(x.value)
    if x.variance is None:
        return x._round(value, None)
    # The variance of a log-normal number: large scores have errors beyond the first order.
    spread = np.minimum(x.variance, _LARGEST_SPREAD)
    return x._round(value, np.square(value) * np.expm1(spread) * np.exp(spread))


def _log(x: Rounded) -> Rounded:
    return x._round(np.log(x.value), _times(x.variance, 1 / np.square(x.value)))


def _sqrt(x: Rounded) -> Rounded:
    value = np.sqrt(x.value)
    with np.errstate(invalid="ignore", divide="ignore"):
        carried = None if x.variance is None else np.where(x.variance == 0, 0.0, x.variance / (4 * x.value))
    return x._round(value, carried)


def _tanh(x: Rounded) -> Rounded:
    value = np.tanh(x.value)
    return x._round(value, _times(x.variance, np.square(1 - np.square(value))))


def _erf(x: Rounded) -> Rounded:
    slope = 2 / math.sqrt(math.pi) * np.exp(-np.square(x.value))
    return x._round(erf(x.value), _times(x.variance, np.square(slope)))


def _sin(x: Rounded) -> Rounded:
    return x._round(np.sin(x.value), _times(x.variance, np.square(np.cos(x.value))))


def _cos(x: Rounded) -> Rounded:
    return x._round(np.cos(x.value), _times(x.variance, np.square(np.sin(x.value))))


def _matmul(x: Rounded, y: Rounded) -> Rounded:
    return x.multiply(y)


def _average_variance(shares: _Shares, y: Rounded, average: Floats) -> Floats:
    """Return the variance of Σ wⱼ·yⱼ with shares w of one total: an error of a term moves it by wⱼ·(yⱼ − average)."""
    squares = np.square(y.value)
    spread: Floats = shares.terms @ squares
    spread += np.square(average) * shares.terms.sum(-1, keepdims=True)
    spread -= 2 * average * (shares.terms @ y.value)
    # What rounding leaves of a difference of equals is not below zero.
    np.maximum(spread, 0.0, out=spread)
    return spread + shares.quotient @ squares + np.square(average) * shares.total


_UFUNCS: Final[Mapping[np.ufunc, Callable[..., Rounded]]] = {
    np.add: _add,
    np.subtract: _subtract,
    np.negative: _negate,
    np.multiply: _multiply,
    np.true_divide: _divide,
    np.exp: _exp,
    np.log: _log,
    np.sqrt: _sqrt,
    np.tanh: _tanh,
    ERF: _erf,
    np.sin: _sin,
    np.cos: _cos,
    np.matmul: _matmul,
}


def _where(condition: NDArray[np.bool_], x: Any, y: Any) -> Rounded:
    """Select elements. The total of some terms stays theirs: another number stands only where there are none."""
    (left, of_left), (right, of_right) = _parts(x), _parts(y)
    value = np.where(condition, left, right)
    none = of_left is None and of_right is None
    variance = None if none else np.where(condition, _or_zero(of_left), _or_zero(of_right))
    whole = next(array for array in (x, y) if isinstance(array, Rounded))
    return Rounded(value, variance, whole.how, terms=getattr(y, "terms", None))


def _or_zero(variance: Floats | None) -> Any:
    return 0.0 if variance is None else variance


def _combine(combine: Callable[..., Any]) -> Callable[..., Rounded]:
    """Return a function of several arrays, such as np.concatenate, for this kind."""

    def run(arrays: Any, axis: int = 0) -> Rounded:
        parts = [_parts(array) for array in arrays]
        how = next(array.how for array in arrays if isinstance(array, Rounded))
        variance = None
        if any(of_part is not None for _, of_part in parts):
            variance = combine([np.zeros(v.shape) if of is None else of for v, of in parts], axis=axis)
        return Rounded(combine([value for value, _ in parts], axis=axis), variance, how)

    return run


def _split(x: Rounded, sections: int, axis: int = 0) -> list[Rounded]:
    values = np.split(x.value, sections, axis=axis)
    none = [None] * sections
    variances = none if x.variance is None else np.split(x.variance, sections, axis=axis)
    return [Rounded(value, of, x.how) for value, of in zip(values, variances, strict=True)]


def _full_like(x: Rounded, fill: Any, dtype: Any = None, shape: tuple[int, ...] | None = None) -> Rounded:
    del dtype
    value, variance = _parts(fill)
    whole = x.shape if shape is None else shape
    return Rounded(np.full(whole, value), None if variance is None else np.full(whole, variance), x.how)


def _take_along_axis(x: Rounded, indices: NDArray[np.int64], axis: int) -> Rounded:
    return x._move(lambda a: np.take_along_axis(a, indices, axis))


_FUNCTIONS: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    np.where: _where,
    np.stack: _combine(np.stack),
    np.concatenate: _combine(np.concatenate),
    np.split: _split,
    np.full_like: _full_like,
    np.take_along_axis: _take_along_axis,
}

"""Formulas in numbers of another kind than those of a dtype: balls, draws, samples, arrays with variances, duals.

Nothing has a dtype that it is rounded to, and nothing overflows: a hidden score has no weight because that is what the
clause says, and a dropped element is one that a law describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from goldformer.spec.formulas.arrays import Arithmetic, as_array, number
from goldformer.spec.formulas.heads import average_heads
from goldformer.spec.formulas.randomness import draw_dropout_mask, draw_weight, drop_elements
from goldformer.spec.formulas.steps import Replacements, around, instead
from goldformer.spec.oracle import matrices, special

Objects = NDArray[Any]
Number = Callable[[int | float], Any]

#: What hides a score, unless it is −∞: no score that is computed is as low.
_HIDDEN: Final = float(np.finfo(np.float64).min)


class Exact(Arithmetic):
    """Computing with the numbers that `make` makes of an int or a float."""

    def __init__(self, make: Number) -> None:
        self._make = make

    def number(self, value: float) -> Any:
        """Return a number, as an array without axes, so that NumPy's functions dispatch to it."""
        return as_array(self._make(value) if isinstance(value, (int, float)) else value)

    def root(self, value: Any) -> Any:
        """Return the square root of a number."""
        return np.sqrt(self.number(value))

    def power(self, base: Any, exponent: Any) -> Any:
        """Return a positive number to a power."""
        return np.exp(as_array(exponent) * np.log(as_array(base)))

    def logarithm(self, value: Any) -> Any:
        """Return the natural logarithm of a positive number."""
        return np.log(as_array(value))

    def numbers(self, values: Any, dtype: npt.DTypeLike) -> Any:
        """Return an array of exact numbers."""
        del dtype
        if hasattr(zero := self._make(0), "__array_function__"):
            return self._make(values)  # it makes arrays
        made = np.frompyfunc(self._make, 1, 1)(np.asarray(values, dtype=object))
        return made.astype(as_array(zero).dtype)

    def constant(self, value: float, like: Objects) -> Any:
        """Return an exact number that np.where may put among the elements of an array."""
        del like
        return self.number(value)

    def decide(self, x: Objects) -> NDArray[np.float64]:
        """Return what comparisons look at: midpoints, first samples, real parts."""
        return x.astype(np.float64)

    def detach(self, x: Objects) -> Objects:
        """Return the same numbers as constants: whatever carries a derivative loses it."""
        if hasattr(x, "detach"):
            return x.detach()
        if x.dtype == object:
            return np.frompyfunc(lambda e: e.detach() if hasattr(e, "detach") else e, 1, 1)(x)
        # The imaginary part of a plain number is its derivative.
        return x.real.astype(x.dtype)

    def maximum(self, x: Objects) -> Objects:
        """Return the largest number of each row, a constant."""
        return self.decide(x).max(-1, keepdims=True).astype(x.dtype)

    def lowest(self, dtype: npt.DTypeLike) -> float:
        """Return what hides a score."""
        del dtype
        return _HIDDEN

    def exponentials(self, scores: Objects) -> Objects:
        """Return exp(s − max) over the scores that are not hidden, 0 for these, 1 in a row of hidden ones.

        In a row that −∞ hides it is NaN.
        """
        size, zero = self.decide(scores), self.number(0)
        hidden = size <= _HIDDEN
        empty = hidden.all(-1, keepdims=True)
        # Subtracting one exact number from a row changes nothing, and keeps exp within range.
        shift = np.where(empty, 0.0, size.max(-1, keepdims=True)).astype(scores.dtype)
        if not hidden.any():
            return np.exp(scores - shift)
        below = np.where(hidden, zero, np.where(hidden, zero, scores) - shift)
        powers = np.where(hidden, zero, np.exp(below))
        if empty.any():
            fill = math.nan if np.isneginf(size[np.broadcast_to(empty, size.shape)]).any() else 1
            powers = np.where(empty, self.number(fill), powers)
        return powers

    def multiply(self, x: Objects, w: Any, b: Objects | None = None) -> Objects:
        """Return x·W + b of one matrix or several."""
        return matrices.multiply(x, w, b)

    def widen(self, x: Objects) -> Objects:
        """Return the array: how code rounds in a half type is not decided here."""
        return x

    def narrow(self, x: Objects, like: Objects) -> Objects:
        """Return the array: it has no dtype to be rounded to."""
        del like
        return x

    def refine(self, x: Objects) -> Objects:
        """Return what code computes in float32 or float64, whatever the dtype of its arguments (PE-5)."""
        return x.refine("float32") if hasattr(x, "refine") else x

    def erf(self, x: Objects) -> Objects:
        """Compute the error function."""
        return special.erf(x)

    def pi(self) -> Any:
        """Return π."""
        return as_array(special.pi(self._make))


def _keep_all(shape: tuple[int, ...], rate: float, random: Any) -> NDArray[np.bool_]:
    del rate, random
    return np.ones(shape, dtype=bool)


def _drop_for_certain(original: Callable[..., Objects], x: Objects, rate: Any, seed: int | None) -> Objects:
    """Return x/(1 − rate), the value of an element that is kept: laws.py has the law of dropped ones.

    At a rate of 0 nothing is scaled, and at a rate of 1 no element is kept.
    """
    if float(rate) == 0:
        return x
    return np.full_like(x, number(0)) if float(rate) == 1 else original(x, rate, seed)


def _draw_largest(shape: tuple[int, ...], bound: Any, random: Any) -> Objects:
    """Return the largest element there can be, as it is drawn: −a + 2a·v with v up to 1."""
    del random
    # v has as many random bits as the dtype holds: it is a product here so that it is rounded once.
    v = number(1) * number(1)
    drawn = as_array(-bound + (bound + bound) * v)
    return np.full_like(drawn, drawn, shape=shape)


#: What no number of another kind is drawn for: of what is random a law tells more.
WITHOUT_CHANCE: Final[Replacements] = {
    drop_elements: around(_drop_for_certain),
    draw_dropout_mask: instead(_keep_all),
    draw_weight: instead(_draw_largest),
}
#: What no layer gives, so that computing it takes only time.
_UNSEEN: Final[Replacements] = {average_heads: instead(lambda weights: weights)}
_GIVES_AVERAGES: Final = frozenset({"multi_head_attention", "fused_multi_head_attention"})


def list_unseen(component: str) -> Replacements:
    """Return the replaced steps of a component that does not give what they compute."""
    return {} if component in _GIVES_AVERAGES else _UNSEEN

"""Operations on arrays beyond NumPy's operators, for every kind of numbers that runs the formulas.

The same lines compute in a dtype of NumPy, in balls, in samples of honest code, or in variances of its errors. Arrays
bring their operators along, by NumPy's protocols or as arrays of objects. What they cannot bring is in an `Arithmetic`,
which whoever evaluates a formula sets by `computing`: how a constant is made, and what each kind does in its own way.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numpy.lib.mixins import NDArrayOperatorsMixin

from goldformer.spec.formulas.steps import hold

Array = npt.NDArray[Any]

#: An operand, and what the cotangent of a result is on the way back to it.
Flow = tuple[Array, Callable[[Array], Array]]


class Arithmetic:
    """Computing in the dtypes of NumPy. Constants are Python's numbers, which promote nothing."""

    #: False if arrays carry derivatives.
    is_plain = True

    def number(self, value: float) -> Any:
        """Return an exact number."""
        return value

    def root(self, value: Any) -> Any:
        """Return the square root of a number."""
        return math.sqrt(value)

    def power(self, base: Any, exponent: Any) -> Any:
        """Return a positive number to a power."""
        return float(base**exponent)

    def logarithm(self, value: Any) -> Any:
        """Return the natural logarithm of a positive number."""
        return math.log(value)

    def numbers(self, values: Any, dtype: npt.DTypeLike) -> Any:
        """Return an array of exact numbers."""
        return np.asarray(values).astype(dtype)

    def constant(self, value: float, like: Array) -> Any:
        """Return an exact number that np.where may put among the elements of an array."""
        return like.dtype.type(value)

    def decide(self, x: Array) -> Array:
        """Return what comparisons look at. The imaginary part of a complex number carries a derivative."""
        return x.real

    def detach(self, x: Array) -> Array:
        """Return the same numbers as constants: whatever carries a derivative loses it."""
        return x.real

    def record(self, value: Array, *flows: Flow) -> Array:
        """Return a value of a step whose derivative is another: its cotangent flows back by these functions only."""
        del flows
        return value

    def maximum(self, x: Array) -> Array:
        """Return the largest number of each row, (..., 1)."""
        return x.max(axis=-1, keepdims=True)

    def lowest(self, dtype: npt.DTypeLike) -> float:
        """Return the lowest finite number."""
        return float(np.finfo(dtype).min)

    def exponentials(self, scores: Array) -> Array:
        """Return exp(s − max) over the last axis, without a warning where a score is lowest or −∞."""
        with np.errstate(over="ignore", invalid="ignore"):
            return np.exp(scores - self.maximum(scores))

    def multiply(self, x: Array, w: Array, b: Array | None = None) -> Array:
        """Return x·W + b of one matrix or several; sums of float16 run in float32, as in frameworks."""
        half = x.dtype == w.dtype == np.float16
        product = np.matmul(x, w, dtype=np.float32).astype(np.float16) if half else x @ w
        return product if b is None else product + b

    def widen(self, x: Array) -> Array:
        """Return the array in float32 at least: the square of 256 overflows float16."""
        return x.astype(np.promote_types(x.dtype, np.float32))

    def narrow(self, x: Array, like: Array) -> Array:
        """Round to the dtype of an array."""
        return x.astype(like.dtype)

    def refine(self, x: Array) -> Array:
        """Return what code computes in float32 or float64, whatever the dtype of its arguments (PE-5)."""
        return x

    def erf(self, x: Array) -> Array:
        """Compute the error function. The derivative of a complex number is that of its real part."""
        error = np.vectorize(math.erf, otypes=[x.real.dtype])(x.real)
        if np.iscomplexobj(x):
            error = error + (x - x.real) * np.exp(-np.square(x.real)) * 2 / math.sqrt(math.pi)
        return np.asarray(error)

    def pi(self) -> Any:
        """Return π."""
        return math.pi


class Valued(NDArrayOperatorsMixin):
    """An array of NumPy with something beside it, such as the errors of its elements, or how they were computed."""

    __slots__ = ("value",)

    value: Array

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.value.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.value.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.value.dtype

    def __len__(self) -> int:
        return len(self.value)


_arithmetic: Final[ContextVar[Arithmetic]] = ContextVar("arithmetic", default=Arithmetic())  # noqa: B039 - no state


def computing(arithmetic: Arithmetic) -> AbstractContextManager[None]:
    """Compute with another kind of numbers inside the context."""
    return hold(_arithmetic, arithmetic)


def arithmetic() -> Arithmetic:
    """Return the arithmetic of the numbers that run."""
    return _arithmetic.get()


def number(value: Any) -> Any:
    """Return an exact number, or an attribute, which is made of one already."""
    return _arithmetic.get().number(value)


def root(value: Any) -> Any:
    """Return the square root of an integer, or of what `number` and `ratio` give."""
    return _arithmetic.get().root(value)


def ratio(numerator: float, denominator: float) -> Any:
    """Return a quotient of exact numbers."""
    current = _arithmetic.get()
    return current.number(numerator) / current.number(denominator)


def as_array(value: Any) -> Array:
    """Return a result without axes as an array: NumPy hands out its element."""
    array: Array = value if hasattr(value, "__array_function__") else np.asarray(value)
    return array


def detach(original: Callable[..., Array], /, *given: Any, **named: Any) -> Array:
    """Return what a step gives as a constant: around that step, a backward pass that leaves it out."""
    return _arithmetic.get().detach(original(*given, **named))


def multiply(x: Array, w: Array, b: Array | None = None) -> Array:
    """Return x·W + b of one matrix or several."""
    return _arithmetic.get().multiply(x, w, b)

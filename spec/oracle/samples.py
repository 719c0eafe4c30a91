"""Honest code by Monte Carlo: arrays that run the formulas unchanged, perturbed by the roundoffs of each operation.

The model of rounding.py where errors are not independent: in small calls, such as those of the golden cases, a norm
removes half of an error, and layers most of what is left. Each array holds an exact evaluation and SAMPLES perturbed
ones. Their roundoffs are those of the dtype, or SIZE if they are smaller, so that float64's own are far below them: in
half types, scores of −10000 that differ tie, and no first order shows that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from goldformer.spec import draw
from goldformer.spec.oracle.rounding import UNIT_ROUNDOFF, Floats, Rounding, Run

SAMPLES: Final = 64
#: The smallest unit roundoff of the perturbed evaluations: far above float64's own, and far below 1.
SIZE: Final = 2.0**-30

_POOL_SIZE: Final = 1 << 20


@cache
def _noise() -> Floats:
    """Return uniform numbers of variance 1, the same ones in every process."""
    bits = draw.stream(0, "noise", _POOL_SIZE) >> np.uint64(11)
    noise: Floats = (bits.astype(np.float64) * 2.0**-52 - 1.0) * np.sqrt(3.0)
    return noise


class Sampler(Run):
    """One evaluation of a formula on samples, with the perturbations in use."""

    def __init__(self, rounding: Rounding) -> None:
        super().__init__(rounding)
        self._next = 0
        self._factor = max(SIZE, rounding.results) / rounding.results
        self._smallest = rounding.smallest * self._factor

    def hold(self, values: Any) -> Sampled:
        """Take numbers that the dtype holds exactly."""
        return Sampled(np.asarray(values, dtype=np.float64)[None], self)

    def read(self, values: Any) -> Sampled:
        """Read decimals: the dtype rounds those that it cannot hold."""
        exact = np.asarray(values, dtype=np.float64)
        variance = self.rounding.of_reading(exact)
        return Sampled(exact[None], self) if variance is None else self.perturb(exact[None], variance)

    def perturb(self, samples: Floats, variance: Floats) -> Sampled:
        """Return the results of an operation with errors of this variance in all samples but the first."""
        deviation = np.sqrt(variance)
        if self._factor != 1.0:
            deviation *= self._factor
        made = np.empty((1 + SAMPLES, *samples.shape[1:]))
        np.multiply(self._take((SAMPLES, *samples.shape[1:])), deviation, out=made[1:])
        made[0] = 0.0
        made += samples
        self._keep_signs(made, samples, deviation)
        return Sampled(made, self)

    def _keep_signs(self, made: Floats, samples: Floats, deviation: Floats) -> None:
        """Set the results to 0 that underflow took across 0, which rounding never does: a square stays a square."""
        underflows = (deviation > 0) & (deviation < self._smallest)
        if underflows.any():
            crossed = ((made < 0) & ~(samples < 0)) | ((made > 0) & ~(samples > 0))
            made[crossed & underflows] = 0.0

    def _take(self, shape: tuple[int, ...]) -> Floats:
        """Take perturbations in order; at the end of the pool they go on elsewhere, so that no run is repeated."""
        size, pool = math.prod(shape), _noise()
        if size > len(pool):
            pool = np.resize(pool, size)
        if self._next + size > len(pool):
            self._next = min((self._next * 7 + 13) % 61, len(pool) - size)
        start, self._next = self._next, self._next + size
        return pool[start : self._next].reshape(shape)

    def find_variance(self, array: Sampled) -> Floats | None:
        """Return the variance of the errors of each element; None if all are exact."""
        if len(array.samples) == 1:
            return None
        variance: Floats = np.square(array.samples[1:] - array.samples[0]).mean(0) / self._factor**2
        return variance


class Sampled(NDArrayOperatorsMixin):
    """An exact and SAMPLES perturbed evaluations on a leading axis, which its shape does not show; one if all agree."""

    __slots__ = ("sampler", "samples")

    def __init__(self, samples: Floats, sampler: Sampler) -> None:
        self.samples = samples
        self.sampler = sampler

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each sample."""
        return self.samples.shape[1:]

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.samples.ndim - 1

    @property
    def dtype(self) -> np.dtype[np.float64]:
        """The dtype."""
        return self.samples.dtype

    @property
    def T(self) -> Sampled:  # noqa: N802 - NumPy's name
        """The transpose."""
        return self.swapaxes(-1, -2)

    def astype(self, dtype: Any) -> NDArray[Any]:
        """Return the exact evaluation, on which formulas decide."""
        exact: NDArray[Any] = self.samples[0].astype(dtype, copy=False)
        return exact

    def detach(self) -> Sampled:
        """Return the same array: it carries no derivatives."""
        return self

    def refine(self, dtype: str) -> Sampled:
        """Return this as code has it that computes in the finer of two dtypes, and rounds to its own at the end."""
        finer = UNIT_ROUNDOFF[dtype] / self.sampler.rounding.results
        if finer >= 1 or len(self.samples) == 1:
            return self
        exact = self.samples[:1]
        return self.sampler.perturb(exact + finer * (self.samples - exact), self.sampler.rounding.of_result(exact[0]))

    def reshape(self, *shape: Any) -> Sampled:
        """Return the elements in another shape."""
        whole = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        return Sampled(self.samples.reshape(len(self.samples), *whole), self.sampler)

    def swapaxes(self, one: int, other: int) -> Sampled:
        """Return the array with two axes swapped."""
        return Sampled(self.samples.swapaxes(_shift(one), _shift(other)), self.sampler)

    def __getitem__(self, places: Any) -> Sampled:
        listed = places if isinstance(places, tuple) else (places,)
        return Sampled(self.samples[(slice(None), *listed)], self.sampler)

    def __setitem__(self, places: Any, other: Sampled) -> None:
        if len(other.samples) > len(self.samples):
            self.samples = np.repeat(self.samples, len(other.samples), axis=0)
        listed = places if isinstance(places, tuple) else (places,)
        self.samples[(slice(None), *listed)] = other.samples

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Sampled]:
        return (self[place] for place in range(len(self)))

    def __float__(self) -> float:
        return float(self.samples[0])

    def sum(self, axis: int = -1, *, keepdims: bool = False) -> Sampled:
        """Add the elements along an axis."""
        total = self.samples.sum(_shift(axis), keepdims=keepdims)
        squares = np.square(self.samples[0]).sum(axis, keepdims=keepdims)
        variance = self.sampler.round(total[0])
        variance += self.sampler.rounding.of_sum(total[0], squares, self.shape[axis])
        return self.sampler.perturb(total, variance)

    def multiply(self, w: Sampled, b: Sampled | None = None) -> Sampled:
        """Return x·W + b. Code adds b at the end, or begins the sum with it."""
        x, by = _align([self.samples, w.samples])
        total = product = x @ by
        squares, count = np.square(x[0]) @ np.square(by[0]), self.shape[-1]
        variance = self.sampler.round(product[0])
        if b is not None:
            total = np.add(*_align([product, b.samples]))
            variance += _keep_rounded(self.sampler.round(total[0]), b.samples, product)
            count += 1
        start = 0.0 if b is None else np.square(b.samples[0])
        variance += self.sampler.rounding.of_products(total[0], squares, start, count)
        return self.sampler.perturb(total, variance)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented
        if ufunc is np.matmul:
            x, w = (x if isinstance(x, Sampled) else self.sampler.hold(x) for x in inputs)
            return x.multiply(w)
        parts = _align([_samples(x) for x in inputs])
        samples = ufunc(*parts).astype(np.float64, copy=False)  # the error function gives objects
        if ufunc is np.negative:
            return Sampled(samples, self.sampler)
        variance = self.sampler.round(samples[0])
        if ufunc is np.add or ufunc is np.subtract:
            variance = _keep_rounded(variance, *parts)
        return self.sampler.perturb(samples, variance)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function not in _FUNCTIONS:
            return NotImplemented
        return _FUNCTIONS[function](self.sampler, *arguments, **options)


def _shift(axis: int) -> int:
    return axis + 1 if axis >= 0 else axis


def _samples(array: Any) -> Floats:
    return array.samples if isinstance(array, Sampled) else np.asarray(array)[None]


def _align(parts: list[NDArray[Any]]) -> list[NDArray[Any]]:
    """Give arrays the same number of axes after that of the samples."""
    axes = [part.ndim for part in parts]
    most = max(axes)
    if min(axes) == most:
        return parts
    return [p if p.ndim == most else p.reshape(len(p), *[1] * (most - p.ndim), *p.shape[1:]) for p in parts]


def _keep_rounded(variance: Floats, x: Floats, y: Floats) -> Floats:
    """Return the variance of rounding x + y where neither is 0 in every sample: adding 0 rounds nothing."""
    for samples in (x, y):
        if not samples[0].all():
            variance = variance * samples.any(0)
    return variance


def _where(sampler: Sampler, condition: NDArray[np.bool_], x: Any, y: Any) -> Sampled:
    return Sampled(np.where(*_align([np.asarray(condition)[None], _samples(x), _samples(y)])), sampler)


def _combine(combine: Callable[..., Any]) -> Callable[..., Sampled]:
    """Return a function of several arrays, such as np.concatenate, for this kind."""

    def run(sampler: Sampler, arrays: Any, axis: int = 0) -> Sampled:
        parts = [_samples(array) for array in arrays]
        most = max(map(len, parts))
        spread = [np.broadcast_to(part, (most, *part.shape[1:])) for part in parts]
        return Sampled(combine(spread, axis=_shift(axis)), sampler)

    return run


def _split(sampler: Sampler, x: Sampled, sections: int, axis: int = 0) -> list[Sampled]:
    return [Sampled(part, sampler) for part in np.split(x.samples, sections, axis=_shift(axis))]


def _full_like(sampler: Sampler, x: Sampled, fill: Any, dtype: Any = None, shape: Any = None) -> Sampled:
    del dtype
    value, whole = _samples(fill), x.shape if shape is None else shape
    spread = np.broadcast_to(value.reshape(len(value), *[1] * len(whole)), (len(value), *whole))
    return Sampled(spread.copy(), sampler)


def _take_along_axis(sampler: Sampler, x: Sampled, indices: NDArray[np.int64], axis: int) -> Sampled:
    return Sampled(np.take_along_axis(x.samples, indices[None], _shift(axis)), sampler)


_FUNCTIONS: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    np.where: _where,
    np.stack: _combine(np.stack),
    np.concatenate: _combine(np.concatenate),
    np.split: _split,
    np.full_like: _full_like,
    np.take_along_axis: _take_along_axis,
}

"""Monte Carlo arithmetic: how many unit roundoffs an honest evaluation of a formula moves.

A Draw is SAMPLES float64 numbers that went through the same operations, each elementary result
multiplied by 1 + ROUNDOFF·ξ with an independent ξ uniform in [−1, 1]. ROUNDOFF is far above float64's
own and far below 1, so that the deviations measure only the perturbations, to first order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.spec import draw
from goldformer.spec.oracle.special import erf

SAMPLES: Final = 64
ROUNDOFF: Final = 2.0**-34

#: One long run of perturbations, used in order: the same formula always gets the same ones.
_POOL_SIZE: Final = 1 << 20
_NOISE: NDArray[np.float64] | None = None

Samples = NDArray[np.float64]


def _noise() -> NDArray[np.float64]:
    global _NOISE  # noqa: PLW0603 - a cache that costs 20 ms, filled on first use
    if _NOISE is None:
        bits = draw.stream(0, "noise", _POOL_SIZE) >> np.uint64(11)
        _NOISE = 1.0 + ROUNDOFF * (bits.astype(np.float64) * 2.0**-52 - 1.0)
    return _NOISE


def _restart(start: int) -> int:
    """Return where the perturbations go on after their end: each time elsewhere, so that no window is repeated."""
    return (start * 7 + 13) % 61


class Draw:
    """SAMPLES numbers, perturbed at every operation; `peak` is the largest size met since `reset`."""

    __slots__ = ("samples", "zero")
    peak: ClassVar[float] = 0.0
    _next: ClassVar[int] = 0
    #: The first row of tangents that is computed, and the number of rows in all; None where all rows are.
    _rows: ClassVar[tuple[int, int] | None] = None
    _products: ClassVar[int] = 0

    def __init__(self, samples: Samples, *, zero: bool = False) -> None:
        self.samples = samples
        #: Exactly zero, so that adding it rounds nothing.
        self.zero = zero

    @classmethod
    def reset(cls) -> None:
        """Start the perturbations over, so that a scale depends only on its case."""
        cls._next, cls._products, cls.peak = 0, 0, 0.0

    @classmethod
    def compute_in_parts(cls, count: int, most: int, compute: Callable[[range], Draw]) -> Draw:
        """Return a tangent of `count` rows that `compute` makes in parts of at most `most` rows.

        The rows of each part get the perturbations that they would get among all.
        """
        before = cls._next, cls._products
        parts = -(-count // most)
        size = -(-count // parts)
        rows = []
        try:
            for first in range(0, count, size):
                (cls._next, cls._products), cls._rows = before, (first, count)
                rows.append(compute(range(first, min(first + size, count))).samples)
        finally:
            cls._rows = None
        return cls(np.concatenate(rows))

    @classmethod
    def count_product(cls) -> int:
        """Count a product with a whole matrix, and return the number of products before it since `reset`."""
        cls._products += 1
        return cls._products - 1

    @classmethod
    def exact(cls, value: int | float) -> Draw:
        """Return the same number in all samples."""
        return cls(np.full(SAMPLES, float(value)), zero=value == 0)

    @classmethod
    def read(cls, value: float) -> Draw:
        """Read an input: perturb it unless eight significant bits, bfloat16's, hold it exactly."""
        cls.peak = max(cls.peak, abs(value))
        held = math.ldexp(math.frexp(value)[0], 8).is_integer()
        return cls.exact(value) if held else cls.perturb(np.full(SAMPLES, value))

    @classmethod
    def hold(cls, value: float) -> Draw:
        """Take an input that the dtype of the call holds exactly: nothing rounds it."""
        cls.peak = max(cls.peak, abs(value))
        return cls.exact(value)

    @classmethod
    def perturb(cls, samples: Samples) -> Draw:
        """Perturb the result of one elementary operation by its roundoffs."""
        noise, start, size = _noise(), cls._next, samples.size
        skipped, count = (cls._rows or (0, 0)) if samples.ndim > 1 else (0, 0)
        whole = count * SAMPLES or size
        if start + whole > _POOL_SIZE:
            start = _restart(start)
        cls._next = start + whole
        if samples.ndim > 1:
            cls.note_peak(samples[..., 0])
            start += skipped * SAMPLES
            return cls(samples * noise[start : start + size].reshape(samples.shape))
        # One of hundreds of thousands of numbers: NumPy's own functions would take most of the time.
        first = abs(samples.item(0))
        cls.peak = max(cls.peak, first)
        return cls(samples * noise[start : start + size])

    @classmethod
    def note_peak(cls, first: Samples) -> None:
        """Record the largest size among the first samples of several results."""
        cls.peak = max(cls.peak, float(np.abs(first).max(initial=0.0)))

    @classmethod
    def take(cls, rounded: NDArray[np.bool_]) -> Samples:
        """Take a perturbation for each operation that rounds, in row-major order, and 1 for the others.

        The SAMPLES are one more axis at the end.
        """
        count, noise, taken = int(np.count_nonzero(rounded)), _noise(), []
        while count:
            if (fitting := min(count, (_POOL_SIZE - cls._next) // SAMPLES)) == 0:
                cls._next = _restart(cls._next)
                continue
            end = cls._next + fitting * SAMPLES
            taken.append(noise[cls._next : end])
            cls._next, count = end, count - fitting
        factors = np.ones((*rounded.shape, SAMPLES))
        if taken:
            factors[rounded] = np.concatenate(taken).reshape(-1, SAMPLES)
        return factors

    def __add__(self, other: Any) -> Draw:
        if isinstance(other, Draw):
            if self.zero:
                return Draw(other.samples, zero=other.zero)
            return self if other.zero else Draw.perturb(self.samples + other.samples)
        return self if other == 0 else Draw.perturb(self.samples + other)

    __radd__ = __add__

    def __neg__(self) -> Draw:
        return Draw(-self.samples, zero=self.zero)

    def __sub__(self, other: Any) -> Draw:
        return self.__add__(-other)

    def __mul__(self, other: Any) -> Draw:
        if isinstance(other, Draw):
            if self.zero or other.zero:
                return Draw.exact(0)
            return Draw.perturb(self.samples * other.samples)
        return Draw.perturb(self.samples * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Draw:
        return Draw.perturb(self.samples / (other.samples if isinstance(other, Draw) else other))

    def __float__(self) -> float:
        return float(self.samples[0])

    def exp(self) -> Draw:
        """Compute the exponential."""
        return Draw.perturb(np.exp(self.samples))

    def log(self) -> Draw:
        """Compute the logarithm."""
        return Draw.perturb(np.log(self.samples))

    def sqrt(self) -> Draw:
        """Compute the square root."""
        return Draw.perturb(np.sqrt(self.samples))

    def tanh(self) -> Draw:
        """Compute the hyperbolic tangent."""
        return Draw.perturb(np.tanh(self.samples))

    def erf(self) -> Draw:
        """Compute the error function."""
        return Draw.perturb(erf(self.samples))

    def sin(self) -> Draw:
        """Compute the sine."""
        return Draw.perturb(np.sin(self.samples))

    def cos(self) -> Draw:
        """Compute the cosine."""
        return Draw.perturb(np.cos(self.samples))


def error_scale(draws: NDArray[Any], golden: NDArray[np.float64]) -> float:
    """Return the largest deviation from the golden values, over samples and elements, in units of ROUNDOFF."""
    samples = np.stack([d.samples for d in draws.ravel()]) if draws.size else np.zeros((0, SAMPLES))
    deviation = np.abs(samples - golden.reshape(-1, 1))
    finite = deviation[np.isfinite(deviation)]
    return float(finite.max(initial=0.0) / ROUNDOFF)


def margin(gaps: NDArray[Any], golden: NDArray[np.float64] | None = None) -> float:
    """Return the unit roundoff at which an honest evaluation may close one of these gaps; infinite without gaps.

    A gap is what a chosen candidate exceeds a rejected one by; without golden values its mean stands for it.
    """
    samples = np.stack([d.samples for d in gaps]) if gaps.size else np.zeros((0, SAMPLES))
    centre = samples.mean(-1) if golden is None else golden
    deviations = np.abs(samples - centre[:, None]).max(-1) / ROUNDOFF
    # One roundoff moves a gap by its own size, however exact its two sides may be.
    return float(np.min(np.abs(centre) / np.maximum(deviations, np.abs(centre)), initial=math.inf))

"""The large weights of full-size models: exact matrices that multiply balls or draws in whole.

A weight of a million elements would be a million objects. Here it stays an array of float64 numbers,
which are integers times a power of two, and `x @ weight` is formed for all elements of x at once:

- balls: each midpoint is cut into integers of 32 bits, whose products with the weight float64 sums
  without rounding, and the radii are carried through |weight|: an enclosure, as element by element;
- draws: the roundoffs of a dot product are independent and uniform, so their sum is normal with the
  variance Σ p² + Σ s² over the products p and the partial sums s: it is drawn as such.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.spec import draw
from goldformer.spec.oracle.draws import ROUNDOFF, SAMPLES, Draw

Objects = NDArray[Any]
Floats = NDArray[np.float64]

#: A weight with at least this many elements stays a plain array.
LARGE: Final = 1 << 16

#: Bits of the integers that a midpoint is cut into.
_LIMB: Final = 32
#: Bits of a ball before the point: the rest of its precision is the fraction.
_WHOLE: Final = 64
#: float64 holds every integer of this many bits.
_MANTISSA: Final = 53
#: The most partial sums in memory at once, in elements.
_CHUNK: Final = 1 << 23


def is_large(array: NDArray[Any]) -> bool:
    """Return True if an array is a weight that stays a plain array."""
    return array.ndim == 2 and array.size >= LARGE


class Weight:
    """An exact matrix; the right-hand side of `@`, and a table of rows that ids select."""

    #: NumPy leaves `array @ weight` to __rmatmul__.
    __array_ufunc__ = None

    def __init__(self, values: Floats, read: Callable[[float], Any]) -> None:
        self.values = values
        self.shape = values.shape
        self._read_one = read
        self._read = np.frompyfunc(read, 1, 1)

    @property
    def T(self) -> Weight:  # noqa: N802 - NumPy's name
        """The transpose."""
        return Weight(self.values.T, self._read_one)

    def __getitem__(self, ids: NDArray[np.int64]) -> Objects:
        rows: Objects = self._read(self.values[ids])
        return rows

    def __rmatmul__(self, x: Objects) -> Objects:
        flat = x.reshape(-1, x.shape[-1])
        product = self._draws(flat) if isinstance(flat[0, 0], Draw) else self._balls(flat)
        return product.reshape(*x.shape[:-1], self.shape[1])

    def _balls(self, x: Objects) -> Objects:
        import flint

        fraction = flint.ctx.prec - _WHOLE
        unit = flint.arb(2) ** fraction
        whole = [int((ball.mid() * unit).floor().unique_fmpz()) for ball in x.ravel()]
        # Truncation moves a midpoint by less than one unit of the last bit.
        radii = np.array([float(ball.rad()) for ball in x.ravel()]).reshape(x.shape) + 2.0**-fraction
        power = _common_power(self.values)
        weight = np.ldexp(self.values, power)
        total: Objects = np.zeros((len(x), self.shape[1]), dtype=object)
        for place, limb in enumerate(_limbs(whole)):
            part = limb.reshape(x.shape) @ weight
            total = total + (part.astype(np.int64).astype(object) << (_LIMB * place))
        # Each product and sum of non-negative numbers rounds once: one part in 2³⁰ covers thousands of roundings.
        spread = radii @ np.abs(self.values) * (1 + 2.0**-30)
        down = flint.arb(2) ** -(fraction + power)

        def ball(middle: int, radius: float) -> Any:
            return flint.arb(middle) * down + flint.arb(0, radius)

        product: Objects = np.frompyfunc(ball, 2, 1)(total, spread)
        return product

    def _draws(self, x: Objects) -> Objects:
        samples = np.stack([d.samples for d in x.ravel()], axis=1).reshape(SAMPLES, *x.shape)
        exact = (samples.reshape(-1, x.shape[1]) @ self.values).reshape(SAMPLES, len(x), -1)
        deviation = ROUNDOFF * np.sqrt(self._squares(samples[0]) / 3)
        noisy = exact + deviation * _normal(f"normal/{Draw.count_product()}", exact.shape)
        Draw.peak = max(Draw.peak, float(np.abs(noisy[0]).max()))
        # Put the samples of one element next to each other: every other operation reads them so.
        apart = np.ascontiguousarray(np.moveaxis(noisy, 0, -1)).reshape(-1, SAMPLES)
        product = np.empty(len(apart), dtype=object)
        product[:] = [Draw(samples) for samples in apart]
        return product.reshape(noisy.shape[1:])

    def _squares(self, x: Floats) -> Floats:
        """Return Σ p² + Σ s² of each dot product; adding an exact zero rounds nothing, and the first sum is no sum."""
        squares = np.empty((len(x), self.shape[1]))
        width = max(1, _CHUNK // x.size)
        for start in range(0, self.shape[1], width):
            columns = slice(start, start + width)
            products = x[:, :, None] * self.values[None, :, columns]
            sums = np.cumsum(products, axis=1)
            sums[:, 1:] *= products[:, 1:] != 0
            squares[:, columns] = np.square(products).sum(1) + np.square(sums[:, 1:]).sum(1)
        return squares


def _common_power(values: Floats) -> int:
    """Return the least k ≥ 0 for which every value times 2^k is an integer; ValueError if sums would need rounding."""
    power = 0
    while power < _MANTISSA and not np.array_equal(scaled := np.ldexp(values, power), np.rint(scaled)):
        power += 1
    largest = float(np.abs(np.ldexp(values, power)).max(initial=1.0))
    bits = math.ceil(math.log2(largest + 1)) + math.ceil(math.log2(len(values))) + _LIMB
    if power == _MANTISSA or bits > _MANTISSA:
        raise ValueError(f"a large weight must lie on a grid: its sums of {_LIMB}-bit integers need {bits} bits")
    return power


def _limbs(whole: list[int]) -> list[Floats]:
    """Cut integers into digits to the base 2^32, the lowest first; the highest carries the sign."""
    size = max(max((n.bit_length() for n in whole), default=0) // _LIMB + 1, 2)
    packed = b"".join(n.to_bytes(size * _LIMB // 8, "little", signed=True) for n in whole)
    digits = np.frombuffer(packed, dtype="<u4").reshape(len(whole), size)
    limbs = [digits[:, place].astype(np.float64) for place in range(size)]
    limbs[-1] = digits[:, -1].astype(np.int32).astype(np.float64)
    return limbs


def _normal(name: str, shape: tuple[int, ...]) -> Floats:
    """Draw standard normal numbers by Box and Muller's method, the same ones for the same name."""
    count = math.prod(shape)
    uniform = ((draw.stream(0, name, 2 * count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:count])), 2 * np.pi * uniform[count:]
    normal: Floats = (radius * np.cos(angle)).reshape(shape)
    return normal

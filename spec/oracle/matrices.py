"""Products of matrices: element by element, or in whole where that gives the same in less time.

Draws are multiplied in whole: the same operations on the same numbers, with the same perturbations.

The large weights of full-size models are exact matrices that multiply balls or draws in whole. A weight of a million
elements would be a million objects. Here it stays an array of float64 numbers, and `x @ weight` is formed for all
elements of x at once:

- balls: as matrices of flint;
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

#: The columns of a weight that balls are multiplied with at once.
_COLUMNS: Final = 256
#: The most partial sums in memory at once, in elements.
_CHUNK: Final = 1 << 23
#: The most products of draws in memory at once.
_PRODUCTS: Final = 1 << 14


def is_large(array: NDArray[Any]) -> bool:
    """Return True if an array is a weight that stays a plain array."""
    return array.ndim == 2 and array.size >= LARGE


def multiply(x: Objects, w: Any, b: Objects | None = None) -> Objects:
    """x·W, of one matrix or several, plus b where it is given.

    The sum begins with b, as it does in the fused kernels of nn.Linear: where b is large, every term that is
    added rounds at its size.
    """
    if hasattr(x, "multiply"):
        result: Objects = x.multiply(w, b)  # an array that knows how code rounds
        return result
    if b is None or not isinstance(w, np.ndarray) or w.dtype != object:
        # A large weight multiplies in whole: its many terms outweigh a bias. Of plain numbers no roundoff is measured.
        product: Objects = _multiply_draws(x, w) if _are_draws(x, w) else x @ w
        return product if b is None else product + b
    if _are_draws(x, w, b):
        return _add_products(x, w, b)
    total = b
    for k, row in enumerate(w):
        total = total + x[..., k, None] * row
    return total


def _are_draws(*arrays: Any) -> bool:
    return all(
        isinstance(array, np.ndarray)
        and array.size > 0
        and all(type(d) is Draw and d.samples.ndim == 1 for d in array.flat)
        for array in arrays
    )


def _unpack(draws: Objects) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the samples of draws, in a last axis, and which draws are exactly zero."""
    samples = np.stack([d.samples for d in draws.flat]).reshape(*draws.shape, SAMPLES)
    return samples, np.array([d.zero for d in draws.flat]).reshape(draws.shape)


def _pack(samples: Floats, zero: NDArray[np.bool_]) -> Objects:
    """Make draws of what _unpack gives."""
    draws = np.empty(zero.size, dtype=object)
    rows = samples.reshape(-1, SAMPLES)
    draws[:] = [Draw(row, zero=exact) for row, exact in zip(rows, zero.ravel().tolist(), strict=True)]
    return draws.reshape(zero.shape)


def _add_products(x: Objects, w: Objects, b: Objects) -> Objects:
    """Add b + x₀·w₀ + x₁·w₁ + …, rounded in the order of NumPy's objects: all products of one k, then all sums."""
    (left, no_left), (right, no_right), (start, no_start) = map(_unpack, (x, w, b))
    shape = (*x.shape[:-1], w.shape[1])
    total = np.broadcast_to(start, (*shape, SAMPLES)).copy()
    nothing = np.broadcast_to(no_start, shape).copy()
    for k in range(len(w)):
        no_product = no_left[..., k, None] | no_right[k]
        product = left[..., k, None, :] * right[k]
        _round(product, ~no_product)
        product[no_product] = 0.0
        total += product
        _round(total, ~(nothing | no_product))
        nothing &= no_product
    return _pack(total, nothing)


def _round(results: Floats, rounded: NDArray[np.bool_]) -> None:
    Draw.note_peak(results[..., 0][rounded])
    results *= Draw.take(rounded)


def _multiply_draws(x: Objects, w: Objects) -> Objects:
    """Form x @ W, rounded as NumPy forms it of objects: for one element after the other all its products and sums."""
    batch = np.broadcast_shapes(x.shape[:-2], w.shape[:-2])
    x, w = (np.broadcast_to(a, (*batch, *a.shape[-2:])) for a in (x, w))
    product = np.empty((*batch, x.shape[-2], w.shape[-1]), dtype=object)
    rows = max(1, _PRODUCTS // max(w.shape[-1] * w.shape[-2], 1))
    for matrix in np.ndindex(batch):
        right = _unpack(w[matrix])
        for start in range(0, x.shape[-2], rows):
            piece = slice(start, start + rows)
            product[(*matrix, piece)] = _multiply_rows(_unpack(x[matrix][piece]), right)
    return product


def _multiply_rows(x: tuple[Floats, NDArray[np.bool_]], w: tuple[Floats, NDArray[np.bool_]]) -> Objects:
    (left, no_left), (right, no_right) = x, w
    no_product = no_left[:, None] | no_right.T
    nothing_before = np.zeros_like(no_product)
    nothing_before[..., 1:] = np.logical_and.accumulate(no_product, axis=-1)[..., :-1]
    # The first sum rounds nothing, nor does a sum with an exact zero.
    sums = ~(no_product | nothing_before)
    sums[..., 0] = False
    factors = Draw.take(np.stack([~no_product, sums], axis=-1))
    products = left[:, None] * right.swapaxes(0, 1)
    products[no_product] = 0.0
    Draw.note_peak(products[..., 0])
    products *= factors[..., 0, :]
    total = products[..., 0, :]
    for k in range(1, products.shape[-2]):
        total = total + products[..., k, :]
        Draw.note_peak(total[..., 0][sums[..., k]])
        total *= factors[..., k, 1, :]
    return _pack(total, np.asarray(no_product.all(-1)))


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

        from goldformer.spec.oracle.balls import FEW_BITS

        mantissas = np.ldexp(np.frexp(self.values)[0], FEW_BITS)
        if not np.array_equal(mantissas, np.rint(mantissas)):
            raise ValueError(f"a large weight must hold binary numbers of at most {FEW_BITS} bits, and no decimals")
        left, product = flint.arb_mat(x.tolist()), np.empty((len(x), self.shape[1]), dtype=object)
        # Some columns at a time: a whole weight would be a gigabyte of balls.
        for start in range(0, self.shape[1], _COLUMNS):
            columns = self.values[:, start : start + _COLUMNS]
            product[:, start : start + _COLUMNS] = (left * flint.arb_mat(columns.tolist())).tolist()
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


def _normal(name: str, shape: tuple[int, ...]) -> Floats:
    """Draw standard normal numbers by Box and Muller's method, the same ones for the same name."""
    count = math.prod(shape)
    uniform = ((draw.stream(0, name, 2 * count) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:count])), 2 * np.pi * uniform[count:]
    normal: Floats = (radius * np.cos(angle)).reshape(shape)
    return normal

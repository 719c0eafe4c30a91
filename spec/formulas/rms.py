"""Root mean square normalisation."""

import numpy as np

from goldformer.spec.formulas.arrays import Array, arithmetic, number, ratio
from goldformer.spec.formulas.heads import Params
from goldformer.spec.formulas.steps import step


@step
def rms_norm(x: Array, *, params: Params) -> Array:
    """Return x/√(mean square + eps)·gamma, (..., d_model)."""
    row = widen_row(x)
    return round_row(row / rms_divisor(mean_square(row)) * channel_scale(params["gamma"]), x)


@step
def widen_row(x: Array) -> Array:
    """Return the row in float32 at least: the square of 256 overflows float16 (RMS-6)."""
    return arithmetic().widen(x)


@step
def mean_square(row: Array) -> Array:
    """Return the mean of the squares of each token's channels, (..., 1)."""
    return (row * row).sum(axis=-1, keepdims=True) / number(row.shape[-1])


@step
def rms_divisor(square: Array) -> Array:
    """Return √(mean square + eps)."""
    return np.sqrt(square + rms_eps())


@step
def rms_eps() -> float:
    """Return 10⁻⁶."""
    return ratio(1, 10**6)


@step
def channel_scale(gamma: Array) -> Array | float:
    """Return what each normalised channel is multiplied by: its gamma."""
    return gamma


@step
def round_row(row: Array, x: Array) -> Array:
    """Return the row in the dtype of x."""
    return arithmetic().narrow(row, x)

"""Root mean square normalisation."""

from typing import Final

import numpy as np

from goldformer.adapters.textbook.checks import Array, axis_sizes
from goldformer.adapters.textbook.heads import Params
from goldformer.adapters.textbook.steps import step

RMS_NORM: Final = {"gamma": "d_model"}


@step
def rms_norm(x: Array, *, params: Params) -> Array:
    """Return x/√(mean square + eps)·gamma, (..., d_model)."""
    axis_sizes({"x": "... d_model", **RMS_NORM}, x=x, **params)
    row = widen_row(x)
    return round_row(row / rms_divisor(mean_square(row)) * channel_scale(params["gamma"]), x)


@step
def widen_row(x: Array) -> Array:
    """Return the row in float32 at least: the square of 256 overflows float16 (RMS-6)."""
    return x.astype(np.promote_types(x.dtype, np.float32))


@step
def mean_square(row: Array) -> Array:
    """Return the mean of the squares of each token's channels, (..., 1)."""
    return np.asarray(np.square(row).mean(-1, keepdims=True))


@step
def rms_divisor(square: Array) -> Array:
    """Return √(mean square + eps)."""
    return np.asarray(np.sqrt(square + rms_eps()))


@step
def rms_eps() -> float:
    """Return 10⁻⁶."""
    return 1e-6


@step
def channel_scale(gamma: Array) -> Array | float:
    """Return what each normalised channel is multiplied by: its gamma."""
    return gamma


@step
def round_row(row: Array, x: Array) -> Array:
    """Return the row in the dtype of x."""
    return row.astype(x.dtype)

"""Mistakes in root mean square normalisation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, as_array
from goldformer.spec.formulas.layers import channel_variance, subtract_mean
from goldformer.spec.formulas.rms import channel_scale, mean_square, rms_divisor, rms_eps, round_row, widen_row


@mistake("rms-variance", instead_of=mean_square)
def take_variance(row: Array) -> Array:
    """Return the variance of each token's channels, divided by d_model, (..., 1)."""
    return channel_variance(subtract_mean(row))


@mistake("rms-variance-unbiased", instead_of=mean_square)
def take_sample_variance(row: Array) -> Array:
    """Return the variance of each token's channels, divided by d_model − 1, (..., 1); NaN of one channel."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return as_array(np.square(subtract_mean(row)).sum(-1, keepdims=True) / row.dtype.type(row.shape[-1] - 1))


@mistake("rms-mean-subtracted", around=widen_row)
def centre_row(original: Callable[[Array], Array], x: Array) -> Array:
    """Return the row less its mean."""
    return subtract_mean(original(x))


@mistake("rms-divides-by-rsqrt", around=rms_divisor)
def invert_divisor(original: Callable[[Array], Array], square: Array) -> Array:
    """Return 1/√(mean square + eps)."""
    return as_array(1 / original(square))


@mistake("rms-sum", instead_of=mean_square)
def add_up_squares(row: Array) -> Array:
    """Return the sum of the squares of each token's channels, (..., 1)."""
    return as_array(np.square(row).sum(-1, keepdims=True))


@mistake("rms-axis", instead_of=mean_square)
def average_tokens_too(row: Array) -> Array:
    """Return the mean of the squares over the tokens as well as the channels, (..., 1, 1)."""
    return as_array(np.square(row).mean(axis=(-2, -1)[-row.ndim :], keepdims=True))


@mistake("rms-eps-missing", instead_of=rms_eps)
def add_nothing() -> float:
    """Return 0: nothing is added to the mean of the squares."""
    return 0.0


@mistake("rms-eps-scaled", around=widen_row)
def divide_by_largest(original: Callable[[Array], Array], x: Array) -> Array:
    """Return the row divided by its largest magnitude; NaN of a row of zeros."""
    row = original(x)
    place = np.abs(row.real).argmax(-1)[..., None]
    largest = np.take_along_axis(row * np.sign(row.real).astype(row.real.dtype), place, -1)
    with np.errstate(invalid="ignore", divide="ignore"):
        return as_array(row / largest)


@mistake("rms-no-weight", instead_of=channel_scale)
def leave_out_weight(gamma: Array) -> float:
    """Return 1: the normalised row is the result."""
    return 1.0


@mistake("rms-offset-twice", instead_of=channel_scale, conventions={"rms_norm_weight": "one_plus_w"})
def add_one_twice(gamma: Array) -> Array:
    """Return 2 + gamma."""
    return 2 + gamma


@mistake("rms-half-precision", around=mean_square, shows_in=("float16",))
def square_in_half(original: Callable[[Array], Array], row: Array) -> Array:
    """Return the mean of the squares, each of which is rounded to float16, (..., 1)."""
    with np.errstate(over="ignore"):
        squares = np.square(row).astype(np.float16).astype(row.dtype)
    return as_array(squares.mean(-1, keepdims=True))


@mistake("rms-not-cast-back", instead_of=round_row, shows_in=("float16",))
def keep_wide(row: Array, x: Array) -> Array:
    """Return the row in float32 at least."""
    return row

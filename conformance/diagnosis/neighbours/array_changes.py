"""Changes of an array that several neighbours make; its axes before the last two are samples and heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from goldformer.spec.formulas.checks import Array

Change = Callable[[Array], Any]


def take_absolute(x: Array) -> Array:
    """Return absolute values."""
    return np.abs(x)


def reverse_last_axis(x: Array) -> Array:
    """Reverse the last axis."""
    return x[..., ::-1]


def shift_last_axis(x: Array) -> Array:
    """Move everything by one along the last axis, the last to the front."""
    return np.roll(x, 1, axis=-1)


def reverse_samples(x: Array) -> Array:
    """Reverse the first axis."""
    return x[::-1]


def repeat_first_sample(x: Array) -> Array:
    """Put the first sample in the place of all."""
    return np.broadcast_to(x[:1], x.shape)

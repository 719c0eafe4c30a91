"""Changes of an array that several neighbours make; its axes before the last two are samples and heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.attention import causal_mask
from goldformer.spec.formulas.checks import Array

Change = Callable[[Array], Any]


def take_absolute(x: Array) -> Array:
    """Return absolute values."""
    return np.abs(x)


def turn_last_axes(x: Array) -> Array:
    """Swap the last two axes where they are equally long."""
    return x.swapaxes(-1, -2) if x.ndim > 1 and x.shape[-1] == x.shape[-2] else x


def reverse_last_axis(x: Array) -> Array:
    """Reverse the last axis."""
    return x[..., ::-1]


def shift_last_axis(x: Array) -> Array:
    """Move everything by one along the last axis, the last to the front."""
    return np.roll(x, 1, axis=-1)


def reverse_samples(x: Array) -> Array:
    """Reverse the first axis."""
    return x[::-1]


def reverse_heads(x: Array) -> Array:
    """Reverse the heads, if there are any."""
    return x[:, ::-1] if x.ndim > 3 else x


def repeat_first_sample(x: Array) -> Array:
    """Put the first sample in the place of all."""
    return np.broadcast_to(x[:1], x.shape)


def keep_causal(mask: Array) -> Array:
    """Return a causal mask without the padding that it hides too, or one that hides nothing if it is not causal."""
    causal = _make_causal(mask)
    return np.ones_like(mask) if (mask & ~causal).any() else np.array(np.broadcast_to(causal, mask.shape))


def drop_padding(mask: Array) -> Array:
    """Show the keys that are hidden from every query, as if the mask of padding were not handed on."""
    if (mask == mask[..., -1:, :]).all():
        return np.ones_like(mask)
    return np.array(np.broadcast_to(_make_causal(mask), mask.shape)) if _is_causal_with_padding(mask) else mask


def mirror_causal(mask: Array) -> Array:
    """Hide earlier keys instead of later ones, and the padding as before."""
    square = mask.shape[-2] == mask.shape[-1] > 1
    return as_array(_make_causal(mask).T & mask[..., -1:, :]) if square and _is_causal_with_padding(mask) else mask


def keep_padding(mask: Array) -> Array:
    """Show every query the keys that any query sees, as if the mask of later keys were not handed on."""
    return as_array(mask.any(-2, keepdims=True))


def _make_causal(mask: Array) -> Array:
    return causal_mask(q_seq=mask.shape[-2], kv_seq=mask.shape[-1])


def _is_causal_with_padding(mask: Array) -> bool:
    """Return True if a mask hides later keys, and besides them only keys that the last query does not see either."""
    return bool((mask == (_make_causal(mask) & mask[..., -1:, :])).all())

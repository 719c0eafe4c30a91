"""Mistakes in what the distance between positions decides."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.distance import is_near, key_distance, sliding_window_mask, window_length

# Sliding windows


@mistake("window-two-sided", around=sliding_window_mask)
def look_ahead(original: Callable[..., Array], *, q_seq: int, kv_seq: int, window: int) -> Array:
    """Return True where a key is near the query, before or after it, (q_seq, kv_seq)."""
    original(q_seq=q_seq, kv_seq=kv_seq, window=window)  # refuses bad sizes
    return np.asarray(np.abs(key_distance(q_seq, kv_seq)) < window_length(window))


@mistake("window-sign", around=is_near)
def negate_distance(original: Callable[[Array, int], Array], distance: Array, window: int) -> Array:
    """Return True where the query is not too far before the key."""
    return original(-distance, window)


@mistake("window-one-short", around=window_length)
def shorten_window(original: Callable[[int], int], window: int) -> int:
    """Return one key less than the query should see."""
    return original(window) - 1

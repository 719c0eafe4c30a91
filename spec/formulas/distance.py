"""What the distance between positions decides: sliding windows."""

import numpy as np

from goldformer.spec.formulas.attention import causal_mask, query_positions
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.steps import step


@step
def sliding_window_mask(*, q_seq: int, kv_seq: int, window: int) -> Array:
    """Return True where a query sees a key, (q_seq, kv_seq): no later key, and of the others the last ones."""
    if window < 0:
        raise ValueError(f"window: {window}, but a window has no negative number of keys")
    return causal_mask(q_seq=q_seq, kv_seq=kv_seq) & is_near(key_distance(q_seq, kv_seq), window)


@step
def key_distance(q_seq: int, kv_seq: int) -> Array:
    """Return by how many positions each key is before each query, (q_seq, kv_seq); negative for later keys."""
    return query_positions(q_seq, kv_seq)[:, None] - np.arange(kv_seq)


@step
def is_near(distance: Array, window: int) -> Array:
    """Return True where a key is not too far before the query."""
    return np.asarray(distance < window_length(window))


@step
def window_length(window: int) -> int:
    """Return the number of keys that a query sees, its own among them."""
    return window

"""Properties of ALiBi."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, Violation


@holds(
    "alibi-nearer", heads=st.integers(1, 6), q_seq=st.integers(1, 5), cached=st.integers(0, 4), seed=st.integers(0, 9)
)
def nearer_keys_have_more(subject: Subject, heads: int, q_seq: int, cached: int, seed: int) -> None:
    """Require that the bias of neighbouring keys up to the query differs by one number above 0 in each head."""
    sizes = {"heads": heads, "q_seq": q_seq, "kv_seq": q_seq + cached}
    arguments = subject.draw(sizes, seed)
    first = cached if subject.options()["causal_corner"] == "bottom_right" else 0
    bias = subject.output(arguments).astype(np.float64)
    steps = np.diff(bias, axis=-1)
    seen = np.arange(1, q_seq + cached) <= np.arange(first, first + q_seq)[:, None]
    found = steps[:, seen]  # (heads, pairs)
    if not found.size:
        return
    if not (found > 0).all():
        raise Violation("a key nearer to the query has no larger bias than the one before it")
    expected = np.broadcast_to(found[:, :1], found.shape)
    bound = 2 * subject.bound(arguments)
    subject.agree(found, expected, bound, "one position nearer does not add the same in every row")

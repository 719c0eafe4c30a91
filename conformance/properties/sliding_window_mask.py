"""Properties of the mask of a sliding window."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject


def _make_mask(subject: Subject, sizes: dict[str, int], window: int) -> NDArray[Any]:
    """Return the mask of a window, (q_seq, kv_seq)."""
    return subject.output(subject.draw(sizes, 0, **sizes, window=window))


@holds("win-one-more", q_seq=st.integers(1, 7), cached=st.integers(0, 4), window=st.integers(1, 8))
def wider_window_shows_one_more(subject: Subject, q_seq: int, cached: int, window: int) -> None:
    """Require that the next wider window adds the key before the first one that each query saw, and no other."""
    sizes = {"q_seq": q_seq, "kv_seq": q_seq + cached}
    narrow, wide = (_make_mask(subject, sizes, size) for size in (window, window + 1))
    before = np.concatenate([narrow[:, 1:], np.zeros_like(narrow[:, :1])], axis=1)
    claim = f"a window of {window + 1} does not show what one of {window} shows and the key before that"
    subject.agree(wide, narrow | before, 0.0, claim)

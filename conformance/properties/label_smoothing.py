"""Properties of label smoothing."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject


@holds("ls-sums-to-one", vocab=st.integers(2, 7), eighths=st.integers(0, 8), seed=st.integers(0, 999))
def mass_is_kept(subject: Subject, vocab: int, eighths: int, seed: int) -> None:
    """Require that each smoothed row sums to 1."""
    target = np.eye(vocab)[np.arange(seed, seed + 3) % vocab][None]
    arguments = Arguments({"target": target}, {}, {"smoothing": eighths / 8})
    rows = subject.output(arguments)
    bound = vocab * subject.bound(arguments)
    subject.agree(rows.sum(-1), np.ones((1, 3)), bound, "a smoothed row does not sum to 1")

"""Properties of the positions of words."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject


@holds("pos-words", batch=st.integers(1, 4), seq=st.integers(1, 9), seed=st.integers(0, 999))
def words_are_counted(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Require that the words of each sample have the positions 0, 1, 2 …, with padding anywhere between them."""
    mask = np.random.default_rng(seed).random((batch, seq)) < 0.6
    found = subject.output(Arguments({"mask": mask}, {}, {}))
    expected = np.concatenate([np.arange(words) for words in mask.sum(-1)])
    subject.agree(found[mask], expected, 0.0, "the words of a sample do not have the positions 0, 1, 2 …")

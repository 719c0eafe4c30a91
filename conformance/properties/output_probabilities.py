"""Properties of the output layer."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject


@holds("out-simplex", seq=st.integers(1, 3), vocab=st.integers(2, 7), seed=st.integers(0, 999))
def every_word_keeps_some(subject: Subject, seq: int, vocab: int, seed: int) -> None:
    """Require rows that sum to 1 and have no zero; logits of this size underflow in no dtype."""
    arguments = subject.draw({"batch": 1, "seq": seq, "d_model": 3, "vocab": vocab}, seed)
    rows = subject.output(arguments)
    bound = vocab * subject.bound(arguments)
    subject.agree(rows.sum(-1), np.ones((1, seq)), bound, "the words' probabilities do not sum to 1")
    subject.agree((rows > 0) * 1.0, np.ones(rows.shape), 0.0, "a word has a probability of 0")


@holds("out-batch", batch=st.sampled_from(relations.BATCHES), vocab=st.sampled_from([3, 50]), seed=st.integers(0, 999))
def samples_do_not_mix(subject: Subject, batch: int, vocab: int, seed: int) -> None:
    """Require that a sample gives the same by itself and in a batch."""
    sizes = {"batch": batch, "seq": 3, "d_model": 8, "vocab": vocab}
    relations.ignores_batch(subject, subject.draw(sizes, seed))

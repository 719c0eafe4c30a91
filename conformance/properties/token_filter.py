"""Properties of the filters of the next token."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, draw_arguments, with_inputs

NAME = "token_filter"


@holds(
    "sample-permutation",
    batch=st.integers(1, 3),
    vocab=st.integers(2, 7),
    seed=st.integers(0, 999),
    top_k=st.integers(1, 5),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
)
def names_do_not_matter(subject: Subject, batch: int, vocab: int, seed: int, top_k: int, temperature: float) -> None:
    """Require that permuting the vocabulary permutes the probabilities; logits are 1/2 or more from one another."""
    drawn = draw_arguments(
        NAME, subject.bench, {"batch": batch, "vocab": vocab}, seed, top_k=top_k, temperature=temperature
    )
    random = np.random.default_rng(seed)
    logits = random.permuted(np.tile(np.arange(vocab) / 2 - 1, (batch, 1)), axis=-1)
    order = random.permutation(vocab)
    plain, permuted = with_inputs(drawn, logits=logits), with_inputs(drawn, logits=logits[:, order])
    subject.agree(
        "probabilities",
        subject.call(NAME, permuted)["probabilities"],
        subject.call(NAME, plain)["probabilities"][:, order],
        subject.tolerance(NAME, plain, "probabilities"),
        "permuting the vocabulary does not permute the probabilities",
    )
    relations.ignores_batch(subject, plain)

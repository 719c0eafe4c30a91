"""Properties of the filters of the next token."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs

#: A share that lies at least 0.02 from every sum of probabilities of the logits below: no rounding decides.
SHARE = 0.71


@holds(
    "sample-permutation",
    batch=st.integers(1, 3),
    vocab=st.integers(2, 7),
    seed=st.integers(0, 999),
    top_k=st.integers(1, 5),
    temperature=st.sampled_from([0.5, 1.0, 2.0]),
    top_p=st.sampled_from([None, SHARE]),
)
def names_do_not_matter(
    subject: Subject, batch: int, vocab: int, seed: int, top_k: int, temperature: float, top_p: float | None
) -> None:
    """Require that permuting the vocabulary permutes the probabilities, and that each row is filtered by itself.

    Logits are 1/2 or more from one another, and further apart in each row than in the one before.
    """
    filters = {"top_k": top_k, "temperature": temperature} | ({} if top_p is None else {"top_p": top_p})
    drawn = subject.draw({"batch": batch, "vocab": vocab}, seed, **filters)
    random = np.random.default_rng(seed)
    logits = random.permuted(np.tile(np.arange(vocab) / 2 - 1, (batch, 1)), axis=-1) * np.arange(1, batch + 1)[:, None]
    order = random.permutation(vocab)
    plain, permuted = with_inputs(drawn, logits=logits), with_inputs(drawn, logits=logits[:, order])
    claim = "permuting the vocabulary does not permute the probabilities"
    subject.agree(subject.output(permuted), subject.output(plain)[:, order], subject.bound(plain), claim)
    relations.ignores_batch(subject, plain)

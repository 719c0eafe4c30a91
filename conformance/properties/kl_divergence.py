"""Properties of the Kullback–Leibler divergence."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs


@holds("kl-sign", n=st.integers(2, 6), seed=st.integers(0, 999))
def never_negative(subject: Subject, n: int, seed: int) -> None:
    """Require KL(p‖q) ≥ 0 for a dyadic p, and 0 if q is p."""
    arguments = subject.draw({"batch": 2, "n": n}, seed)
    # Powers of two that sum to 1, which are exact in every dtype, and a word of probability 0.
    p = np.repeat([[0.5 ** min(k + 1, max(n - 2, 0)) for k in range(n - 1)] + [0.0]], 2, axis=0)
    away = with_inputs(arguments, target=p)
    got = subject.output(away)
    subject.agree(got.clip(min=0), got, subject.bound(away), "the divergence is negative")
    same = with_inputs(arguments, target=np.full((2, 4), 0.25), logits=np.ones((2, 4)))
    bound = subject.bound(same)
    subject.agree(subject.output(same), np.zeros(2), bound, "the divergence of a distribution from itself is not 0")

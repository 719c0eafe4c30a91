"""Properties of the router of a mixture of experts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Array
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject


def draw_routed(seed: int, tokens: int, experts: int) -> tuple[Array, Array]:
    """Draw tokens (tokens, 2) and w_router (2, experts) whose logits are 1/2 or more from one another."""
    random = np.random.default_rng(seed)
    # The second channel adds one number to all logits of a token.
    router = np.stack([random.permutation(experts) / 2 - 1, np.ones(experts)])
    x = np.stack([random.choice([-2.0, -1.0, 1.0, 2.0], tokens), random.integers(-4, 5, tokens) / 4], axis=-1)
    return x, router


@holds("moe-permutation", tokens=st.integers(1, 4), experts=st.integers(2, 6), seed=st.integers(0, 999))
def order_of_experts_does_not_matter(subject: Subject, tokens: int, experts: int, seed: int) -> None:
    """Require that permuting the columns of w_router permutes the weights; logits are 1/2 or more from one another."""
    drawn = subject.draw({"tokens": tokens, "d_model": 2, "experts": experts}, seed, top_k=2)
    x, router = draw_routed(seed, tokens, experts)
    order = np.random.default_rng(seed + 1).permutation(experts)
    plain = replace(drawn, inputs={"x": x}, params={"w_router": router})
    permuted = replace(plain, params={"w_router": router[:, order]})
    claim = "permuting the experts does not permute their weights"
    subject.agree(subject.output(permuted), subject.output(plain)[:, order], subject.bound(plain), claim)

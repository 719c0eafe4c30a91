"""Properties of a mixture of experts."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties.expert_router import draw_routed
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs, with_params


@holds("moe-ffn-permutation", seq=st.integers(1, 4), experts=st.integers(2, 5), seed=st.integers(0, 999))
def order_of_experts_does_not_matter(subject: Subject, seq: int, experts: int, seed: int) -> None:
    """Require that permuting the experts with the columns of w_router leaves the output as it is."""
    sizes = {"batch": 1, "seq": seq, "d_model": 2, "d_ff": 3, "experts": experts}
    drawn = subject.draw(sizes, seed, num_experts=experts, top_k=2)
    x, router = draw_routed(seed, seq, experts)
    plain = with_params(with_inputs(drawn, x=x[None]), w_router=router)
    order = np.random.default_rng(seed + 1).permutation(experts)
    moved = {}
    for name, array in plain.params.items():
        for new, old in enumerate(order):
            if name.startswith(start := f"experts.{old}."):
                moved[f"experts.{new}.{name.removeprefix(start)}"] = array
    permuted = with_params(plain, w_router=router[:, order], **moved)
    claim = "permuting the experts and the columns of w_router changes the output"
    subject.agree(subject.output(permuted), subject.output(plain), subject.bound(plain), claim)

"""Properties of single-head self-attention over one sequence."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties import Subject, drawn, holds, with_inputs

NAME = "single_head_attention"

SEQ, WIDTH, SEED = st.integers(2, 6), st.integers(1, 4), st.integers(0, 999)


@holds("sha-permutation", seq=SEQ, d_model=WIDTH, seed=SEED)
def test_permutation_equivariance(subject: Subject, seq: int, d_model: int, seed: int) -> None:
    """Without a mask, permuted tokens give permuted rows."""
    arguments = drawn(NAME, subject.bench, {"seq": seq, "d_model": d_model}, seed, causal=False)
    order = np.random.default_rng(seed).permutation(seq)
    subject.agree(
        "output",
        subject.call(NAME, with_inputs(arguments, x=arguments.inputs["x"][order]))["output"],
        subject.call(NAME, arguments)["output"][order],
        subject.bound(NAME, arguments, "output"),
        f"tokens in the order {order.tolist()} do not give the output in that order",
    )


@holds("sha-causality", seq=SEQ, d_model=WIDTH, seed=SEED, data=st.data())
def test_later_tokens_do_not_matter(subject: Subject, seq: int, d_model: int, seed: int, data: st.DataObject) -> None:
    """In the causal form, row i is what it was when tokens after i are others."""
    last = data.draw(st.integers(0, seq - 2), label="last")
    arguments = drawn(NAME, subject.bench, {"seq": seq, "d_model": d_model}, seed, causal=True)
    other = drawn(NAME, subject.bench, {"seq": seq, "d_model": d_model}, seed + 1000, causal=True)
    later = np.arange(seq)[:, None] > last
    changed = with_inputs(arguments, x=np.where(later, other.inputs["x"], arguments.inputs["x"]))
    subject.agree(
        "output",
        subject.call(NAME, changed)["output"][: last + 1],
        subject.call(NAME, arguments)["output"][: last + 1],
        subject.bound(NAME, arguments, "output"),
        f"rows up to {last} change when later tokens change",
    )

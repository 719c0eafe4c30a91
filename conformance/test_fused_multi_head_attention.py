"""Properties of multi-head self-attention with one fused projection."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.invoke import Arguments
from goldformer.conformance.properties import Subject, drawn, holds, with_inputs

NAME = "fused_multi_head_attention"

BATCH, SEQ, SEED = st.integers(1, 2), st.integers(2, 4), st.integers(0, 999)
D_INPUT = st.sampled_from([5, 6, 7])
HEADS = 2


def call_for(subject: Subject, seed: int, batch: int, seq: int, d_input: int = 6) -> Arguments:
    """A drawn sequence; the embed width is 6 whatever the input's."""
    sizes = {"batch": batch, "heads": HEADS, "seq": seq, "d_k": 3, "d_input": d_input}
    return drawn(NAME, subject.bench, sizes, seed, num_heads=HEADS)


@holds("fmha-permutation", batch=BATCH, seq=SEQ, d_input=D_INPUT, seed=SEED)
def test_permutation_equivariance(subject: Subject, batch: int, seq: int, d_input: int, seed: int) -> None:
    """Permuted tokens give permuted rows."""
    arguments = call_for(subject, seed, batch, seq, d_input)
    order = np.random.default_rng(seed).permutation(seq)
    subject.agree(
        "output",
        subject.call(NAME, with_inputs(arguments, x=arguments.inputs["x"][:, order]))["output"],
        subject.call(NAME, arguments)["output"][:, order],
        subject.bound(NAME, arguments, "output"),
        f"tokens in the order {order.tolist()} do not give the output in that order",
    )


@holds("fmha-causality", batch=BATCH, seq=SEQ, seed=SEED, data=st.data())
def test_later_tokens_do_not_matter(subject: Subject, batch: int, seq: int, seed: int, data: st.DataObject) -> None:
    """Under a causal mask, row i is what it was when tokens after i are others."""
    last = data.draw(st.integers(0, seq - 2), label="last")
    mask = np.tril(np.ones((seq, seq), dtype=bool))[None, None]
    arguments = with_inputs(call_for(subject, seed, batch, seq), mask=mask)
    x, other = (call_for(subject, s, batch, seq).inputs["x"] for s in (seed, seed + 1000))
    changed = with_inputs(arguments, x=np.where(np.arange(seq)[:, None] > last, other, x))
    subject.agree(
        "output",
        subject.call(NAME, changed)["output"][:, : last + 1],
        subject.call(NAME, arguments)["output"][:, : last + 1],
        subject.bound(NAME, arguments, "output"),
        f"rows up to {last} change when later tokens change",
    )


@holds("fmha-batch", batch=st.just(2), seq=SEQ, d_input=D_INPUT, seed=SEED)
def test_samples_do_not_mix(subject: Subject, batch: int, seq: int, d_input: int, seed: int) -> None:
    """Sample 1 alone is sample 1 in the batch."""
    arguments = call_for(subject, seed, batch, seq, d_input)
    alone = with_inputs(arguments, x=arguments.inputs["x"][1:2])
    subject.agree(
        "output",
        subject.call(NAME, arguments)["output"][1:2],
        subject.call(NAME, alone)["output"],
        subject.bound(NAME, alone, "output"),
        "a sample gives something else in a batch than alone",
    )

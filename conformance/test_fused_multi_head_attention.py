"""Properties of multi-head self-attention with one fused projection."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance import relations
from goldformer.conformance.invoke import Arguments
from goldformer.conformance.properties import Subject, drawn, holds, with_inputs

NAME = "fused_multi_head_attention"

BATCH, SEQ, SEED = st.integers(1, 2), st.integers(2, 4), st.integers(0, 999)
D_INPUT = st.sampled_from([5, 6, 7])


def call_for(subject: Subject, seed: int, batch: int, seq: int, d_input: int = 6) -> Arguments:
    """A drawn sequence; the embed width is 6 whatever the input's."""
    sizes = {"batch": batch, "heads": 2, "seq": seq, "d_k": 3, "d_input": d_input}
    return drawn(NAME, subject.bench, sizes, seed, num_heads=2)


@holds("fmha-permutation", batch=BATCH, seq=SEQ, d_input=D_INPUT, seed=SEED)
def test_permutation_equivariance(subject: Subject, batch: int, seq: int, d_input: int, seed: int) -> None:
    """Permuted tokens give permuted rows."""
    relations.follows_order(subject, call_for(subject, seed, batch, seq, d_input), "x", seed=seed)


@holds("fmha-causality", batch=BATCH, seq=SEQ, seed=SEED, data=st.data())
def test_later_tokens_do_not_matter(subject: Subject, batch: int, seq: int, seed: int, data: st.DataObject) -> None:
    """Under a causal mask, row i is what it was when tokens after i are others."""
    last = data.draw(st.integers(0, seq - 2), label="last")
    mask = np.tril(np.ones((seq, seq), dtype=bool))[None, None]
    arguments = with_inputs(call_for(subject, seed, batch, seq), mask=mask)
    relations.ignores_later(subject, arguments, call_for(subject, seed + 1000, batch, seq), "x", last=last)


@holds("fmha-batch", seq=SEQ, d_input=D_INPUT, seed=SEED)
def test_samples_do_not_mix(subject: Subject, seq: int, d_input: int, seed: int) -> None:
    """Sample 1 alone is sample 1 in the batch."""
    relations.alone_as_in_batch(subject, call_for(subject, seed, 2, seq, d_input))

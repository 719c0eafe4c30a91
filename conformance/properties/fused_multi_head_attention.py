"""Properties of multi-head self-attention with one fused projection."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs

BATCH, SEQ, SEED = st.integers(1, 2), st.integers(2, 4), st.integers(0, 999)
LAST = st.integers(0, 4)
D_INPUT = st.sampled_from([5, 6, 7])


def draw_call(subject: Subject, seed: int, batch: int, seq: int, d_input: int = 6, heads: int = 2) -> Arguments:
    """Draw a call with one sequence; the embed width is 6 whatever the width of the input."""
    sizes = {"batch": batch, "heads": heads, "seq": seq, "d_k": 6 // heads, "d_input": d_input}
    return subject.draw(sizes, seed, num_heads=heads)


@holds("fmha-permutation", batch=BATCH, seq=SEQ, d_input=D_INPUT, seed=SEED)
def permutation_equivariance(subject: Subject, batch: int, seq: int, d_input: int, seed: int) -> None:
    """Require that permuted tokens give permuted rows."""
    relations.follows_order(subject, draw_call(subject, seed, batch, seq, d_input), "x", seed=seed)


@holds("fmha-causality", batch=BATCH, seq=SEQ, seed=SEED, last=LAST)
def later_tokens_do_not_matter(subject: Subject, batch: int, seq: int, seed: int, last: int) -> None:
    """Require that under a causal mask, row i does not depend on the tokens after i."""
    mask = np.tril(np.ones((seq, seq), dtype=bool))[None, None]
    arguments = with_inputs(draw_call(subject, seed, batch, seq), mask=mask)
    relations.ignores_later(subject, arguments, draw_call(subject, seed + 1000, batch, seq), "x", last=last)


@holds("fmha-batch", batch=st.sampled_from(relations.BATCHES), seq=SEQ, d_input=D_INPUT, seed=SEED)
def samples_do_not_mix(subject: Subject, batch: int, seq: int, d_input: int, seed: int) -> None:
    """Require that a sample gives the same by itself and in a batch."""
    relations.ignores_batch(subject, draw_call(subject, seed, batch, seq, d_input))


@holds("fmha-head-order", seq=SEQ, d_input=D_INPUT, seed=SEED)
def heads_may_change_places(subject: Subject, seq: int, d_input: int, seed: int) -> None:
    """Require that heads may change places together with their rows of W_O."""
    arguments = draw_call(subject, seed, 1, seq, d_input, heads=3)
    relations.ignores_head_order(subject, arguments, ["w_qkv", "b_qkv"], seed=seed)

"""Properties of multi-head attention with separate projections."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance import relations
from goldformer.conformance.invoke import Arguments
from goldformer.conformance.properties import Subject, drawn, holds, with_inputs

NAME = "multi_head_attention"

BATCH, SEQ, SEED = st.integers(1, 2), st.integers(2, 4), st.integers(0, 999)
TOKENS = ("query", "key", "value")


def self_attention(subject: Subject, seed: int, batch: int, seq: int) -> Arguments:
    """One drawn sequence as query, key and value."""
    sizes = {"batch": batch, "heads": 2, "q_seq": seq, "kv_seq": seq, "d_k": 3, "d_v": 3}
    sizes |= dict.fromkeys(("d_query", "d_key", "d_value", "d_model"), 6)
    arguments = drawn(NAME, subject.bench, sizes, seed, num_heads=2)
    return with_inputs(arguments, **dict.fromkeys(TOKENS, arguments.inputs["query"]))


@holds("mha-permutation", batch=BATCH, seq=SEQ, seed=SEED)
def test_permutation_equivariance(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Permuted tokens give permuted rows."""
    relations.follows_order(subject, self_attention(subject, seed, batch, seq), *TOKENS, seed=seed)


@holds("mha-causality", batch=BATCH, seq=SEQ, seed=SEED, data=st.data())
def test_later_tokens_do_not_matter(subject: Subject, batch: int, seq: int, seed: int, data: st.DataObject) -> None:
    """Under a causal mask, row i is what it was when tokens after i are others."""
    last = data.draw(st.integers(0, seq - 2), label="last")
    mask = np.tril(np.ones((seq, seq), dtype=bool))[None, None]
    arguments = with_inputs(self_attention(subject, seed, batch, seq), mask=mask)
    relations.ignores_later(subject, arguments, self_attention(subject, seed + 1000, batch, seq), *TOKENS, last=last)


@holds("mha-hidden-tokens", batch=st.just(2), seq=SEQ, seed=SEED)
def test_padding_does_not_matter(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Each sample has its own length; what stands behind it is irrelevant to the rows before it."""
    keep = np.arange(seq) < (1 + (np.arange(batch) + seed) % seq)[:, None]
    arguments = with_inputs(self_attention(subject, seed, batch, seq), mask=keep[:, None, None, :])
    other = self_attention(subject, seed + 1000, batch, seq)
    relations.ignores_hidden(subject, arguments, other, *TOKENS, keep=keep, padded_rows=True)


@holds("mha-batch", seq=SEQ, seed=SEED)
def test_samples_do_not_mix(subject: Subject, seq: int, seed: int) -> None:
    """Sample 1 alone is sample 1 in the batch."""
    relations.alone_as_in_batch(subject, self_attention(subject, seed, 2, seq))

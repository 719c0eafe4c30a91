"""Properties of multi-head attention with separate projections."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from goldformer.conformance.invoke import Arguments
from goldformer.conformance.properties import Subject, drawn, holds, with_inputs

NAME = "multi_head_attention"

BATCH, SEQ, SEED = st.integers(1, 2), st.integers(2, 4), st.integers(0, 999)
HEADS, D_MODEL = 2, 6


def self_attention(subject: Subject, seed: int, batch: int, seq: int) -> Arguments:
    """One drawn sequence as query, key and value."""
    sizes = {"batch": batch, "heads": HEADS, "q_seq": seq, "kv_seq": seq, "d_k": 3, "d_v": 3}
    sizes |= dict.fromkeys(("d_query", "d_key", "d_value", "d_model"), D_MODEL)
    arguments = drawn(NAME, subject.bench, sizes, seed, num_heads=HEADS)
    return with_sequence(arguments, arguments.inputs["query"])


def with_sequence(arguments: Arguments, x: NDArray[np.float64]) -> Arguments:
    """The same call over another sequence."""
    return with_inputs(arguments, query=x, key=x, value=x)


@holds("mha-permutation", batch=BATCH, seq=SEQ, seed=SEED)
def test_permutation_equivariance(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Permuted tokens give permuted rows."""
    arguments = self_attention(subject, seed, batch, seq)
    order = np.random.default_rng(seed).permutation(seq)
    permuted = with_sequence(arguments, arguments.inputs["query"][:, order])
    subject.agree(
        "output",
        subject.call(NAME, permuted)["output"],
        subject.call(NAME, arguments)["output"][:, order],
        subject.bound(NAME, arguments, "output"),
        f"tokens in the order {order.tolist()} do not give the output in that order",
    )


@holds("mha-causality", batch=BATCH, seq=SEQ, seed=SEED, data=st.data())
def test_later_tokens_do_not_matter(subject: Subject, batch: int, seq: int, seed: int, data: st.DataObject) -> None:
    """Under a causal mask, row i is what it was when tokens after i are others."""
    last = data.draw(st.integers(0, seq - 2), label="last")
    mask = np.tril(np.ones((seq, seq), dtype=bool))[None, None]
    arguments = with_inputs(self_attention(subject, seed, batch, seq), mask=mask)
    x, other = (self_attention(subject, s, batch, seq).inputs["query"] for s in (seed, seed + 1000))
    changed = with_sequence(arguments, np.where(np.arange(seq)[:, None] > last, other, x))
    subject.agree(
        "output",
        subject.call(NAME, changed)["output"][:, : last + 1],
        subject.call(NAME, arguments)["output"][:, : last + 1],
        subject.bound(NAME, arguments, "output"),
        f"rows up to {last} change when later tokens change",
    )


@holds("mha-hidden-tokens", batch=st.just(2), seq=SEQ, seed=SEED)
def test_padding_does_not_matter(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Each sample has its own length; what stands behind it is irrelevant to the rows before it."""
    lengths = 1 + (np.arange(batch) + seed) % seq
    keep = np.arange(seq) < lengths[:, None]
    arguments = with_inputs(self_attention(subject, seed, batch, seq), mask=keep[:, None, None, :])
    x, other = (self_attention(subject, s, batch, seq).inputs["query"] for s in (seed, seed + 1000))
    changed = with_sequence(arguments, np.where(keep[..., None], x, other))
    subject.agree(
        "output",
        subject.call(NAME, changed)["output"][keep],
        subject.call(NAME, arguments)["output"][keep],
        subject.bound(NAME, arguments, "output"),
        f"padded tokens matter (lengths {lengths.tolist()} of {seq})",
    )


@holds("mha-batch", batch=st.just(2), seq=SEQ, seed=SEED)
def test_samples_do_not_mix(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Sample 1 alone is sample 1 in the batch."""
    arguments = self_attention(subject, seed, batch, seq)
    alone = with_sequence(arguments, arguments.inputs["query"][1:2])
    subject.agree(
        "output",
        subject.call(NAME, arguments)["output"][1:2],
        subject.call(NAME, alone)["output"],
        subject.bound(NAME, alone, "output"),
        "a sample gives something else in a batch than alone",
    )

"""Properties of scaled dot-product attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance import relations
from goldformer.conformance.invoke import Arguments
from goldformer.conformance.properties import Subject, Violation, drawn, holds, with_inputs

NAME = "scaled_dot_product_attention"

RATE = 0.5
BATCH, SEQ, SEED = st.integers(1, 3), st.integers(2, 6), st.integers(0, 999)


def call_for(subject: Subject, seed: int, batch: int, q_seq: int, kv_seq: int, d_v: int = 2) -> Arguments:
    """Drawn query, key and value."""
    sizes = {"batch": batch, "q_seq": q_seq, "kv_seq": kv_seq, "d_k": 3, "d_v": d_v}
    return drawn(NAME, subject.bench, sizes, seed)


@holds("sdpa-simplex", batch=BATCH, q_seq=SEQ, kv_seq=SEQ, d_v=st.integers(1, 3), seed=SEED)
def test_outputs_lie_within_the_values(
    subject: Subject, batch: int, q_seq: int, kv_seq: int, d_v: int, seed: int
) -> None:
    """Rows of weights are distributions; each output lies between the least and the greatest value."""
    arguments = call_for(subject, seed, batch, q_seq, kv_seq, d_v=d_v)
    outputs = subject.call(NAME, arguments)
    output, value = outputs["output"], arguments.inputs["value"]
    low, high = value.min(-2, keepdims=True), value.max(-2, keepdims=True)
    bound = subject.bound(NAME, arguments, "output")
    subject.agree("output", output, output.clip(low, high), bound, "an output lies outside the values it averages")
    if "weights" in outputs:
        weights = outputs["weights"]
        bound = kv_seq * subject.bound(NAME, arguments, "weights")
        subject.agree("weights", weights.clip(min=0), weights, 0.0, "a weight is negative")
        subject.agree("weights", weights.sum(-1), np.ones((batch, q_seq)), bound, "weights of a query do not sum to 1")


@holds("sdpa-key-order", batch=BATCH, q_seq=SEQ, kv_seq=SEQ, seed=SEED)
def test_order_of_keys(subject: Subject, batch: int, q_seq: int, kv_seq: int, seed: int) -> None:
    """Keys and values may come in any order, together."""
    relations.ignores_order(subject, call_for(subject, seed, batch, q_seq, kv_seq), "key", "value", seed=seed)


@holds("sdpa-causality", batch=BATCH, seq=SEQ, seed=SEED, data=st.data())
def test_later_keys_do_not_matter(subject: Subject, batch: int, seq: int, seed: int, data: st.DataObject) -> None:
    """Under a causal mask, row i is what it was when keys and values after i are others."""
    last = data.draw(st.integers(0, seq - 2), label="last")
    mask = np.tril(np.ones((seq, seq), dtype=bool))
    arguments = with_inputs(call_for(subject, seed, batch, seq, seq), mask=mask)
    other = call_for(subject, seed + 1000, batch, seq, seq)
    relations.ignores_later(subject, arguments, other, "key", "value", last=last)


@holds("sdpa-padding", batch=st.integers(2, 3), q_seq=SEQ, kv_seq=SEQ, seed=SEED)
def test_masked_keys_do_not_matter(subject: Subject, batch: int, q_seq: int, kv_seq: int, seed: int) -> None:
    """Each sample keeps another number of keys; what stands at the others is irrelevant."""
    keep = np.arange(kv_seq) < (1 + (np.arange(batch) + seed) % kv_seq)[:, None]
    arguments = with_inputs(call_for(subject, seed, batch, q_seq, kv_seq), mask=keep[:, None, :])
    other = call_for(subject, seed + 1000, batch, q_seq, kv_seq)
    relations.ignores_hidden(subject, arguments, other, "key", "value", keep=keep, padded_rows=False)


@holds("sdpa-batch", batch=st.integers(2, 3), q_seq=SEQ, kv_seq=SEQ, seed=SEED)
def test_samples_do_not_mix(subject: Subject, batch: int, q_seq: int, kv_seq: int, seed: int) -> None:
    """Sample 1 alone is sample 1 in the batch."""
    relations.alone_as_in_batch(subject, call_for(subject, seed, batch, q_seq, kv_seq))


@holds("sdpa-dropout", q_seq=st.integers(20, 25), seed=SEED)
def test_dropout_takes_weights(subject: Subject, q_seq: int, seed: int) -> None:
    """With two identity matrices side by side as the value, the output is the weights that are left, twice."""
    size = 5
    # Small scores leave no weight that a dtype might round to 0.
    arguments = call_for(subject, seed, 1, q_seq, size, d_v=2 * size)
    arguments = with_inputs(arguments, key=arguments.inputs["key"] / 4, value=np.tile(np.eye(size), 2)[None])
    first, again, other = (
        subject.call(NAME, replace(arguments, attributes={"dropout_rate": RATE, "seed": s}))["output"]
        for s in (seed, seed, seed + 1)
    )
    subject.agree("output", first[..., size:], first[..., :size], 0.0, "a weight is dropped for one channel alone")
    subject.agree("output", again, first, 0.0, "one seed drops different weights")
    if np.array_equal(other == 0, first == 0):
        raise Violation(f"seeds {seed} and {seed + 1} drop the same weights")
    kept = np.where(first == 0, 0.0, subject.call(NAME, arguments)["output"] / (1 - RATE))
    bound = subject.bound(NAME, replace(arguments, attributes={"dropout_rate": RATE, "seed": seed}), "output")
    claim = "a weight is neither 0 nor that without dropout divided by 1 − rate"
    subject.agree("output", first, kept, bound, claim)

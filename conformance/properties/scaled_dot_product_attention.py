"""Properties of scaled dot-product attention."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, Violation, with_inputs

RATE = 0.5
BATCH, SEQ, SEED = st.integers(1, 3), st.integers(2, 6), st.integers(0, 999)
LAST = st.integers(0, 4)
#: The width of a value: kernels for vectors begin at some.
WIDTH = st.sampled_from([2, 16])


def draw_call(subject: Subject, seed: int, batch: int, q_seq: int, kv_seq: int, d_v: int = 2) -> Arguments:
    """Draw a call with query, key and value."""
    sizes = {"batch": batch, "q_seq": q_seq, "kv_seq": kv_seq, "d_k": 3, "d_v": d_v}
    return subject.draw(sizes, seed)


def draw_visible_keys(seed: int, batch: int, kv_seq: int) -> NDArray[np.bool_]:
    """Return a mask of the keys that each sample sees, (batch, kv_seq); the next sample sees another number of them."""
    return np.arange(kv_seq) < (1 + (np.arange(batch) + seed) % kv_seq)[:, None]


@holds("sdpa-simplex", batch=BATCH, q_seq=SEQ, kv_seq=SEQ, d_v=st.integers(1, 3), seed=SEED)
def outputs_lie_within_the_values(subject: Subject, batch: int, q_seq: int, kv_seq: int, d_v: int, seed: int) -> None:
    """Require weights that sum to 1, and outputs between the least and the greatest value."""
    arguments = draw_call(subject, seed, batch, q_seq, kv_seq, d_v=d_v)
    outputs = subject.call(arguments)
    output, value = outputs["output"], arguments.inputs["value"]
    low, high = value.min(-2, keepdims=True), value.max(-2, keepdims=True)
    bound = subject.bound(arguments)
    subject.agree(output, output.clip(low, high), bound, "an output lies outside the values it averages")
    if "weights" in outputs:
        weights = outputs["weights"]
        bound = kv_seq * subject.tolerances(arguments)["weights"]
        subject.agree(weights.clip(min=0), weights, 0.0, "a weight is negative", "weights")
        claim = "the weights of a query do not sum to 1"
        subject.agree(weights.sum(-1), np.ones((batch, q_seq)), bound, claim, "weights")


@holds("sdpa-key-order", batch=BATCH, q_seq=SEQ, kv_seq=SEQ, seed=SEED)
def order_of_keys(subject: Subject, batch: int, q_seq: int, kv_seq: int, seed: int) -> None:
    """Require that the order of keys does not matter if values have the same order."""
    if q_seq == kv_seq:
        relations.require_no_order(subject)
    relations.ignores_order(subject, draw_call(subject, seed, batch, q_seq, kv_seq), "key", "value", seed=seed)


@holds("sdpa-key-shift", batch=BATCH, q_seq=SEQ, kv_seq=SEQ, masked=st.sampled_from([False, True, True]), seed=SEED)
def one_vector_for_all_keys(subject: Subject, batch: int, q_seq: int, kv_seq: int, *, masked: bool, seed: int) -> None:
    """Require that a vector c added to every key changes nothing: it adds q·c to every score of a query."""
    arguments = draw_call(subject, seed, batch, q_seq, kv_seq)
    arguments = with_inputs(arguments, mask=draw_visible_keys(seed, batch, kv_seq)[:, None, :]) if masked else arguments
    # 64ths of at most 2, moved by such: bfloat16's eight bits hold the sum.
    vector = draw_call(subject, seed + 1, 1, 1, 1).inputs["key"]
    claim = f"adding {vector.ravel().tolist()} to every key changes the output"
    relations.gives_the_same(subject, arguments, with_inputs(arguments, key=arguments.inputs["key"] + vector), claim)


@holds("sdpa-causality", batch=BATCH, seq=SEQ, seed=SEED, last=LAST)
def later_keys_do_not_matter(subject: Subject, batch: int, seq: int, seed: int, last: int) -> None:
    """Require that under a causal mask, row i does not depend on the keys and values after i."""
    mask = np.tril(np.ones((seq, seq), dtype=bool))
    arguments = with_inputs(draw_call(subject, seed, batch, seq, seq), mask=mask)
    other = draw_call(subject, seed + 1000, batch, seq, seq)
    relations.ignores_later(subject, arguments, other, "key", "value", last=last)


@holds("sdpa-hidden-gradient", batch=BATCH, seq=SEQ, seed=SEED, last=LAST)
def later_keys_have_no_gradient(subject: Subject, batch: int, seq: int, seed: int, last: int) -> None:
    """Require that the Jacobian of row i by keys and values after i is exactly 0."""
    mask = np.tril(np.ones((seq, seq), dtype=bool))
    arguments = with_inputs(draw_call(subject, seed, batch, seq, seq), mask=mask)
    cotangent = draw_call(subject, seed + 1, batch, seq, seq).inputs["value"]
    relations.passes_no_gradient_back(subject, arguments, cotangent, "key", "value", last=last)


@holds("sdpa-padding", batch=st.integers(2, 3), q_seq=SEQ, kv_seq=SEQ, seed=SEED)
def padding_does_not_matter(subject: Subject, batch: int, q_seq: int, kv_seq: int, seed: int) -> None:
    """Require that hidden keys do not matter; each sample sees another number of keys."""
    # With more keys after them, the same tokens may be as many as the queries, or no longer so.
    relations.require_no_order(subject)
    keep = draw_visible_keys(seed, batch, kv_seq)
    arguments = with_inputs(draw_call(subject, seed, batch, q_seq, kv_seq), mask=keep[:, None, :])
    other = draw_call(subject, seed + 1000, batch, q_seq, kv_seq)
    relations.ignores_hidden(subject, arguments, other, "key", "value", keep=keep, padded_rows=False)
    length = int(keep[-1].sum())
    relations.ignores_padding(subject, arguments, "key", "value", length=length, padded_rows=False)


@holds("sdpa-batch", batch=st.sampled_from(relations.BATCHES), q_seq=SEQ, kv_seq=SEQ, width=WIDTH, seed=SEED)
def samples_do_not_mix(subject: Subject, batch: int, q_seq: int, kv_seq: int, width: int, seed: int) -> None:
    """Require that a sample gives the same by itself and in a batch."""
    relations.ignores_batch(subject, draw_call(subject, seed, batch, q_seq, kv_seq, d_v=width))


@holds("sdpa-dropout", q_seq=st.integers(20, 25), seed=SEED)
def dropout_takes_weights(subject: Subject, q_seq: int, seed: int) -> None:
    """Require that dropout drops whole weights, scales the others, and depends on the seed only.

    The value is two identity matrices side by side, so the output is the weights after dropout, twice.
    """
    size = 5
    # Small scores leave no weight that a dtype might round to 0.
    arguments = draw_call(subject, seed, 1, q_seq, size, d_v=2 * size)
    arguments = with_inputs(arguments, key=arguments.inputs["key"] / 4, value=np.tile(np.eye(size), 2)[None])
    first, again, other = (
        subject.output(replace(arguments, attributes={"dropout_rate": RATE, "seed": s})) for s in (seed, seed, seed + 1)
    )
    claim = "a weight is dropped for one channel of the value and kept for another"
    subject.agree(first[..., size:], first[..., :size], 0.0, claim)
    subject.agree(again, first, 0.0, "the same seed drops other weights the second time")
    if np.array_equal(other == 0, first == 0):
        raise Violation(f"seeds {seed} and {seed + 1} drop the same weights")
    kept = np.where(first == 0, 0.0, subject.output(arguments) / (1 - RATE))
    bound = subject.bound(replace(arguments, attributes={"dropout_rate": RATE, "seed": seed}))
    claim = "a weight is neither 0 nor what it is without dropout, divided by 1 − rate"
    subject.agree(first, kept, bound, claim)

"""Properties of the decoder layer."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs

BATCH, SEQ, SEED = st.integers(1, 2), st.integers(2, 4), st.integers(0, 999)
LAST = st.integers(0, 4)


def draw_call(subject: Subject, seed: int, batch: int, seq: int, source_seq: int = 3) -> Arguments:
    """Draw a call with a target and a memory."""
    sizes = {"batch": batch, "seq": seq, "source_seq": source_seq, "heads": 2, "d_k": 2, "d_v": 2}
    return subject.draw(sizes | {"d_model": 4, "d_ff": 5}, seed, num_heads=2)


@holds("dec-causality", batch=BATCH, seq=SEQ, seed=SEED, last=LAST)
def later_tokens_do_not_matter(subject: Subject, batch: int, seq: int, seed: int, last: int) -> None:
    """Require that under a causal mask, row i does not depend on the tokens after i."""
    mask = np.tril(np.ones((seq, seq), dtype=bool))[None, None]
    arguments = with_inputs(draw_call(subject, seed, batch, seq), self_mask=mask)
    relations.ignores_later(subject, arguments, draw_call(subject, seed + 1000, batch, seq), "x", last=last)


@holds("dec-memory", batch=BATCH, seq=SEQ, source_seq=st.integers(2, 4), seed=SEED)
def memory_is_read_as_a_set(subject: Subject, batch: int, seq: int, source_seq: int, seed: int) -> None:
    """Require that the order of memory rows does not matter, and that another memory gives another output."""
    arguments = draw_call(subject, seed, batch, seq, source_seq)
    relations.ignores_order(subject, arguments, "memory", seed=seed)
    other = with_inputs(arguments, memory=-arguments.inputs["memory"])
    one, two = (subject.output(call) for call in (arguments, other))
    subject.differ(one, two, subject.bound(arguments), "another memory gives the same output: the layer ignores it")


@holds("dec-batch", batch=st.sampled_from(relations.BATCHES), seq=SEQ, source_seq=st.integers(1, 3), seed=SEED)
def samples_do_not_mix(subject: Subject, batch: int, seq: int, source_seq: int, seed: int) -> None:
    """Require that a sample gives the same by itself and in a batch."""
    relations.ignores_batch(subject, draw_call(subject, seed, batch, seq, source_seq))

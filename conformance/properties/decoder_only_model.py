"""Properties of the decoder-only model."""

from __future__ import annotations

from typing import Final

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs
from goldformer.spec.draw import below

SEQ, SEED = st.integers(2, 4), st.integers(0, 999)
VOCAB: Final = 7


def draw_ids(seed: int, batch: int, seq: int) -> NDArray[np.int64]:
    """Draw words, (batch, seq)."""
    return below(VOCAB, seed, "ids", (batch, seq))


def draw_call(subject: Subject, seed: int, batch: int, seq: int) -> Arguments:
    """Draw a call of a model with two layers."""
    sizes = {"heads": 2, "kv_heads": 1, "pairs": 2, "d_model": 8, "d_ff": 5, "vocab": VOCAB}
    arguments = subject.draw(sizes, seed, num_heads=2, num_kv_heads=1, num_layers=2)
    return with_inputs(arguments, ids=draw_ids(seed, batch, seq))


@holds("dom-causality", seq=SEQ, seed=SEED, last=st.integers(0, 3))
def later_words_do_not_matter(subject: Subject, seq: int, seed: int, last: int) -> None:
    """Require that the logits up to a position do not depend on later words."""
    last = min(last, seq - 2)
    arguments = draw_call(subject, seed, 1, seq)
    ids = arguments.inputs["ids"]
    other = np.where(np.arange(seq) > last, (ids + 1) % VOCAB, ids)
    one, two = (subject.output(call) for call in (arguments, with_inputs(arguments, ids=other)))
    claim = f"the logits up to position {last} change when later words are replaced"
    bound = subject.bound(arguments)
    subject.agree(two[:, : last + 1], one[:, : last + 1], bound, claim)


@holds("dom-batch", batch=st.sampled_from(relations.BATCHES), seq=SEQ, seed=SEED)
def samples_do_not_mix(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Require that a sample gives the same by itself and in a batch."""
    relations.ignores_batch(subject, draw_call(subject, seed, batch, seq))

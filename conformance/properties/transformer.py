"""Properties of the whole model."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs
from goldformer.spec.draw import below

SEQ, SEED = st.integers(2, 4), st.integers(0, 999)
LAST = st.integers(0, 4)
VOCAB, PAD = 7, 0
STACKS = {"num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1, "pad_id": PAD}


def draw_call(subject: Subject, seed: int, source_seq: int, seq: int) -> Arguments:
    """Draw a call with one sample without padding, and parameters."""
    sizes = {"vocab": VOCAB, "heads": 2, "d_k": 2, "d_v": 2, "d_model": 4, "d_ff": 5}
    arguments = subject.draw(sizes, seed, **STACKS)
    return with_inputs(arguments, source=draw_ids(seed, "source", source_seq), target=draw_ids(seed, "target", seq))


def draw_ids(seed: int, name: str, length: int) -> NDArray[np.int64]:
    """Draw words without padding."""
    return 1 + below(VOCAB - 1, seed, name, (1, length))


@holds("model-causality", seq=SEQ, seed=SEED, last=LAST)
def later_targets_do_not_matter(subject: Subject, seq: int, seed: int, last: int) -> None:
    """Require that the logits up to a position do not depend on later words of the target."""
    last = min(last, seq - 2)
    arguments = draw_call(subject, seed, 3, seq)
    target = arguments.inputs["target"]
    # Another word at every later place, never padding.
    other = np.where(np.arange(seq) > last, 1 + target % (VOCAB - 1), target)
    one, two = (subject.output(call)[:, : last + 1] for call in (arguments, with_inputs(arguments, target=other)))
    claim = f"the logits up to position {last} change when later words of the target are replaced"
    subject.agree(two, one, subject.bound(arguments), claim)


@holds("model-padding", source_seq=SEQ, seq=SEQ, more=st.integers(1, 2), seed=SEED)
def padding_and_neighbours_do_not_matter(subject: Subject, source_seq: int, seq: int, more: int, seed: int) -> None:
    """Require that padding and a longer neighbour leave a sample's logits as they are."""
    arguments = draw_call(subject, seed, source_seq, seq)
    source, target = (
        np.pad(arguments.inputs[n], ((0, 0), (0, more)), constant_values=PAD) for n in ("source", "target")
    )
    neighbour = (draw_ids(seed + 1, "source", source_seq + more), draw_ids(seed + 1, "target", seq + more))
    batch = with_inputs(
        arguments, source=np.concatenate([neighbour[0], source]), target=np.concatenate([neighbour[1], target])
    )
    claim = f"the logits of a sample change when {more} padding follows it and a longer sample is next to it"
    relations.ignores_neighbour(subject, batch, arguments, length=seq, claim=claim)


@holds("model-prefix", seq=SEQ, seed=SEED, last=LAST)
def reading_word_by_word(subject: Subject, seq: int, seed: int, last: int) -> None:
    """Require that the words of a shortened target keep their logits."""
    last = min(last, seq - 2)
    whole = draw_call(subject, seed, 3, seq)
    prefix = with_inputs(whole, target=whole.inputs["target"][:, : last + 1])
    claim = f"the logits up to position {last} change when the target ends there"
    subject.agree(subject.output(prefix), subject.output(whole)[:, : last + 1], subject.bound(prefix, whole), claim)

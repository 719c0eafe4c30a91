"""What the properties of decoding share: a small model to write with, and its sentences read by the model at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.conformance.properties.measuring import measure_call
from goldformer.conformance.properties.subject import Subject, Violation, draw_arguments, with_inputs
from goldformer.spec.draw import below
from goldformer.spec.model import Attribute

VOCAB: Final = 5
PAD, BOS, EOS = 0, 1, 2
SIZES: Final = {"vocab": VOCAB, "heads": 1, "d_k": 2, "d_v": 2, "d_model": 4, "d_ff": 3}
STACKS: Final = {"num_heads": 1, "num_encoder_layers": 1, "num_decoder_layers": 1}
IDS: Final = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}

#: How many sources are tried for a neighbour whose sentence ends first.
_NEIGHBOURS: Final = 6

Ids = NDArray[np.int64]


def call_for(subject: Subject, component: str, seed: int, source_seq: int, **attributes: Attribute) -> Arguments:
    """One sample without padding, and drawn parameters.

    Biases are left out and rows normalised to variance 1 and mean 0: what is the same at every step would hide
    what is not, and one word would follow another whatever was read.
    """
    arguments = draw_arguments(component, subject.bench, SIZES, seed, **STACKS, **IDS, **attributes)
    plain = {"gamma": 1.0, "beta": 0.0}
    params = {
        name: np.full_like(array, plain[own]) if own in plain else array
        for name, array in arguments.params.items()
        if not (own := name.rpartition(".")[2]).startswith("b_")
    }
    return with_inputs(replace(arguments, params=params), source=sources(seed, 1, source_seq))


def sources(seed: int, number: int, length: int) -> Ids:
    """Words, none of them padding."""
    return 1 + below(VOCAB - 1, seed, "source", (number, length))


def ending(subject: Subject, component: str, arguments: Arguments, place: int) -> Arguments:
    """The same call with that word for eos_id which the sample's sentence has at a place, so that it ends there.

    As it is where that place is beyond max_length, and where pad_id stands there, which cannot end a sentence.
    """
    length = arguments.attributes["max_length"]
    if not isinstance(length, int) or place >= length:
        return arguments
    short = replace(arguments, attributes={**arguments.attributes, "max_length": place + 1})
    return _ended_by(arguments, _sentences(subject, component, short)[0][-1])


def alone_and_in_batch(
    subject: Subject, component: str, seed: int, source_seq: int, more: int, **attributes: Attribute
) -> tuple[Arguments, Arguments]:
    """One sample, and the same padded to the length of a longer neighbour, which stands before it.

    Of some neighbours it is the first whose sentence can end while the sample's goes on, if there is one.
    """
    alone = call_for(subject, component, seed, source_seq, **attributes)
    own = np.pad(alone.inputs["source"], ((0, 0), (0, more)), constant_values=PAD)
    neighbours = sources(seed + 1, _NEIGHBOURS, source_seq + more)
    mine, *others = _sentences(subject, component, with_inputs(alone, source=np.concatenate([own, neighbours])))
    ends = (
        (number, other[place])
        for place in range(len(mine) - 1)
        for number, other in enumerate(others)
        if place < len(other) and other[place] != PAD and other[place] not in mine[: place + 1]
    )
    number, word = next(ends, (0, others[0][0]))
    batch = np.concatenate([neighbours[[number]], own])
    return _ended_by(alone, word), _ended_by(with_inputs(alone, source=batch), word)


def _sentences(subject: Subject, component: str, arguments: Arguments) -> list[Ids]:
    """The words of each sample's sentence, of the best one where there are several, without what follows its end."""
    ids = subject.call(component, arguments)["ids"]
    best = ids.reshape(len(ids), -1, ids.shape[-1])[:, 0]
    return [row[: words_of(row, arguments)] for row in best]


def _ended_by(arguments: Arguments, word: int) -> Arguments:
    eos = arguments.attributes["eos_id"] if word == PAD else int(word)
    return replace(arguments, attributes={**arguments.attributes, "eos_id": eos})


def words_of(sentence: Ids, arguments: Arguments) -> int:
    """How many words a row of ids holds, eos_id included; Violation when anything but pad_id follows it."""
    eos = arguments.attributes["eos_id"]
    ends = np.flatnonzero(_in_vocabulary(sentence) == eos)
    if not len(ends):
        return len(sentence)
    number = int(ends[0]) + 1
    if np.any(sentence[number:] != PAD):
        raise Violation(f"{sentence.tolist()} goes on after {eos}, its eos_id, where {PAD}, pad_id, must stand")
    return number


def _in_vocabulary(ids: Ids) -> Ids:
    """The same; Violation where one is no word, with which nothing can be called."""
    if len(bad := ids[(ids < 0) | (ids >= VOCAB)]):
        raise Violation(f"decodes {bad[0]}, which is no word: words are 0 … {VOCAB - 1}")
    return ids


@dataclass(frozen=True, slots=True)
class Reading:
    """How probable the model finds every word at each place of a sentence; `bound` is the tolerance of each."""

    log_probabilities: NDArray[np.float64]
    bound: float


def read(subject: Subject, arguments: Arguments, sentence: Ids) -> Reading:
    """One call of the model with the whole sentence, for the one sample of a decoding call."""
    attributes = {name: arguments.attributes[name] for name in ("pad_id", *STACKS)}
    target = np.concatenate([[BOS], sentence[:-1]])[None]
    call = with_inputs(replace(arguments, attributes=attributes), target=target)
    logits = subject.call("transformer", call)["logits"][0]
    moved = logits - logits.max(-1, keepdims=True)
    inputs = {"source": call.inputs["source"], "ids": sentence[None]}
    reading = Arguments(inputs, call.params, {**attributes, "bos_id": BOS})
    scale = measure_call("teacher_forced", reading, subject.options("transformer")).scales["log_probabilities"]
    return Reading(moved - np.log(np.exp(moved).sum(-1, keepdims=True)), tolerance(subject.bench.dtype, scale, 0.0))

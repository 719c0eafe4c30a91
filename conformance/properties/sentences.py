"""Shared parts of the decoding properties: a small model that writes sentences, and the same model reading them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.conformance.properties.measuring import measure_call
from goldformer.conformance.properties.subject import Subject, Violation, with_inputs
from goldformer.spec.draw import below
from goldformer.spec.model import Attribute

VOCAB: Final = 5
PAD, BOS, EOS = 0, 1, 2
# Of ordinary form, heads·d_k = heads·d_v = d_model, which most code requires.
SIZES: Final = {"vocab": VOCAB, "heads": 2, "d_k": 2, "d_v": 2, "d_model": 4, "d_ff": 3}
STACKS: Final = {"num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 1}
IDS: Final = {"pad_id": PAD, "bos_id": BOS, "eos_id": EOS}

#: The number of sources that are tried for a neighbour whose sentence ends first.
_NEIGHBOURS: Final = 6

Ids = NDArray[np.int64]


def draw_call(subject: Subject, seed: int, source_seq: int, **attributes: Attribute) -> Arguments:
    """Draw a call with one sample without padding, and parameters.

    There are no biases, gamma is 1 and beta is 0: a constant at every step would dominate the logits, and the same
    word would follow whatever was read.
    """
    arguments = subject.draw(SIZES, seed, **STACKS, **IDS, **attributes)
    plain = {"gamma": 1.0, "beta": 0.0}
    params = {
        name: np.full_like(array, plain[own]) if own in plain else array
        for name, array in arguments.params.items()
        if not (own := name.rpartition(".")[2]).startswith("b_")
    }
    return with_inputs(replace(arguments, params=params), source=draw_sources(seed, 1, source_seq))


def draw_sources(seed: int, number: int, length: int) -> Ids:
    """Draw words without padding."""
    return 1 + below(VOCAB - 1, seed, "source", (number, length))


def end_sentence(subject: Subject, arguments: Arguments, place: int) -> Arguments:
    """Return the call with the word at one place of the sample's sentence as eos_id, so that the sentence ends there.

    The call stays as it is if the place is beyond max_length or holds pad_id, which cannot end a sentence, or bos_id:
    code that asks before each step whether the last word ends the sentence would end with its beginning.
    """
    length = arguments.attributes["max_length"]
    if not isinstance(length, int) or place >= length:
        return arguments
    short = replace(arguments, attributes={**arguments.attributes, "max_length": place + 1})
    return _set_eos(arguments, _decode_sentences(subject, short)[0][-1])


def draw_single_and_batch(
    subject: Subject, seed: int, source_seq: int, more: int, **attributes: Attribute
) -> tuple[Arguments, Arguments]:
    """Return a call with one sample, and one with the same sample padded and a longer neighbour before it.

    The neighbour is the first of several whose sentence can end while the sample's goes on, if there is one.
    """
    single = draw_call(subject, seed, source_seq, **attributes)
    own = np.pad(single.inputs["source"], ((0, 0), (0, more)), constant_values=PAD)
    neighbours = draw_sources(seed + 1, _NEIGHBOURS, source_seq + more)
    mine, *others = _decode_sentences(subject, with_inputs(single, source=np.concatenate([own, neighbours])))
    ends = (
        (number, other[place])
        for place in range(len(mine) - 1)
        for number, other in enumerate(others)
        if place < len(other) and other[place] not in (PAD, BOS, *mine[: place + 1])
    )
    number, word = next(ends, (0, others[0][0]))
    batch = np.concatenate([neighbours[[number]], own])
    return _set_eos(single, word), _set_eos(with_inputs(single, source=batch), word)


def _decode_sentences(subject: Subject, arguments: Arguments) -> list[Ids]:
    """Return the words of each sample's best sentence, up to its end."""
    ids = subject.output(arguments)
    best = ids.reshape(len(ids), -1, ids.shape[-1])[:, 0]
    return [row[: _find_end(row, arguments)] for row in best]


def _set_eos(arguments: Arguments, word: int) -> Arguments:
    eos = arguments.attributes["eos_id"] if word in (PAD, BOS) else int(word)
    return replace(arguments, attributes={**arguments.attributes, "eos_id": eos})


def count_words(sentence: Ids, arguments: Arguments) -> int:
    """Count the words of a row of ids, eos_id included; Violation if anything but pad_id follows it."""
    number = _find_end(sentence, arguments)
    if np.any(sentence[number:] != PAD):
        eos = arguments.attributes["eos_id"]
        raise Violation(f"{sentence.tolist()} goes on after {eos}, its eos_id, where {PAD}, pad_id, must stand")
    return number


def _find_end(sentence: Ids, arguments: Arguments) -> int:
    """Return the number of words up to the first eos_id, which counts too."""
    ends = np.flatnonzero(_check_vocabulary(sentence) == arguments.attributes["eos_id"])
    return int(ends[0]) + 1 if len(ends) else len(sentence)


def _check_vocabulary(ids: Ids) -> Ids:
    """Return the ids; Violation if one is no word of the vocabulary, because no model can read it."""
    if len(bad := ids[(ids < 0) | (ids >= VOCAB)]):
        raise Violation(f"decodes {bad[0]}, which is no word: words are 0 … {VOCAB - 1}")
    return ids


@dataclass(frozen=True, slots=True)
class Reading:
    """The log-probability of every word at each place of a sentence; `bound` is the tolerance of each."""

    log_probabilities: NDArray[np.float64]
    bound: float


def read_sentence(subject: Subject, arguments: Arguments, sentence: Ids) -> Reading:
    """Call the model once with the whole sentence, for the one sample of a decoding call."""
    attributes = {name: arguments.attributes[name] for name in ("pad_id", *STACKS)}
    target = np.concatenate([[BOS], sentence[:-1]])[None]
    call = with_inputs(replace(arguments, attributes=attributes), target=target)
    logits = subject.call(call, "transformer")["logits"][0]
    moved = logits - logits.max(-1, keepdims=True)
    inputs = {"source": call.inputs["source"], "ids": sentence[None]}
    reading = Arguments(inputs, call.params, {**attributes, "bos_id": BOS})
    scale = measure_call("teacher_forced", reading, subject.options("transformer")).scales["log_probabilities"]
    return Reading(moved - np.log(np.exp(moved).sum(-1, keepdims=True)), tolerance(subject.bench.rounds_to, scale, 0.0))

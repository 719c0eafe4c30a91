"""Decode a whole batch or beam at once, as implementations do: mistakes that mix samples show only there."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.decoding import (
    Sentence,
    Task,
    append_best,
    beam_search,
    decoder_input,
    extend_beam,
    greedy_decode,
    greedy_sentences,
    has_ended,
    is_full,
    model_logits,
    next_logits,
)
from goldformer.spec.formulas.layers import encoder
from goldformer.spec.formulas.steps import Replacements, Step, around, hold, instead


def _decode_together(source: Array, task: Task) -> list[Sentence]:
    """Decode all samples in one batch; the model reads padding after the end of a sentence."""
    sentences = [Sentence()] * len(source)
    fill = task.pad_id if 0 <= task.pad_id < len(task.model["params"]["table"]) else 0
    while not all(has_ended(sentence, task) or is_full(sentence, task) for sentence in sentences):
        read = [decoder_input(sentence, task) for sentence in sentences]
        width = max(len(words) for words in read)
        target = np.array([[*words, *[fill] * (width - len(words))] for words in read], dtype=np.int64)
        logits = model_logits(source, target, task)[:, -1]
        sentences = [
            sentence if has_ended(sentence, task) or is_full(sentence, task) else append_best(sentence, row)
            for sentence, row in zip(sentences, logits, strict=True)
        ]
    return sentences


#: The next logits of the sentences of a beam, by the source and the words that are read.
_known: Final[ContextVar[Mapping[tuple[bytes, tuple[int, ...]], Array]]] = ContextVar("known")


def _extend_together(original: Step, source: Array, sample: int, beam: list[Sentence], task: Task) -> Any:
    """Extend a beam with the logits of one call of the model for all of its sentences that go on."""
    own = source[[sample]]
    read = [tuple(decoder_input(s, task)) for s in beam if not (has_ended(s, task) or is_full(s, task))]
    known = {}
    if len(read) > 1 and len({len(words) for words in read}) == 1:
        logits = model_logits(np.repeat(own, len(read), axis=0), np.array(read, dtype=np.int64), task)[:, -1]
        known = {(own.tobytes(), words): row for words, row in zip(read, logits, strict=True)}
    with hold(_known, known):
        return original(source, sample, beam, task)


def _look_up(original: Step, source: Array, sentence: Sentence, task: Task) -> Array:
    row = _known.get({}).get((source.tobytes(), tuple(decoder_input(sentence, task))))
    return np.asarray(original(source, sentence, task) if row is None else row)


#: The results of the encoder in one call of decoding, by the bytes of its input and mask.
_encoded: Final[ContextVar[dict[tuple[Any, ...], dict[str, Array]] | None]] = ContextVar("encoded", default=None)


def _remember_encoder(original: Step, *args: Any, **named: Any) -> Any:
    """Decode, and run the encoder once for each source: the model is called for every word, with the same sources."""
    with hold(_encoded, {}):
        return original(*args, **named)


def _encode_once(original: Step, x: Array, mask: Array | None = None, **rest: Any) -> Any:
    known = _encoded.get()
    if known is None:
        return original(x, mask, **rest)
    key = (x.shape, x.tobytes(), mask is not None and (mask.shape, mask.tobytes()))
    if key not in known:
        known[key] = original(x, mask, **rest)
    return {name: array.copy() for name, array in known[key].items()}


#: The steps of decoding with fewer calls of the model and its encoder: the same results if samples are independent.
IN_BATCHES: Final[Replacements] = {
    greedy_sentences: instead(_decode_together),
    extend_beam: around(_extend_together),
    next_logits: around(_look_up),
    beam_search: around(_remember_encoder),
    greedy_decode: around(_remember_encoder),
    encoder: around(_encode_once),
}

"""Greedy decoding of a whole batch at once, as implementations do it: only there shows what mixes samples."""

from __future__ import annotations

from typing import Final

import numpy as np

from goldformer.adapters.textbook.checks import Array
from goldformer.adapters.textbook.decoding import (
    Sentence,
    Task,
    append_word,
    decoder_input,
    greedy_sentences,
    has_ended,
    is_full,
    model_logits,
    score_words,
)
from goldformer.adapters.textbook.steps import Replacements, instead


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
            sentence if has_ended(sentence, task) or is_full(sentence, task) else _append_best(sentence, row)
            for sentence, row in zip(sentences, logits, strict=True)
        ]
    return sentences


def _append_best(sentence: Sentence, logits: Array) -> Sentence:
    word = int(logits.argmax())
    return append_word(sentence, word, score_words(logits)[word])


#: Greedy decoding with the same results where samples do not depend on one another, by fewer calls of the model.
IN_BATCHES: Final[Replacements] = {greedy_sentences: instead(_decode_together)}

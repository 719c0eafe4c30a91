"""Properties of greedy decoding."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.sentences import (
    count_words,
    draw_call,
    draw_single_and_batch,
    end_sentence,
    read_sentence,
)
from goldformer.conformance.properties.subject import Subject, Violation

SOURCE_SEQ, SEED = st.integers(1, 3), st.integers(0, 999)
LENGTH, LONGER = st.integers(1, 3), st.integers(2, 4)
#: The place at which the sentence is to end; the sentence may have no place 3.
END = st.integers(0, 4)


@holds("greedy-teacher-forcing", source_seq=SOURCE_SEQ, max_length=LONGER, end=END, seed=SEED)
def writing_is_reading(subject: Subject, source_seq: int, max_length: int, end: int, seed: int) -> None:
    """Require that the model, reading the sentence at once, ranks each word first and agrees on its score."""
    arguments = end_sentence(subject, draw_call(subject, seed, source_seq, max_length=max_length), end)
    outputs = subject.call(arguments)
    [sentence] = outputs["ids"]
    count = count_words(sentence, arguments)
    reading = read_sentence(subject, arguments, sentence[:count])
    chosen = reading.log_probabilities[np.arange(count), sentence[:count]]
    claim = f"the model that reads {sentence.tolist()} at once finds another word more probable than one of these"
    subject.agree(chosen, reading.log_probabilities.max(-1), reading.bound, claim)
    terms = np.pad(chosen, (0, max_length - count))
    claim = (
        f"the scores of {sentence.tolist()} are not the log-probabilities that the model gives when it reads it at once"
    )
    if "token_scores" in outputs:
        subject.agree(outputs["token_scores"][0], terms, reading.bound, claim, "token_scores")
    if "scores" in outputs:
        subject.agree(outputs["scores"], chosen.sum(keepdims=True), count * reading.bound, claim, "scores")


@holds("greedy-after-the-end", source_seq=SOURCE_SEQ, max_length=LONGER, end=st.integers(0, 2), seed=SEED)
def nothing_follows_the_end(subject: Subject, source_seq: int, max_length: int, end: int, seed: int) -> None:
    """Require pad_id and a score of exactly 0 after eos_id."""
    arguments = end_sentence(subject, draw_call(subject, seed, source_seq, max_length=max_length), end)
    outputs = subject.call(arguments)
    [sentence] = outputs["ids"]
    count = count_words(sentence, arguments)
    if "token_scores" in outputs and np.any(outputs["token_scores"][0, count:] != 0):
        raise Violation(f"the places after the end of {sentence.tolist()} have a score other than 0")


@holds("greedy-end-in-a-batch", source_seq=SOURCE_SEQ, seed=SEED)
def an_end_is_final(subject: Subject, source_seq: int, seed: int) -> None:
    """Require pad_id after the end of each sentence, where one ends while the other goes on."""
    _, batch = draw_single_and_batch(subject, seed, source_seq, 1, max_length=4)
    for sentence in subject.output(batch):
        count_words(sentence, batch)


@holds("greedy-batch", source_seq=SOURCE_SEQ, max_length=LONGER, more=st.integers(1, 2), seed=SEED)
def neighbours_do_not_matter(subject: Subject, source_seq: int, max_length: int, more: int, seed: int) -> None:
    """Require that padding and a longer neighbour leave a sample's sentence as it is."""
    calls = draw_single_and_batch(subject, seed, source_seq, more, max_length=max_length)
    bound = subject.decisive_tolerance(calls[0], "scores")
    single, batch = (subject.call(call) for call in calls)
    claim = f"the sentence of a sample changes when {more} padding follows its source and a longer one is next to it"
    subject.agree(batch["ids"][1:], single["ids"], 0.0, claim)
    if "scores" in single:
        subject.agree(batch["scores"][1:], single["scores"], bound, claim.replace("sentence", "score"), "scores")

"""Properties of beam search."""

from __future__ import annotations

from dataclasses import replace

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

LENGTH, SOURCE_SEQ, SEED = st.integers(2, 3), st.integers(1, 3), st.integers(0, 999)
#: The place at which the best sentence of one beam is to end; the sentence may have no place 2.
END = st.integers(0, 2)
BEAM = {"beam_size": 2, "top_beams": 2}


def compute_penalty(subject: Subject, words: int) -> float:
    """Return the divisor of the sum of log-probabilities under the adapter's length penalty (BEAM-4)."""
    options: dict[str, float] = {"none": 1, "mean": words, "gnmt": ((5 + words) / 6) ** 0.6}
    return options[subject.options()["length_penalty"]]


@holds("beam-sentences", source_seq=SOURCE_SEQ, max_length=LENGTH, beam_size=st.integers(2, 4), end=END, seed=SEED)
def sentences_are_distinct_and_end(
    subject: Subject, source_seq: int, max_length: int, beam_size: int, end: int, seed: int
) -> None:
    """Require distinct sentences, each with nothing but pad_id after its end."""
    size = {"max_length": max_length, "beam_size": beam_size, "top_beams": beam_size}
    arguments = end_sentence(subject, draw_call(subject, seed, source_seq, **size), end)
    [sentences] = subject.output(arguments)
    if len({(count_words(row, arguments), *row.tolist()) for row in sentences}) < beam_size:
        raise Violation(f"the same sentence is returned twice: {sentences.tolist()}")


@holds("beam-teacher-forcing", source_seq=SOURCE_SEQ, max_length=st.just(3), end=END, seed=SEED)
def scores_are_those_of_the_sentences(subject: Subject, source_seq: int, max_length: int, end: int, seed: int) -> None:
    """Require that the model, reading a sentence at once, confirms its score, and that the best comes first."""
    arguments = draw_call(subject, seed, source_seq, max_length=max_length, **BEAM)
    arguments = end_sentence(subject, arguments, end)
    outputs = subject.call(arguments)
    expected, bound = [], 0.0
    for sentence in outputs["ids"][0]:
        count = count_words(sentence, arguments)
        reading = read_sentence(subject, arguments, sentence[:count])
        total = reading.log_probabilities[np.arange(count), sentence[:count]].sum()
        expected.append(total / compute_penalty(subject, count))
        bound = max(bound, count * reading.bound / compute_penalty(subject, count))
    scores = np.array(expected)
    claim = (
        f"the model that reads {outputs['ids'][0].tolist()} at once finds a later one more probable than an earlier one"
    )
    subject.agree(np.minimum.accumulate(scores), scores, bound, claim)
    if "scores" in outputs:
        claim = f"the scores of {outputs['ids'][0].tolist()} are not those of the model that reads them at once"
        subject.agree(outputs["scores"][0], scores, bound, claim, "scores")


@holds("beam-of-one", source_seq=SOURCE_SEQ, max_length=LENGTH, seed=SEED)
def one_beam_is_greedy(subject: Subject, source_seq: int, max_length: int, seed: int) -> None:
    """Require that beam_size 1 gives the sentence of greedy decoding."""
    beam = draw_call(subject, seed, source_seq, max_length=max_length, beam_size=1, top_beams=1)
    attributes = {name: value for name, value in beam.attributes.items() if name not in BEAM}
    greedy = replace(beam, attributes=attributes)
    subject.decisive_tolerance(greedy, "scores", component="greedy_decode")
    one, other = subject.output(beam)[:, 0], subject.call(greedy, "greedy_decode")["ids"]
    subject.agree(one, other, 0.0, "a beam of one gives another sentence than greedy decoding")


@holds("beam-batch", source_seq=SOURCE_SEQ, max_length=LENGTH, more=st.integers(1, 2), seed=SEED)
def neighbours_do_not_matter(subject: Subject, source_seq: int, max_length: int, more: int, seed: int) -> None:
    """Require that padding and a longer neighbour leave a sample's sentences as they are."""
    calls = draw_single_and_batch(subject, seed, source_seq, more, max_length=max_length, **BEAM)
    bound = subject.decisive_tolerance(calls[0], "scores")
    single, batch = (subject.call(call) for call in calls)
    claim = f"the sentences of a sample change when {more} padding follows its source and a longer one is next to it"
    subject.agree(batch["ids"][1:], single["ids"], 0.0, claim)
    if "scores" in single:
        subject.agree(batch["scores"][1:], single["scores"], bound, claim.replace("sentences", "scores"), "scores")

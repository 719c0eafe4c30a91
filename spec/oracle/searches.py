"""Decoding and other choices in numbers of any kind, with the proof that each choice was right.

Which words come next is decided on floats: a ball's midpoint, a draw's first sample. So each formula also gives
`gaps`: by how much the chosen exceeded the rejected, at every decision on which its result depends. From them
the derivation proves that each decision was right, and measures how much rounding it bears. Among equals the first
is chosen (DEC-6), or, to see whether that matters, the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.formulas.arrays import arithmetic, as_array, number, ratio
from goldformer.spec.formulas.sampling import note_gaps
from goldformer.spec.formulas.steps import instead, replacing
from goldformer.spec.formulas.transformer import decode, encode, log_softmax, output_logits, transformer

Objects = NDArray[Any]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Reader:
    """DEC-1: one sample of the source, read once, and the log-probabilities of the next word."""

    source: Ids
    bos_id: int
    num_decoder_layers: int
    model: Mapping[str, Any]
    memory: Objects

    @classmethod
    def of(cls, source: Ids, bos_id: int, num_encoder_layers: int, num_decoder_layers: int, **model: Any) -> Reader:
        """Read the source; `model` has num_heads, pad_id and params."""
        _, encoded = encode(source, num_layers=num_encoder_layers, **model)
        return cls(source, bos_id, num_decoder_layers, model, encoded["output"])

    def score_next(self, words: Sequence[int]) -> Objects:
        """Return the log-probability of every word of the vocabulary after these words."""
        read = np.array([[self.bos_id, *words]])
        _, decoded = decode(read, self.source, self.memory, num_layers=self.num_decoder_layers, **self.model)
        return log_softmax(output_logits(decoded, self.model["params"])[0, -1])


def greedy_decode(
    source: Ids, *, bos_id: int, eos_id: int, max_length: int, among_equals: str = "first", **model: Any
) -> dict[str, NDArray[Any]]:
    """DEC-2 … DEC-6: the best word at each step, until eos_id or max_length words."""
    ids = np.full((len(source), max_length), model["pad_id"])
    token_scores = arithmetic().numbers(np.zeros(ids.shape, dtype=int), np.float64)
    gaps: list[Any] = []
    for sample, sentence in enumerate(source):
        reader = Reader.of(sentence[None], bos_id, **model)
        words: list[int] = []
        while len(words) < max_length and eos_id not in words:
            terms = reader.score_next(words)
            best, *others = _sort_best_first(terms, among_equals)
            gaps += [terms[best] - terms[other] for other in others[:1]]
            ids[sample, len(words)], token_scores[sample, len(words)] = best, terms[best]
            words.append(best)
    return {"ids": ids, "scores": token_scores.sum(-1), "token_scores": token_scores, "gaps": _make_row(gaps)}


def teacher_forced(source: Ids, ids: Ids, *, bos_id: int, **model: Any) -> dict[str, Objects]:
    """DEC-1, DEC-5: the log-probability of every word at each place of given sentences, in one call of the model."""
    target = np.concatenate([np.full((len(ids), 1), bos_id), ids[:, :-1]], axis=1)
    return {"log_probabilities": log_softmax(transformer(source, target, **model)["logits"])}


@dataclass(frozen=True)
class Hypothesis:
    """The words of a sentence, the sum of their log-probabilities, and the score that ranks it."""

    words: tuple[int, ...]
    total: Any
    score: Any
    ended: bool = False


def penalise(total: Any, words: int, length_penalty: str) -> Any:
    """BEAM-4: compute the score of a hypothesis from its number of words and the sum of their log-probabilities."""
    if length_penalty == "mean":
        return as_array(total) / number(words)
    if length_penalty == "gnmt":
        return total / arithmetic().power(ratio(5 + words, 6), ratio(3, 5))
    return total


@dataclass(frozen=True)
class Search:
    """Beam search for one sample."""

    reader: Reader
    eos_id: int
    max_length: int
    beam_size: int
    length_penalty: str
    among_equals: str
    gaps: list[Any]

    def extend(self, hypothesis: Hypothesis) -> Iterator[Hypothesis]:
        """BEAM-1: append every word to a hypothesis, the lowest id first; one that has ended stays as it is."""
        if hypothesis.ended:
            yield hypothesis
            return
        for word, term in enumerate(self.reader.score_next(hypothesis.words)):
            words, total = (*hypothesis.words, word), hypothesis.total + term
            score = penalise(total, len(words), self.length_penalty)
            yield Hypothesis(words, total, score, word == self.eos_id)

    def search_in_beam(self) -> list[Hypothesis]:
        """BEAM-2: ended hypotheses keep their place as long as no other one is better."""
        beam = self._start()
        for step in range(self.max_length):
            if all(hypothesis.ended for hypothesis in beam):
                break
            beam = self._rank(after for hypothesis in beam for after in self.extend(hypothesis))
            # After the last word only the order matters.
            if step < self.max_length - 1:
                beam = self._keep_best(beam)
        return beam

    def search_set_aside(self) -> list[Hypothesis]:
        """BEAM-2: hypotheses that end among the best leave the beam, and beam_size of them end the search."""
        beam, aside = self._start(), list[Hypothesis]()
        for _ in range(self.max_length):
            ranked = self._rank(after for hypothesis in beam for after in self.extend(hypothesis))
            best, rest = ranked[: self.beam_size], ranked[self.beam_size :]
            # For hypotheses that end it matters whether they are among the best.
            self._record_gap([s for s in best if s.ended], rest)
            self._record_gap(best, [s for s in rest if s.ended])
            aside += [s for s in best if s.ended]
            if len(aside) >= self.beam_size:
                return self._rank(aside)
            beam = self._keep_best([s for s in ranked if not s.ended])
        return self._rank(aside + beam)

    def _start(self) -> list[Hypothesis]:
        zero = number(0)
        return [Hypothesis((), zero, zero)]

    def _rank(self, hypotheses: Iterable[Hypothesis]) -> list[Hypothesis]:
        """Sort best first; equals keep their order, the better hypothesis and the lower id first."""
        listed = list(hypotheses)
        return [listed[place] for place in _sort_best_first([s.score for s in listed], self.among_equals)]

    def _keep_best(self, ranked: list[Hypothesis]) -> list[Hypothesis]:
        self._record_gap(ranked[: self.beam_size], ranked[self.beam_size :])
        return ranked[: self.beam_size]

    def _record_gap(self, chosen: list[Hypothesis], rejected: list[Hypothesis]) -> None:
        """Record the gap between the last chosen and the first rejected hypothesis, if there are both."""
        self.gaps.extend(one.score - other.score for one, other in zip(chosen[-1:], rejected[:1], strict=False))

    def find_best(self, beam_finish: str, top_beams: int) -> list[Hypothesis]:
        """BEAM-3: search, and return the best hypotheses, best first."""
        found = self.search_in_beam() if beam_finish == "in_beam" else self.search_set_aside()
        if len(found) < top_beams:
            raise ValueError(f"top_beams is {top_beams}, but the search ends with {len(found)} sentences")
        for place in range(top_beams):
            self._record_gap(found[: place + 1], found[place + 1 :])
        return found[:top_beams]


def beam_search(
    source: Ids,
    *,
    bos_id: int,
    eos_id: int,
    max_length: int,
    beam_size: int,
    top_beams: int,
    beam_finish: str = "in_beam",
    length_penalty: str = "none",
    among_equals: str = "first",
    **model: Any,
) -> dict[str, NDArray[Any]]:
    """BEAM-1 … BEAM-5: the best beam_size extensions at each step, the best top_beams hypotheses at the end."""
    ids = np.full((len(source), top_beams, max_length), model["pad_id"])
    scores = arithmetic().numbers(np.zeros(ids.shape[:2], dtype=int), np.float64)
    gaps: list[Any] = []
    for sample, words in enumerate(source):
        reader = Reader.of(words[None], bos_id, **model)
        search = Search(reader, eos_id, max_length, beam_size, length_penalty, among_equals, gaps)
        for place, hypothesis in enumerate(search.find_best(beam_finish, top_beams)):
            ids[sample, place, : len(hypothesis.words)] = hypothesis.words
            scores[sample, place] = hypothesis.score
    return {"ids": ids, "scores": scores, "gaps": _make_row(gaps)}


def record_gaps(formula: Callable[..., dict[str, Objects]]) -> Callable[..., dict[str, Objects]]:
    """Return a formula that also gives by how much each of its comparisons was decided."""

    def run(*arguments: Any, **named: Any) -> dict[str, Objects]:
        gaps: list[Any] = []

        def note(differences: Objects, matters: Any = None) -> None:
            rows = range(len(differences)) if matters is None else np.flatnonzero(matters)
            gaps.extend(differences[row] for row in rows)

        with replacing({note_gaps: instead(note)}):
            outputs = formula(*arguments, **named)
        return {**outputs, "gaps": _make_row(gaps)}

    return run


def _sort_best_first(scores: Iterable[Any], among_equals: str) -> list[int]:
    """Return the places of the scores from the best to the worst."""
    falling = np.array([-float(score) for score in scores])
    if among_equals == "last":
        order = len(falling) - 1 - np.argsort(falling[::-1], kind="stable")
    else:
        order = np.argsort(falling, kind="stable")
    return [int(place) for place in order]


def _make_row(elements: list[Any]) -> Objects:
    row: Objects = np.empty(len(elements), dtype=object)
    row[:] = elements
    return row

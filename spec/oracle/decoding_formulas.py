"""The formulas of decoding; how they are written is told in formulas.py.

Which words come next is decided on floats: a ball's midpoint, a draw's first sample. So each formula also gives
`gaps`: by how much the chosen exceeded the rejected, at every decision on which its result depends. From them
the derivation proves that each decision was right, and measures how much rounding it bears.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.oracle.formulas import Number, Objects, numbers, scalar
from goldformer.spec.oracle.layer_formulas import Ids, Model, log_softmax, transformer


@dataclass(frozen=True)
class Reader:
    """DEC-1: one sample of the source, read once, and what may follow a beginning."""

    model: Model
    source: Ids
    bos_id: int
    memory: Objects = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", self.model.encode(self.model.embed(self.source), self.source))

    def following(self, words: Sequence[int]) -> Objects:
        """The log-probability of every word of the vocabulary after these."""
        read = np.array([[self.bos_id, *words]])
        decoded = self.model.decode(self.model.embed(read), read, self.memory, self.source)
        terms: Objects = log_softmax(self.model.number, self.model.logits(decoded[0, -1:]))[0]
        return terms


def greedy_decode(
    number: Number, source: Ids, *, bos_id: int, eos_id: int, max_length: int, **model: Any
) -> dict[str, NDArray[Any]]:
    """DEC-2 … DEC-6: the best word at each step, until eos_id or max_length words."""
    how = Model(number=number, **model)
    ids = np.full((len(source), max_length), how.pad_id)
    token_scores = numbers(number, np.zeros(ids.shape, dtype=int))
    gaps: list[Any] = []
    for sample, sentence in enumerate(source):
        reader = Reader(how, sentence[None], bos_id)
        words: list[int] = []
        while len(words) < max_length and eos_id not in words:
            terms = reader.following(words)
            best, *others = np.argsort(-terms.astype(np.float64), kind="stable").tolist()
            gaps += [terms[best] - terms[other] for other in others[:1]]
            ids[sample, len(words)], token_scores[sample, len(words)] = best, terms[best]
            words.append(best)
    return {"ids": ids, "scores": token_scores.sum(-1), "token_scores": token_scores, "gaps": _row(gaps)}


def teacher_forced(number: Number, source: Ids, ids: Ids, *, bos_id: int, **model: Any) -> dict[str, Objects]:
    """DEC-1, DEC-5: how probable every word was at each place of given sentences, read in one call of the model."""
    target = np.concatenate([np.full((len(ids), 1), bos_id), ids[:, :-1]], axis=1)
    return {"log_probabilities": log_softmax(number, transformer(number, source, target, **model)["logits"])}


@dataclass(frozen=True)
class Sentence:
    """Words, the sum of their log-probabilities, and what sentences are compared by."""

    words: tuple[int, ...]
    total: Any
    score: Any
    ended: bool = False


def penalised(number: Number, total: Any, words: int, length_penalty: str) -> Any:
    """BEAM-4: the score of a sentence of so many words, from the sum of their log-probabilities."""
    if length_penalty == "mean":
        return total / number(words)
    if length_penalty == "gnmt":
        root = np.log(scalar(number(5 + words) / number(6))) * (number(3) / number(5))
        return total / np.exp(scalar(root))
    return total


@dataclass(frozen=True)
class Search:
    """Beam search for one sample."""

    reader: Reader
    eos_id: int
    max_length: int
    beam_size: int
    length_penalty: str
    gaps: list[Any]

    def extended(self, sentence: Sentence) -> Iterator[Sentence]:
        """BEAM-1: the sentence with every word behind it, the lowest id first; one that has ended as it is."""
        if sentence.ended:
            yield sentence
            return
        number = self.reader.model.number
        for word, term in enumerate(self.reader.following(sentence.words)):
            words, total = (*sentence.words, word), sentence.total + term
            score = penalised(number, total, len(words), self.length_penalty)
            yield Sentence(words, total, score, word == self.eos_id)

    def in_beam(self) -> list[Sentence]:
        """BEAM-2: ended sentences keep their place as long as none is better."""
        beam = self._empty()
        for step in range(self.max_length):
            if all(sentence.ended for sentence in beam):
                break
            beam = _ranked(after for sentence in beam for after in self.extended(sentence))
            # After the last word the order alone decides what is returned.
            if step < self.max_length - 1:
                beam = self._best(beam)
        return beam

    def set_aside(self) -> list[Sentence]:
        """BEAM-2: what ends among the best leaves the beam, and beam_size of these end the search."""
        beam, aside = self._empty(), list[Sentence]()
        for _ in range(self.max_length):
            ranked = _ranked(after for sentence in beam for after in self.extended(sentence))
            best, rest = ranked[: self.beam_size], ranked[self.beam_size :]
            # Who is among the best matters for those that end.
            self._decided([s for s in best if s.ended], rest)
            self._decided(best, [s for s in rest if s.ended])
            aside += [s for s in best if s.ended]
            if len(aside) >= self.beam_size:
                return _ranked(aside)
            beam = self._best([s for s in ranked if not s.ended])
        return _ranked(aside + beam)

    def _empty(self) -> list[Sentence]:
        zero = self.reader.model.number(0)
        return [Sentence((), zero, zero)]

    def _best(self, ranked: list[Sentence]) -> list[Sentence]:
        self._decided(ranked[: self.beam_size], ranked[self.beam_size :])
        return ranked[: self.beam_size]

    def _decided(self, chosen: list[Sentence], rejected: list[Sentence]) -> None:
        """Record that the last of the chosen was preferred to the first of the rejected, if there are both."""
        self.gaps.extend(one.score - other.score for one, other in zip(chosen[-1:], rejected[:1], strict=False))

    def best(self, beam_finish: str, top_beams: int) -> list[Sentence]:
        """BEAM-3: the best of what is left, best first."""
        found = self.in_beam() if beam_finish == "in_beam" else self.set_aside()
        if len(found) < top_beams:
            raise ValueError(f"top_beams is {top_beams}, but the search ends with {len(found)} sentences")
        for place in range(top_beams):
            self._decided(found[: place + 1], found[place + 1 :])
        return found[:top_beams]


def beam_search(
    number: Number,
    source: Ids,
    *,
    bos_id: int,
    eos_id: int,
    max_length: int,
    beam_size: int,
    top_beams: int,
    beam_finish: str = "in_beam",
    length_penalty: str = "none",
    **model: Any,
) -> dict[str, NDArray[Any]]:
    """BEAM-1 … BEAM-5: the best beam_size extensions at each step, the best top_beams sentences at the end."""
    how = Model(number=number, **model)
    ids = np.full((len(source), top_beams, max_length), how.pad_id)
    scores = numbers(number, np.zeros(ids.shape[:2], dtype=int))
    gaps: list[Any] = []
    for sample, words in enumerate(source):
        search = Search(Reader(how, words[None], bos_id), eos_id, max_length, beam_size, length_penalty, gaps)
        for place, sentence in enumerate(search.best(beam_finish, top_beams)):
            ids[sample, place, : len(sentence.words)] = sentence.words
            scores[sample, place] = sentence.score
    return {"ids": ids, "scores": scores, "gaps": _row(gaps)}


def _ranked(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Best first; DEC-6: equals stay as they come, those of the better sentence and of lower ids before others."""
    return sorted(sentences, key=lambda sentence: -float(sentence.score))


def _row(elements: list[Any]) -> Objects:
    row: Objects = np.empty(len(elements), dtype=object)
    row[:] = elements
    return row

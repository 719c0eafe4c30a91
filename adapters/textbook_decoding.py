"""The sixth part of the textbook: greedy decoding and beam search, over lists of sentences.

The whole model reads one source and the whole beginning of one sentence for every word. A sentence is a tuple
of words and a tuple of their log-probabilities, so nothing has to be reordered, and a sentence that has ended is
simply left as it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np

from goldformer.adapters.textbook_checks import Array, at_least_one, axis_sizes, check_ids
from goldformer.adapters.textbook_layers import Params
from goldformer.adapters.textbook_model import TRANSFORMER, TextbookModel

# The axes of arguments, as axis_sizes reads them: those of the model, which makes its target itself.
DECODING: Final = {name: axes for name, axes in TRANSFORMER.items() if name != "target"}


@dataclass(frozen=True, slots=True)
class Sentence:
    """What was written so far: the words after bos_id, and what each adds to the score."""

    words: tuple[int, ...] = ()
    word_scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """What does not change during a call; `model` is what `transformer` takes besides source and target."""

    model: Mapping[str, Any]
    bos_id: int
    eos_id: int
    max_length: int
    beam_size: int = 1
    top_beams: int = 1

    @property
    def pad_id(self) -> int:
        """The model's id of padding, which fills the places after the end."""
        return int(self.model["pad_id"])


def check_task(source: Array, task: Task) -> None:
    """Raise unless source and attributes are such that decoding can begin; the model checks the rest."""
    vocab = axis_sizes(DECODING, source=source, **task.model["params"])["vocab"]
    check_ids("source", source, vocab, "the rows of table")
    check_ids("bos_id", np.asarray(task.bos_id), vocab, "the rows of table")
    check_ids("eos_id", np.asarray(task.eos_id), vocab, "the rows of table")
    at_least_one("max_length", task.max_length, "a sentence has at least one word")
    at_least_one("beam_size", task.beam_size, "a beam keeps at least one sentence")
    at_least_one("top_beams", task.top_beams, "at least one sentence is returned")
    if task.top_beams > task.beam_size:
        raise ValueError(f"top_beams: {task.top_beams}, but the beam keeps only {task.beam_size} (beam_size)")


class TextbookDecoding(TextbookModel):
    """Greedy decoding and beam search under the default conventions, `in_beam` and `none`."""

    # Greedy decoding

    def greedy_decode(
        self,
        source: Array,
        *,
        num_heads: int,
        num_encoder_layers: int,
        num_decoder_layers: int,
        pad_id: int,
        bos_id: int,
        eos_id: int,
        max_length: int,
        params: Params,
    ) -> dict[str, Array]:
        """Return ids (batch, max_length), scores (batch,) and token_scores (batch, max_length)."""
        layers = {"num_encoder_layers": num_encoder_layers, "num_decoder_layers": num_decoder_layers}
        model = {"num_heads": num_heads, "pad_id": pad_id, "params": params, **layers}
        task = Task(model, bos_id, eos_id, max_length)
        check_task(source, task)
        sentences = self.batched([self.greedy_sentence(source[[sample]], task) for sample in range(len(source))])
        dtype = params["table"].dtype
        return {
            "ids": np.array([self.filled(self.result(s, task), task.pad_id, task) for s in sentences], dtype=np.int64),
            "scores": np.array([self.total(s) for s in sentences], dtype=dtype),
            "token_scores": np.array([self.filled(s.word_scores, 0, task) for s in sentences], dtype=dtype),
        }

    def greedy_sentence(self, source: Array, task: Task) -> Sentence:
        """Return the sentence that takes the best word at each step, for a source (1, source_seq)."""
        sentence = Sentence()
        while not (self.ended(sentence, task) or self.full(sentence, task)):
            logits = self.next_logits(source, sentence, task)
            word = self.choice(logits)
            sentence = self.extended(sentence, word, self.scores_of_words(logits)[word])
        return sentence

    def batched(self, sentences: list[Sentence]) -> list[Sentence]:
        """Return the sentences of a batch, given those of its samples alone: just these (DEC-4)."""
        return sentences

    def choice(self, logits: Array) -> int:
        """Return the word of the largest logit, and of several the lowest id."""
        return int(logits.argmax())

    # One step

    def next_logits(self, source: Array, sentence: Sentence, task: Task) -> Array:
        """Return the logits of the words that may come next, (vocab,), for a source (1, source_seq)."""
        target = np.array([self.read(sentence, task)], dtype=np.int64)
        return np.asarray(self.model_logits(source, target, task)[0, -1])

    def read(self, sentence: Sentence, task: Task) -> list[int]:
        """Return what the decoder reads: bos_id, and after it every word so far (DEC-1)."""
        return [task.bos_id, *sentence.words]

    def model_logits(self, source: Array, target: Array, task: Task) -> Array:
        """Return the logits (batch, seq, vocab) of the model as it is, masks and positions included."""
        return self.transformer(source, target, **task.model)["logits"]

    def scores_of_words(self, logits: Array) -> list[float]:
        """Return what each word adds to the score: its log-probability (DEC-5)."""
        # In float64, as words of different logits must not become equals: one beam is greedy decoding (BEAM-5).
        return [float(score) for score in self.log_probabilities(logits.astype(np.float64))]

    def extended(self, sentence: Sentence, word: int, score: float) -> Sentence:
        """Return the sentence with one word more."""
        return Sentence((*sentence.words, word), (*sentence.word_scores, score))

    def ended(self, sentence: Sentence, task: Task) -> bool:
        """Say whether the last word is eos_id."""
        return sentence.words[-1:] == (task.eos_id,)

    def full(self, sentence: Sentence, task: Task) -> bool:
        """Say whether the sentence has max_length words; bos_id is none of them."""
        return len(sentence.words) >= task.max_length

    def total(self, sentence: Sentence) -> float:
        """Return the sum of what the words add to the score, eos_id included."""
        return sum(sentence.word_scores)

    # Results

    def result(self, sentence: Sentence, task: Task) -> Sequence[int]:
        """Return the words that are given back: all, eos_id included and bos_id not."""
        del task
        return sentence.words

    def filled(self, values: Sequence[float], fill: int, task: Task) -> list[float]:
        """Return the values and, in the places after them, the fill."""
        return [*values, *[fill] * (task.max_length - len(values))]

    # Beam search

    def beam_search(
        self,
        source: Array,
        *,
        num_heads: int,
        num_encoder_layers: int,
        num_decoder_layers: int,
        pad_id: int,
        bos_id: int,
        eos_id: int,
        max_length: int,
        beam_size: int,
        top_beams: int,
        params: Params,
    ) -> dict[str, Array]:
        """Return ids (batch, top_beams, max_length) and scores (batch, top_beams), best first."""
        layers = {"num_encoder_layers": num_encoder_layers, "num_decoder_layers": num_decoder_layers}
        model = {"num_heads": num_heads, "pad_id": pad_id, "params": params, **layers}
        task = Task(model, bos_id, eos_id, max_length, beam_size, top_beams)
        check_task(source, task)
        beams = self.search(source, task)
        found = [self.best(beam, task) for beam in beams]
        ids = [[self.filled(self.result(s, task), task.pad_id, task) for s in sentences] for sentences in found]
        scores = self.returned_scores(found, beams, task)
        return {"ids": np.array(ids, dtype=np.int64), "scores": np.array(scores, dtype=params["table"].dtype)}

    def search(self, source: Array, task: Task) -> list[list[Sentence]]:
        """Return the sentences that are left of every sample, which take their steps together."""
        beams = [self.first_beam(task) for _ in source]
        while not all(self.over(beam, task) for beam in beams):
            grown = [self.grown(source, sample, beam, task) for sample, beam in enumerate(beams)]
            beams = self.next_beams(beams, grown, task)
        return beams

    def first_beam(self, task: Task) -> list[Sentence]:
        """Return the one empty sentence, whatever the beam's size (BEAM-1)."""
        del task
        return [Sentence()]

    def over(self, beam: list[Sentence], task: Task) -> bool:
        """Say whether every sentence that is kept has ended or has max_length words."""
        return all(self.ended(sentence, task) or self.full(sentence, task) for sentence in beam)

    def grown(self, source: Array, sample: int, beam: list[Sentence], task: Task) -> list[list[Sentence]]:
        """Return what each sentence of a beam may become; a sample that is over waits for the others."""
        if self.over(beam, task):
            return [[sentence] for sentence in beam]
        sources = (self.source_of(source, sample, place, task) for place in range(len(beam)))
        return [self.continuations(own, sentence, task) for own, sentence in zip(sources, beam, strict=True)]

    def source_of(self, source: Array, sample: int, place: int, task: Task) -> Array:
        """Return the source (1, source_seq) of a sentence, by its sample and its place in the beam."""
        del place, task
        return source[[sample]]

    def continuations(self, source: Array, sentence: Sentence, task: Task) -> list[Sentence]:
        """Return what a sentence may become: once it has ended itself, before that every extension."""
        return [sentence] if self.ended(sentence, task) else self.extensions(source, sentence, task)

    def extensions(self, source: Array, sentence: Sentence, task: Task) -> list[Sentence]:
        """Return the sentence with each word of the vocabulary, in the order of ids."""
        scores = self.scores_of_words(self.next_logits(source, sentence, task))
        return [self.extended(sentence, word, score) for word, score in enumerate(scores)]

    def next_beams(
        self, beams: list[list[Sentence]], grown: list[list[list[Sentence]]], task: Task
    ) -> list[list[Sentence]]:
        """Return the next beam of every sample: that of each alone (DEC-4)."""
        return [self.next_beam(beam, own, task) for beam, own in zip(beams, grown, strict=True)]

    def next_beam(self, beam: list[Sentence], grown: list[list[Sentence]], task: Task) -> list[Sentence]:
        """Return the best beam_size of all, given what each sentence of the beam may become."""
        del beam
        return self.ranked(chain.from_iterable(grown), task)[: task.beam_size]

    def best(self, beam: list[Sentence], task: Task) -> list[Sentence]:
        """Return the best top_beams of the sentences that are left, best first."""
        if len(beam) < task.top_beams:
            raise ValueError(
                f"top_beams: {task.top_beams}, but of sentences of at most {task.max_length} words (max_length) "
                f"there are only {len(beam)}"
            )
        return self.ranked(beam, task)[: task.top_beams]

    def returned_scores(
        self, found: list[list[Sentence]], beams: list[list[Sentence]], task: Task
    ) -> list[list[float]]:
        """Return the scores of the sentences found: those by which they were compared, whatever beams they left."""
        del beams
        return [[self.score(sentence, task) for sentence in sentences] for sentences in found]

    # What sentences are compared by

    def ranked(self, sentences: Iterable[Sentence], task: Task) -> list[Sentence]:
        """Return the sentences best first, and equals in the order in which they come (DEC-6)."""
        return sorted(sentences, key=lambda sentence: -self.score(sentence, task))

    def score(self, sentence: Sentence, task: Task) -> float:
        """Return the sum of the log-probabilities, divided by the length penalty."""
        return self.total(sentence) / self.length_penalty(self.penalised_length(sentence, task))

    def penalised_length(self, sentence: Sentence, task: Task) -> int:
        """Return the number of the sentence's own words, eos_id included and bos_id not."""
        del task
        return len(sentence.words)

    def length_penalty(self, length: int) -> float:
        """Return 1: sentences are compared by their sums (BEAM-4)."""
        del length
        return 1.0

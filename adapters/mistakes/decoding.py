"""Mistakes of greedy decoding and of beam search."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from goldformer.adapters.mistakes.differentiation import DifferentiatedTextbook as Textbook
from goldformer.adapters.mistakes.registry import mistake
from goldformer.adapters.textbook_checks import Array
from goldformer.adapters.textbook_decoding import Sentence, Task
from goldformer.adapters.textbook_layers import Params


def with_model(book: Textbook, model: type[Textbook]) -> Textbook:
    """Return the book with the steps of `model` instead of its own, and otherwise as it is."""
    made: Textbook = type(model.__name__, (model, type(book)), {})()
    return made


# What is read


@mistake("decode-no-feedback")
class BosAlone(Textbook):
    """The decoder reads bos_id alone at every step."""

    def read(self, sentence: Sentence, task: Task) -> list[int]:
        return [task.bos_id]


class InvertedMasks(Textbook):
    """A model that hides the words of the source and not its padding."""

    def source_mask(self, source: Array, pad_id: int) -> Array | None:
        return ~self.words_mask(source, pad_id)

    def memory_mask(self, source: Array, target: Array, pad_id: int) -> Array | None:
        return ~self.words_mask(source, pad_id)


@mistake("decode-inverted-mask")
class DecodesWithInvertedMasks(Textbook):
    """Decoding inverts the masks of the source, which are right when the model is called by itself."""

    def model_logits(self, source: Array, target: Array, task: Task) -> Array:
        return with_model(self, InvertedMasks).transformer(source, target, **task.model)["logits"]


class TargetAtPositionZero(Textbook):
    """A model that gives every word of the target the position 0."""

    def embedded(self, ids: Array, side: str, pad_id: int, params: Params) -> Array:
        if side == "source":
            return super().embedded(ids, side, pad_id, params)
        words = np.split(ids, ids.shape[1], axis=1)
        return np.concatenate([super(TargetAtPositionZero, self).embedded(w, side, pad_id, params) for w in words], 1)


@mistake("decode-cache-offset")
class PositionsStartAnew(Textbook):
    """Each word is read at position 0, as behind a cache whose length is not added."""

    def model_logits(self, source: Array, target: Array, task: Task) -> Array:
        return with_model(self, TargetAtPositionZero).transformer(source, target, **task.model)["logits"]


# Where a sentence ends, and what is returned


@mistake("decode-max-length-off-by-one")
class OneWordShort(Textbook):
    """A sentence is full when bos_id and its words are max_length together."""

    def full(self, sentence: Sentence, task: Task) -> bool:
        return len(sentence.words) + 1 >= task.max_length


@mistake("decode-bos-kept")
class BosKept(OneWordShort):
    """What was read is returned: bos_id is the first of max_length words."""

    def result(self, sentence: Sentence, task: Task) -> Sequence[int]:
        return (task.bos_id, *super().result(sentence, task))


@mistake("greedy-no-eos")
class NoEos(Textbook):
    """No word ends a sentence."""

    def ended(self, sentence: Sentence, task: Task) -> bool:
        return False


@mistake("greedy-eos-dropped")
class EosDropped(Textbook):
    """The result lacks eos_id."""

    def result(self, sentence: Sentence, task: Task) -> Sequence[int]:
        return [word for word in super().result(sentence, task) if word != task.eos_id]


@mistake("batch-eos")
class AllStopWithTheFirst(Textbook):
    """All sentences of a batch are as long as the one that ends first."""

    def batched(self, sentences: list[Sentence]) -> list[Sentence]:
        first = min(len(sentence.words) for sentence in sentences)
        return [Sentence(sentence.words[:first], sentence.word_scores[:first]) for sentence in sentences]


# The score of greedy decoding


@mistake("decode-score-probability")
class ProbabilitiesSummed(Textbook):
    """A word adds its probability to the score."""

    def scores_of_words(self, logits: Array) -> list[float]:
        return [float(score) for score in self.softmax(logits.astype(np.float64))]


@mistake("decode-score-logits")
class LogitsSummed(Textbook):
    """A word adds its logit to the score."""

    def scores_of_words(self, logits: Array) -> list[float]:
        return [float(score) for score in logits]


@mistake("decode-score-after-end")
class ScoreAfterEnd(NoEos):
    """Words are written and scored up to max_length, and those behind eos_id are cut off in the end."""

    def result(self, sentence: Sentence, task: Task) -> Sequence[int]:
        words = super().result(sentence, task)
        return words[: [*words, task.eos_id].index(task.eos_id) + 1]


# The beam


@mistake("beam-first-step-duplicates")
class BeginsWithCopies(Textbook):
    """The beam begins with beam_size empty sentences."""

    def first_beam(self, task: Task) -> list[Sentence]:
        return super().first_beam(task) * task.beam_size


@mistake("beam-per-parent")
class BestOfEachParent(Textbook):
    """After the first step each sentence is followed by its own best extension."""

    def next_beam(self, beam: list[Sentence], grown: list[list[Sentence]], task: Task) -> list[Sentence]:
        if len(beam) == 1:
            return super().next_beam(beam, grown, task)
        return self.ranked([self.ranked(own, task)[0] for own in grown], task)


def misplaced(book: Textbook, chosen: Sentence, before: Sentence, task: Task) -> Sentence:
    """Return a sentence that the chosen one does not continue with the last word of the chosen one, and its scores.

    A word behind the end of a sentence is not seen.
    """
    return replace(chosen, words=before.words if book.ended(before, task) else (*before.words, chosen.words[-1]))


@mistake("beam-worst-kept")
class WorstKept(Textbook):
    """Of all extensions the beam_size least probable are kept."""

    def next_beam(self, beam: list[Sentence], grown: list[list[Sentence]], task: Task) -> list[Sentence]:
        return self.ranked([sentence for own in grown for sentence in own], task)[-task.beam_size :]


@mistake("beam-parent-stale")
class ParentStale(Textbook):
    """Words are appended place by place, though scores are those of the extensions."""

    def next_beam(self, beam: list[Sentence], grown: list[list[Sentence]], task: Task) -> list[Sentence]:
        chosen = super().next_beam(beam, grown, task)
        # The first step finds one sentence, which is in all places.
        return [misplaced(self, s, beam[min(place, len(beam) - 1)], task) for place, s in enumerate(chosen)]


@mistake("beam-batch-index")
class WordsOfTheFirstSample(Textbook):
    """Words are appended to the sentences of the first sample, whose places come first in a flat batch."""

    def next_beams(
        self, beams: list[list[Sentence]], grown: list[list[list[Sentence]]], task: Task
    ) -> list[list[Sentence]]:
        chosen = super().next_beams(beams, grown, task)
        parents = [[parent(s, own) for s in beam] for beam, own in zip(chosen, grown, strict=True)]
        first = [[beams[0][min(place, len(beams[0]) - 1)] for place in places] for places in parents]
        return [
            [misplaced(self, s, before, task) for s, before in zip(beam, others, strict=True)]
            for beam, others in zip(chosen, first, strict=True)
        ]


def parent(chosen: Sentence, grown: list[list[Sentence]]) -> int:
    """Return the place of the sentence that became the chosen one."""
    return next(place for place, own in enumerate(grown) if any(chosen is one for one in own))


@mistake("beam-source-order")
class SourcesInTheWrongOrder(Textbook):
    """The batch is repeated as a whole, beam_size times, instead of each source."""

    def source_of(self, source: Array, sample: int, place: int, task: Task) -> Array:
        return source[[(sample * task.beam_size + place) % len(source)]]


# The end of a search


@mistake("beam-finished-expand")
class FinishedExpanded(Textbook):
    """A sentence that has ended is extended as any other."""

    def continuations(self, source: Array, sentence: Sentence, task: Task) -> list[Sentence]:
        return self.extensions(source, sentence, task)


@mistake("beam-stop-early")
class StopsEarly(Textbook):
    """The search is over when the best sentence has ended."""

    def over(self, beam: list[Sentence], task: Task) -> bool:
        return self.ended(beam[0], task) or super().over(beam, task)


@mistake("beam-unsorted")
class WorstFirst(Textbook):
    """The best top_beams sentences are returned in ascending order."""

    def best(self, beam: list[Sentence], task: Task) -> list[Sentence]:
        return super().best(beam, task)[::-1]


# The score of a beam


@mistake("beam-no-log-sum")
class LastWordCounts(Textbook):
    """Sentences are compared by what their last word adds."""

    def score(self, sentence: Sentence, task: Task) -> float:
        return super().score(replace(sentence, word_scores=sentence.word_scores[-1:]), task)


class MeanPenalty(Textbook):
    """The right textbook under the option mean of the length penalty: without a penalty none can be wrong."""

    CONVENTIONS = {"length_penalty": "mean"}  # noqa: RUF012 - as adapters declare it

    def length_penalty(self, length: int) -> float:
        return float(length)


@mistake("beam-penalty-step")
class PenaltyOfTheStep(MeanPenalty):
    """All sentences have the penalty of the step, in the end that of the last one taken."""

    def penalised_length(self, sentence: Sentence, task: Task) -> int:
        return task.max_length

    def returned_scores(
        self, found: list[list[Sentence]], beams: list[list[Sentence]], task: Task
    ) -> list[list[float]]:
        steps = max(len(sentence.words) for beam in beams for sentence in beam)
        # Within a step a penalty that is the same for all changes no order: until here any would do.
        return super().returned_scores(found, beams, replace(task, max_length=steps))


@mistake("beam-penalty-bos-counted")
class PenaltyOfBosToo(MeanPenalty):
    """The penalty counts bos_id as a word."""

    def penalised_length(self, sentence: Sentence, task: Task) -> int:
        return super().penalised_length(sentence, task) + 1

"""Decoding: words that are read at another place or not at all, as with a cache, and other scores, ends and beams.

What is wrong in the whole model while it decodes is among the model's own neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from itertools import chain, product
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.mistakes.decoding import repeat_sources_as_whole
from goldformer.conformance.diagnosis.neighbours.arguments import change_array, change_result
from goldformer.conformance.diagnosis.neighbours.neighbour import Neighbour
from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.decoding import (
    Sentence,
    Task,
    append_word,
    beam_search,
    continue_sentence,
    decoder_input,
    extend_beam,
    extend_sentence,
    greedy_decode,
    greedy_sentences,
    has_ended,
    is_over,
    length_penalty,
    model_logits,
    next_beam,
    next_beams,
    next_logits,
    pad_words,
    penalty_length,
    return_best,
    score_words,
    search_beams,
    select_best,
    sentence_score,
    total_score,
)
from goldformer.spec.formulas.steps import Replacements, Step, around, hold, instead, replacing
from goldformer.spec.formulas.transformer import embed_target, memory_mask, target_mask, word_mask

_GREEDY: Final = "greedy_decode"
_BEAM: Final = "beam_search"


# What the decoder reads


def _change_in_decoding(steps: Replacements) -> Replacements:
    """Return the change of a model that is made while it decodes, and not where it is called by itself."""

    def run(original: Step, *args: Any, **named: Any) -> Any:
        with replacing(steps):
            return original(*args, **named)

    return {model_logits: around(run)}


def _place_words(original: Step, target: Array, pad_id: int, params: Any, *, place: Callable[[int], int]) -> Array:
    """Embed each word of the target at another position, at most the last one if positions are learned."""
    last = len(params["position_table"]) - 1 if "position_table" in params else None

    def embed(index: int) -> Array:
        position = place(index) if last is None else min(place(index), last)
        repeated = np.repeat(target[:, index : index + 1], position + 1, axis=1)
        return as_array(original(repeated, pad_id, params)[:, -1:])

    return np.concatenate([embed(index) for index in range(target.shape[1])], axis=1)


def _keep_band(count: int) -> Callable[[Array], Array]:
    """Return a mask that shows each word itself and the ones before it, `count` in all."""

    def hide(mask: Array) -> Array:
        distance = np.arange(mask.shape[-2])[:, None] - np.arange(mask.shape[-1])
        return as_array(mask & (distance < count))

    return hide


def _hide_first(mask: Array) -> Array:
    """Hide the first word from those after it."""
    later = np.arange(mask.shape[-2])[:, None] > 0
    return as_array(mask & ~(later & (np.arange(mask.shape[-1]) == 0)))


def _change_reading() -> Iterator[Neighbour]:
    places: tuple[tuple[str, str, Callable[[int], int]], ...] = (
        ("one-more", "every word is read one position too far, bos_id at position 1", lambda t: t + 1),
        ("one-more-after-bos", "every word but bos_id is read one position too far", lambda t: t + (t > 0)),
        ("one-less", "every word is read one position too early, the first one at that of bos_id",
         lambda t: max(t - 1, 0)),
    )  # fmt: skip
    for word, title, place in places:
        yield Neighbour(
            f"{_GREEDY}.position.{word}", title,
            "bos_id has position 0 and the word of step t position t + 1, also when a cache holds those before.",
            _change_in_decoding({embed_target: around(partial(_place_words, place=place))}),
        )  # fmt: skip
    masks: tuple[tuple[str, str, Callable[[Array], Array]], ...] = (
        ("last-two", "each word sees only itself and the one before it, as where the cache keeps one step",
         _keep_band(2)),
        ("itself", "each word sees only itself, as where the cache keeps nothing", _keep_band(1)),
        ("without-bos", "the words after bos_id do not see it, as where it is not in the cache", _hide_first),
    )  # fmt: skip
    for word, title, hide in masks:
        yield Neighbour(
            f"{_GREEDY}.sees.{word}", title,
            "Append the keys and values of every word to those of all words before it.",
            _change_in_decoding({target_mask: change_array(hide)}),
        )  # fmt: skip

    def show_padding(original: Step, target: Array, pad_id: int) -> Array:
        seen = np.ones_like(target, dtype=np.bool_)[:, None, None, :]
        with replacing({word_mask: instead(lambda *_: seen)}):
            return as_array(original(target, pad_id))

    yield Neighbour(
        f"{_GREEDY}.sees.padding", "a chosen word that is pad_id is seen by the words after it",
        "The model hides pad_id from its self-attention, also among the words that it wrote itself.",
        _change_in_decoding({target_mask: around(show_padding)}),
    )  # fmt: skip

    yield Neighbour(
        f"{_GREEDY}.reads.bos", "every word is read as bos_id, and a cache holds as many of it",
        "Read the word that was chosen last.",
        {decoder_input: instead(lambda sentence, task: [task.bos_id] * (len(sentence.words) + 1))},
    )  # fmt: skip

    def read_logits(original: Step, source: Array, target: Array, task: Task, *, at: int) -> Array:
        logits = original(source, target, task)
        return as_array(logits[:, [at if -at <= logits.shape[1] else 0]])

    for at, which in ((0, "first"), (-2, "last but one")):
        yield Neighbour(
            f"{_GREEDY}.logits-at.{at}", f"the next word is chosen by the logits at the {which} position",
            "Take the logits at the last position that was read.", {model_logits: around(partial(read_logits, at=at))},
        )  # fmt: skip


# What a word and a sentence score


def _change_scores() -> Iterator[Neighbour]:
    hint = "The score is the sum of the natural logarithms of the words' probabilities, eos_id included."

    def scale(factor: float) -> Callable[[Sequence[float]], list[float]]:
        return lambda scores: [factor * score for score in scores]

    factors = (
        ("base-2", "logarithms to base 2", 1 / math.log(2)),
        ("base-10", "logarithms to base 10", 1 / math.log(10)),
        ("negated", "negative log-probabilities", -1.0),
    )
    for word, words, factor in factors:
        yield Neighbour(
            f"{_GREEDY}.score.{word}", f"the score sums {words}", hint, {score_words: change_result(scale(factor))}
        )

    def drop_last(original: Step, source: Array, task: Task, *, only_eos: bool) -> list[Sentence]:
        sentences = original(source, task)
        return [
            replace(s, word_scores=(*s.word_scores[:-1], 0.0)) if has_ended(s, task) or not only_eos else s
            for s in sentences
        ]

    for only_eos, words in ((True, "eos_id"), (False, "the last word")):
        yield Neighbour(
            f"{_GREEDY}.score.without-{'eos' if only_eos else 'last'}",
            f"the log-probability of {words} is missing in the score", hint,
            {greedy_sentences: around(partial(drop_last, only_eos=only_eos))},
        )  # fmt: skip
    yield from _score_after_end(hint)
    totals: tuple[tuple[str, str, Callable[[Array, Array], Array]], ...] = (
        ("mean", "is divided by the number of its words", lambda s, terms: s / np.maximum((terms != 0).sum(-1), 1)),
        ("mean-of-max-length", "is divided by max_length", lambda s, terms: s / terms.shape[-1]),
        ("probability", "is its probability, not the logarithm of it", lambda s, _: np.exp(s)),
    )
    for word, says, change in totals:

        def rate(original: Step, *args: Any, change: Any = change, **named: Any) -> dict[str, Array]:
            found = original(*args, **named)
            scores = found["scores"]
            return {**found, "scores": as_array(change(scores, found["token_scores"])).astype(scores.dtype)}

        yield Neighbour(
            f"{_GREEDY}.total.{word}", f"the score of a sentence {says}", hint, {greedy_decode: around(rate)}
        )


def _score_after_end(hint: str) -> Iterator[Neighbour]:
    """Yield scores that go on after the end, where pad_id is read: those of the best word or of pad_id."""

    def go_on(original: Step, source: Array, task: Task, *, of_pad: bool, to_max: bool) -> list[Sentence]:
        sentences = original(source, task)
        last = task.max_length if to_max else max(len(s.words) for s in sentences)
        return [count(source[[sample]], s, task, last, of_pad=of_pad) for sample, s in enumerate(sentences)]

    def count(source: Array, sentence: Sentence, task: Task, last: int, *, of_pad: bool) -> Sentence:
        while len(sentence.words) < last:
            scores = score_words(next_logits(source, sentence, task))
            if not 0 <= task.pad_id < len(scores):
                break
            sentence = append_word(sentence, task.pad_id, scores[task.pad_id] if of_pad else max(scores))
        return sentence

    for (what, words), (end, until) in product(
        (("best", "the best word"), ("pad", "pad_id")),
        (("max-length", "up to max_length"), ("longest", "until all samples have ended")),
    ):
        yield Neighbour(
            f"{_GREEDY}.score.after-end.{what}.{end}",
            f"after the end pad_id is read, and the score counts {words} of every step {until}",
            f"{hint} Add 0 for every step after eos_id.",
            {greedy_sentences: around(partial(go_on, of_pad=what == "pad", to_max=end == "max-length"))},
        )  # fmt: skip


# Where sentences end


def _change_ends() -> Iterator[Neighbour]:
    fills: tuple[tuple[str, str, Callable[[Task], int]], ...] = (
        ("eos", "eos_id", lambda task: task.eos_id),
        ("bos", "bos_id", lambda task: task.bos_id),
        ("zero", "0", lambda _: 0),
    )
    for component, (word, words, choose) in product((_GREEDY, _BEAM), fills):

        def fill(original: Step, sentence: Sentence, task: Task, choose: Any = choose) -> list[float]:
            written = original(sentence, task)
            rest = task.max_length - len(sentence.words)
            return [*written[: len(written) - rest], *[choose(task)] * rest] if rest > 0 else written

        yield Neighbour(
            f"{component}.filled-with.{word}", f"the places after the end hold {words} instead of pad_id",
            "Fill up with pad_id.", {pad_words: around(fill)},
        )  # fmt: skip

    def leave_out_end(original: Step, source: Array, task: Task) -> list[Sentence]:
        return [Sentence(s.words[:-1], s.word_scores[:-1]) if has_ended(s, task) else s for s in original(source, task)]

    yield Neighbour(
        f"{_GREEDY}.end-left-out", "eos_id is neither returned nor scored: its place holds pad_id",
        "Write eos_id and add its log-probability, and only then end the sentence.",
        {greedy_sentences: around(leave_out_end)},
    )  # fmt: skip

    def leave_out_last(original: Step, sentence: Sentence, task: Task) -> list[float]:
        return list(original(replace(sentence, words=sentence.words[:-1]), task))

    for component in (_GREEDY, _BEAM):
        yield Neighbour(
            f"{component}.last-word-left-out",
            "the last word of every sentence is missing in the result, be it eos_id or not",
            "Return eos_id too, and max_length words where a sentence has not ended, bos_id not counted.",
            {pad_words: around(leave_out_last)},
        )  # fmt: skip


# The beam


def _change_beams() -> Iterator[Neighbour]:
    hint = "Of all extensions, and the sentences that have ended, the best beam_size are kept."

    def drop_ended(original: Step, beam: list[Sentence], extensions: Any, task: Task) -> list[Sentence]:
        going = [own for sentence, own in zip(beam, extensions, strict=True) if not has_ended(sentence, task)]
        return list(original(beam, going, task)) if going else beam

    def extend_best(original: Step, source: Array, sample: int, beam: list[Sentence], task: Task) -> Any:
        extended = original(source, sample, beam, task)
        return [
            own if rank == 0 else [sentence] for rank, (sentence, own) in enumerate(zip(beam, extended, strict=True))
        ]

    def extend_best_alone(original: Step, source: Array, sample: int, beam: list[Sentence], task: Task) -> Any:
        return original(source, sample, beam[:1], task)

    def stop_with_any(original: Step, beam: list[Sentence], task: Task) -> bool:
        return any(has_ended(sentence, task) for sentence in beam) or original(beam, task)

    def keep_one_end(original: Step, beam: list[Sentence], extensions: Any, task: Task) -> list[Sentence]:
        kept = original(beam, extensions, replace(task, beam_size=10**6))
        ended = [s for s in kept if has_ended(s, task)]
        return [s for s in kept if s not in ended[1:]][: task.beam_size]

    def repeat_ended(original: Step, beam: list[Sentence], extensions: Any, task: Task) -> list[Sentence]:
        repeated = [
            list(own) * (task.beam_size if has_ended(sentence, task) else 1)
            for sentence, own in zip(beam, extensions, strict=True)
        ]
        return list(original(beam, repeated, task))

    def keep_one_more(original: Step, beam: list[Sentence], extensions: Any, task: Task) -> list[Sentence]:
        return list(original(beam, extensions, replace(task, beam_size=task.beam_size + 1)))

    ways: tuple[tuple[str, str, Replacements], ...] = (
        ("ended-dropped", "a sentence that has ended leaves the beam and is lost", {next_beam: around(drop_ended)}),
        ("best-extended", "only the best sentence of the beam is extended, and the others stay as they are",
         {extend_beam: around(extend_best)}),
        ("best-alone", "only the best sentence of the beam goes on, and the others are lost",
         {extend_beam: around(extend_best_alone)}),
        ("stops-with-any", "the search ends as soon as any sentence of the beam has ended",
         {is_over: around(stop_with_any)}),
        ("one-end", "of the sentences that have ended only the best stays", {next_beam: around(keep_one_end)}),
        ("ended-repeated", "a sentence that has ended takes several places of the beam, one for every word",
         {next_beam: around(repeat_ended)}),
        ("one-more", "the beam keeps one sentence more than beam_size", {next_beam: around(keep_one_more)}),
    )  # fmt: skip
    for word, title, steps in ways:
        yield Neighbour(f"{_BEAM}.{word}", title, hint, steps)


def _change_extensions() -> Iterator[Neighbour]:
    """Yield searches that continue a sentence with other words, or after its end."""

    def repeat_last(original: Step, source: Array, sentence: Sentence, task: Task) -> list[Sentence]:
        extended = original(source, sentence, task)
        return [s for s in extended if s.words[-1:] != sentence.words[-1:]] or extended

    def contains_end(sentence: Sentence, task: Task) -> bool:
        return task.eos_id in sentence.words

    def cut_at_end(original: Step, sentence: Sentence, task: Task) -> list[float]:
        end = [*sentence.words, task.eos_id].index(task.eos_id) + 1
        return list(original(replace(sentence, words=sentence.words[:end]), task))

    yield Neighbour(
        f"{_BEAM}.ended-extended",
        "sentences that have ended are extended like the others, though nothing is shown after their eos_id",
        "Keep a sentence that has ended as it is, with its score.",
        {
            continue_sentence: instead(extend_sentence),
            has_ended: instead(contains_end),
            pad_words: around(cut_at_end),
        },
    )  # fmt: skip
    yield Neighbour(
        f"{_BEAM}.no-repetition", "a word is not chosen twice in a row",
        "Let every word follow every other, itself too.", {continue_sentence: around(repeat_last)},
    )  # fmt: skip


def _change_ranks() -> Iterator[Neighbour]:
    """Yield beams whose length penalty holds only for some sentences, or only for their order."""
    hint = "Compare all sentences by their sums divided by the penalty, and return these quotients."

    def score(original: Step, sentence: Sentence, *, ended: bool, task: Task) -> float:
        own = has_ended(sentence, task) is ended
        return total_score(sentence) if own else original(sentence)

    def choose(original: Step, beams: list[list[Sentence]], task: Task, *, ended: bool) -> Any:
        with replacing({sentence_score: around(partial(score, ended=ended, task=task))}):
            return original(beams, task)

    for ended, words in ((True, "that have ended"), (False, "that have not ended")):
        yield Neighbour(
            f"{_BEAM}.no-penalty.{'ended' if ended else 'going'}",
            f"the sums of sentences {words} are not divided by the length penalty", hint,
            {return_best: around(partial(choose, ended=ended))},
        )  # fmt: skip

    def return_sums(original: Step, beams: list[list[Sentence]], task: Task) -> Any:
        found = original(beams, task)
        best = [select_best(beam, task) for beam in beams]
        scores = [[total_score(sentence) for sentence in own] for own in best]
        return {**found, "scores": np.array(scores, dtype=task.dtype)}

    yield Neighbour(
        f"{_BEAM}.sums-returned", "sentences are ordered with the length penalty, and their sums are returned",
        hint, {return_best: around(return_sums)},
    )  # fmt: skip

    def keep_by_sums(original: Step, *args: Any) -> Any:
        with replacing({length_penalty: instead(lambda _: 1.0)}):
            return original(*args)

    yield Neighbour(
        f"{_BEAM}.kept-by-sums",
        "sentences are kept by their sums at each step, and only those of the last beam are compared with the penalty",
        "Divide the sums by the penalty before the best of a step are chosen: some sentences have ended, others grow.",
        {next_beam: around(keep_by_sums)},
    )


def _change_penalties() -> Iterator[Neighbour]:
    hint = "The length is the number of the sentence's words, with eos_id and without bos_id."
    counts: tuple[tuple[str, str, Callable[[int], int]], ...] = (
        ("one-more", "counts one word more, as with bos_id", lambda n: n + 1),
        ("one-less", "counts one word less, as without eos_id", lambda n: max(n - 1, 1)),
    )
    for word, says, count in counts:
        yield Neighbour(
            f"{_BEAM}.penalty.{word}", f"the length penalty {says}", hint, {penalty_length: change_result(count)}
        )

    gnmt = "Under gnmt the penalty of n words is ((5 + n)/6)^0.6."
    formulas: tuple[tuple[str, str, Callable[[int], float]], ...] = (
        ("six-not-raised", "(5 + n)^0.6/6", lambda n: (5 + n) ** 0.6 / 6),
        ("only-six-raised", "(5 + n)/6^0.6", lambda n: (5 + n) / 6**0.6),
        ("not-raised", "(5 + n)/6", lambda n: (5 + n) / 6),
        ("alpha-alone", "n^0.6", lambda n: n**0.6),
        ("without-six", "(5 + n)^0.6", lambda n: (5 + n) ** 0.6),
        ("root", "√n", math.sqrt),
    )
    for word, formula, penalty in formulas:
        yield Neighbour(
            f"{_BEAM}.penalty.{word}", f"the length penalty of n words is {formula}", gnmt,
            {length_penalty: instead(penalty)},
        )  # fmt: skip

    def note_steps(original: Step, source: Array, task: Task) -> Any:
        with hold(_steps, [0]):
            return original(source, task)

    def count_step(original: Step, *args: Any) -> Any:
        _steps.get()[0] += 1
        return original(*args)

    def count_all(_: Sentence) -> int:
        return _steps.get()[0]

    def return_within(original: Step, beams: list[list[Sentence]], task: Task) -> Any:
        # The scores that are returned are formed after the search.
        with hold(_steps, [max(len(s.words) for beam in beams for s in beam)]):
            return original(beams, task)

    yield Neighbour(
        f"{_BEAM}.penalty.grows-after-end",
        "the length of a sentence that has ended goes on growing in the penalty",
        hint,
        {
            search_beams: around(note_steps),
            next_beams: around(count_step),
            return_best: around(return_within),
            penalty_length: instead(count_all),
        },
    )

    def note_ended(original: Step, beam: list[Sentence], extensions: Any, task: Task) -> Any:
        with hold(_ended, frozenset(s for s in beam if has_ended(s, task))):
            return original(beam, extensions, task)

    def count_ended_again(original: Step, sentence: Sentence) -> int:
        return int(original(sentence)) + (sentence in _ended.get())

    yield Neighbour(
        f"{_BEAM}.penalty.ended-one-more",
        "sentences that ended before are compared with one word too many in the penalty", hint,
        {next_beam: around(note_ended), penalty_length: around(count_ended_again)},
    )  # fmt: skip


def _mix_places() -> Iterator[Neighbour]:
    """Yield beams whose places have lengths or a memory of their own, whatever sentences stand there."""

    def begin(original: Step, source: Array, **named: Any) -> Any:
        with hold(_lengths, [[0] * named["beam_size"] for _ in source]):
            return original(source, **named)

    def count(own: Step, sentence: Sentence) -> int:
        return _of_place.get().get(sentence, own(sentence))

    def go_on(own: Step, beams: Any, extensions: Any, task: Task) -> Any:
        found = []
        for sample, (beam, extended) in enumerate(zip(beams, extensions, strict=True)):
            lengths = _lengths.get()[sample]
            going = [place >= len(beam) or not has_ended(beam[place], task) for place in range(len(lengths))]
            lengths[:] = [length + on for length, on in zip(lengths, going, strict=True)]
            of_place = {s: lengths[place] for place, ways in enumerate(extended) for s in ways}
            with hold(_of_place, of_place):
                found += own([beam], [extended], task)
        return found

    def give(own: Step, beams: list[list[Sentence]], task: Task) -> Any:
        counted = zip(_lengths.get(), beams, strict=True)
        of_place = {s: length for lengths, beam in counted for s, length in zip(beam, lengths, strict=False)}
        with hold(_of_place, of_place):
            return own(beams, task)

    yield Neighbour(
        f"{_BEAM}.penalty.not-reordered",
        "the lengths in the penalty stay at the places of the beam when its sentences are reordered",
        "Gather the lengths by the parents of the beams, as the words and the scores.",
        {
            beam_search: around(begin),
            next_beams: around(go_on),
            return_best: around(give),
            penalty_length: around(count),
        },
    )

    def extend(own: Step, source: Array, sample: int, beam: list[Sentence], task: Task) -> list[list[Sentence]]:
        def hide(below: Step, _: Array, pad_id: int) -> Array:
            return as_array(below(source[[sample]], pad_id))

        with replacing({memory_mask: around(hide)}):
            return repeat_sources_as_whole(own, source, sample, beam, task)

    # The same of memory and mask is a mistake of the catalogue, beam-source-order.
    yield Neighbour(
        f"{_BEAM}.memory-tiled",
        "the memory of all samples is repeated one after the other for the beams, which stand sample by sample, and "
        "its mask is not",
        "Repeat each sample's memory beam_size times before that of the next sample.", {extend_beam: around(extend)},
    )  # fmt: skip


#: The lengths that are counted for each sample at the places of its beam, and those of the sentences that stand there.
_lengths: Final[ContextVar[list[list[int]]]] = ContextVar("lengths")
_of_place: Final[ContextVar[Mapping[Sentence, int]]] = ContextVar("of_place", default=MappingProxyType({}))

#: The steps of the search that runs, and the sentences of its beam that have ended.
_steps: Final[ContextVar[list[int]]] = ContextVar("steps")
_ended: Final[ContextVar[frozenset[Sentence]]] = ContextVar("ended", default=frozenset())


def generate() -> Iterator[Neighbour]:
    """Yield the neighbours of greedy decoding and of beam search."""
    yield from chain(
        _change_reading(),
        _change_scores(),
        _change_ends(),
        _change_beams(),
        _change_extensions(),
        _change_ranks(),
        _change_penalties(),
        _mix_places(),
    )

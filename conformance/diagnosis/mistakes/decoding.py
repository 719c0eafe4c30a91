"""Mistakes of greedy decoding and of beam search."""

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Final

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.attention import softmax
from goldformer.spec.formulas.decoding import (
    Sentence,
    Task,
    append_best,
    append_word,
    continue_sentence,
    decoder_input,
    extend_beam,
    extend_sentence,
    greedy_sentences,
    has_ended,
    is_full,
    is_over,
    length_penalty,
    model_logits,
    next_beam,
    next_beams,
    next_logits,
    pad_words,
    penalty_length,
    rank_sentences,
    return_best,
    score_words,
    search_beams,
    select_best,
    sentence_score,
)
from goldformer.spec.formulas.heads import Params
from goldformer.spec.formulas.steps import Replacements, around, instead, replacing
from goldformer.spec.formulas.transformer import embed_target, memory_mask, source_mask, word_mask

ModelLogits = Callable[[Array, Array, Task], Array]
NextBeam = Callable[[list[Sentence], list[list[Sentence]], Task], list[Sentence]]
PadWords = Callable[[Sentence, Task], list[float]]
ExtendBeam = Callable[[Array, int, list[Sentence], Task], list[list[Sentence]]]
SearchBeams = Callable[[Array, Task], list[list[Sentence]]]

# What is read


@mistake("decode-no-feedback", instead_of=decoder_input)
def read_bos(sentence: Sentence, task: Task) -> list[int]:
    """Return only bos_id at every step."""
    return [task.bos_id]


def invert_word_mask(source: Array, pad_id: int) -> Array:
    """Return a mask that hides the words of the source and not its padding, (batch, 1, 1, source_seq)."""
    return ~word_mask(source, pad_id)


#: A model that hides the words of the source, from the encoder and from the decoder.
INVERTED_MASKS: Final[Replacements] = {source_mask: instead(invert_word_mask), memory_mask: instead(invert_word_mask)}


@mistake("decode-inverted-mask", around=model_logits)
def decode_with_inverted_masks(original: ModelLogits, source: Array, target: Array, task: Task) -> Array:
    """Return the logits by inverted masks of the source, which are right when the model is called by itself."""
    with replacing(INVERTED_MASKS):
        return original(source, target, task)


def embed_words_alone(
    original: Callable[[Array, int, Params], Array], target: Array, pad_id: int, params: Params
) -> Array:
    """Return every word of the target at position 0, (batch, seq, d_model)."""
    words = np.split(target, target.shape[1], axis=1)
    return np.concatenate([original(word, pad_id, params) for word in words], axis=1)


#: A model that gives every word of the target the position 0.
TARGET_AT_POSITION_ZERO: Final[Replacements] = {embed_target: around(embed_words_alone)}


@mistake("decode-cache-offset", around=model_logits)
def restart_positions(original: ModelLogits, source: Array, target: Array, task: Task) -> Array:
    """Return the logits of words read at position 0, as with a cache whose length is not added."""
    with replacing(TARGET_AT_POSITION_ZERO):
        return original(source, target, task)


# Where a sentence ends, and what is returned


@mistake("decode-bos-kept", instead_of=is_full)
@mistake("decode-max-length-off-by-one", instead_of=is_full)
def count_bos(sentence: Sentence, task: Task) -> bool:
    """Return True if bos_id and the words are max_length together."""
    return len(sentence.words) + 1 >= task.max_length


@mistake("decode-bos-kept", around=pad_words)
def keep_bos(original: PadWords, sentence: Sentence, task: Task) -> list[float]:
    """Return what was read: bos_id is the first of max_length words."""
    return original(replace(sentence, words=(task.bos_id, *sentence.words)), task)


@mistake("greedy-no-eos", instead_of=has_ended)
def never_end(sentence: Sentence, task: Task) -> bool:
    """Return False: no word ends a sentence."""
    return False


@mistake("greedy-end-forgotten", instead_of=greedy_sentences)
def forget_ends(source: Array, task: Task) -> list[Sentence]:
    """Return sentences that go on after an end and one pad_id, until all of them end in the same step.

    All are equally long, as rows of one array that is complete when each row has just ended.
    """
    sentences = [Sentence()] * len(source)
    while not (all(has_ended(sentence, task) for sentence in sentences) or is_full(sentences[0], task)):
        sentences = [forget_end(source[[sample]], sentence, task) for sample, sentence in enumerate(sentences)]
    return sentences


def forget_end(source: Array, sentence: Sentence, task: Task) -> Sentence:
    """Append pad_id after eos_id, and the most probable word after any other word."""
    if has_ended(sentence, task):
        return append_word(sentence, task.pad_id, 0.0)
    return append_best(sentence, next_logits(source, sentence, task))


@mistake("greedy-eos-dropped", around=pad_words)
def drop_eos(original: PadWords, sentence: Sentence, task: Task) -> list[float]:
    """Return the words without eos_id."""
    return original(replace(sentence, words=tuple(word for word in sentence.words if word != task.eos_id)), task)


@mistake("batch-eos", around=greedy_sentences)
def stop_with_the_first(original: Callable[[Array, Task], list[Sentence]], source: Array, task: Task) -> list[Sentence]:
    """Return sentences that are all as long as the one that ends first."""
    sentences = original(source, task)
    first = min(len(sentence.words) for sentence in sentences)
    return [Sentence(sentence.words[:first], sentence.word_scores[:first]) for sentence in sentences]


# The score of greedy decoding


@mistake("decode-score-probability", instead_of=score_words)
def add_probabilities(logits: Array) -> list[float]:
    """Return the probability of each word."""
    return [float(score) for score in softmax(logits.astype(np.float64))]


@mistake("decode-score-logits", instead_of=score_words)
def add_logits(logits: Array) -> list[float]:
    """Return the logit of each word."""
    return [float(score) for score in logits]


mistake("decode-score-after-end", instead_of=has_ended)(never_end)


@mistake("decode-score-after-end", around=pad_words)
def cut_after_eos(original: PadWords, sentence: Sentence, task: Task) -> list[float]:
    """Return the words up to eos_id, of a sentence that was written and scored up to max_length."""
    end = [*sentence.words, task.eos_id].index(task.eos_id) + 1
    return original(replace(sentence, words=sentence.words[:end]), task)


# The beam


@mistake("beam-first-step-duplicates", around=extend_beam)
def begin_with_copies(
    original: ExtendBeam, source: Array, sample: int, beam: list[Sentence], task: Task
) -> list[list[Sentence]]:
    """Return the extensions of a beam that begins with beam_size empty sentences."""
    return original(source, sample, beam * task.beam_size if beam == [Sentence()] else beam, task)


@mistake("beam-per-parent", around=next_beam)
def keep_best_of_each_parent(
    original: NextBeam, beam: list[Sentence], extensions: list[list[Sentence]], task: Task
) -> list[Sentence]:
    """Return each sentence's own best extension, after the first step."""
    if len(beam) == 1:
        return original(beam, extensions, task)
    return rank_sentences([rank_sentences(own)[0] for own in extensions])


def append_to_other(chosen: Sentence, before: Sentence, task: Task) -> Sentence:
    """Return another sentence with the last word and the scores of the chosen one.

    A word after the end of a sentence is not seen.
    """
    return replace(chosen, words=before.words if has_ended(before, task) else (*before.words, chosen.words[-1]))


@mistake("beam-worst-kept", instead_of=next_beam)
def keep_worst(beam: list[Sentence], extensions: list[list[Sentence]], task: Task) -> list[Sentence]:
    """Return the beam_size least probable of all extensions."""
    return rank_sentences(chain.from_iterable(extensions))[-task.beam_size :]


@mistake("beam-parent-stale", around=next_beam)
def append_by_place(
    original: NextBeam, beam: list[Sentence], extensions: list[list[Sentence]], task: Task
) -> list[Sentence]:
    """Return words appended place by place, though scores are those of the extensions."""
    chosen = original(beam, extensions, task)
    # The first step finds one sentence, which is in all places.
    return [append_to_other(s, beam[min(place, len(beam) - 1)], task) for place, s in enumerate(chosen)]


@mistake("beam-batch-index", around=next_beams)
def append_to_first_sample(
    original: Callable[[list[list[Sentence]], list[list[list[Sentence]]], Task], list[list[Sentence]]],
    beams: list[list[Sentence]],
    extensions: list[list[list[Sentence]]],
    task: Task,
) -> list[list[Sentence]]:
    """Return words appended to the sentences of the first sample, whose places come first in a flat batch."""
    chosen = original(beams, extensions, task)
    parents = [[find_parent(s, own) for s in beam] for beam, own in zip(chosen, extensions, strict=True)]
    first = [[beams[0][min(place, len(beams[0]) - 1)] for place in places] for places in parents]
    return [
        [append_to_other(s, before, task) for s, before in zip(beam, others, strict=True)]
        for beam, others in zip(chosen, first, strict=True)
    ]


def find_parent(chosen: Sentence, extensions: list[list[Sentence]]) -> int:
    """Return the place of the sentence that became the chosen one."""
    return next(place for place, own in enumerate(extensions) if any(chosen is one for one in own))


@mistake("beam-source-order", around=extend_beam)
def repeat_sources_as_whole(
    original: ExtendBeam, source: Array, sample: int, beam: list[Sentence], task: Task
) -> list[list[Sentence]]:
    """Return extensions by a batch that is repeated as a whole, beam_size times, instead of each source."""
    if is_over(beam, task):
        return original(source, sample, beam, task)
    order = ((sample * task.beam_size + place) % len(source) for place in range(len(beam)))
    return [continue_sentence(source[[own]], sentence, task) for own, sentence in zip(order, beam, strict=True)]


@mistake("beam-cache-stale", around=search_beams)
def search_with_stale_caches(original: SearchBeams, source: Array, task: Task) -> list[list[Sentence]]:
    """Return the search in which each place of a beam reads what was read in that place before, then its last word."""
    read: dict[int, list[list[int]]] = {}

    def extend_in_place(
        extend: ExtendBeam, source: Array, sample: int, beam: list[Sentence], task: Task
    ) -> list[list[Sentence]]:
        if is_over(beam, task):
            return extend(source, sample, beam, task)
        before = read.get(sample, [[]])
        # The first step finds one sentence, which is in all places.
        last = [decoder_input(sentence, task)[-1] for sentence in beam]
        read[sample] = [[*before[min(place, len(before) - 1)], word] for place, word in enumerate(last)]
        return [
            continue_after(words, source[[sample]], sentence, task)
            for words, sentence in zip(read[sample], beam, strict=True)
        ]

    with replacing({extend_beam: around(extend_in_place)}):
        return original(source, task)


def continue_after(words: list[int], source: Array, sentence: Sentence, task: Task) -> list[Sentence]:
    """Return the continuations of a sentence by a decoder that reads other words."""
    with replacing({decoder_input: instead(lambda *_: words)}):
        return continue_sentence(source, sentence, task)


@mistake("beam-end-flags-stale", around=search_beams)
def search_with_stale_flags(original: SearchBeams, source: Array, task: Task) -> list[list[Sentence]]:
    """Return the search in which a place of a beam stays ended, whichever sentence moves there."""
    ended: dict[int, list[bool]] = {}

    def extend_by_flags(
        extend: ExtendBeam, source: Array, sample: int, beam: list[Sentence], task: Task
    ) -> list[list[Sentence]]:
        if is_over(beam, task):
            return extend(source, sample, beam, task)
        before = ended.get(sample, [False])
        longest = max(len(sentence.words) for sentence in beam)
        # Only a sentence that ends in this step sets the flag of its place.
        now = [has_ended(sentence, task) and len(sentence.words) == longest for sentence in beam]
        ended[sample] = [before[min(place, len(before) - 1)] or flag for place, flag in enumerate(now)]
        return [
            [sentence] if flag else extend_sentence(source[[sample]], sentence, task)
            for flag, sentence in zip(ended[sample], beam, strict=True)
        ]

    with replacing({extend_beam: around(extend_by_flags)}):
        return original(source, task)


# The end of a search


@mistake("beam-finished-expand", instead_of=continue_sentence)
def extend_ended(source: Array, sentence: Sentence, task: Task) -> list[Sentence]:
    """Return every extension, also of a sentence that has ended."""
    return extend_sentence(source, sentence, task)


@mistake("beam-stop-early", around=is_over)
def stop_with_the_best(original: Callable[[list[Sentence], Task], bool], beam: list[Sentence], task: Task) -> bool:
    """Return True as soon as the best sentence has ended."""
    return has_ended(beam[0], task) or original(beam, task)


@mistake("beam-unsorted", around=select_best)
def return_worst_first(
    original: Callable[[list[Sentence], Task], list[Sentence]], beam: list[Sentence], task: Task
) -> list[Sentence]:
    """Return the best top_beams sentences in ascending order."""
    return original(beam, task)[::-1]


# The score of a beam


@mistake("beam-no-log-sum", around=sentence_score)
def score_last_word(original: Callable[[Sentence], float], sentence: Sentence) -> float:
    """Return what the last word adds."""
    return original(replace(sentence, word_scores=sentence.word_scores[-1:]))


#: Without a penalty none can be wrong.
MEAN: Final = {"length_penalty": "mean"}


@mistake("beam-penalty-bos-counted", instead_of=length_penalty, conventions=MEAN)
@mistake("beam-penalty-step", instead_of=length_penalty, conventions=MEAN)
def mean_penalty(length: int) -> float:
    """Return the number of words: the right penalty under the option mean."""
    return float(length)


@mistake("beam-penalty-step", around=search_beams)
def penalise_by_step(original: SearchBeams, source: Array, task: Task) -> list[list[Sentence]]:
    """Return the search in which all sentences have the same penalty.

    It is that of the step; as it changes no order within a step, any would do.
    """
    with replacing({penalty_length: instead(lambda _: task.max_length)}):
        return original(source, task)


@mistake("beam-penalty-step", around=return_best)
def penalise_by_last_step(
    original: Callable[[list[list[Sentence]], Task], dict[str, Array]], beams: list[list[Sentence]], task: Task
) -> dict[str, Array]:
    """Return the sentences found, all with the penalty of the last step taken."""
    steps = max(len(sentence.words) for beam in beams for sentence in beam)
    with replacing({penalty_length: instead(lambda _: steps)}):
        return original(beams, task)


@mistake("beam-penalty-bos-counted", around=penalty_length)
def count_bos_in_penalty(original: Callable[[Sentence], int], sentence: Sentence) -> int:
    """Return the number of words with bos_id among them."""
    return original(sentence) + 1

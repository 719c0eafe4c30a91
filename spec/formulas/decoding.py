"""Greedy decoding and beam search under the default conventions, `in_beam` and `none`, over lists of sentences.

For every word the whole model reads one source and one sentence so far. A sentence is a tuple of words and a tuple of
their log-probabilities, so nothing has to be reordered, and a sentence that has ended stays unchanged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.heads import Params
from goldformer.spec.formulas.steps import step
from goldformer.spec.formulas.transformer import log_softmax, transformer


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence so far: the words after bos_id, and what each adds to the score."""

    words: tuple[int, ...] = ()
    word_scores: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """The constants of a call; `model` holds the arguments of `transformer` other than source and target."""

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

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the scores: that of the model."""
        dtype: np.dtype[Any] = self.model["params"]["table"].dtype
        return dtype


# Greedy decoding


@step
def greedy_decode(
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
    sentences = greedy_sentences(source, task)
    return {
        "ids": np.array([pad_words(s, task) for s in sentences], dtype=np.int64),
        "scores": np.array([total_score(s) for s in sentences], dtype=task.dtype),
        "token_scores": np.array([fill_up(s.word_scores, 0, task) for s in sentences], dtype=task.dtype),
    }


@step
def greedy_sentences(source: Array, task: Task) -> list[Sentence]:
    """Decode each sample independently (DEC-4)."""
    return [greedy_sentence(source[[sample]], task) for sample in range(len(source))]


@step
def greedy_sentence(source: Array, task: Task) -> Sentence:
    """Take the word of the largest logit at each step, the lowest id among equals, for a source (1, source_seq)."""
    sentence = Sentence()
    while not (has_ended(sentence, task) or is_full(sentence, task)):
        sentence = append_best(sentence, next_logits(source, sentence, task))
    return sentence


# One step


@step
def next_logits(source: Array, sentence: Sentence, task: Task) -> Array:
    """Return the logits of the next word, (vocab,), for a source (1, source_seq)."""
    target = np.array([decoder_input(sentence, task)], dtype=np.int64)
    return np.asarray(model_logits(source, target, task)[0, -1])


@step
def decoder_input(sentence: Sentence, task: Task) -> list[int]:
    """Return the input of the decoder: bos_id, then every word so far (DEC-1)."""
    return [task.bos_id, *sentence.words]


@step
def model_logits(source: Array, target: Array, task: Task) -> Array:
    """Return the logits (batch, seq, vocab) of the model, with its own masks and positions."""
    return transformer(source, target, **task.model)["logits"]


@step
def score_words(logits: Array) -> list[float]:
    """Return the log-probability of each word, which it adds to the score (DEC-5)."""
    # In float64: different logits must not become equal scores, because one beam is greedy decoding (BEAM-5).
    return [float(score) for score in log_softmax(logits.astype(np.float64))]


def append_word(sentence: Sentence, word: int, score: float) -> Sentence:
    """Append a word to the sentence."""
    return Sentence((*sentence.words, word), (*sentence.word_scores, score))


def append_best(sentence: Sentence, logits: Array) -> Sentence:
    """Append the word of the largest logit, the lowest id among equals, to the sentence."""
    word = int(logits.argmax())
    return append_word(sentence, word, score_words(logits)[word])


@step
def has_ended(sentence: Sentence, task: Task) -> bool:
    """Return True if the last word is eos_id."""
    return sentence.words[-1:] == (task.eos_id,)


@step
def is_full(sentence: Sentence, task: Task) -> bool:
    """Return True if the sentence has max_length words, not counting bos_id."""
    return len(sentence.words) >= task.max_length


def total_score(sentence: Sentence) -> float:
    """Sum what the words add to the score, eos_id included."""
    return sum(sentence.word_scores)


# Results


@step
def pad_words(sentence: Sentence, task: Task) -> list[float]:
    """Return the words, with eos_id and without bos_id, followed by pad_id up to max_length."""
    return fill_up(sentence.words, task.pad_id, task)


def fill_up(values: Sequence[float], fill: int, task: Task) -> list[float]:
    """Return the values, followed by the fill up to max_length."""
    return [*values, *[fill] * (task.max_length - len(values))]


# Beam search


@step
def beam_search(
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
    return return_best(search_beams(source, task), task)


@step
def search_beams(source: Array, task: Task) -> list[list[Sentence]]:
    """Return the last beam of every sample; all samples take their steps together.

    Each sample begins with one empty sentence, whatever the size of the beam (BEAM-1).
    """
    beams = [[Sentence()] for _ in source]
    for _ in range(task.max_length):
        if all(is_over(beam, task) for beam in beams):
            break
        extensions = [extend_beam(source, sample, beam, task) for sample, beam in enumerate(beams)]
        beams = next_beams(beams, extensions, task)
    return beams


@step
def is_over(beam: list[Sentence], task: Task) -> bool:
    """Return True if every sentence of the beam has ended or has max_length words."""
    return all(has_ended(sentence, task) or is_full(sentence, task) for sentence in beam)


@step
def extend_beam(source: Array, sample: int, beam: list[Sentence], task: Task) -> list[list[Sentence]]:
    """Return the continuations of each sentence of a beam; a sample that is over waits for the others."""
    if is_over(beam, task):
        return [[sentence] for sentence in beam]
    return [continue_sentence(source[[sample]], sentence, task) for sentence in beam]


@step
def continue_sentence(source: Array, sentence: Sentence, task: Task) -> list[Sentence]:
    """Return the continuations of a sentence: itself if it has ended, else every extension."""
    return [sentence] if has_ended(sentence, task) else extend_sentence(source, sentence, task)


@step
def extend_sentence(source: Array, sentence: Sentence, task: Task) -> list[Sentence]:
    """Return the sentence with each word of the vocabulary, in the order of ids, for a source (1, source_seq)."""
    scores = score_words(next_logits(source, sentence, task))
    return [append_word(sentence, word, score) for word, score in enumerate(scores)]


@step
def next_beams(beams: list[list[Sentence]], extensions: list[list[list[Sentence]]], task: Task) -> list[list[Sentence]]:
    """Return the next beam of every sample, each computed independently (DEC-4)."""
    return [next_beam(beam, own, task) for beam, own in zip(beams, extensions, strict=True)]


@step
def next_beam(beam: list[Sentence], extensions: list[list[Sentence]], task: Task) -> list[Sentence]:
    """Return the best beam_size of all continuations of the beam."""
    del beam
    return rank_sentences(chain.from_iterable(extensions))[: task.beam_size]


@step
def return_best(beams: list[list[Sentence]], task: Task) -> dict[str, Array]:
    """Return ids (batch, top_beams, max_length) and the scores that rank them, (batch, top_beams)."""
    best = [select_best(beam, task) for beam in beams]
    ids = [[pad_words(sentence, task) for sentence in sentences] for sentences in best]
    scores = [[sentence_score(sentence) for sentence in sentences] for sentences in best]
    return {"ids": np.array(ids, dtype=np.int64), "scores": np.array(scores, dtype=task.dtype)}


@step
def select_best(beam: list[Sentence], task: Task) -> list[Sentence]:
    """Return the best top_beams sentences of the last beam, best first."""
    if len(beam) < task.top_beams:
        raise ValueError(
            f"top_beams: {task.top_beams}, but of sentences of at most {task.max_length} words (max_length) "
            f"there are only {len(beam)}"
        )
    return rank_sentences(beam)[: task.top_beams]


# The ranking of sentences


@step
def rank_sentences(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Sort the sentences best first; equal ones keep their order (DEC-6)."""
    return sorted(sentences, key=lambda sentence: -sentence_score(sentence))


@step
def sentence_score(sentence: Sentence) -> float:
    """Return the sum of the log-probabilities, divided by the length penalty."""
    return total_score(sentence) / length_penalty(penalty_length(sentence))


@step
def penalty_length(sentence: Sentence) -> int:
    """Count the words of the sentence, with eos_id and without bos_id."""
    return len(sentence.words)


@step
def length_penalty(length: int) -> float:
    """Return 1: sentences are compared by their sums (BEAM-4)."""
    del length
    return 1.0

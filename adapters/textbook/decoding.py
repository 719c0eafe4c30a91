"""Greedy decoding and beam search under the default conventions, `in_beam` and `none`, over lists of sentences.

The whole model reads one source and the whole beginning of one sentence for every word. A sentence is a tuple
of words and a tuple of their log-probabilities, so nothing has to be reordered, and a sentence that has ended is
simply left as it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np

from goldformer.adapters.textbook.checks import Array, at_least_one, axis_sizes, check_ids
from goldformer.adapters.textbook.heads import Params
from goldformer.adapters.textbook.model import TRANSFORMER, log_softmax, transformer
from goldformer.adapters.textbook.steps import step

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

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the scores: that of the model."""
        dtype: np.dtype[Any] = self.model["params"]["table"].dtype
        return dtype


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
    check_task(source, task)
    sentences = greedy_sentences(source, task)
    return {
        "ids": np.array([pad_words(s, task) for s in sentences], dtype=np.int64),
        "scores": np.array([total_score(s) for s in sentences], dtype=task.dtype),
        "token_scores": np.array([fill_up(s.word_scores, 0, task) for s in sentences], dtype=task.dtype),
    }


@step
def greedy_sentences(source: Array, task: Task) -> list[Sentence]:
    """Return the sentence of each sample, each by itself (DEC-4)."""
    return [greedy_sentence(source[[sample]], task) for sample in range(len(source))]


@step
def greedy_sentence(source: Array, task: Task) -> Sentence:
    """Return the sentence that takes the best word at each step, for a source (1, source_seq)."""
    sentence = Sentence()
    while not (has_ended(sentence, task) or is_full(sentence, task)):
        logits = next_logits(source, sentence, task)
        word = choose_word(logits)
        sentence = append_word(sentence, word, score_words(logits)[word])
    return sentence


@step
def choose_word(logits: Array) -> int:
    """Return the word of the largest logit, and of several the lowest id."""
    return int(logits.argmax())


# One step


@step
def next_logits(source: Array, sentence: Sentence, task: Task) -> Array:
    """Return the logits of the words that may come next, (vocab,), for a source (1, source_seq)."""
    target = np.array([decoder_input(sentence, task)], dtype=np.int64)
    return np.asarray(model_logits(source, target, task)[0, -1])


@step
def decoder_input(sentence: Sentence, task: Task) -> list[int]:
    """Return what the decoder reads: bos_id, and after it every word so far (DEC-1)."""
    return [task.bos_id, *sentence.words]


@step
def model_logits(source: Array, target: Array, task: Task) -> Array:
    """Return the logits (batch, seq, vocab) of the model as it is, masks and positions included."""
    return transformer(source, target, **task.model)["logits"]


@step
def score_words(logits: Array) -> list[float]:
    """Return what each word adds to the score: its log-probability (DEC-5)."""
    # In float64, as words of different logits must not become equals: one beam is greedy decoding (BEAM-5).
    return [float(score) for score in log_softmax(logits.astype(np.float64))]


def append_word(sentence: Sentence, word: int, score: float) -> Sentence:
    """Return the sentence with one word more."""
    return Sentence((*sentence.words, word), (*sentence.word_scores, score))


@step
def has_ended(sentence: Sentence, task: Task) -> bool:
    """Return whether the last word is eos_id."""
    return sentence.words[-1:] == (task.eos_id,)


@step
def is_full(sentence: Sentence, task: Task) -> bool:
    """Return whether the sentence has max_length words; bos_id is none of them."""
    return len(sentence.words) >= task.max_length


def total_score(sentence: Sentence) -> float:
    """Return the sum of what the words add to the score, eos_id included."""
    return sum(sentence.word_scores)


# Results


@step
def pad_words(sentence: Sentence, task: Task) -> list[float]:
    """Return all words, eos_id included and bos_id not, and pad_id in the places after them, (max_length,)."""
    return fill_up(sentence.words, task.pad_id, task)


def fill_up(values: Sequence[float], fill: int, task: Task) -> list[float]:
    """Return the values and, in the places after them, the fill, (max_length,)."""
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
    check_task(source, task)
    return return_best(search_beams(source, task), task)


@step
def search_beams(source: Array, task: Task) -> list[list[Sentence]]:
    """Return the sentences that are left of every sample, which take their steps together.

    Each sample begins with one empty sentence, whatever the beam's size (BEAM-1).
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
    """Return whether every sentence of the beam has ended or has max_length words."""
    return all(has_ended(sentence, task) or is_full(sentence, task) for sentence in beam)


@step
def extend_beam(source: Array, sample: int, beam: list[Sentence], task: Task) -> list[list[Sentence]]:
    """Return what each sentence of a beam may become; a sample that is over waits for the others."""
    if is_over(beam, task):
        return [[sentence] for sentence in beam]
    return [continue_sentence(source[[sample]], sentence, task) for sentence in beam]


@step
def continue_sentence(source: Array, sentence: Sentence, task: Task) -> list[Sentence]:
    """Return what a sentence may become: once it has ended itself, before that every extension."""
    return [sentence] if has_ended(sentence, task) else extend_sentence(source, sentence, task)


@step
def extend_sentence(source: Array, sentence: Sentence, task: Task) -> list[Sentence]:
    """Return the sentence with each word of the vocabulary, in the order of ids, for a source (1, source_seq)."""
    scores = score_words(next_logits(source, sentence, task))
    return [append_word(sentence, word, score) for word, score in enumerate(scores)]


@step
def next_beams(beams: list[list[Sentence]], extensions: list[list[list[Sentence]]], task: Task) -> list[list[Sentence]]:
    """Return the next beam of every sample: that of each alone (DEC-4)."""
    return [next_beam(beam, own, task) for beam, own in zip(beams, extensions, strict=True)]


@step
def next_beam(beam: list[Sentence], extensions: list[list[Sentence]], task: Task) -> list[Sentence]:
    """Return the best beam_size of all, given what each sentence of the beam may become."""
    del beam
    return rank_sentences(chain.from_iterable(extensions))[: task.beam_size]


@step
def return_best(beams: list[list[Sentence]], task: Task) -> dict[str, Array]:
    """Return ids (batch, top_beams, max_length) and scores (batch, top_beams), by which sentences were compared."""
    best = [select_best(beam, task) for beam in beams]
    ids = [[pad_words(sentence, task) for sentence in sentences] for sentences in best]
    scores = [[sentence_score(sentence) for sentence in sentences] for sentences in best]
    return {"ids": np.array(ids, dtype=np.int64), "scores": np.array(scores, dtype=task.dtype)}


@step
def select_best(beam: list[Sentence], task: Task) -> list[Sentence]:
    """Return the best top_beams of the sentences that are left, best first."""
    if len(beam) < task.top_beams:
        raise ValueError(
            f"top_beams: {task.top_beams}, but of sentences of at most {task.max_length} words (max_length) "
            f"there are only {len(beam)}"
        )
    return rank_sentences(beam)[: task.top_beams]


# What sentences are compared by


@step
def rank_sentences(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Return the sentences best first, and equals in the order in which they come (DEC-6)."""
    return sorted(sentences, key=lambda sentence: -sentence_score(sentence))


@step
def sentence_score(sentence: Sentence) -> float:
    """Return the sum of the log-probabilities, divided by the length penalty."""
    return total_score(sentence) / length_penalty(penalty_length(sentence))


@step
def penalty_length(sentence: Sentence) -> int:
    """Return the number of the sentence's own words, eos_id included and bos_id not."""
    return len(sentence.words)


@step
def length_penalty(length: int) -> float:
    """Return 1: sentences are compared by their sums (BEAM-4)."""
    del length
    return 1.0

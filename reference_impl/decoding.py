"""Greedy decoding and beam search: sentences from a trained model."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from goldformer.reference_impl.losses import log_softmax
from goldformer.reference_impl.parts import widen, without_dropout
from goldformer.reference_impl.shapes import Float, Int, Size, can_read, check_positions, check_word, checked
from goldformer.reference_impl.transformer import Transformer

Finish: TypeAlias = Literal["in_beam", "set_aside"]
LengthPenalty: TypeAlias = Literal["none", "mean", "gnmt"]


class GreedyResult(NamedTuple):
    """The sentences, their scores, and the terms of these."""

    ids: Int[Tensor, "batch max_length"]  # int64
    scores: Float[Tensor, "batch"]
    token_scores: Float[Tensor, "batch max_length"]


class BeamResult(NamedTuple):
    """The best sentences of every sample and their scores, best first."""

    ids: Int[Tensor, "batch top_beams max_length"]  # int64
    scores: Float[Tensor, "batch top_beams"]


def check_decoding(model: Transformer, max_length: int, **words: int) -> None:
    """Refuse words that have no row in the table, and more words than there are learned positions."""
    does = {"bos_id": "begins what the decoder reads", "eos_id": "ends a sentence"}
    for name, value in words.items():
        check_word(name, value, model.table.shape[0], does[name])
    check_positions("max_length", max_length, model.position_table)


def next_logits(model: Transformer, read: Tensor, memory: Tensor, source: Tensor) -> Float[Tensor, "batch vocab"]:
    """Score the word that comes after those read (batch, t)."""
    return model.score(model.decode(read, memory, source)[:, -1:])[:, 0]


@checked
def greedy_decode(
    model: Transformer, source: Int[Tensor, "batch source_seq"], *, bos_id: int, eos_id: int, max_length: Size
) -> GreedyResult:
    """Write a sentence for every source, at each step the word that the model finds likeliest, up to eos_id.

    eos_id is part of the sentence, pad_id and scores of 0 follow it. Without dropout, also in training. Where no values
    can be read, on the meta device and under torch.compile, all max_length steps are taken. Source: illustrated on the
    output layer; paper, section 3.1
    """
    check_decoding(model, max_length, bos_id=bos_id, eos_id=eos_id)
    with without_dropout(model):
        batch, device, pad_id = source.shape[0], source.device, model.pad_id
        memory = model.encode(source)
        read = torch.full((batch, 1), bos_id, device=device)  # what the decoder reads (DEC-1)
        ids = torch.full((batch, max_length), pad_id, device=device)
        token_scores = widen(model.table).new_zeros(batch, max_length)
        for t in range(max_length):
            # Ignore the first word: bos_id may equal eos_id, and does not end the sentence.
            ended = (read[:, 1:] == eos_id).any(dim=1)  # DEC-3, DEC-4
            if can_read(ended) and ended.all():
                break
            z = widen(next_logits(model, read, memory, source))
            word = z.argmax(dim=-1)  # DEC-2; the first of equals, as torch promises (DEC-6)
            score = log_softmax(z).gather(-1, word[:, None])[:, 0]
            ids[:, t] = word.where(~ended, pad_id)
            token_scores[:, t] = score.where(~ended, 0.0)
            # A sample that has ended waits for the others. The words that it reads do not matter, but must be in the
            # vocabulary, and pad_id need not be.
            read = torch.cat((read, word[:, None]), dim=1)
        # Sum before rounding to a half type (DEC-5).
        scores = token_scores.sum(dim=1)
        return GreedyResult(ids, scores.to(model.table.dtype), token_scores.to(model.table.dtype))


@checked
def beam_search(
    model: Transformer, source: Int[Tensor, "batch source_seq"], *, bos_id: int, eos_id: int, max_length: Size,
    beam_size: Size, top_beams: Size, finish: Finish = "in_beam", length_penalty: LengthPenalty = "none",
) -> BeamResult:  # fmt: skip
    """Search for the sentences of highest score, keeping the best beam_size of them at every step (BEAM-1).

    A score is the sum of the words' log-probabilities, eos_id included, divided by 1, n or ((5 + n) / 6)^0.6 for n
    words (BEAM-4). A sentence that has ended is not extended (BEAM-2). With finish="in_beam" it keeps its place and
    competes with the extensions of the others, until all have ended. With "set_aside" it leaves the beam if it is among
    the beam_size best extensions of its step; the beam goes on with those that do not end, until beam_size sentences
    have left it, or until max_length words: then those in the beam join the others. Among equals the extensions of the
    better sentence come first, then the lowest id. With few words all extensions are kept. A sentence of probability 0
    does not count. Source: illustrated on the output layer; "gnmt": paper, section 6.1
    """
    check_decoding(model, max_length, bos_id=bos_id, eos_id=eos_id)
    if top_beams > beam_size:
        fix = "lower the one or raise the other"
        raise ValueError(f"top_beams={top_beams} must be at most beam_size={beam_size}: {fix}")

    def next_log_probs(words: Tensor) -> Tensor:
        """Read (batch, beams, t) words after bos_id, and score each next word: (batch, beams, vocab)."""
        beams = words.shape[1]
        target = pad(words, (1, 0), value=bos_id).flatten(0, 1)  # (batch·beams, 1 + t)
        # The beams of a sample are adjacent, and read the same source.
        shared = memory.repeat_interleave(beams, dim=0), source.repeat_interleave(beams, dim=0)
        z = next_logits(model, target, *shared)  # (batch·beams, vocab)
        return log_softmax(widen(z)).reshape(-1, beams, z.shape[-1])

    search = _BeamSearch(next_log_probs, eos_id, max_length, beam_size, finish, length_penalty)
    no_words = torch.empty(source.shape[0], 1, 0, dtype=torch.int64, device=source.device)
    with without_dropout(model):
        memory = model.encode(source)
        found = search.run(_Sentences(no_words, widen(model.table).new_zeros(source.shape[0], 1)))
    # Every step keeps all extensions or beam_size of them, so too few means that no other sentence is as short.
    numbers = (~found.sums.isneginf()).sum(dim=1).tolist() if can_read(found.sums) else [found.sums.shape[1]]
    if (fewest := min(numbers)) < top_beams:
        must = f"must be at most {fewest}, the number of sentences that there are for sample {numbers.index(fewest)}"
        raise ValueError(f"top_beams={top_beams} {must}: ask for fewer, or pass a larger max_length")
    words, scores = found.words[:, :top_beams], search.scores(found)[:, :top_beams]
    after_end = (words == eos_id).cumsum(dim=-1) > 1
    # Not with pad: its value is a float, which would round a large pad_id.
    ids = words.new_full((*words.shape[:2], max_length), model.pad_id)
    ids[..., : words.shape[-1]] = words.masked_fill(after_end, model.pad_id)
    return BeamResult(ids, scores.to(model.table.dtype))


class _Sentences(NamedTuple):
    """Sentences of every sample, best first, all of one length: a shorter one repeats eos_id after its end.

    All samples have one number of places: a place without a sentence has the sum −inf, and so do its extensions.
    """

    words: Tensor  # (batch, beams, t)
    sums: Tensor  # (batch, beams), of log-probabilities

    def keep(self, kept: Tensor) -> "_Sentences":
        """Empty the places outside ``kept``, which broadcasts to (batch, beams)."""
        return _Sentences(self.words, self.sums.masked_fill(~kept, -math.inf))


@dataclass(frozen=True)
class _BeamSearch:
    """The settings of a search, and its steps."""

    next_log_probs: Callable[[Tensor], Tensor]
    eos_id: int
    max_length: int
    beam_size: int
    finish: Finish
    length_penalty: LengthPenalty

    def run(self, beam: _Sentences) -> _Sentences:
        """Keep ended sentences in the beam until all have ended, or set them aside until there are beam_size."""
        aside = _Sentences(beam.words[:, :0], beam.sums[:, :0])
        for _ in range(self.max_length):
            over = self.has_ended(beam.words) | beam.sums.isneginf()  # (batch, beams)
            if can_read(over) and over.all():
                break
            sums = self.extend(beam)
            best = self.best_extensions(beam, sums)
            if self.finish == "set_aside":
                aside = self.join(aside, best.keep(self.has_ended(best.words)))
                unended = sums.clone()
                unended[..., self.eos_id] = -math.inf
                # A sample with beam_size sentences aside has an empty beam, and waits for the others.
                waits = (~aside.sums.isneginf()).sum(dim=1, keepdim=True) >= self.beam_size  # (batch, 1)
                best = self.best_extensions(beam, unended).keep(~waits)
            beam = best
        return self.join(aside, beam) if self.finish == "set_aside" else beam

    def extend(self, beam: _Sentences) -> Tensor:
        """Compute the sums of all extensions, by sentence and word: (batch, beams, vocab)."""
        log_probs = self.next_log_probs(beam.words)  # (batch, beams, vocab)
        # A sentence that has ended is only extended by eos_id once more, which adds 0.
        once_more = torch.full_like(log_probs, -math.inf)
        once_more[..., self.eos_id] = 0.0
        return beam.sums[..., None] + torch.where(self.has_ended(beam.words)[..., None], once_more, log_probs)

    def best_extensions(self, beam: _Sentences, sums: Tensor) -> _Sentences:
        """Keep the beam_size best of all extensions of a sample, whatever sentences they continue."""
        vocab = sums.shape[-1]
        num_words = (beam.words != self.eos_id).sum(dim=-1) + 1  # (batch, beams), the new word or eos_id included
        best = self.best(self.penalise(sums, num_words[..., None]).flatten(1))  # (batch, beam_size)
        before = beam.words.take_along_dim((best // vocab)[..., None], dim=1)  # (batch, beam_size, t)
        words = torch.cat((before, (best % vocab)[..., None]), dim=-1)  # (batch, beam_size, t + 1)
        return _Sentences(words, sums.flatten(1).take_along_dim(best, dim=1))

    def join(self, aside: _Sentences, others: _Sentences) -> _Sentences:
        """Keep the beam_size best of the sentences set aside and of others, longer ones."""
        longer = others.words.shape[-1] - aside.words.shape[-1]
        words = torch.cat((pad(aside.words, (0, longer), value=self.eos_id), others.words), dim=1)
        both = _Sentences(words, torch.cat((aside.sums, others.sums), dim=1))
        best = self.best(self.scores(both))  # (batch, beam_size)
        return _Sentences(words.take_along_dim(best[..., None], dim=1), both.sums.take_along_dim(best, dim=1))

    def best(self, scores: Tensor) -> Tensor:
        """Find the beam_size largest of each row, the first among equals: topk does not promise an order."""
        return scores.argsort(dim=1, descending=True, stable=True)[:, : self.beam_size]

    def has_ended(self, words: Tensor) -> Tensor:
        """Return which sentences hold eos_id, (batch, beams, t) → (batch, beams)."""
        return (words == self.eos_id).any(dim=-1)

    def scores(self, sentences: _Sentences) -> Tensor:
        """Compute the scores that sentences are compared by: (batch, beams)."""
        num_words = (sentences.words != self.eos_id).sum(dim=-1) + self.has_ended(sentences.words)
        return self.penalise(sentences.sums, num_words)

    def penalise(self, sums: Tensor, num_words: Tensor) -> Tensor:
        """Divide sums by the penalty for num_words words, eos_id counted once."""
        if self.length_penalty == "none":
            return sums
        n = num_words.to(sums.dtype)
        return sums / (n if self.length_penalty == "mean" else ((5 + n) / 6) ** 0.6)

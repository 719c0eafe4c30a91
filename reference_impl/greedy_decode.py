"""Greedy decoding: each word of a sentence is the one with the largest logit."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from goldformer.reference_impl._checks import can_read
from goldformer.reference_impl._functional import log_softmax, widen
from goldformer.reference_impl.feed_forward import Activation
from goldformer.reference_impl.transformer import Transformer


class GreedyResult(NamedTuple):
    """The sentences, their scores, and the terms of these."""

    ids: Tensor  # (batch, max_length), int64
    scores: Tensor  # (batch,)
    token_scores: Tensor  # (batch, max_length)


def greedy_decode(
    source: Tensor,
    *,
    num_heads: int,
    num_encoder_layers: int,
    num_decoder_layers: int,
    pad_id: int,
    bos_id: int,
    eos_id: int,
    max_length: int,
    params: Mapping[str, Tensor],
    norm_first: bool = False,
    activation: Activation = "relu",
) -> GreedyResult:
    """Write a sentence for every source, at each step the word that the model finds likeliest, up to eos_id.

    Formula:  y_t = argmax_j z_tj, the lowest j among equals, z_t the logits after the last of (bos_id, y_0 … y_(t−1));
              token_scores_t = log softmax(z_t)[y_t],  scores = Σ_t token_scores_t
    Shapes:   source (batch, source_seq), params as those of transformer
              → ids, token_scores (batch, max_length), scores (batch,); eos_id is part of the sentence, pad_id and
              0 follow it; a sentence without it has max_length words
    Errors:   as transformer, and TypeError unless bos_id, eos_id and max_length are ints; IndexError for a bos_id or
              an eos_id outside the vocabulary; ValueError for a max_length below 1
    Source:   illustrated on the output layer; paper, section 3.1

    On the meta device and under torch.compile, where no values can be read, all max_length steps are taken; the result
    is the same.
    """
    model = Transformer.from_params(
        params,
        num_heads=num_heads,
        num_encoder_layers=num_encoder_layers,
        num_decoder_layers=num_decoder_layers,
        pad_id=pad_id,
        norm_first=norm_first,
        activation=activation,
    )
    model.check_decoding(source, bos_id, eos_id, max_length)

    batch, device = source.shape[0], source.device
    memory = model.run_encoder(source)  # (batch, source_seq, d_model)
    read = torch.full((batch, 1), bos_id, device=device)  # (batch, 1 + t), int64: what the decoder reads
    ids = torch.full((batch, max_length), pad_id, device=device)  # (batch, max_length), int64
    token_scores = widen(model.table).new_zeros(batch, max_length)  # (batch, max_length)
    for t in range(max_length):
        # Ignore the first word: bos_id may equal eos_id, and does not end the sentence.
        ended = (read[:, 1:] == eos_id).any(dim=1)  # (batch,)
        if can_read(ended) and ended.all():
            break
        z = widen(model.next_logits(read, memory, source))  # (batch, vocab)
        word = z.argmax(dim=-1)  # (batch,): the first of equals, as torch promises
        score = log_softmax(z).gather(-1, word[:, None])[:, 0]  # (batch,)
        ids[:, t] = word.where(~ended, pad_id)
        token_scores[:, t] = score.where(~ended, 0.0)
        # A sample that has ended waits for the others. The words that it reads do not matter, but must be in the
        # vocabulary, and pad_id need not be.
        read = torch.cat((read, word[:, None]), dim=1)  # (batch, 1 + t + 1)

    # Sum before rounding to a half type.
    scores = token_scores.sum(dim=1)  # (batch,)
    return GreedyResult(ids, scores.to(model.table.dtype), token_scores.to(model.table.dtype))

"""Losses and their targets: shifted, one-hot and smoothed targets, cross-entropy, Kullback–Leibler divergence."""

import torch
from torch import Tensor

from goldformer.reference_impl.parts import widen
from goldformer.reference_impl.shapes import Float, Int, Rate, Size, can_read, check_ids_below, checked
from goldformer.reference_impl.shapes import check_special_id


@checked
def log_softmax(scores: Float[Tensor, "... n"]) -> Float[Tensor, "... n"]:
    """s_j − log Σ_k exp(s_k) over the last axis. Source: illustrated on the loss, by the cross-entropy it names."""
    # As in softmax the largest score is moved to 0. The logarithm of the quotient would be −inf where the quotient
    # is rounded to 0; the difference of the logarithms is right there too. float32 for the half types: the sum
    # of a vocabulary of 65505 words is beyond float16.
    rows = widen(scores)
    moved = rows - rows.amax(dim=-1, keepdim=True).detach()
    return (moved - moved.exp().sum(dim=-1, keepdim=True).log()).to(scores.dtype)


@checked
def shift_right(ids: Int[Tensor, "batch seq"], bos_id: int) -> Int[Tensor, "batch seq"]:
    """Make what the decoder reads: bos_id, then the target without its last word (SEQ-2). Illustrated; paper 3.1."""
    check_special_id("bos_id", bos_id, "begins these ids", "ids", ids)
    return torch.cat((torch.full_like(ids[:, :1], bos_id), ids[:, :-1]), dim=1)


@checked
def one_hot(ids: Int[Tensor, "batch seq"], vocab: Size) -> Int[Tensor, "batch seq vocab"]:
    """1 for w = ids[b, t], 0 for every other word (LOSS-1), in int64. Source: illustrated on training."""
    check_ids_below("ids", ids, vocab, "the words: use the vocabulary that the ids were made with, or a larger vocab")
    return (ids[..., None] == torch.arange(vocab, device=ids.device)).long()


@checked
def label_smoothing(target: Float[Tensor, "batch seq vocab"], smoothing: Rate) -> Float[Tensor, "batch seq vocab"]:
    """(1 − s)·target + s / vocab: all words share, those of the target included (LOSS-5, LOSS-6).

    Source: paper, section 5.4, with s = 0.1; Szegedy et al., 2015, arXiv:1512.00567, section 7
    """
    return target * (1 - smoothing) + smoothing / target.shape[-1]


@checked
def cross_entropy(
    logits: Float[Tensor, "batch seq vocab"], targets: Int[Tensor, "batch seq"], pad_id: int
) -> tuple[Float[Tensor, ""], Float[Tensor, "batch seq"]]:
    """−log softmax(logits)[target], its mean over all targets but pad_id, and each by itself (LOSS-2, LOSS-3).

    The logits at padded targets do not matter. Source: illustrated on the loss; padding: n9 "使用示例"
    """
    real = targets != pad_id
    words = targets.masked_fill(~real, 0)  # pad_id need not be a word
    what = "the words of logits: use the vocabulary of the model, or the pad_id that pads these targets"
    check_ids_below("targets", words, logits.shape[-1], what)
    if can_read(targets) and not real.any():
        must = "must hold a word, or there is nothing to average: leave batches of padding out"
        raise ValueError(f"targets hold nothing but pad_id={pad_id} and {must}")
    # Padded rows are set to 0 before the logarithm, not only after it: with a NaN or an inf in such a row, the gradient
    # 0 of its loss times the derivative of the logarithm would be 0 · NaN, and reach every weight.
    rows = widen(logits).masked_fill(~real[..., None], 0.0)
    losses = -log_softmax(rows).gather(-1, words.long()[..., None])[..., 0].masked_fill(~real, 0.0)
    # Still in float32 for the half types: in float16 the sum ends at 65504, some thousand tokens.
    loss = losses.sum() / real.sum()
    return loss.to(logits.dtype), losses.to(logits.dtype)


@checked
def kl_divergence(target: Float[Tensor, "... n"], logits: Float[Tensor, "... n"]) -> Float[Tensor, "..."]:
    """KL(p ‖ q) = Σ_w p_w (log p_w − log q_w) with q = softmax(logits) and 0 · log 0 = 0 (LOSS-4). Illustrated."""
    p, log_q = widen(target), log_softmax(widen(logits))
    # log 0 is −inf and 0 · −inf is NaN. A word of probability 0 gets log 1 and a difference of 0: that makes its
    # term 0, and the derivatives through it finite.
    absent = p == 0
    difference = (p.masked_fill(absent, 1.0).log() - log_q).masked_fill(absent, 0.0)
    return (p * difference).sum(dim=-1).to(target.dtype)

"""Losses and their targets: one-hot and smoothed targets, cross-entropy and the Kullback–Leibler divergence."""

import torch
from torch import Tensor

from goldformer.reference_impl._checks import (
    Size,
    can_read,
    check_axes,
    check_floating,
    check_fraction,
    check_ids,
    check_ids_below,
    check_positive_int,
    check_same_device,
    check_special_id,
    check_tensors,
)
from goldformer.reference_impl._functional import log_softmax, widen


def one_hot(ids: Tensor, vocab: int) -> Tensor:
    """Write every id as a distribution that is sure of it.

    Formula:  output[b, t, w] = 1 for w = ids[b, t], 0 for every other word
    Shapes:   ids (batch, seq) → (batch, seq, vocab), int64
    Errors:   TypeError unless ids are int64 or int32 and vocab is an int; ValueError for other shapes, or a
              vocab below 1; IndexError for an id outside 0 … vocab − 1 (not under torch.compile)
    Source:   illustrated on training
    """
    check_ids("ids", ids)
    check_positive_int("vocab", vocab)
    check_ids_below("ids", ids, vocab, "the words: use the vocabulary that the ids were made with, or a larger vocab")

    words = torch.arange(vocab, device=ids.device)  # (vocab,)
    return (ids[..., None] == words).long()  # (batch, seq, vocab)


def label_smoothing(target: Tensor, smoothing: float) -> Tensor:
    """Take a part of the mass from the target distributions, and spread it evenly over all words.

    Formula:  output = (1 − s)·target + s / vocab, the target words included among those that get a share
    Shapes:   target (batch, seq, vocab) → (batch, seq, vocab)
    Errors:   TypeError unless target is a floating-point tensor and smoothing a number;
              ValueError unless target has three axes, all not empty, and smoothing lies in 0 … 1
    Source:   paper, section 5.4, with s = 0.1; Szegedy et al., 2015, arXiv:1512.00567, section 7
    """
    check_tensors({"target": (target, "batch seq vocab")})
    check_fraction("smoothing", smoothing)

    vocab = target.shape[-1]
    return target * (1 - smoothing) + smoothing / vocab  # (batch, seq, vocab)


def cross_entropy(logits: Tensor, targets: Tensor, pad_id: int) -> tuple[Tensor, Tensor]:
    """Measure how surprised the model is by the targets, on average over those that are not padding.

    Formula:  token_losses[b, t] = −log softmax(logits[b, t])[targets[b, t]], and 0 where the target is pad_id;
              loss = Σ token_losses / (number of targets other than pad_id)
    Shapes:   logits (batch, seq, vocab), targets (batch, seq) → loss (), token_losses (batch, seq)
    Errors:   TypeError unless logits are floating point, targets int64 or int32 and pad_id an int; ValueError for
              shapes that do not fit, or targets that are padding throughout; IndexError for another target outside
              0 … vocab − 1 (neither of the two under torch.compile, where targets of only padding give NaN)
    Source:   illustrated on the loss; padding: n9 "使用示例"

    pad_id need not be a word of the vocabulary, and the logits at padded targets do not matter.
    """
    bound: dict[str, tuple[Size, str]] = {}
    check_floating("logits", logits)
    check_axes("logits", logits, "batch seq vocab", bound)
    check_ids("targets", targets, "batch seq", bound)
    check_same_device("targets", targets, "logits", logits)
    check_special_id("pad_id", pad_id, "pads these targets", "targets", targets)
    real = targets != pad_id  # (batch, seq)
    what = "the words of logits: use the vocabulary of the model, or the pad_id that pads these targets"
    check_ids_below("targets", targets, logits.shape[-1], what, read=real)
    if can_read(targets) and not real.any():
        raise ValueError(
            f"targets hold nothing but pad_id={pad_id} and must hold a word, or there is nothing to average: "
            f"leave batches of padding out"
        )

    # Padded rows are set to 0 before the logarithm, not only after it: with a NaN or an inf in such a row, the gradient
    # 0 of its loss times the derivative of the logarithm would be 0 · NaN, and reach every weight.
    rows = widen(logits).masked_fill(~real[..., None], 0.0)  # (batch, seq, vocab)
    index = targets.masked_fill(~real, 0).long()[..., None]  # (batch, seq, 1)
    losses = -log_softmax(rows).gather(-1, index)[..., 0]  # (batch, seq)
    losses = losses.masked_fill(~real, 0.0)  # (batch, seq)
    # Still in float32 for the half types: in float16 the sum ends at 65504, some thousand tokens.
    loss = losses.sum() / real.sum()  # ()
    return loss.to(logits.dtype), losses.to(logits.dtype)


def kl_divergence(target: Tensor, logits: Tensor) -> Tensor:
    """Measure how far the distribution that the logits make is from the target, seen from the target.

    Formula:  KL(p ‖ q) = Σ_w p_w (log p_w − log q_w), with q = softmax(logits) and 0 · log 0 = 0
    Shapes:   target, logits (..., n) → (...)
    Errors:   TypeError unless both are floating-point tensors of one dtype; ValueError for shapes that do not fit
    Source:   illustrated on the loss
    """
    check_tensors({"target": (target, "... n"), "logits": (logits, "... n")})

    p, log_q = widen(target), log_softmax(widen(logits))  # 2 × (..., n)
    # log 0 is −inf and 0 · −inf is NaN. A word of probability 0 gets log 1 and a difference of 0: that makes its
    # term 0, and the derivatives through it finite.
    absent = p == 0  # (..., n)
    difference = (p.masked_fill(absent, 1.0).log() - log_q).masked_fill(absent, 0.0)  # (..., n)
    return (p * difference).sum(dim=-1).to(target.dtype)  # (...)

"""Losses done otherwise: no case and no property may accuse them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from controls import FINE, HALF, NUMPY, controls_of, in_each_dtype

CE, KL, SMOOTH = "cross_entropy", "kl_divergence", "label_smoothing"


def mean_over_words(losses, targets, pad_id):
    words = targets != pad_id
    losses = torch.where(words, losses, torch.zeros_like(losses))
    return losses.sum() / words.sum(), losses


def function_of_torch(logits, targets, *, pad_id):
    flat, ids = logits.flatten(0, 1), targets.flatten()
    losses = F.cross_entropy(flat, ids, ignore_index=pad_id, reduction="none")
    return F.cross_entropy(flat, ids, ignore_index=pad_id), losses.view_as(targets)


def module_of_torch_classes_second(logits, targets, *, pad_id):
    return nn.CrossEntropyLoss(ignore_index=pad_id)(logits.transpose(1, 2), targets)


def nll_of_log_softmax(logits, targets, *, pad_id):
    log_probabilities = F.log_softmax(logits, dim=-1).transpose(1, 2)
    losses = F.nll_loss(log_probabilities, targets, ignore_index=pad_id, reduction="none")
    return losses.sum() / targets.ne(pad_id).sum(), losses


def log_softmax_and_gather(logits, targets, *, pad_id):
    losses = -torch.log_softmax(logits, -1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return mean_over_words(losses, targets, pad_id)


def log_sum_exp_less_the_logit(logits, targets, *, pad_id):
    """The second formula of LOSS-2, as fused kernels have it."""
    losses = torch.logsumexp(logits, dim=-1) - logits.gather(-1, targets[..., None])[..., 0]
    return mean_over_words(losses, targets, pad_id)


def shifted_log_sum_exp_less_the_logit(logits, targets, *, pad_id):
    """As Optax has it."""
    moved = logits - logits.amax(-1, keepdim=True).detach()
    losses = moved.exp().sum(-1).log() - torch.take_along_dim(moved, targets[..., None], dim=-1).squeeze(-1)
    return mean_over_words(losses, targets, pad_id)


def one_hot_sum(logits, targets, *, pad_id):
    rows = F.one_hot(targets, logits.shape[-1]).to(logits.dtype)
    losses = -(rows * F.log_softmax(logits, -1)).sum(-1)
    return mean_over_words(losses, targets, pad_id)


def weighted_mean(logits, targets, *, pad_id):
    """Padding masked with a weight of 0, as TensorFlow tutorials have it."""
    losses = F.cross_entropy(logits.permute(0, 2, 1), targets, reduction="none")
    weight = (targets != pad_id).to(losses.dtype)
    losses = losses * weight
    return losses.sum() / weight.sum(), losses


def words_selected_first(logits, targets, *, pad_id):
    words = targets != pad_id
    losses = F.cross_entropy(logits[words], targets[words], reduction="none")
    return losses.mean(), logits.new_zeros(targets.shape).masked_scatter(words, losses)


def one_token_at_a_time(logits, targets, *, pad_id):
    total, count = 0, 0
    for z, y in zip(logits.flatten(0, 1), targets.flatten(), strict=True):
        if y != pad_id:
            total, count = total + (z - z[y]).logsumexp(0), count + 1
    return total / count


def softplus_of_the_odds(logits, targets, *, pad_id):
    """log(1 + Σ e^(z_m − z_y)) over the other words."""
    chosen = logits.gather(-1, targets[..., None])
    others = (logits - chosen).scatter(-1, targets[..., None], -math.inf)
    others = others.logsumexp(-1)
    return mean_over_words(torch.logaddexp(others, torch.zeros_like(others)), targets, pad_id)


def float32_throughout(logits, targets, *, pad_id):
    loss, losses = function_of_torch(logits.float(), targets, pad_id=pad_id)
    return loss.to(logits.dtype), losses.to(logits.dtype)


def numpy_losses(logits, targets, *, pad_id):
    moved = logits - logits.max(axis=-1, keepdims=True)
    log_probabilities = moved - np.log(np.exp(moved).sum(axis=-1, keepdims=True))
    losses = np.where(targets == pad_id, 0, -np.take_along_axis(log_probabilities, targets[..., None], -1)[..., 0])
    return losses[targets != pad_id].mean(), losses


# Kullback–Leibler divergence


def function_of_torch_kl(target, logits):
    return F.kl_div(F.log_softmax(logits, -1), target, reduction="none").sum(-1)


def with_xlogy(target, logits):
    return (torch.xlogy(target, target) - target * torch.log_softmax(logits, -1)).sum(-1)


def cross_entropy_less_entropy(target, logits):
    cross = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), target.reshape(-1, target.shape[-1]), reduction="none"
    )
    return cross.view(target.shape[:-1]) - torch.special.entr(target).sum(-1)


def where_there_is_mass(target, logits):
    there = target > 0
    log_p = torch.log(torch.where(there, target, torch.ones_like(target)))
    terms = target * (log_p - F.log_softmax(logits, dim=-1))
    return torch.where(there, terms, torch.zeros_like(terms)).sum(dim=-1)


def einsum_of_logs(target, logits):
    log_p = torch.where(target > 0, target, 1).log()
    return torch.einsum("...j,...j->...", target, log_p - logits.log_softmax(-1))


def float32_kl(target, logits):
    return function_of_torch_kl(target.float(), logits.float()).to(logits.dtype)


def numpy_kl(target, logits):
    moved = logits - logits.max(-1, keepdims=True)
    log_q = moved - np.log(np.exp(moved).sum(-1, keepdims=True))
    log_p = np.log(target, where=target > 0, out=np.zeros_like(target))
    return np.where(target > 0, target * (log_p - log_q), 0).sum(-1)


# Label smoothing


def mixed_with_the_uniform(target, *, smoothing):
    return (1 - smoothing) * target + smoothing / target.shape[-1]


def interpolated(target, *, smoothing):
    return torch.lerp(target, torch.full_like(target, 1 / target.shape[-1]), smoothing)


def moved_by_a_step(target, *, smoothing):
    return target + smoothing * (1.0 / target.shape[-1] - target)


def smoothed_by_a_matrix(target, *, smoothing):
    vocab = target.shape[-1]
    keep = torch.eye(vocab, dtype=target.dtype, device=target.device) * (1 - smoothing)
    return target @ (keep + smoothing / vocab)


def numpy_smoothed(target, *, smoothing):
    return (target * (1 - smoothing) + smoothing / target.shape[-1]).astype(target.dtype)


def shared_among_the_others(target, *, smoothing):
    return (1 - smoothing) * target + (1 - target) * (smoothing / (target.shape[-1] - 1))


def filled_and_weighed(target, *, smoothing):
    """As the Annotated Transformer has it, but of any distribution."""
    return torch.full_like(target, smoothing / (target.shape[-1] - 1)) * (1 - target) + target * (1.0 - smoothing)


LOSSES = (
    function_of_torch, module_of_torch_classes_second, nll_of_log_softmax, log_softmax_and_gather,
    shifted_log_sum_exp_less_the_logit, one_hot_sum, weighted_mean, words_selected_first, softplus_of_the_odds,
)  # fmt: skip
DIVERGENCES = (function_of_torch_kl, with_xlogy, cross_entropy_less_entropy, where_there_is_mass, einsum_of_logs)
SMOOTHINGS = (mixed_with_the_uniform, interpolated, moved_by_a_step, smoothed_by_a_matrix)
CONTROLS = [
    *controls_of(CE, LOSSES),
    *controls_of(CE, (one_token_at_a_time,), dtypes=FINE),
    *controls_of(CE, (log_sum_exp_less_the_logit,), gradients=False),
    *controls_of(CE, (float32_throughout,), dtypes=HALF),
    *controls_of(CE, (numpy_losses,), dtypes=NUMPY, arrays="numpy"),
    *controls_of(KL, DIVERGENCES),
    *controls_of(KL, (float32_kl,), dtypes=HALF),
    *controls_of(KL, (numpy_kl,), dtypes=NUMPY, arrays="numpy"),
    *controls_of(SMOOTH, SMOOTHINGS),
    *controls_of(SMOOTH, (numpy_smoothed,), dtypes=NUMPY, arrays="numpy"),
    *controls_of(
        SMOOTH, (shared_among_the_others, filled_and_weighed), conventions={"smoothing_denominator": "others"}
    ),
]


@pytest.mark.sample(30)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_losses_done_otherwise(control, dtype, acquitted):
    acquitted(control, dtype)

"""Mistakes in label smoothing and in the two losses."""

from collections.abc import Callable

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, as_array, number
from goldformer.spec.formulas.attention import softmax
from goldformer.spec.formulas.losses import (
    count_targets,
    cross_entropy,
    find_words,
    kl_divergence,
    kl_terms,
    pick_targets,
    score_targets,
)
from goldformer.spec.formulas.targets import spread_smoothing_mass


@mistake("ls-mass", instead_of=spread_smoothing_mass)
def spread_too_much(target: Array, smoothing: float) -> Array | float:
    """Return s/(vocab − 1) for every word, the target too."""
    vocab: int = target.shape[-1]
    return smoothing / (vocab - 1)


# Cross-entropy


@mistake("double-softmax", around=score_targets)
def score_probabilities(original: Callable[[Array, Array], Array], logits: Array, targets: Array) -> Array:
    """Return the log-softmax of what is a softmax already, at each target, (batch, seq)."""
    return original(softmax(logits), targets)


@mistake("log-softmax-missing", instead_of=score_targets)
def pick_logits(logits: Array, targets: Array) -> Array:
    """Return the logits at each target, (batch, seq)."""
    return pick_targets(logits, targets)


@mistake("loss-pad-counted", around=find_words)
def count_padding(original: Callable[[Array, int], Array], targets: Array, pad_id: int) -> Array:
    """Return True for every target: padding counts as any word does."""
    return np.ones_like(original(targets, pad_id))


@mistake("loss-pad-added", instead_of=cross_entropy)
def add_padding(logits: Array, targets: Array, *, pad_id: int) -> dict[str, Array]:
    """Return the loss whose sum has padding too, divided by the number of words."""
    losses = -score_targets(logits, targets)
    with np.errstate(invalid="ignore", divide="ignore"):
        loss = as_array(losses.sum()) / number(count_targets(find_words(targets, pad_id)))
    return {"loss": as_array(loss), "token_losses": losses}


@mistake("loss-pad-denominator", instead_of=count_targets)
def count_all_tokens(counts: Array) -> int:
    """Return the number of all tokens."""
    return counts.size


# Kullback–Leibler divergence


@mistake("ls-log-zero", instead_of=kl_terms)
def multiply_zero_by_log_zero(target: Array, log_q: Array) -> Array:
    """Return p·(log p − log q), and 0 · log 0 for a word of probability 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return as_array(target * (np.log(target) - log_q))


@mistake("kl-reversed", instead_of=kl_terms)
def reverse_divergence(target: Array, log_q: Array) -> Array:
    """Return q·(log q − log p)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return as_array(np.exp(log_q) * (log_q - np.log(target)))


@mistake("kl-no-log", around=kl_terms)
def forget_logarithm(original: Callable[[Array, Array], Array], target: Array, log_q: Array) -> Array:
    """Return p·(log p − q)."""
    return original(target, np.exp(log_q))


@mistake("kl-row-mean", around=kl_divergence)
def average_terms(original: Callable[[Array, Array], Array], target: Array, logits: Array) -> Array:
    """Return the mean of the terms of a row."""
    return as_array(original(target, logits) / target.shape[-1])

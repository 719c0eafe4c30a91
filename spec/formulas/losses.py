"""Cross-entropy and Kullback–Leibler divergence."""

import numpy as np

from goldformer.spec.formulas.arrays import Array, arithmetic, as_array, number
from goldformer.spec.formulas.steps import step
from goldformer.spec.formulas.transformer import log_softmax

# Cross-entropy


@step
def cross_entropy(logits: Array, targets: Array, *, pad_id: int) -> dict[str, Array]:
    """Return loss (), the mean over the targets that are not padding, and token_losses (batch, seq)."""
    counts = find_words(targets, pad_id)
    losses = -score_targets(logits, targets)
    token_losses = np.where(counts, losses, arithmetic().constant(0, losses))
    # The mean over no target is 0/0: NaN without a warning, as in the frameworks.
    with np.errstate(invalid="ignore"):
        loss = as_array(token_losses[counts].sum()) / number(count_targets(counts))
    return {"loss": as_array(loss), "token_losses": token_losses}


@step
def score_targets(logits: Array, targets: Array) -> Array:
    """Return log softmax(logits) at each target, (batch, seq)."""
    return pick_targets(log_softmax(logits), targets)


def pick_targets(scores: Array, targets: Array) -> Array:
    """Return the entry of each target, (batch, seq)."""
    return np.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]


@step
def find_words(targets: Array, pad_id: int) -> Array:
    """Return True for the targets that count, which are not padding, (batch, seq)."""
    return np.asarray(targets != pad_id)


@step
def count_targets(counts: Array) -> int:
    """Count the targets: the sum is divided by this number."""
    return int(counts.sum())


# Kullback–Leibler divergence


@step
def kl_divergence(target: Array, logits: Array) -> Array:
    """Return Σ p·(log p − log q) with q = softmax(logits), (...)."""
    return as_array(kl_terms(target, log_softmax(logits)).sum(axis=-1))


@step
def kl_terms(target: Array, log_q: Array) -> Array:
    """Return p·(log p − log q) of every word, and 0 where p is 0."""
    present = arithmetic().decide(target) > 0
    log_p = np.log(np.where(present, target, arithmetic().constant(1, target)))
    return np.where(present, target * (log_p - log_q), arithmetic().constant(0, target))

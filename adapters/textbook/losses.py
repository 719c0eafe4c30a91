"""Cross-entropy and Kullback–Leibler divergence, and their gradients."""

from typing import Final

import numpy as np

from goldformer.adapters.textbook.attention import softmax
from goldformer.adapters.textbook.checks import Array, axis_sizes, check_ids
from goldformer.adapters.textbook.steps import step
from goldformer.adapters.textbook.targets import one_hot
from goldformer.adapters.textbook.transformer import log_softmax

# The axes of the arguments, as axis_sizes reads them
CROSS_ENTROPY: Final = {"logits": "batch seq vocab", "targets": "batch seq"}
KL_DIVERGENCE: Final = {"target": "... n", "logits": "... n"}

# Cross-entropy


@step
def cross_entropy(logits: Array, targets: Array, *, pad_id: int) -> dict[str, Array]:
    """Return loss (), the mean over the targets that are not padding, and token_losses (batch, seq)."""
    sizes = axis_sizes(CROSS_ENTROPY, logits=logits, targets=targets)
    check_ids("targets", targets, sizes["vocab"], "the columns of logits")
    counts = find_words(targets, pad_id)
    token_losses = np.where(counts, -score_targets(logits, targets), 0)
    # The mean over no target is 0/0: NaN without a warning, as in the frameworks.
    with np.errstate(invalid="ignore"):
        loss = token_losses.sum() / count_targets(counts)
    return {"loss": np.asarray(loss), "token_losses": token_losses}


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


@step
def cross_entropy_gradient(logits: Array, targets: Array, cotangent: Array, *, pad_id: int) -> dict[str, Array]:
    """Return the gradient of logits: (softmax − one-hot)/number of targets, and 0 where a target is padding."""
    counts = find_words(targets, pad_id)
    errors = softmax(logits) - one_hot(targets, vocab=logits.shape[-1]).astype(logits.dtype)
    terms = np.where(counts[..., None], errors, np.zeros_like(errors))
    return {"logits": average_gradient(terms * cotangent, counts)}


@step
def average_gradient(gradient: Array, counts: Array) -> Array:
    """Divide the gradient of the sum by the number of targets, as in the loss."""
    return gradient / count_targets(counts)


# Kullback–Leibler divergence


@step
def kl_divergence(target: Array, logits: Array) -> Array:
    """Return Σ p·(log p − log q) with q = softmax(logits), (...)."""
    axis_sizes(KL_DIVERGENCE, target=target, logits=logits)
    return np.asarray(kl_terms(target, log_softmax(logits)).sum(axis=-1))


@step
def kl_terms(target: Array, log_q: Array) -> Array:
    """Return p·(log p − log q) of every word, and 0 where p is 0."""
    present = target > 0
    terms = np.zeros_like(target)
    terms[present] = target[present] * (np.log(target[present]) - log_q[present])
    return terms


@step
def kl_divergence_gradient(target: Array, logits: Array, cotangent: Array) -> dict[str, Array]:
    """Return the gradients of target, log p + 1 − log q or 0 where p is 0, and of logits, q·Σp − p."""
    present = target > 0
    of_target = np.zeros_like(target)
    of_target[present] = np.log(target[present]) + 1 - log_softmax(logits)[present]
    of_logits = softmax(logits) * target.sum(axis=-1, keepdims=True) - target
    rows = cotangent[..., None]
    return {"target": of_target * rows, "logits": of_logits * rows}

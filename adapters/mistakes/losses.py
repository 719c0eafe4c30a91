"""Mistakes in label smoothing and in the two losses."""

import numpy as np

from goldformer.adapters.mistakes.differentiation import DifferentiatedTextbook as Textbook
from goldformer.adapters.mistakes.registry import mistake
from goldformer.adapters.textbook_checks import Array


@mistake("ls-mass")
class SmoothedBeyondOne(Textbook):
    """Every word gets s/(vocab − 1), the target too."""

    def shared(self, target: Array, smoothing: float) -> Array | float:
        vocab: int = target.shape[-1]
        return smoothing / (vocab - 1)


# Cross-entropy


@mistake("double-softmax")
class DoubleSoftmax(Textbook):
    """The loss takes the log-softmax of what is a softmax already."""

    def predictions(self, logits: Array) -> Array:
        return super().predictions(self.softmax(logits))


@mistake("log-softmax-missing")
class LogSoftmaxMissing(Textbook):
    """The loss is picked from the logits."""

    def predictions(self, logits: Array) -> Array:
        return logits


@mistake("loss-pad-counted")
class PaddingCounted(Textbook):
    """Padding counts as any word does."""

    def counted(self, targets: Array, pad_id: int) -> Array:
        return np.ones_like(super().counted(targets, pad_id))


@mistake("loss-pad-denominator")
class PaddingInTheDenominator(Textbook):
    """The sum is divided by the number of all tokens."""

    def number_counted(self, counted: Array) -> int:
        return counted.size


# Kullback–Leibler divergence


@mistake("ls-log-zero")
class LogOfZero(Textbook):
    """A word of probability 0 gives 0 · log 0."""

    def kl_terms(self, target: Array, log_q: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(target * (np.log(target) - log_q))


@mistake("kl-reversed")
class DivergenceReversed(Textbook):
    """The terms are q·(log q − log p)."""

    def kl_terms(self, target: Array, log_q: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.exp(log_q) * (log_q - np.log(target)))


@mistake("kl-no-log")
class ProbabilitiesForLogarithms(Textbook):
    """The terms are p·(log p − q)."""

    def kl_terms(self, target: Array, log_q: Array) -> Array:
        return super().kl_terms(target, np.exp(log_q))


@mistake("kl-row-mean")
class DivergenceAveraged(Textbook):
    """The terms of a row are averaged."""

    def kl_divergence(self, target: Array, logits: Array) -> Array:
        return np.asarray(super().kl_divergence(target, logits) / target.shape[-1])

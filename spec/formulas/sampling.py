"""The filters between logits and a draw: temperature, top-k, top-p, min-p and the penalty for repetition.

Tokens are ranked once, and each filter keeps the first of them. What is left is a distribution.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from goldformer.spec.formulas.arrays import Array, arithmetic, number
from goldformer.spec.formulas.attention import fill_masked, softmax
from goldformer.spec.formulas.steps import step


@dataclass(frozen=True, slots=True)
class Ranking:
    """Tokens from the largest logit to the smallest: logits, scores (logits over the temperature), how many are kept.

    All are (batch, vocab), but for `kept`, (batch, 1).
    """

    logits: Array
    scores: Array
    kept: Array

    def is_kept(self) -> Array:
        """Return True for the tokens that are kept, (batch, vocab)."""
        return np.arange(self.logits.shape[-1]) < self.kept

    def keep(self, count: Array | int) -> "Ranking":
        """Return the ranking with at most the first `count` tokens of each row."""
        return replace(self, kept=np.minimum(self.kept, count))


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a call, None for filters that it leaves out."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None


@step
def token_filter(
    logits: Array,
    previous: Array | None = None,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
) -> dict[str, Array]:
    """Return the probabilities of the tokens that are left, 0 for all others, (batch, vocab)."""
    if previous is not None and repetition_penalty is not None:
        logits = penalise_repetition(logits, previous, number(repetition_penalty))
    order = rank_tokens(logits)
    ranked = np.take_along_axis(logits, order, -1)
    ranking = Ranking(ranked, ranked, np.full((len(logits), 1), logits.shape[-1]))
    for apply_filter in filter_order():
        ranking = apply_filter(ranking, Settings(temperature, top_k, top_p, min_p))
    return {"probabilities": np.take_along_axis(weigh_kept(ranking), np.argsort(order, axis=-1), -1)}


# The penalty


@step
def penalise_repetition(logits: Array, previous: Array, penalty: float) -> Array:
    """Return the logits, those of previous tokens moved towards −∞ (SAMPLE-6)."""
    seen = np.zeros(logits.shape, dtype=bool)
    np.put_along_axis(seen, previous, values=True, axis=-1)
    return np.where(seen, lower_logits(logits, penalty), logits)


@step
def lower_logits(logits: Array, penalty: float) -> Array:
    """Return positive logits divided by the penalty, and negative ones multiplied by it."""
    return np.where(arithmetic().decide(logits) > 0, logits / penalty, logits * penalty)


# The ranking and its filters


@step
def rank_tokens(logits: Array) -> Array:
    """Return the tokens of each row from the largest logit, the lowest id first among equals, (batch, vocab)."""
    return rank_largest(logits)


def rank_largest(logits: Array) -> Array:
    """Return the places of the elements of each row from the largest on, the first of equal ones first."""
    return np.argsort(-arithmetic().decide(logits), axis=-1, kind="stable")


@step
def filter_order() -> tuple[Callable[[Ranking, Settings], Ranking], ...]:
    """Return the filters in their order: temperature, top-k, top-p, min-p (SAMPLE-7)."""
    return apply_temperature, apply_top_k, apply_top_p, apply_min_p


@step
def apply_temperature(ranking: Ranking, settings: Settings) -> Ranking:
    """Divide the scores by the temperature; at 0 only the first token is left (SAMPLE-2)."""
    if settings.temperature is None:
        return ranking
    if float(settings.temperature) == 0:
        return cut_ranking(ranking, np.ones_like(ranking.kept))
    return replace(ranking, scores=divide_scores(ranking.scores, number(settings.temperature)))


@step
def divide_scores(scores: Array, temperature: float) -> Array:
    """Return the scores over the temperature."""
    return scores / temperature


@step
def apply_top_k(ranking: Ranking, settings: Settings) -> Ranking:
    """Keep the k tokens of the largest logits (SAMPLE-3)."""
    if settings.top_k is None:
        return ranking
    return cut_ranking(ranking, count_top(ranking.logits, min(settings.top_k, ranking.logits.shape[-1])))


@step
def count_top(ranked: Array, k: int) -> Array:
    """Return k: among equal logits at the cut, the lowest ids are kept (SAMPLE-8)."""
    return np.full((len(ranked), 1), k)


@step
def apply_top_p(ranking: Ranking, settings: Settings) -> Ranking:
    """Keep the fewest first tokens that have at least the share p of what is left (SAMPLE-4)."""
    if settings.top_p is None or float(settings.top_p) == 1:
        return ranking
    weights, share = weigh_for_share(ranking), number(settings.top_p)
    count = count_share(add_before(weights), float(settings.top_p))
    note_gaps(share - add_first(weights, count - 1))
    note_gaps(add_first(weights, count) - share)
    return cut_ranking(ranking, count)


def add_before(weights: Array) -> Array:
    """Return the sum of the weights before each place, as it is decided on, (batch, vocab)."""
    sums = np.cumsum(arithmetic().decide(weights), axis=-1, dtype=np.float64)
    return np.concatenate([np.zeros_like(sums[..., :1]), sums[..., :-1]], axis=-1)


@step
def count_share(before: Array, share: float) -> Array:
    """Return how many tokens have less than the share before them, at least one: the last of them reaches it."""
    return np.maximum((before < share).sum(-1, keepdims=True), 1)


@step
def weigh_for_share(ranking: Ranking) -> Array:
    """Return the weights that top-p adds up: those of the tokens that are left, which have the sum 1."""
    return weigh_kept(ranking)


def add_first(weights: Array, count: Array) -> Array:
    """Return the sum of the first `count` weights of each row, (batch,)."""
    is_first = np.arange(weights.shape[-1]) < count
    return keep_only(weights, is_first).sum(-1)


@step
def apply_min_p(ranking: Ranking, settings: Settings) -> Ranking:
    """Keep the tokens that are at least the share p as likely as the first (SAMPLE-5)."""
    if settings.min_p is None:
        return ranking
    weights = weigh_kept(ranking)
    limit = least_weight(weights, number(settings.min_p))
    decide = arithmetic().decide
    count = (decide(weights) >= decide(limit)).sum(-1, keepdims=True)
    note_gaps(take_place(weights, count - 1) - limit[..., 0])
    note_gaps(limit[..., 0] - take_place(weights, count), count < weights.shape[-1])
    return cut_ranking(ranking, count)


@step
def least_weight(weights: Array, share: float) -> Array:
    """Return the least weight that min-p keeps, (batch, 1)."""
    return weights[..., :1] * share


def cut_ranking(ranking: Ranking, count: Array) -> Ranking:
    """Keep the first `count` tokens of each row. Equal logits on both sides of the cut are ranked by their ids."""
    last, next_one = take_place(ranking.logits, count - 1), take_place(ranking.logits, count)
    decide = arithmetic().decide
    is_cut = (count < ranking.kept) & (decide(last) != decide(next_one))[:, None]
    note_gaps(last - next_one, is_cut)
    return ranking.keep(count)


def take_place(ranked: Array, place: Array) -> Array:
    """Return the element of each row at a place, the last one beyond the end, (batch,)."""
    return np.take_along_axis(ranked, np.minimum(place, ranked.shape[-1] - 1), -1)[..., 0]


@step
def note_gaps(gaps: Array, matters: Array | None = None) -> None:
    """Do nothing. A proof takes the place of this step: it shows that what a filter compared is not equal."""


@step
def weigh_kept(ranking: Ranking) -> Array:
    """Return the softmax of the scores that are kept, 0 for the others (SAMPLE-1)."""
    return weigh_only(ranking.scores, ranking.is_kept())


def weigh_only(scores: Array, is_kept: Array) -> Array:
    """Return the softmax of the scores that are kept, 0 for the others."""
    return keep_only(softmax(fill_masked(scores, is_kept)), is_kept)


def keep_only(weights: Array, is_kept: Array) -> Array:
    """Return the weights that are kept, 0 for the others."""
    return np.where(is_kept, weights, arithmetic().constant(0, weights))

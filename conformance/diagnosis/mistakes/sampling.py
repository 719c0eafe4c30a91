"""Mistakes in the filters between logits and a draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.attention import softmax
from goldformer.spec.formulas.sampling import (
    Ranking,
    Settings,
    apply_min_p,
    apply_temperature,
    count_share,
    count_top,
    divide_scores,
    lower_logits,
    penalise_repetition,
    weigh_for_share,
    weigh_kept,
)


@mistake("sample-top-p-crossing", around=count_share)
def leave_out_crossing(original: Callable[[Array, float], Array], before: Array, share: float) -> Array:
    """Return one token less than reach the share, but at least one."""
    return np.asarray(np.maximum(original(before, share) - 1, 1))


@mistake("sample-top-p-empty", around=count_share)
def keep_nothing(original: Callable[[Array, float], Array], before: Array, share: float) -> Array:
    """Return 0 where the first token reaches the share."""
    count = original(before, share)
    return np.where(count == 1, 0, count)


@mistake("sample-top-p-not-renormalised", instead_of=weigh_for_share)
def weigh_all(ranking: Ranking) -> Array:
    """Return the softmax over all tokens, those that are removed included."""
    return softmax(ranking.scores)


@mistake("sample-top-k-off-by-one", around=count_top)
def keep_one_more(original: Callable[[Array, int], Array], ranked: Array, k: int) -> Array:
    """Return k + 1, no more than there are tokens."""
    return np.asarray(np.minimum(original(ranked, k) + 1, ranked.shape[-1]))


@mistake("sample-removed-zero", around=weigh_kept)
def give_removed_zero(original: Callable[[Ranking], Array], ranking: Ranking) -> Array:
    """Return the softmax of the scores, with 0 for those of removed tokens."""
    scores = np.where(ranking.is_kept(), ranking.scores, ranking.scores.dtype.type(0))
    return original(replace(ranking, scores=scores, kept=np.full_like(ranking.kept, scores.shape[-1])))


@mistake("sample-temperature-twice", around=divide_scores)
def divide_twice(original: Callable[[Array, float], Array], scores: Array, temperature: float) -> Array:
    """Return the scores over the square of the temperature."""
    return original(original(scores, temperature), temperature)


@mistake("sample-temperature-multiplied", instead_of=divide_scores)
def multiply_scores(scores: Array, temperature: float) -> Array:
    """Return the scores times the temperature."""
    return scores * temperature


@mistake("sample-temperature-zero", around=apply_temperature)
def divide_by_zero(original: Callable[[Ranking, Settings], Ranking], ranking: Ranking, settings: Settings) -> Ranking:
    """Divide the scores by the temperature, also by 0."""
    if settings.temperature != 0:
        return original(ranking, settings)
    with np.errstate(divide="ignore", invalid="ignore"):
        return replace(ranking, scores=ranking.scores / ranking.scores.dtype.type(0))


@mistake("sample-penalty-sign", instead_of=lower_logits)
def divide_all(logits: Array, penalty: float) -> Array:
    """Return the logits divided by the penalty, whatever their sign."""
    return logits / penalty


@mistake("sample-penalty-multiplied", instead_of=lower_logits)
def multiply_all(logits: Array, penalty: float) -> Array:
    """Return the logits times the penalty, whatever their sign."""
    return logits * penalty


@mistake("sample-penalty-per-occurrence", around=penalise_repetition)
def penalise_each_occurrence(
    original: Callable[[Array, Array, float], Array], logits: Array, previous: Array, penalty: float
) -> Array:
    """Return the logits with the penalty of one place of the previous tokens after another."""
    for place in range(previous.shape[-1]):
        logits = original(logits, previous[:, place : place + 1], penalty)
    return logits


@mistake("sample-min-p-logits", instead_of=apply_min_p)
def compare_logits(ranking: Ranking, settings: Settings) -> Ranking:
    """Keep the tokens whose scores are at least the share of the largest score."""
    if settings.min_p is None:
        return ranking
    is_kept = ranking.scores >= settings.min_p * ranking.scores[..., :1]
    return ranking.keep(np.maximum(is_kept.sum(-1, keepdims=True), 1))


@mistake("sample-rows-shared", around=count_share)
def share_count(original: Callable[[Array, float], Array], before: Array, share: float) -> Any:
    """Return the number of tokens of the first row for all rows."""
    count = original(before, share)
    return np.broadcast_to(count[:1], count.shape)

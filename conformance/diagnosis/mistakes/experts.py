"""Mistakes in a mixture of experts and in its router."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, arithmetic
from goldformer.spec.formulas.attention import softmax
from goldformer.spec.formulas.experts import (
    add_experts,
    choose_experts,
    expert_params,
    run_expert,
    weigh_experts,
)
from goldformer.spec.formulas.gated import gated_feed_forward
from goldformer.spec.formulas.heads import Params
from goldformer.spec.formulas.parts import part
from goldformer.spec.formulas.sampling import keep_only, rank_largest


@mistake("moe-raw-logits", instead_of=weigh_experts)
def weigh_by_logits(logits: Array, is_chosen: Array) -> Array:
    """Return the logits of the chosen experts."""
    return keep_only(logits, is_chosen)


@mistake("moe-softmax-axis", instead_of=weigh_experts)
def share_among_tokens(logits: Array, is_chosen: Array) -> Array:
    """Return the softmax over the tokens, 0 for experts that are not chosen."""
    return keep_only(softmax(logits.T).T, is_chosen)


@mistake("moe-all-experts", instead_of=choose_experts)
def choose_all(logits: Array, top_k: int) -> Array:
    """Return True for every expert."""
    return np.ones(logits.shape, dtype=bool)


@mistake("moe-weights-by-rank", around=weigh_experts)
def pair_by_rank(original: Callable[..., Array], logits: Array, is_chosen: Array) -> Array:
    """Return the weights, the largest at the first chosen expert by number, the next at the second, and so on."""
    weights = original(logits, is_chosen)
    ranked = np.take_along_axis(weights, rank_largest(weights), -1)
    place = np.maximum(np.cumsum(is_chosen, axis=-1) - 1, 0)
    return keep_only(np.take_along_axis(ranked, place, -1), is_chosen)


@mistake("moe-weights-before", instead_of=run_expert)
def weigh_input(x: Array, weight: Array, *, params: Params) -> Array:
    """Return the output of one expert for the input times its weight."""
    return gated_feed_forward(x * weight, params=params)["output"]


@mistake("moe-unweighted", around=add_experts)
def add_with_weight_one(original: Callable[..., Array], x: Array, weights: Array, params: Params) -> Array:
    """Return the sum of the outputs of the chosen experts, whatever they weigh."""
    is_chosen = arithmetic().decide(weights) != 0
    zero, one = (arithmetic().constant(value, weights) for value in (0, 1))
    return original(x, np.where(is_chosen, one, zero), params)


@mistake("moe-first-only", around=add_experts)
def add_first_choice(original: Callable[..., Array], x: Array, weights: Array, params: Params) -> Array:
    """Return the output of the expert with the largest weight, times that weight."""
    ranked = arithmetic().decide(weights)
    is_first = np.arange(weights.shape[-1]) == ranked.argmax(axis=-1)[..., None]
    return original(x, keep_only(weights, is_first), params)


@mistake("moe-one-choice-for-all", around=add_experts)
def use_choice_of_first_token(original: Callable[..., Array], x: Array, weights: Array, params: Params) -> Array:
    """Return what the experts of the first token of a sample give, with its weights, for every token of it."""
    return original(x, weights[:, np.zeros(weights.shape[1], int)], params)


@mistake("moe-expert-index", instead_of=expert_params)
def take_next_expert(params: Params, index: int, num_experts: int) -> Params:
    """Return the parameters of the expert after the chosen one; the first follows the last."""
    return part(params, f"experts.{(index + 1) % num_experts}")

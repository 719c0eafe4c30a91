"""Mistakes in the weights that a layer begins with, and in dropout, of attention and of anything else."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, as_array
from goldformer.spec.formulas.attention import drop_weights, scaled_dot_product_attention, weigh_keys
from goldformer.spec.formulas.randomness import (
    draw_dropout_mask,
    draw_weight,
    drop_elements,
    dropout,
    is_dropping,
    scale_up,
    xavier_bound,
    xavier_uniform,
)

#: The weight of a layer and its bias.
Weights = dict[str, Array]

DropoutMask = Callable[[tuple[int, ...], float, np.random.Generator], Array]

# Initialisation


@mistake("xavier-fan-in", instead_of=xavier_bound)
def compute_fan_in_bound(d_in: int, d_out: int) -> float:
    """Return √(3/d_in)."""
    return math.sqrt(3 / d_in)


@mistake("xavier-fan-out", instead_of=xavier_bound)
def compute_fan_out_bound(d_in: int, d_out: int) -> float:
    """Return √(3/d_out)."""
    return math.sqrt(3 / d_out)


@mistake("xavier-he", instead_of=xavier_bound)
def compute_he_bound(d_in: int, d_out: int) -> float:
    """Return √(6/d_in)."""
    return math.sqrt(6 / d_in)


@mistake("xavier-std-as-bound", around=xavier_bound)
def compute_deviation_bound(original: Callable[[int, int], float], d_in: int, d_out: int) -> float:
    """Return √(2/(d_in + d_out))."""
    return original(d_in, d_out) / math.sqrt(3)


@mistake("xavier-normal", instead_of=draw_weight)
def draw_normal(shape: tuple[int, ...], bound: float, random: np.random.Generator) -> Array:
    """Return numbers drawn from a normal distribution of the same variance."""
    return random.normal(0, bound / math.sqrt(3), shape)


@mistake("xavier-one-sided", instead_of=draw_weight)
def draw_positive(shape: tuple[int, ...], bound: float, random: np.random.Generator) -> Array:
    """Return numbers drawn between 0 and the bound."""
    return random.uniform(0, bound, shape)


@mistake("xavier-thirds", around=xavier_bound)
def compute_bound_of_thirds(original: Callable[[int, int], float], d_in: int, d_out: int) -> float:
    """Return the bound of each third of a weight whose columns divide by three."""
    return original(d_in, d_out if d_out % 3 else d_out // 3)


@mistake("xavier-transposed", around=xavier_uniform)
def transpose_weight(original: Callable[..., Weights], like: Array, *, seed: int) -> Weights:
    """Return the weight as (d_out, d_in)."""
    return {name: array.T for name, array in original(like, seed=seed).items()}


@mistake("xavier-one-seed", around=xavier_uniform)
def ignore_seed(original: Callable[..., Weights], like: Array, *, seed: int) -> Weights:
    """Return the same weight for every weight of a shape, whatever the seed."""
    return original(like, seed=0)


# Dropout


@mistake("dropout-no-rescale", instead_of=scale_up)
def leave_unscaled(x: Array, rate: float) -> Array:
    """Return x: what is kept stays as it is."""
    return x


@mistake("dropout-keep-probability", around=drop_elements)
def keep_by_rate(
    original: Callable[[Array, float, int | None], Array], x: Array, rate: float, seed: int | None
) -> Array:
    """Return x with elements kept, not dropped, with the probability of the rate."""
    return original(x, 1 - rate, seed)


@mistake("dropout-whole-rows", around=draw_dropout_mask)
def drop_rows(original: DropoutMask, shape: tuple[int, ...], rate: float, random: np.random.Generator) -> Array:
    """Return a mask in which one random number decides for a row, (..., 1)."""
    return original((*shape[:-1], 1), rate, random)


@mistake("dropout-shared-mask", around=draw_dropout_mask)
def drop_channels(original: DropoutMask, shape: tuple[int, ...], rate: float, random: np.random.Generator) -> Array:
    """Return a mask in which one random number decides for a channel of all samples and tokens, (n,)."""
    return original(shape[-1:], rate, random)


@mistake("dropout-one-seed", around=draw_dropout_mask)
def repeat_mask(original: DropoutMask, shape: tuple[int, ...], rate: float, random: np.random.Generator) -> Array:
    """Return the same mask in every call for arrays of a shape, whatever the seed."""
    return original(shape, rate, np.random.default_rng(0))


@mistake("dropout-in-evaluation", around=dropout)
def always_drop(original: Callable[..., Array], x: Array, *, rate: float, training: bool, seed: int) -> Array:
    """Return x with elements dropped in training and in evaluation."""
    return original(x, rate=rate, training=True, seed=seed)


@mistake("dropout-in-evaluation", instead_of=is_dropping)
def drop_inside_always(training: bool) -> bool:  # noqa: FBT001
    """Return True: a component drops in training and in evaluation."""
    return True


@mistake("dropout-scaled-in-evaluation", around=dropout)
def scale_in_evaluation(original: Callable[..., Array], x: Array, *, rate: float, training: bool, seed: int) -> Array:
    """Return x multiplied by 1 − rate in evaluation."""
    given = original(x, rate=rate, training=training, seed=seed)
    return given if training else as_array(given * (1 - rate))


@mistake("dropout-sticky", decorating=dropout)
def switch_off(original: Callable[..., Array]) -> Callable[..., Array]:
    """Set the rate to 0 in evaluation, where it stays."""
    switched_off = False

    def drop_until_evaluation(x: Array, *, rate: float, training: bool, seed: int) -> Array:
        nonlocal switched_off
        switched_off = switched_off or not training
        return original(x, rate=0.0 if switched_off else rate, training=training, seed=seed)

    return drop_until_evaluation


# Dropout in attention


@mistake("attention-dropout-scores", instead_of=drop_weights)
def drop_scores(weights: Array, scaled: Array, mask: Array | None, rate: float, seed: int | None) -> Array:
    """Return the softmax of what is left when scores are dropped."""
    del weights
    return weigh_keys(drop_elements(scaled, rate, seed), mask)


@mistake("attention-dropout-renormalised", around=drop_weights)
def renormalise(
    original: Callable[..., Array], weights: Array, scaled: Array, mask: Array | None, rate: float, seed: int | None
) -> Array:
    """Return the weights that are left divided by their sum."""
    kept = original(weights, scaled, mask, rate, seed)
    # A row that is dropped as a whole becomes 0/0.
    with np.errstate(invalid="ignore"):
        return as_array(kept / kept.sum(axis=-1, keepdims=True))


@mistake("attention-dropout-output", around=scaled_dot_product_attention)
def drop_output(
    original: Callable[..., dict[str, Array]],
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    dropout_rate: float | None = None,
    seed: int | None = None,
    **rest: Any,
) -> dict[str, Array]:
    """Return attention with elements of the output dropped instead of weights."""
    given = original(query, key, value, mask, **rest)
    if dropout_rate is None:
        return given
    return given | {"output": drop_elements(given["output"], dropout_rate, seed)}

"""Mistakes in the norms of queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, as_array, number
from goldformer.spec.formulas.decoder_only import place_heads, turn_keys, turn_queries
from goldformer.spec.formulas.grouped import normalise_heads, normalise_rows
from goldformer.spec.formulas.heads import Params
from goldformer.spec.formulas.rms import channel_scale, mean_square
from goldformer.spec.formulas.steps import instead, replacing

Normalise = Callable[[Array, Array, Array, Array | None, Array | None], tuple[Array, Array, Array]]
Heads = tuple[Array, Array, Array]

PER_HEAD: Final = {"qk_norm": "per_head"}


@mistake("qk-norm-dropped", instead_of=normalise_heads)
def leave_heads(query: Array, key: Array, value: Array, gamma_q: Array | None, gamma_k: Array | None) -> Heads:
    """Return queries, keys and values as they are."""
    return query, key, value


@mistake("qk-norm-queries-only", around=normalise_heads)
def leave_keys(
    original: Normalise, query: Array, key: Array, value: Array, gamma_q: Array | None, gamma_k: Array | None
) -> Heads:
    """Return normalised queries, and keys and values as they are."""
    return original(query, key, value, gamma_q, None)


@mistake("qk-norm-over-all-heads", around=normalise_rows)
def average_heads_too(original: Callable[[Array, Array | None], Array], heads: Array, gamma: Array | None) -> Array:
    """Return heads that are divided by the root of the mean square over all of them, (batch, heads, seq, d_k)."""

    def average(row: Array) -> Array:
        size = number(row.shape[-1] * row.shape[-3])
        return as_array((row * row).sum(axis=(-3, -1), keepdims=True) / size)

    with replacing({mean_square: instead(average)}):
        return original(heads, gamma)


@mistake("qk-norm-gains-swapped", around=normalise_heads)
def use_gain_of_queries(
    original: Normalise, query: Array, key: Array, value: Array, gamma_q: Array | None, gamma_k: Array | None
) -> Heads:
    """Return queries and keys that are normalised by the gain of queries, if the call has both gains."""
    return original(query, key, value, gamma_q, gamma_k if gamma_q is None or gamma_k is None else gamma_q)


@mistake("qk-norm-without-gain", around=normalise_rows)
def leave_gain_out(original: Callable[[Array, Array | None], Array], heads: Array, gamma: Array | None) -> Array:
    """Return heads that are normalised, and not multiplied by a gain."""
    with replacing({channel_scale: instead(np.ones_like)}):
        return original(heads, gamma)


@mistake("qk-norm-values-too", around=normalise_heads)
def normalise_values(
    original: Normalise, query: Array, key: Array, value: Array, gamma_q: Array | None, gamma_k: Array | None
) -> Heads:
    """Return normalised queries and keys, and values that are normalised with a gain of 1."""
    query, key, value = original(query, key, value, gamma_q, gamma_k)
    if gamma_q is None and gamma_k is None:
        return query, key, value
    with replacing({channel_scale: instead(lambda gamma: gamma)}):
        return query, key, normalise_rows(value, np.ones_like(value[0, 0, 0]))


@mistake("qk-norm-after-turn", instead_of=place_heads, conventions=PER_HEAD)
def turn_first(query: Array, key: Array, value: Array, base: float | None, start: int, *, params: Params) -> Heads:
    """Return the heads with queries and keys turned and then normalised."""
    turned = turn_queries(query, base, start), turn_keys(key, base, start)
    return normalise_heads(*turned, value, params.get("gamma_q"), params.get("gamma_k"))

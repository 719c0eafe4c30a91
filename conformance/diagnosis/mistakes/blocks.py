"""Mistakes in the layer of a decoder-only model: its norms, its residuals, and what it does to queries and keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array
from goldformer.spec.formulas.attention import can_see, score_divisor
from goldformer.spec.formulas.decoder_only import (
    attend_to_earlier,
    decoder_only_layer,
    feed_through_gate,
    finish_block,
    hide_later,
    normalise_block,
    run_block,
    turn_heads,
    turn_keys,
    turn_queries,
)
from goldformer.spec.formulas.heads import Params, merge_heads, project_heads, split_heads
from goldformer.spec.formulas.layers import SubLayer, add_residual, norm_params
from goldformer.spec.formulas.options import normalise_output_of_block
from goldformer.spec.formulas.rms import rms_norm
from goldformer.spec.formulas.steps import around, instead, replacing

Layer = Callable[..., dict[str, Array]]
Attention = Callable[..., tuple[Array, Array]]
Turn = Callable[[Array, float | None, int], Array]

SANDWICH: Final = {"block_order": "sandwich"}

# Norms and residuals


@mistake("block-norm-missing", instead_of=normalise_block)
def read_unnormalised(x: Array, *, number: int, sums: list[Array], params: Params) -> Array:
    """Return the sum before a block as it is."""
    return x


@mistake("block-norm-after", instead_of=run_block)
def normalise_sum(
    x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
) -> tuple[Array, Array]:
    """Return RMSNorm(x + f(x)) and the second result of f."""
    output, second = function(x)
    sums.append(add_residual(x, output, sums))
    return rms_norm(sums[-1], params=norm_params(params, number)), second


@mistake("block-norm-shared", around=normalise_block)
def reuse_first_norm(
    original: Callable[..., Array], x: Array, *, number: int, sums: list[Array], params: Params
) -> Array:
    """Return the sum before a block, normalised by the first norm of the layer."""
    return original(x, number=1, sums=sums, params=params)


@mistake("block-norms-swapped", around=normalise_block)
def swap_norms(original: Callable[..., Array], x: Array, *, number: int, sums: list[Array], params: Params) -> Array:
    """Return the sum before a block, normalised by the norm of the other block."""
    return original(x, number=3 - number, sums=sums, params=params)


@mistake("block-residual-normed", instead_of=run_block)
def add_normalised_input(
    x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
) -> tuple[Array, Array]:
    """Return RMSNorm(x) + f(RMSNorm(x)) and the second result of f."""
    normed = normalise_block(x, number=number, sums=sums, params=params)
    output, second = function(normed)
    sums.append(add_residual(normed, finish_block(output, number=number, params=params), sums))
    return sums[-1], second


@mistake("block-network-reads-input", around=normalise_block)
def read_input_of_layer(
    original: Callable[..., Array], x: Array, *, number: int, sums: list[Array], params: Params
) -> Array:
    """Return the normalised input of the layer for each block, by the norm of the block."""
    return original(sums[0], number=number, sums=sums, params=params)


@mistake("block-output-norm-after-sum", instead_of=run_block, conventions=SANDWICH)
def normalise_after_adding(
    x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
) -> tuple[Array, Array]:
    """Return RMSNorm(x + f(RMSNorm(x))), by the norm that is meant for the output, and the second result of f."""
    output, second = function(normalise_block(x, number=number, sums=sums, params=params))
    sums.append(normalise_output_of_block(add_residual(x, output, sums), number=number, params=params))
    return sums[-1], second


@mistake("block-output-norm-missing", instead_of=finish_block, conventions=SANDWICH)
def leave_output(output: Array, *, number: int, params: Params) -> Array:
    """Return the output of a block as it is."""
    return output


@mistake("block-network-missing", instead_of=feed_through_gate)
def add_nothing(x: Array, *, params: Params) -> tuple[Array, Array]:
    """Return zeros: the layer ends with its attention."""
    return np.zeros_like(x), x


# Rotary positions


@mistake("block-not-turned", instead_of=turn_heads)
def leave_positions_out(x: Array, base: float | None, start: int = 0) -> Array:
    """Return the heads as they are."""
    return x


@mistake("block-keys-not-turned", instead_of=turn_keys)
def leave_keys(key: Array, base: float | None, start: int = 0) -> Array:
    """Return the keys as they are."""
    return key


@mistake("block-queries-not-turned", instead_of=turn_queries)
def leave_queries(query: Array, base: float | None, start: int = 0) -> Array:
    """Return the queries as they are."""
    return query


@mistake("block-values-turned", around=attend_to_earlier)
def turn_values(
    original: Attention, x: Array, mask: Array | None, *, num_kv_heads: int, base: float | None, **rest: Any
) -> tuple[Array, Array]:
    """Return the attention whose values are turned like its keys."""

    def project(
        project: Callable[[Array, Params, str, int], Array], x: Array, params: Params, role: str, heads: int
    ) -> Array:
        projected = project(x, params, role, heads)
        return turn_heads(projected, base) if role == "v" else projected

    with replacing({project_heads: around(project)}):
        return original(x, mask, num_kv_heads=num_kv_heads, base=base, **rest)


@mistake("block-turned-before-split", around=turn_heads)
def turn_all_channels(original: Turn, x: Array, base: float | None, start: int = 0) -> Array:
    """Return heads whose channels are turned as one row, with the frequencies of its whole width."""
    row = merge_heads(x)
    return split_heads(original(row[:, None], base, start)[:, 0], x.shape[1])


@mistake("block-keys-laid-out-by-query-heads", around=attend_to_earlier)
def reorder_by_query_heads(
    original: Attention,
    x: Array,
    mask: Array | None,
    *,
    num_heads: int,
    num_kv_heads: int,
    params: Params,
    **rest: Any,
) -> tuple[Array, Array]:
    """Return the attention whose keys are put from one pairing into the other as if there were as many as queries.

    The queries and the keys of each head are meant to be in the same order, so what is left is the difference.
    """
    columns = params["w_k"].shape[1]
    order = np.arange(columns)
    if columns % (2 * num_heads) == 0:
        by_queries, by_keys = (_list_halves(columns, heads) for heads in (num_heads, num_kv_heads))
        order = by_queries[np.argsort(by_keys)]
    moved = {name: params[name][..., order] for name in ("w_k", "b_k") if name in params}
    return original(x, mask, num_heads=num_heads, num_kv_heads=num_kv_heads, params={**params, **moved}, **rest)


def _list_halves(columns: int, heads: int) -> Array:
    """Return the first channels of each head's neighbouring pairs, and then the second ones, head by head."""
    return np.arange(columns).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


# Masks


@mistake("block-causal-missing", instead_of=hide_later)
def show_later(mask: Array | None, seq: int) -> Array:
    """Return the mask of the call, or one that hides nothing."""
    return np.ones((seq, seq), dtype=bool) if mask is None else mask


@mistake("block-mask-replaces-causal", around=hide_later)
def replace_causal(original: Callable[[Array | None, int], Array], mask: Array | None, seq: int) -> Array:
    """Return the mask of the call if there is one, and else the causal mask."""
    return original(mask, seq) if mask is None else mask


@mistake("block-mask-ignored", around=hide_later)
def ignore_mask(original: Callable[[Array | None, int], Array], mask: Array | None, seq: int) -> Array:
    """Return the causal mask."""
    return original(None, seq)


@mistake("block-causal-off-by-one", around=hide_later)
def see_next_token(original: Callable[[Array | None, int], Array], mask: Array | None, seq: int) -> Array:
    """Return the mask in which a token sees the one after it."""
    return _shift_diagonal(original, mask, seq, 1)


@mistake("block-causal-self-hidden", around=hide_later)
def hide_oneself(original: Callable[[Array | None, int], Array], mask: Array | None, seq: int) -> Array:
    """Return the mask in which a token does not see itself."""
    return _shift_diagonal(original, mask, seq, -1)


def _shift_diagonal(original: Callable[[Array | None, int], Array], mask: Array | None, seq: int, offset: int) -> Array:
    def see(query: Array, key: Array) -> Array:
        return np.asarray(key <= query + offset)

    with replacing({can_see: instead(see)}):
        return original(mask, seq)


# Projections and heads


@mistake("block-keys-values-swapped", around=attend_to_earlier)
def swap_keys_and_values(
    original: Attention, x: Array, mask: Array | None, *, params: Params, **heads: Any
) -> tuple[Array, Array]:
    """Return the attention that projects keys by the weights of the values, and values by those of the keys."""
    turned = {"w_k": "w_v", "w_v": "w_k", "b_k": "b_v", "b_v": "b_k"}
    return original(x, mask, params={turned.get(name, name): array for name, array in params.items()}, **heads)


@mistake("block-scale-by-model-width", around=decoder_only_layer)
def scale_by_width_of_model(
    original: Layer, x: Array, mask: Array | None = None, *, num_heads: int, **rest: Any
) -> dict[str, Array]:
    """Return the layer whose scores are divided by √(d_model/num_heads)."""

    def divide(sizes: Mapping[str, Any]) -> float:
        return math.sqrt(x.shape[-1] / num_heads)

    with replacing({score_divisor: instead(divide)}):
        return original(x, mask, num_heads=num_heads, **rest)

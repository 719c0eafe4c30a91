"""Mistakes in backward passes, each a step that keeps its result and has another derivative, and in training steps."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from goldformer.adapters.textbook import COMPONENTS
from goldformer.conformance.diagnosis.mistakes.derivatives import (
    change_cotangent,
    change_result,
    cut_off,
    cut_params,
    pass_back,
    take_derivative,
)
from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, arithmetic, detach
from goldformer.spec.formulas.attention import fill_masked, score_keys, softmax
from goldformer.spec.formulas.backward import (
    Gradients,
    input_gradient,
    move_weight,
    single_head_attention_step,
    take_step,
    weight_gradients,
)
from goldformer.spec.formulas.embedding import read_rows
from goldformer.spec.formulas.gated import join_branches, sigmoid
from goldformer.spec.formulas.grouped import find_shared_heads, share_heads
from goldformer.spec.formulas.heads import Params, single_head_attention
from goldformer.spec.formulas.layers import (
    activation,
    add_residual,
    channel_variance,
    layer_norm,
    run_decoder_layer,
    run_encoder_layer,
    scale_and_shift,
    subtract_mean,
)
from goldformer.spec.formulas.losses import count_targets, cross_entropy, find_words
from goldformer.spec.formulas.rms import rms_divisor
from goldformer.spec.formulas.rope import turn_pairs
from goldformer.spec.formulas.steps import around, instead, replacing
from goldformer.spec.formulas.transformer import embed_target, select_memory, tied_weight

# Softmax and attention

mistake("softmax-bwd", around=softmax)(pass_back(lambda g, weights, _: g * weights))
mistake("softmax-bwd-diagonal", around=softmax)(pass_back(lambda g, weights, _: weights * (g - g * weights)))


@mistake("softmax-bwd-mean", around=softmax)
@change_result
def divide_by_rows(cotangent: Array, scores: Array) -> Array:
    """Return the cotangent divided by the size of the first axis, as that of a mean over samples."""
    return np.asarray(cotangent / cotangent.dtype.type(len(scores))) if scores.ndim > 1 else cotangent


@mistake("scale-bwd", around=score_keys)
@change_result
def forget_scale(cotangent: Array, query: Array, _: Array) -> Array:
    """Return the cotangent of the scaled scores as that of the scores."""
    return np.asarray(cotangent * cotangent.dtype.type(math.sqrt(query.shape[-1])))


mistake("mask-bwd", around=fill_masked)(pass_back(lambda g, *_: g))


@mistake("empty-row-nan-grad", around=fill_masked)
@pass_back
def multiply_by_nan(cotangent: Array, _: Array, scaled: Array, mask: Array) -> Array:
    """Return NaN in the rows without a key."""
    # The softmax of a row of −∞ is NaN. Replaced only after it, the NaN is still multiplied by on the way back, and
    # a mask that is added puts no 0 in its place.
    kept = np.where(mask, cotangent, cotangent.dtype.type(0))
    return np.where(mask.any(axis=-1, keepdims=True), kept, cotangent.dtype.type(math.nan))


# Grouped-query attention


@mistake("gqa-grad-not-summed", around=share_heads)
def overwrite_group_gradient(shared: Callable[[Array, int], Array], x: Array, heads: int) -> Array:
    """Let back what comes from the last query head of each group: it takes the place of the others."""
    read = find_shared_heads(heads, x.shape[1])
    last = [h for h in range(heads) if read[h] not in read[h + 1 :]]
    passes = np.isin(np.arange(heads), last)[:, None, None]
    return change_cotangent(shared(x, heads), lambda g: np.where(passes, g, g.dtype.type(0)))


@mistake("gqa-grad-mean", around=share_heads)
def average_group_gradient(shared: Callable[[Array, int], Array], x: Array, heads: int) -> Array:
    """Let back the average of a group."""
    return change_cotangent(shared(x, heads), lambda g: g * g.dtype.type(x.shape[1] / heads))


@mistake("gqa-grad-index", around=share_heads)
def divide_by_key_heads(shared: Callable[[Array, int], Array], x: Array, heads: int) -> Array:
    """Add query head h to head h // kv_heads, or to none where there is no such head."""
    place = np.arange(heads) // x.shape[1]
    flows = x[:, np.minimum(place, x.shape[1] - 1)]
    kept = np.where((place < x.shape[1])[:, None, None], flows, flows.dtype.type(0))
    return take_derivative(shared(x, heads), kept)


# The layers


mistake("relu-bwd", around=activation)(pass_back(lambda g, *_: g))
mistake("ln-bwd", around=subtract_mean)(pass_back(lambda g, *_: g))
mistake("ln-bwd", around=channel_variance)(detach)


@mistake("ln-bwd-gamma-outside", around=layer_norm)
def scale_after_statistics(original: Callable[..., Array], x: Array, *, params: Params) -> Array:
    """Let gamma multiply the gradient of x after its two means were subtracted."""
    gamma = arithmetic().detach(params["gamma"])
    return original(change_cotangent(x, lambda g: g * gamma), params=params)


@mistake("ln-bwd-gamma-outside", around=scale_and_shift)
def leave_out_gamma(original: Callable[[Array, Params], Array], normal: Array, params: Params) -> Array:
    """Let back to the normalised row what reaches the output, without gamma."""
    value = original(arithmetic().detach(normal), params)
    return take_derivative(value, value, normal)


@mistake("ln-bwd-rank", around=scale_and_shift)
def sum_first_axis(original: Callable[[Array, Params], Array], normal: Array, params: Params) -> Array:
    """Let back to gamma and beta the sums over only the first axis, as for an array of rows."""
    value, row = original(normal, cut_params(params)), arithmetic().detach(normal)
    return arithmetic().record(
        value,
        (value, lambda g: g),
        (params["gamma"], lambda g: np.asarray((g * row).sum(axis=0))),
        (params["beta"], lambda g: np.asarray(g.sum(axis=0))),
    )


mistake("rms-bwd", around=rms_divisor)(detach)
mistake("glu-bwd", around=sigmoid)(detach)
mistake("residual-bwd", around=add_residual)(cut_off)


@mistake("rope-bwd", around=turn_pairs)
def turn_forwards(turned: Callable[..., Array], row: Array, cosine: Array, sine: Array) -> Array:
    """Turn gradients as the channels, and not back."""
    return take_derivative(turned(row, cosine, sine), turned(row, cosine, -sine))


@mistake("glu-bwd-up", around=join_branches)
def pass_gate_to_up(joined: Callable[[Array, Array], Array], gate: Array, up: Array) -> Array:
    """Let back to up what the gate is before its activation."""
    constant = arithmetic().detach
    # Only the derivative of this sum counts: it is not the product.
    return take_derivative(joined(gate, up), joined(gate, constant(up)) + constant(gate) * up)


# Stacks and the whole model


def cut_between_layers(original: Callable[..., Array], x: Array, *, index: int, **rest: Any) -> Array:
    """Let nothing flow from a layer to the one before it."""
    return original(arithmetic().detach(x) if index else x, index=index, **rest)


mistake("layer-bwd", around=run_encoder_layer)(cut_between_layers)
mistake("layer-bwd", around=run_decoder_layer)(cut_between_layers)


@mistake("memory-bwd-overwrite", around=run_decoder_layer)
def overwrite_memory_gradient(
    original: Callable[..., Array], x: Array, *, index: int, memory: Array, **rest: Any
) -> Array:
    """Let back to the memory what comes from the first layer: it comes last and takes the place of the others."""
    return original(x, index=index, memory=arithmetic().detach(memory) if index else memory, **rest)


mistake("memory-bwd", around=select_memory)(detach)


@mistake("emb-bwd-one-side", around=embed_target)
def overwrite_table_gradient(
    original: Callable[[Array, int, Params], Array], target: Array, pad_id: int, params: Params
) -> Array:
    """Let nothing back to the table through the target: the gradient by the source takes its place."""
    return original(target, pad_id, {**params, "table": arithmetic().detach(params["table"])})


mistake("tied-bwd-embedding-only", around=tied_weight, conventions={"output_layer": "tied"})(detach)


# Embedding and loss


@mistake("emb-bwd-overwrite", around=read_rows)
@pass_back
def add_rows_by_index(cotangent: Array, _: Array, table: Array, ids: Array) -> Array:
    """Add the rows by their indices: of several rows for one word only one counts."""
    gradient = np.zeros(table.shape, cotangent.dtype)
    gradient[ids] += cotangent
    return gradient


@mistake("ce-bwd-sum", around=cross_entropy)
def keep_sum(original: Callable[..., dict[str, Array]], logits: Array, targets: Array, *, pad_id: int) -> Any:
    """Let back the gradient of the sum, not divided."""
    found, counted = original(logits, targets, pad_id=pad_id), count_targets(find_words(targets, pad_id))
    return {**found, "loss": change_cotangent(found["loss"], lambda g: g * g.dtype.type(counted))}


# The training step


@mistake("sgd-sign", instead_of=move_weight)
def move_along_gradient(weight: Array, gradient: Array, learning_rate: float) -> Array:
    """Return W + lr·dW."""
    return weight + learning_rate * gradient


@mistake("sgd-input-gradient-after-step", around=take_step)
def form_input_gradient_after_step(
    original: Callable[..., tuple[Array, dict[str, Array]]],
    weights: Params,
    x: Array,
    projected: Gradients,
    learning_rate: float,
) -> tuple[Array, dict[str, Array]]:
    """Return the gradient of x by the weights after the step, and these."""
    _, moved = original(weights, x, projected, learning_rate)
    return input_gradient(projected, moved), moved


@mistake("sgd-sequential", instead_of=single_head_attention_step)
def move_one_after_the_other(
    x: Array, output_gradient: Array, *, causal: bool, learning_rate: float, steps: int, params: Params
) -> dict[str, Array]:
    """Return weights that move one after the other, each by the gradient at those that have moved before it."""
    differentiate = COMPONENTS["single_head_attention_gradient"]
    weights = before = dict(params)
    for _ in range(steps):
        before, weights = weights, dict(weights)
        for name in ("w_q", "w_k", "w_v"):
            gradients = differentiate(x=x, cotangent=output_gradient, causal=causal, params=weights)
            weights[name] = move_weight(weights[name], gradients[name], learning_rate)
    first = differentiate(x=x, cotangent=output_gradient, causal=causal, params=before)
    return {"x_gradient": first["x"], **weights}


@mistake("sgd-accumulated", around=single_head_attention_step)
def accumulate_gradients(original: Callable[..., dict[str, Array]], *arrays: Array, **rest: Any) -> dict[str, Array]:
    """Return steps in which the gradients of the step before are not cleared."""
    earlier: Gradients = {}

    def add(original: Callable[[Array, Gradients], Gradients], x: Array, projected: Gradients) -> Gradients:
        gradients = original(x, projected)
        earlier.update({name: g + earlier[name] if earlier else g for name, g in gradients.items()})
        return dict(earlier)

    with replacing({weight_gradients: around(add)}):
        return original(*arrays, **rest)


@mistake("sgd-forward-stale", around=single_head_attention_step)
def repeat_first_forward_pass(
    original: Callable[..., dict[str, Array]], x: Array, *rest: Array, causal: bool, params: Params, **named: Any
) -> dict[str, Array]:
    """Return steps that all have one forward pass, before the first."""
    forward: dict[str, Array] = {}

    def run_once(x: Array, *, causal: bool, params: Params) -> dict[str, Array]:
        return forward

    forward = single_head_attention(x, causal=causal, params=params)
    with replacing({single_head_attention: instead(run_once)}):
        return original(x, *rest, causal=causal, params=params, **named)

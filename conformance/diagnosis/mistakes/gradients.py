"""Mistakes in backward passes that are written by hand, and in the training steps that they make."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from goldformer.adapters.textbook import COMPONENTS
from goldformer.adapters.textbook.layers_backward import (
    add_tied_gradient,
    encoder_gradient,
    join_residual_gradient,
    stack_gradient,
    sum_memory_gradients,
    sum_table_gradients,
    transformer_gradient,
)
from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import arithmetic, detach
from goldformer.spec.formulas.attention import fill_masked, softmax_over_keys
from goldformer.spec.formulas.backward import (
    Gradients,
    activation_gradient,
    add_rows,
    average_gradient,
    input_gradient,
    layer_norm_gradient,
    mask_gradient,
    move_weight,
    scores_gradient,
    single_head_attention_gradient,
    single_head_attention_step,
    softmax_backward,
    softmax_row_term,
    statistics_gradient,
    sum_rows,
    take_step,
    weight_gradients,
)
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.gated import gated_feed_forward, join_branches, sigmoid
from goldformer.spec.formulas.grouped import find_shared_heads, grouped_query_attention, share_heads
from goldformer.spec.formulas.heads import Params, single_head_attention
from goldformer.spec.formulas.options import negate_positions
from goldformer.spec.formulas.rms import rms_divisor, rms_norm
from goldformer.spec.formulas.rope import rotary_embedding, turning_positions
from goldformer.spec.formulas.steps import Step, around, instead, replacing

# Softmax and attention


@mistake("softmax-bwd", instead_of=softmax_row_term)
def leave_out_row_term(weights: Array, gradient: Array) -> Array | float:
    """Return 0: the term of the row is left out."""
    return 0.0


@mistake("softmax-bwd-mean", around=softmax_backward)
def divide_by_rows(original: Callable[[Array, Array], Array], weights: Array, gradient: Array) -> Array:
    """Return the gradient of the scores divided by the size of the first axis, as that of a mean over samples."""
    through = original(weights, gradient)
    return through / len(through) if through.ndim > 1 else through


@mistake("softmax-bwd-diagonal", instead_of=softmax_row_term)
def keep_diagonal(weights: Array, gradient: Array) -> Array:
    """Return the term of the score's own weight, (..., n)."""
    return gradient * weights


@mistake("scale-bwd", instead_of=scores_gradient)
def forget_scale(scaled: Array, sizes: Mapping[str, Any]) -> Array:
    """Return the gradient of the scaled scores as that of the scores."""
    return scaled


@mistake("mask-bwd", instead_of=mask_gradient)
def forget_mask(gradient: Array, mask: Array) -> Array:
    """Return the gradient with what the mask hides."""
    return gradient


@mistake("empty-row-nan-grad", instead_of=fill_masked)
def add_infinity(scaled: Array, mask: Array) -> Array:
    """Return the scores plus −∞ where the mask is False."""
    return np.asarray(scaled + np.where(mask, 0.0, -math.inf).astype(scaled.dtype))


@mistake("empty-row-nan-grad", around=softmax_over_keys)
def replace_nan(original: Callable[[Array], Array], scores: Array) -> Array:
    """Return the weights, in which the NaN of a row of −∞ is replaced only after the softmax."""
    weights = original(scores)
    np.copyto(weights, 1 / weights.shape[-1], where=np.isnan(weights))
    return weights


@mistake("empty-row-nan-grad", instead_of=mask_gradient)
def multiply_by_nan(gradient: Array, mask: Array) -> Array:
    """Return NaN in the rows without a key."""
    # On the way back the softmax of such a row still has weights of NaN, and multiplies by them.
    return np.where(mask.any(axis=-1, keepdims=True), gradient, np.full_like(gradient, math.nan))


# The gradients of formulas that have no backward pass by hand: those of the formula with a step changed


def mistake_in_gradient(
    id_: str, component: Step, *, around_step: Step
) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Register a function around a step of a component as a mistake that is made while its gradients are formed.

    It takes the step before the step's parameters.
    """

    def register(function: Callable[..., Array]) -> Callable[..., Array]:
        def gradient(original: Callable[..., Gradients], **arguments: Any) -> Gradients:
            with replacing({around_step: around(function)}):
                return original(**arguments)

        mistake(id_, around=COMPONENTS[f"{component.__name__}_gradient"])(gradient)
        return function

    return register


# Grouped-query attention


def pass_back(flows: Array, x: Array, heads: int) -> Array:
    """Return the heads that query heads read, as numbers of the forward pass, and `flows` as what is differentiated."""
    constant = arithmetic().detach
    return np.asarray(constant(x[:, find_shared_heads(heads, x.shape[1])]) + (flows - constant(flows)))


@mistake_in_gradient("gqa-grad-not-summed", grouped_query_attention, around_step=share_heads)
def overwrite_group_gradient(shared: Callable[[Array, int], Array], x: Array, heads: int) -> Array:
    """Let back what comes from the last query head of each group: it takes the place of the others."""
    read = find_shared_heads(heads, x.shape[1])
    last = [h for h in range(heads) if read[h] not in read[h + 1 :]]
    passes = np.isin(np.arange(heads), last)[:, None, None]
    return pass_back(np.where(passes, shared(x, heads), 0), x, heads)


@mistake_in_gradient("gqa-grad-mean", grouped_query_attention, around_step=share_heads)
def average_group_gradient(shared: Callable[[Array, int], Array], x: Array, heads: int) -> Array:
    """Let back the average of a group."""
    return pass_back(shared(x, heads) * (x.shape[1] / heads), x, heads)


@mistake_in_gradient("gqa-grad-index", grouped_query_attention, around_step=share_heads)
def divide_by_key_heads(shared: Callable[[Array, int], Array], x: Array, heads: int) -> Array:
    """Add query head h to head h // kv_heads, or to none where there is no such head."""
    del shared
    place = np.arange(heads) // x.shape[1]
    flows = x[:, np.minimum(place, x.shape[1] - 1)]
    return pass_back(np.where((place < x.shape[1])[:, None, None], flows, 0), x, heads)


# The layers


@mistake("relu-bwd", instead_of=activation_gradient)
def pass_all_through(inner: Array, gradient: Array) -> Array:
    """Return the gradient of the hidden layer as it is."""
    return gradient


@mistake("ln-bwd", instead_of=statistics_gradient)
def forget_statistics(normal: Array, gradient: Array) -> float:
    """Return 0: mean and variance take nothing away."""
    return 0.0


@mistake("ln-bwd-gamma-outside", around=layer_norm_gradient)
def scale_after_statistics(
    original: Callable[..., Gradients], x: Array, cotangent: Array, *, params: Params
) -> Gradients:
    """Return gradients in which gamma multiplies that of x after its two means were subtracted."""
    gradients, gamma = original(x, cotangent, params=params), params["gamma"]
    plain = original(x, cotangent, params={**params, "gamma": np.ones_like(gamma)})
    return gradients | {"x": plain["x"] * gamma}


@mistake("ln-bwd-rank", instead_of=sum_rows)
def sum_first_axis(rows: Array) -> Array:
    """Return the sum over only the first axis, as for an array of rows."""
    return np.asarray(rows.sum(axis=0))


mistake_in_gradient("rms-bwd", rms_norm, around_step=rms_divisor)(detach)
# They turn as the channels do, and not back.
mistake_in_gradient("rope-bwd", rotary_embedding, around_step=turning_positions)(negate_positions)
mistake_in_gradient("glu-bwd", gated_feed_forward, around_step=sigmoid)(detach)


@mistake_in_gradient("glu-bwd-up", gated_feed_forward, around_step=join_branches)
def pass_gate_to_up(joined: Callable[[Array, Array], Array], gate: Array, up: Array) -> Array:
    """Let back to up what the gate is before its activation."""
    constant = arithmetic().detach
    product = joined(gate, up)
    # The derivative of this sum, which is not the product itself.
    slope = joined(gate, constant(up)) + constant(gate) * up
    return np.asarray(constant(product) + slope - constant(slope))


@mistake("residual-bwd", instead_of=join_residual_gradient)
def forget_residual(bypass: Array, through: Array) -> Array:
    """Return what flows back through a sub-layer: nothing does around it."""
    return through


# Stacks and the whole model


@mistake("layer-bwd", around=stack_gradient)
def cut_between_layers(
    original: Callable[..., tuple[Array, list[Gradients]]],
    inputs: list[Array],
    cotangent: Array,
    backward: Callable[[Array, Array, int], Gradients],
) -> tuple[Array, list[Gradients]]:
    """Return the gradients of a stack in which nothing flows from a layer to the one before it."""

    def cut(x: Array, cotangent: Array, index: int) -> Gradients:
        gradients = backward(x, cotangent, index)
        return gradients | {"x": np.zeros_like(gradients["x"])} if index else gradients

    return original(inputs, cotangent, cut)


@mistake("memory-bwd", around=transformer_gradient)
def cut_encoder_off(original: Callable[..., Gradients], *ids: Array, **rest: Any) -> Gradients:
    """Return the gradients of a model in which nothing flows back into the encoder."""

    def backward(encoder_gradient: Callable[..., Gradients], x: Array, cotangent: Array, *mask: Any, **n: Any) -> Any:
        return encoder_gradient(x, np.zeros_like(cotangent), *mask, **n)

    with replacing({encoder_gradient: around(backward)}):
        return original(*ids, **rest)


@mistake("memory-bwd-overwrite", instead_of=sum_memory_gradients)
def overwrite_memory_gradient(of_layers: list[Array]) -> Array:
    """Return the gradient of the first layer, which comes last and takes the place of the others."""
    return of_layers[0]


@mistake("emb-bwd-one-side", instead_of=sum_table_gradients)
def overwrite_table_gradient(of_source: Array, of_target: Array) -> Array:
    """Return the gradient by the source in the place of that by the target."""
    return of_source


@mistake("tied-bwd-embedding-only", instead_of=add_tied_gradient, conventions={"output_layer": "tied"})
def keep_gradient_of_words(of_words: Array, of_logits: Array) -> Array:
    """Return what reaches the table only through the words."""
    return of_words


# Embedding and loss


@mistake("emb-bwd-overwrite", instead_of=add_rows)
def add_rows_by_index(table: Array, ids: Array, rows: Array) -> None:
    """Add the rows by their indices: of several rows for one word only one counts."""
    table[ids] += rows


@mistake("ce-bwd-sum", instead_of=average_gradient)
def keep_sum(gradient: Array, counts: Array) -> Array:
    """Return the gradient of the sum, not divided."""
    return gradient


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
    weights = before = dict(params)
    for _ in range(steps):
        before, weights = weights, dict(weights)
        for name in ("w_q", "w_k", "w_v"):
            gradients = single_head_attention_gradient(x, output_gradient, causal=causal, params=weights)
            weights[name] = move_weight(weights[name], gradients[name], learning_rate)
    first = single_head_attention_gradient(x, output_gradient, causal=causal, params=before)
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

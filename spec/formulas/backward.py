"""Backward passes written by hand, and the training steps of the java class.

A backward pass has the name of its component followed by _gradient. It takes the component's arguments and the
cotangent, the gradient of the first output, and returns the gradients of the arguments by name.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from goldformer.spec.formulas.arrays import arithmetic, multiply, number
from goldformer.spec.formulas.attention import (
    ATTENTION,
    causal_mask,
    scaled_dot_product_attention,
    score_divisor,
    softmax,
)
from goldformer.spec.formulas.checks import Array, axis_sizes, broadcast_mask, require_one
from goldformer.spec.formulas.heads import SINGLE_HEAD, Params, project, single_head_attention
from goldformer.spec.formulas.layers import (
    activation,
    channel_mean,
    channel_variance,
    norm_denominator,
    subtract_mean,
)
from goldformer.spec.formulas.losses import count_targets, find_words
from goldformer.spec.formulas.steps import step
from goldformer.spec.formulas.targets import one_hot
from goldformer.spec.formulas.transformer import log_softmax

Gradients = dict[str, Array]

TRAINING_STEP: Final = {**SINGLE_HEAD, "output_gradient": "seq d_model"}

# Softmax and attention


@step
def softmax_gradient(scores: Array, cotangent: Array) -> Gradients:
    """Return the gradient of scores, (..., n)."""
    return {"scores": softmax_backward(softmax(scores), cotangent)}


@step
def softmax_backward(weights: Array, gradient: Array) -> Array:
    """Return P·(dP − row term): a score changes its own weight, and by the sum all weights of its row (GRAD-1)."""
    return weights * (gradient - softmax_row_term(weights, gradient))


@step
def softmax_row_term(weights: Array, gradient: Array) -> Array | float:
    """Return Σ dP·P of each row, (..., 1)."""
    return (gradient * weights).sum(axis=-1, keepdims=True)


@step
def scaled_dot_product_attention_gradient(
    query: Array, key: Array, value: Array, cotangent: Array, mask: Array | None = None
) -> Gradients:
    """Return the gradients of query (..., q_seq, d_k), key (..., kv_seq, d_k) and value (..., kv_seq, d_v)."""
    attended = scaled_dot_product_attention(query, key, value, mask)
    return attention_backward({"query": query, "key": key, "value": value, **attended}, cotangent, mask)


@step
def attention_backward(forward: Mapping[str, Array], cotangent: Array, mask: Array | None) -> Gradients:
    """Return the gradients of query, key and value; `forward` holds these and the weights."""
    query, key, value, weights = (forward[name] for name in ("query", "key", "value", "weights"))
    sizes = axis_sizes(ATTENTION, query=query, key=key, value=value)
    scaled = softmax_backward(weights, multiply(cotangent, value.swapaxes(-1, -2)))
    if mask is not None:
        scaled = mask_gradient(scaled, broadcast_mask("mask", mask, scaled.shape))
    scores = scores_gradient(scaled, sizes)
    return {
        "query": multiply(scores, key),
        "key": multiply(scores.swapaxes(-1, -2), query),
        "value": multiply(weights.swapaxes(-1, -2), cotangent),
    }


@step
def mask_gradient(gradient: Array, mask: Array) -> Array:
    """Set the gradient of masked scores to 0 (GRAD-2, GRAD-3)."""
    return np.where(mask, gradient, arithmetic().constant(0, gradient))


@step
def scores_gradient(scaled: Array, sizes: Mapping[str, Any]) -> Array:
    """Return the gradient of the scores, that of the scaled scores divided by √d_k."""
    return scaled / score_divisor(sizes)


# The java class: its backward pass and its step


@step
def single_head_attention_gradient(x: Array, cotangent: Array, *, causal: bool, params: Params) -> Gradients:
    """Return the gradients of x (seq, d_model) and of w_q, w_k and w_v, (d_model, d_model)."""
    forward = single_head_attention(x, causal=causal, params=params)
    projected = projection_backward(forward, cotangent, causal=causal)
    return {"x": input_gradient(projected, params), **weight_gradients(x, projected)}


@step
def projection_backward(forward: Mapping[str, Array], cotangent: Array, *, causal: bool) -> Gradients:
    """Return the gradients of query, key and value by the names of their weights, 0 above a causal diagonal."""
    seq = len(cotangent)
    mask = causal_mask(q_seq=seq, kv_seq=seq) if causal else None
    gradients = attention_backward(forward, cotangent, mask)
    return {"w_q": gradients["query"], "w_k": gradients["key"], "w_v": gradients["value"]}


@step
def weight_gradients(x: Array, projected: Gradients) -> Gradients:
    """Return the gradients of the three weights, Xᵀ·dQ and the like."""
    return {name: multiply(x.T, gradient) for name, gradient in projected.items()}


@step
def input_gradient(projected: Gradients, params: Params) -> Array:
    """Return dQ·W_Qᵀ + dK·W_Kᵀ + dV·W_Vᵀ (SHA-6)."""
    first, second, third = (multiply(gradient, params[name].T) for name, gradient in projected.items())
    return first + second + third


@step
def single_head_attention_step(
    x: Array, output_gradient: Array, *, causal: bool, learning_rate: float, steps: int, params: Params
) -> dict[str, Array]:
    """Return x_gradient (seq, d_model) of the last step, and w_q, w_k and w_v after it."""
    axis_sizes(TRAINING_STEP, x=x, output_gradient=output_gradient, **params)
    require_one("steps", steps, "training takes at least one step")
    # Not learning_rate < 0, which lets NaN pass.
    if not float(learning_rate) >= 0:
        raise ValueError(f"learning_rate: {learning_rate}, but a step goes against the gradient, by 0 or more")
    weights = {name: params[name] for name in ("w_q", "w_k", "w_v")}
    x_gradient = x
    for _ in range(steps):
        forward = single_head_attention(x, causal=causal, params=weights)
        projected = projection_backward(forward, output_gradient, causal=causal)
        x_gradient, weights = take_step(weights, x, projected, learning_rate)
    return {"x_gradient": x_gradient, **weights}


@step
def take_step(weights: Params, x: Array, projected: Gradients, learning_rate: float) -> tuple[Array, dict[str, Array]]:
    """Return the gradient of x, with the weights of the forward pass (SHA-6), and the weights after the step."""
    gradients = weight_gradients(x, projected)
    updated = {name: move_weight(weight, gradients[name], learning_rate) for name, weight in weights.items()}
    return input_gradient(projected, weights), updated


@step
def move_weight(weight: Array, gradient: Array, learning_rate: float) -> Array:
    """Return W − lr·dW (SHA-7)."""
    return weight - gradient * number(learning_rate)


# Embedding


@step
def token_embedding_gradient(ids: Array, cotangent: Array, *, params: Params, pad_id: int | None = None) -> Gradients:
    """Return the gradient of table, (vocab, d_model): each row sums over the positions of its word."""
    del pad_id
    gradient = np.zeros_like(params["table"])
    add_rows(gradient, ids, cotangent)
    return {"table": gradient}


@step
def add_rows(table: Array, ids: Array, rows: Array) -> None:
    """Add each row to the row of its id in the table, in place; an id may occur more than once."""
    np.add.at(table, ids, rows)


# Feed-forward network


@step
def feed_forward_gradient(x: Array, cotangent: Array, *, params: Params) -> Gradients:
    """Return the gradients of x (batch, seq, d_model), w_1, w_2 and the present biases."""
    inner = project(x, params, "1")
    hidden = activation(inner)
    inner_gradient = activation_gradient(inner, cotangent @ params["w_2"].T)
    of_first = projection_gradients(x, inner_gradient, params, "1")
    of_second = projection_gradients(hidden, cotangent, params, "2")
    return {"x": inner_gradient @ params["w_1"].T, **of_first, **of_second}


@step
def projection_gradients(x: Array, gradient: Array, params: Params, role: str) -> Gradients:
    """Return the gradients of the weight of a role and of its bias, if any: sums over all tokens."""
    gradients = {f"w_{role}": add_products("bti,bto->io", x, gradient)}
    if f"b_{role}" in params:
        gradients[f"b_{role}"] = gradient.sum(axis=(0, 1))
    return gradients


def add_products(axes: str, x: Array, y: Array) -> Array:
    """Return the sums of products that np.einsum gives; those of float16 run in float32, as in frameworks."""
    total: Array = np.einsum(axes, x, y, dtype=np.promote_types(x.dtype, np.float32))
    return total.astype(x.dtype, copy=False)


@step
def activation_gradient(inner: Array, gradient: Array) -> Array:
    """Return the gradient of the input of the ReLU: 0 where the input is not positive."""
    return np.where(inner > 0, gradient, np.zeros_like(gradient))


# Layer normalisation


@step
def layer_norm_gradient(x: Array, cotangent: Array, *, params: Params) -> Gradients:
    """Return the gradients of x (..., d_model), gamma and beta, (d_model,)."""
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    centred = subtract_mean(wide)
    root = norm_denominator(channel_variance(centred))
    normal = centred / root
    gradient = cotangent * params["gamma"]
    through = gradient - statistics_gradient(normal, gradient)
    gradients = {
        "x": through / root,
        "gamma": sum_rows(cotangent * normal),
        "beta": sum_rows(cotangent),
    }
    return {name: array.astype(x.dtype) for name, array in gradients.items()}


@step
def statistics_gradient(normal: Array, gradient: Array) -> Array | float:
    """Return the part that flows through mean and variance, which depend on all channels of the row."""
    return np.asarray(channel_mean(gradient) + normal * channel_mean(gradient * normal))


@step
def sum_rows(rows: Array) -> Array:
    """Return the sum over all axes but the last, (d_model,)."""
    return np.asarray(rows.sum(axis=tuple(range(rows.ndim - 1))))


# Losses


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


@step
def kl_divergence_gradient(target: Array, logits: Array, cotangent: Array) -> dict[str, Array]:
    """Return the gradients of target, log p + 1 − log q or 0 where p is 0, and of logits, q·Σp − p."""
    present = target > 0
    of_target = np.zeros_like(target)
    of_target[present] = np.log(target[present]) + 1 - log_softmax(logits)[present]
    of_logits = softmax(logits) * target.sum(axis=-1, keepdims=True) - target
    rows = cotangent[..., None]
    return {"target": of_target * rows, "logits": of_logits * rows}

"""The training steps of the java class, whose gradients are written out.

The textbook forms those of the attention by reverse mode in their place.
"""

from collections.abc import Mapping

import numpy as np

from goldformer.spec.formulas.arrays import Array, arithmetic, multiply, number
from goldformer.spec.formulas.attention import causal_mask, find_sizes, score_divisor
from goldformer.spec.formulas.heads import Params, single_head_attention
from goldformer.spec.formulas.steps import step

Gradients = dict[str, Array]


@step
def projection_backward(forward: Mapping[str, Array], cotangent: Array, *, causal: bool) -> Gradients:
    """Return the gradients of query, key and value by the names of their weights, 0 above a causal diagonal."""
    seq = len(cotangent)
    mask = causal_mask(q_seq=seq, kv_seq=seq) if causal else None
    gradients = attention_backward(forward, cotangent, mask)
    return {"w_q": gradients["query"], "w_k": gradients["key"], "w_v": gradients["value"]}


@step
def attention_backward(forward: Mapping[str, Array], cotangent: Array, mask: Array | None) -> Gradients:
    """Return the gradients of query, key and value; `forward` holds these and the weights."""
    query, key, value, weights = (forward[name] for name in ("query", "key", "value", "weights"))
    flowing = multiply(cotangent, value.swapaxes(-1, -2))
    # A score changes its own weight, and by the sum all weights of its row (GRAD-1).
    scaled = weights * (flowing - (flowing * weights).sum(axis=-1, keepdims=True))
    if mask is not None:
        scaled = np.where(mask, scaled, arithmetic().constant(0, scaled))
    scores = scaled / score_divisor(find_sizes(query, key, value))
    return {
        "query": multiply(scores, key),
        "key": multiply(scores.swapaxes(-1, -2), query),
        "value": multiply(weights.swapaxes(-1, -2), cotangent),
    }


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

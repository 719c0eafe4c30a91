# deserves: correct
"""A class for one attention head in the object-oriented manner of a first assignment, trained by gradient descent by hand."""

import numpy as np


class SelfAttention:
    def __init__(self, d_model, w_query, w_key, w_value):
        if d_model <= 0:
            raise ValueError(f"d_model must be positive, not {d_model}")
        for name, weight in (("w_q", w_query), ("w_k", w_key), ("w_v", w_value)):
            if weight is None or weight.shape != (d_model, d_model):
                raise ValueError(f"{name} must be of shape ({d_model}, {d_model})")
        self.d_model = d_model
        self.w_query = w_query
        self.w_key = w_key
        self.w_value = w_value

    @staticmethod
    def row_softmax(scores):
        result = np.empty_like(scores)
        for i, row in enumerate(scores):
            powers = np.exp(row - row.max())
            result[i] = powers / powers.sum()
        return result

    def forward(self, x, causal=False):
        self.x = x
        self.query = x @ self.w_query
        self.key = x @ self.w_key
        self.value = x @ self.w_value
        self.scores = self.query @ self.key.T
        scaled = self.scores / x.dtype.type(np.sqrt(self.d_model))
        if causal:
            future = np.triu(np.ones(scaled.shape, dtype=bool), k=1)
            scaled = np.where(future, -np.inf, scaled).astype(x.dtype)
        self.weights = self.row_softmax(scaled)
        return self.weights @ self.value

    def backward(self, d_out):
        d_weights = d_out @ self.value.T
        d_value = self.weights.T @ d_out
        inner = (d_weights * self.weights).sum(axis=1, keepdims=True)
        d_scores = self.weights * (d_weights - inner) / d_out.dtype.type(np.sqrt(self.d_model))
        d_query = d_scores @ self.key
        d_key = d_scores.T @ self.query
        self.grad_query = self.x.T @ d_query
        self.grad_key = self.x.T @ d_key
        self.grad_value = self.x.T @ d_value
        return d_query @ self.w_query.T + d_key @ self.w_key.T + d_value @ self.w_value.T

    def train_step(self, x, d_out, learning_rate, causal=False):
        self.forward(x, causal)
        d_x = self.backward(d_out)
        rate = x.dtype.type(learning_rate)
        self.w_query = self.w_query - rate * self.grad_query
        self.w_key = self.w_key - rate * self.grad_key
        self.w_value = self.w_value - rate * self.grad_value
        return d_x


# The adapter.

ARRAYS = "numpy"
NAME = "one head"


def _build(x, params):
    return SelfAttention(x.shape[1], params.get("w_q"), params.get("w_k"), params.get("w_v"))


def single_head_attention(x, *, causal, params):
    head = _build(x, params)
    output = head.forward(x, causal)
    return output, head.weights, head.query, head.key, head.value, head.scores


def single_head_attention_gradient(x, cotangent, *, causal, params):
    head = _build(x, params)
    head.forward(x, causal)
    d_x = head.backward(cotangent)
    return {"x": d_x, "w_q": head.grad_query, "w_k": head.grad_key, "w_v": head.grad_value}


def single_head_attention_step(x, output_gradient, *, causal, learning_rate, steps, params):
    head = _build(x, params)
    for _ in range(steps):
        d_x = head.train_step(x, output_gradient, learning_rate, causal)
    return d_x, head.w_query, head.w_key, head.w_value


MISTAKES = {
    "values-weighted-by-columns": (
        "return self.weights @ self.value",
        "return self.weights.T @ self.value",
        "The weights are transposed before they weigh the values.",
        ("scaled_dot_product_attention.edit@sum_values/weights@transposed:-2:-1",),
    ),
    "key-gradient-not-transposed": (
        "d_key = d_scores.T @ self.query",
        "d_key = d_scores @ self.query",
        "The gradient of the keys lacks a transpose.",
        (),
    ),
    "input-gradient-of-queries-alone": (
        "return d_query @ self.w_query.T + d_key @ self.w_key.T + d_value @ self.w_value.T",
        "return d_query @ self.w_query.T + d_key @ self.w_key.T",
        "The gradient of the input forgets the way through the values.",
        (),
    ),
    "step-before-gradient": (
        "        d_x = self.backward(d_out)\n        rate = x.dtype.type(learning_rate)\n",
        "        self.backward(d_out)\n        rate = x.dtype.type(learning_rate)\n"
        "        self.w_query = self.w_query - rate * self.grad_query\n        d_x = self.backward(d_out)\n"
        "        self.w_query = self.w_query + rate * self.grad_query\n",
        "The gradient of the input is taken with a weight that has moved already.",
        ("sgd-input-gradient-after-step",),
    ),
    "ascent": (
        "self.w_value = self.w_value - rate * self.grad_value",
        "self.w_value = self.w_value + rate * self.grad_value",
        "The values' matrix moves along its gradient and not against it.",
        ("sgd-sign",),
    ),
    "row-maximum-of-all": (
        "powers = np.exp(row - row.max())",
        "powers = np.exp(row)",
        "Nothing is taken off before the exponentials, which overflow.",
        ("softmax-unstable",),
    ),
    "scale-lost-in-backward": (
        "(d_weights - inner) / d_out.dtype.type(np.sqrt(self.d_model))",
        "(d_weights - inner)",
        "The backward pass forgets the factor of the scores.",
        ("scale-bwd",),
    ),
    "softmax-over-columns": (
        "for i, row in enumerate(scores):\n            powers = np.exp(row - row.max())\n            result[i] = powers / powers.sum()",
        "for i, row in enumerate(scores.T):\n            powers = np.exp(row - row.max())\n            result[:, i] = powers / powers.sum()",
        "The softmax runs over the queries.",
        ("softmax-query-axis",),
    ),
}

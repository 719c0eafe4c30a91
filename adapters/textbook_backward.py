"""The third part of the textbook: backward passes written by hand, and the training steps that they make.

A backward pass is named as its component with _gradient behind it. It takes the component's arguments and the
cotangent, the gradient of the first output, and returns the gradients of the arguments by their names.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from goldformer.adapters.textbook_attention import ATTENTION, SINGLE_HEAD
from goldformer.adapters.textbook_checks import Array, at_least_one, axis_sizes
from goldformer.adapters.textbook_layers import Params, TextbookLayers

Gradients = dict[str, Array]

STEP: Final = {**SINGLE_HEAD, "output_gradient": "seq d_model"}


class TextbookBackward(TextbookLayers):
    """Backward passes of softmax, attention, embedding, feed-forward network and layer norm; training steps."""

    # Softmax and attention

    def softmax_gradient(self, scores: Array, cotangent: Array) -> Gradients:
        """Return the gradient of scores, (..., n)."""
        return {"scores": self.softmax_backward(self.softmax(scores), cotangent)}

    def softmax_backward(self, weights: Array, gradient: Array) -> Array:
        """Return P·(dP − row term): a score moves its own weight, and all of its row through the sum (GRAD-1)."""
        return weights * (gradient - self.row_term(weights, gradient))

    def row_term(self, weights: Array, gradient: Array) -> Array | float:
        """Return Σ dP·P of each row, (..., 1)."""
        return np.asarray((gradient * weights).sum(axis=-1, keepdims=True))

    def scaled_dot_product_attention_gradient(
        self, query: Array, key: Array, value: Array, cotangent: Array, mask: Array | None = None
    ) -> Gradients:
        """Return the gradients of query (..., q_seq, d_k), key (..., kv_seq, d_k) and value (..., kv_seq, d_v)."""
        attended = self.scaled_dot_product_attention(query, key, value, mask)
        return self.attention_backward({"query": query, "key": key, "value": value, **attended}, cotangent, mask)

    def attention_backward(self, forward: Mapping[str, Array], cotangent: Array, mask: Array | None) -> Gradients:
        """Return the gradients of query, key and value, given these and the weights of the forward pass."""
        query, key, value, weights = (forward[name] for name in ("query", "key", "value", "weights"))
        sizes = axis_sizes(ATTENTION, query=query, key=key, value=value)
        scaled = self.softmax_backward(weights, np.einsum("...qv,...kv->...qk", cotangent, value))
        if mask is not None:
            scaled = self.seen_gradient(scaled, self.aligned_mask(mask, scaled.shape))
        scores = self.scores_gradient(scaled, sizes)
        return {
            "query": np.einsum("...qk,...kd->...qd", scores, key),
            "key": np.einsum("...qk,...qd->...kd", scores, query),
            "value": np.einsum("...qk,...qv->...kv", weights, cotangent),
        }

    def seen_gradient(self, gradient: Array, mask: Array) -> Array:
        """Return the gradient of the scaled scores with 0 where the mask hides one (GRAD-2, GRAD-3)."""
        return np.where(mask, gradient, np.zeros_like(gradient))

    def scores_gradient(self, scaled: Array, sizes: Mapping[str, Any]) -> Array:
        """Return the gradient of the scores, that of the scaled scores divided by √d_k."""
        return scaled / self.divisor(sizes)

    # The java class: its backward pass and its step

    def single_head_attention_gradient(self, x: Array, cotangent: Array, *, causal: bool, params: Params) -> Gradients:
        """Return the gradients of x (seq, d_model) and of w_q, w_k and w_v, (d_model, d_model)."""
        forward = self.single_head_attention(x, causal=causal, params=params)
        projected = self.projected_gradients(forward, cotangent, causal=causal)
        return {"x": self.input_gradient(projected, params), **self.weight_gradients(x, projected)}

    def projected_gradients(self, forward: Mapping[str, Array], cotangent: Array, *, causal: bool) -> Gradients:
        """Return the gradients of query, key and value by the names of their weights; none flows above the diagonal."""
        seq = len(cotangent)
        mask = self.causal_mask(q_seq=seq, kv_seq=seq) if causal else None
        gradients = self.attention_backward(forward, cotangent, mask)
        return {"w_q": gradients["query"], "w_k": gradients["key"], "w_v": gradients["value"]}

    def weight_gradients(self, x: Array, projected: Gradients) -> Gradients:
        """Return the gradients of the three weights, Xᵀ·dQ and the like."""
        return {name: x.T @ gradient for name, gradient in projected.items()}

    def input_gradient(self, projected: Gradients, params: Params) -> Array:
        """Return dQ·W_Qᵀ + dK·W_Kᵀ + dV·W_Vᵀ (SHA-6)."""
        first, second, third = (gradient @ params[name].T for name, gradient in projected.items())
        return np.asarray(first + second + third)

    def single_head_attention_step(
        self, x: Array, output_gradient: Array, *, causal: bool, learning_rate: float, steps: int, params: Params
    ) -> dict[str, Array]:
        """Return x_gradient (seq, d_model) of the last step, and w_q, w_k and w_v after it."""
        axis_sizes(STEP, x=x, output_gradient=output_gradient, **params)
        at_least_one("steps", steps, "training takes at least one step")
        # Not learning_rate < 0, which lets NaN pass.
        if not learning_rate >= 0:
            raise ValueError(f"learning_rate: {learning_rate}, but a step goes against the gradient, by 0 or more")
        weights = {name: params[name] for name in ("w_q", "w_k", "w_v")}
        forward: dict[str, Array] = {}
        gradients: Gradients = {}
        x_gradient = np.zeros_like(x)
        for _ in range(steps):
            forward = self.forward_pass(x, weights, forward, causal=causal)
            projected = self.projected_gradients(forward, output_gradient, causal=causal)
            gradients = self.cleared(self.weight_gradients(x, projected), gradients)
            moved = {name: self.moved(weight, gradients[name], learning_rate) for name, weight in weights.items()}
            x_gradient = self.input_gradient(projected, self.weights_behind(weights, moved))
            weights = moved
        return {"x_gradient": x_gradient, **weights}

    def forward_pass(self, x: Array, weights: Params, earlier: dict[str, Array], *, causal: bool) -> dict[str, Array]:
        """Return the forward pass at these weights, whatever that of the step before gave."""
        del earlier
        return self.single_head_attention(x, causal=causal, params=weights)

    def cleared(self, gradients: Gradients, earlier: Gradients) -> Gradients:
        """Return the gradients of this step alone, without those of the step before."""
        del earlier
        return gradients

    def moved(self, weight: Array, gradient: Array, learning_rate: float) -> Array:
        """Return W − lr·dW (SHA-7)."""
        return weight - learning_rate * gradient

    def weights_behind(self, before: Params, after: Params) -> Params:
        """Return the weights by which the gradient of x is formed: those of the forward pass (SHA-6)."""
        del after
        return before

    # Embedding

    def token_embedding_gradient(self, ids: Array, cotangent: Array, *, params: Params) -> Gradients:
        """Return the gradient of table, (vocab, d_model): each row the sum over the places of its word."""
        gradient = np.zeros_like(params["table"])
        # A row counts with the factor with which it is read.
        self.add_rows(gradient, ids, self.scaled_embedding(cotangent))
        return {"table": gradient}

    def add_rows(self, table: Array, ids: Array, rows: Array) -> None:
        """Add each row to that of its id in the table, in place; an id may come more than once."""
        np.add.at(table, ids, rows)

    # Feed-forward network

    def feed_forward_gradient(self, x: Array, cotangent: Array, *, params: Params) -> Gradients:
        """Return the gradients of x (batch, seq, d_model), w_1, w_2 and the biases that are given."""
        inner = self.project(x, params, "1")
        hidden = self.activation(inner)
        inner_gradient = self.activation_gradient(inner, cotangent @ params["w_2"].T)
        of_first = self.projection_gradients(x, inner_gradient, params, "1")
        of_second = self.projection_gradients(hidden, cotangent, params, "2")
        return {"x": inner_gradient @ params["w_1"].T, **of_first, **of_second}

    def projection_gradients(self, x: Array, gradient: Array, params: Params, role: str) -> Gradients:
        """Return the gradients of the weight of a role and of its bias, if it has one: sums over all tokens."""
        gradients = {f"w_{role}": np.einsum("bti,bto->io", x, gradient)}
        if f"b_{role}" in params:
            gradients[f"b_{role}"] = gradient.sum(axis=(0, 1))
        return gradients

    def activation_gradient(self, inner: Array, gradient: Array) -> Array:
        """Return the gradient of what the ReLU reads: 0 where that is not positive."""
        return np.where(inner > 0, gradient, np.zeros_like(gradient))

    # Layer normalisation

    def layer_norm_gradient(self, x: Array, cotangent: Array, *, params: Params) -> Gradients:
        """Return the gradients of x (..., d_model), gamma and beta, (d_model,)."""
        wide = x.astype(np.promote_types(x.dtype, np.float32))
        centred = self.centred(wide)
        root = self.denominator(self.variance(centred))
        normal = centred / root
        gradient = cotangent * params["gamma"]
        through = gradient - self.statistics_gradient(normal, gradient)
        gradients = {
            "x": through / root,
            "gamma": self.sum_of_rows(cotangent * normal),
            "beta": self.sum_of_rows(cotangent),
        }
        return {name: array.astype(x.dtype) for name, array in gradients.items()}

    def statistics_gradient(self, normal: Array, gradient: Array) -> Array | float:
        """Return what mean and variance take away, which depend on every channel of the row."""
        return np.asarray(self.mean(gradient) + normal * self.mean(gradient * normal))

    def sum_of_rows(self, rows: Array) -> Array:
        """Return the sum over all axes but the last."""
        return np.asarray(rows.sum(axis=tuple(range(rows.ndim - 1))))

"""Mistakes in backward passes that are written by hand, and in the training steps that they make."""

import math
from typing import Any

import numpy as np

from goldformer.adapters.mistakes.registry import mistake
from goldformer.adapters.textbook import Textbook
from goldformer.adapters.textbook_backward import Gradients
from goldformer.adapters.textbook_checks import Array
from goldformer.adapters.textbook_layers import Params

# Softmax and attention


@mistake("softmax-bwd")
class SoftmaxBackward(Textbook):
    """The term of the row is left out."""

    def row_term(self, weights: Array, gradient: Array) -> Array | float:
        return 0.0


@mistake("softmax-bwd-diagonal")
class SoftmaxBackwardDiagonal(Textbook):
    """The term of the row is that of the score's own weight."""

    def row_term(self, weights: Array, gradient: Array) -> Array:
        return gradient * weights


@mistake("scale-bwd")
class ScaleBackward(Textbook):
    """The gradient of the scores is that of the scaled scores."""

    def scores_gradient(self, scaled: Array, sizes: Any) -> Array:
        return scaled


@mistake("mask-bwd")
class MaskBackward(Textbook):
    """What the mask hides keeps its gradient."""

    def seen_gradient(self, gradient: Array, mask: Array) -> Array:
        return gradient


@mistake("empty-row-nan-grad")
class EmptyRowNaNGradient(Textbook):
    """−∞ is added where the mask is False, and the NaN of a row of them is replaced behind the softmax alone."""

    def masked(self, scaled: Array, mask: Array) -> Array:
        return np.asarray(scaled + np.where(mask, 0.0, -math.inf).astype(scaled.dtype))

    def softmax_over_keys(self, scores: Array) -> Array:
        weights = super().softmax_over_keys(scores)
        np.copyto(weights, 1 / weights.shape[-1], where=np.isnan(weights))
        return weights

    def seen_gradient(self, gradient: Array, mask: Array) -> Array:
        # On the way back the softmax of such a row still has weights of NaN, and multiplies by them.
        return np.where(mask.any(axis=-1, keepdims=True), gradient, np.full_like(gradient, math.nan))


# The layers


@mistake("relu-bwd")
class ReluBackward(Textbook):
    """The gradient of the hidden layer goes on as it is."""

    def activation_gradient(self, inner: Array, gradient: Array) -> Array:
        return gradient


@mistake("ln-bwd")
class NormBackward(Textbook):
    """Mean and variance take nothing away."""

    def statistics_gradient(self, normal: Array, gradient: Array) -> float:
        return 0.0


@mistake("ln-bwd-rank")
class NormBackwardRank(Textbook):
    """The sum for gamma and beta runs over the first axis alone, as for an array of rows."""

    def sum_of_rows(self, rows: Array) -> Array:
        return np.asarray(rows.sum(axis=0))


@mistake("residual-bwd")
class ResidualBackward(Textbook):
    """Nothing flows back around a sub-layer."""

    def residual_gradient(self, gradient: Array) -> Array:
        return np.zeros_like(gradient)


# Stacks and the whole model


@mistake("layer-bwd")
class LayerBackward(Textbook):
    """Nothing flows from a layer to the one before it."""

    def layer_input_gradient(self, gradient: Array, index: int) -> Array:
        return np.zeros_like(gradient) if index else gradient


@mistake("memory-bwd")
class MemoryBackward(Textbook):
    """Nothing flows back into the encoder."""

    def encoded_gradient(self, gradient: Array) -> Array:
        return np.zeros_like(gradient)


@mistake("memory-bwd-overwrite")
class MemoryBackwardOverwrite(Textbook):
    """The loop runs from the last layer to the first, and each one's gradient takes the place of the one before."""

    def memory_gradient(self, of_layers: list[Array]) -> Array:
        return of_layers[0]


@mistake("emb-bwd-one-side")
class TableBackwardOneSide(Textbook):
    """The gradient by the source takes the place of that by the target."""

    def table_gradient(self, of_source: Array, of_target: Array) -> Array:
        return of_source


# Embedding and loss


@mistake("emb-bwd-overwrite")
class EmbeddingBackwardOverwrite(Textbook):
    """The rows are added by their indices, of which equal ones count once."""

    def add_rows(self, table: Array, ids: Array, rows: Array) -> None:
        table[ids] += rows


@mistake("ce-bwd-sum")
class LossBackwardSum(Textbook):
    """The gradient of the sum is not divided."""

    def mean_gradient(self, gradient: Array, counted: Array) -> Array:
        return gradient


# The training step


@mistake("sgd-sign")
class StepSign(Textbook):
    """A weight moves along its gradient."""

    def moved(self, weight: Array, gradient: Array, learning_rate: float) -> Array:
        return weight + learning_rate * gradient


@mistake("sgd-input-gradient-after-step")
class StepInputGradientAfter(Textbook):
    """The gradient of the input goes back through the weights after the step."""

    def weights_behind(self, before: Params, after: Params) -> Params:
        return after


@mistake("sgd-sequential")
class StepSequential(Textbook):
    """Each weight moves on a pass of its own, at the weights that have moved before it."""

    def single_head_attention_step(
        self, x: Array, output_gradient: Array, *, causal: bool, learning_rate: float, steps: int, params: Params
    ) -> dict[str, Array]:
        weights = before = dict(params)
        for _ in range(steps):
            before, weights = weights, dict(weights)
            for name in ("w_q", "w_k", "w_v"):
                gradients = self.single_head_attention_gradient(x, output_gradient, causal=causal, params=weights)
                weights[name] = self.moved(weights[name], gradients[name], learning_rate)
        first = self.single_head_attention_gradient(x, output_gradient, causal=causal, params=before)
        return {"x_gradient": first["x"], **weights}


@mistake("sgd-accumulated")
class StepAccumulated(Textbook):
    """The gradients of the step before are not cleared."""

    def cleared(self, gradients: Gradients, earlier: Gradients) -> Gradients:
        return {name: gradient + earlier[name] if earlier else gradient for name, gradient in gradients.items()}


@mistake("sgd-forward-stale")
class StepForwardStale(Textbook):
    """There is one forward pass, before the first step."""

    def forward_pass(self, x: Array, weights: Params, earlier: dict[str, Array], *, causal: bool) -> dict[str, Array]:
        return earlier or super().forward_pass(x, weights, earlier, causal=causal)

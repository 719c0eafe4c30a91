"""The small parts of transformer.py: the names of results, activations, x·W + b, a wider dtype."""

import math
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from goldformer.reference_impl.shapes import Float

#: What may stand between the two maps of a feed-forward network (FFN-3).
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]


class EncoderLayerResult(NamedTuple):
    """The output of a layer, the input of its feed-forward network, and the weights per head."""

    output: Float[Tensor, "batch seq d_model"]
    attended: Float[Tensor, "batch seq d_model"]
    weights: Float[Tensor, "batch heads seq seq"]


class DecoderLayerResult(NamedTuple):
    """The output of a layer, the inputs of its second and third sub-layer, and the weights per head."""

    output: Float[Tensor, "batch seq d_model"]
    attended: Float[Tensor, "batch seq d_model"]
    crossed: Float[Tensor, "batch seq d_model"]
    weights: Float[Tensor, "batch heads seq seq"]
    cross_weights: Float[Tensor, "batch heads seq source_seq"]


class StackResult(NamedTuple):
    """The output of a stack, and those of all its layers before any final norm."""

    output: Float[Tensor, "batch seq d_model"]
    layers: Float[Tensor, "layers batch seq d_model"]


class TransformerResult(NamedTuple):
    """The logits of the model, the output of its encoder, and that of its decoder, both with any final norm."""

    logits: Float[Tensor, "batch seq vocab"]
    memory: Float[Tensor, "batch source_seq d_model"]
    decoded: Float[Tensor, "batch seq d_model"]


def widen(x: Tensor) -> Tensor:
    """Widen float16 and bfloat16 to float32; leave wider types as they are."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def affine(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Map row vectors: x·W + b, or x·W without a bias."""
    return x @ w if b is None else x @ w + b


ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "relu": torch.relu,
    "gelu": lambda x: x * (1 + (x / math.sqrt(2)).erf()) / 2,
    "gelu_tanh": lambda x: x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh()) / 2,
    "silu": lambda x: x * x.sigmoid(),
}

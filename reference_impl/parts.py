"""The small parts of transformer.py: the names of results, x·W + b, activations, initial weights, dropout."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Generator, Tensor, nn

from goldformer.reference_impl.shapes import Device, Float, Rate, Seed, checked

#: What may stand between the two maps of a feed-forward network (FFN-3), and what a gate may go through (GLU-3).
Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
#: Drops elements of a tensor, or returns it as it is.
Dropping = Callable[[Tensor], Tensor]


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


class GatedResult(NamedTuple):
    """The output of a gated network, the product that its last map reads, and the gate and up that are multiplied."""

    output: Float[Tensor, "batch seq d_model"]
    hidden: Float[Tensor, "batch seq d_ff"]
    gate: Float[Tensor, "batch seq d_ff"]
    up: Float[Tensor, "batch seq d_ff"]


class ExpertsResult(NamedTuple):
    """The output of a mixture of experts, and the weights and logits of its router."""

    output: Float[Tensor, "batch seq d_model"]
    weights: Float[Tensor, "batch seq experts"]
    logits: Float[Tensor, "batch seq experts"]


class DecoderOnlyLayerResult(NamedTuple):
    """The output of a layer, the input of its second block, and the weights per head."""

    output: Float[Tensor, "batch seq d_model"]
    attended: Float[Tensor, "batch seq d_model"]
    weights: Float[Tensor, "batch heads seq seq"]


class DecoderOnlyModelResult(NamedTuple):
    """The logits of the model, the normalised output of its last layer, and what its first layer reads."""

    logits: Float[Tensor, "batch seq vocab"]
    decoded: Float[Tensor, "batch seq d_model"]
    embedded: Float[Tensor, "batch seq d_model"]


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


def xavier_weight(
    d_in: int, d_out: int, device: Device = None, dtype: torch.dtype | None = None, generator: Generator | None = None
) -> nn.Parameter:
    """Draw an (in, out) matrix from U(−a, a), a = √(6 / (d_in + d_out)), by PyTorch's generator or another (INIT-1)."""
    bound, weight = math.sqrt(6 / (d_in + d_out)), torch.empty(d_in, d_out, device=device, dtype=dtype)
    # In float32 at least: bfloat16 would draw one of 256 numbers, and round it down on average.
    return nn.Parameter(widen(weight).uniform_(-bound, bound, generator=generator).to(weight.dtype))


def zero_bias(d_out: int, *, bias: bool, **like: Any) -> nn.Parameter | None:
    """Start a bias at zero (INIT-3), or return None for a map without one."""
    return nn.Parameter(torch.zeros(d_out, **like)) if bias else None


@checked
def xavier_uniform(like: Float[Tensor, "d_in d_out"], seed: Seed) -> Float[Tensor, "d_in d_out"]:
    """Draw a weight whose range keeps the variance of activations and gradients; the seed decides (INIT-1, INIT-2).

    A fused projection is one matrix: its d_out is that of all its parts. PyTorch's own random numbers are left alone.
    Source: walkthrough 3; Glorot and Bengio, 2010, equation (16)
    """
    d_in, d_out = like.shape
    return xavier_weight(d_in, d_out, like.device, like.dtype, make_generator(seed, like.device)).detach()


def make_generator(seed: int, device: torch.device) -> Generator:
    """Make a generator of random numbers, on the device of the tensor that it fills."""
    # The meta device has no generators, nor has one written in Python, such as pretend; they accept those of the CPU.
    return Generator("cpu" if device.type in ("meta", "pretend") else device).manual_seed(seed)


def drop(x: Tensor, rate: float, generator: Generator | None = None) -> Tensor:
    """Set each element to 0 with probability rate, and divide the others by 1 − rate, the mean stays (DROP-1)."""
    # In float32 whatever x is: bfloat16 would draw from 256 numbers, and a tenth is not among them.
    uniform = torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float32)
    # At a rate of 1 nothing is kept, and there is no 1 / 0 to scale it by.
    kept = x / (1 - rate) if rate < 1 else x
    # Select, do not multiply: 0 · inf is NaN.
    return kept.masked_fill(uniform < rate, 0.0)


@checked
def dropout(x: Float[Tensor, "... n"], *, rate: Rate, training: bool, seed: Seed) -> Float[Tensor, "... n"]:
    """Leave out elements that the seed decides; without training return x (DROP-2). Source: n9; paper, section 5.4."""
    return drop(x, rate, make_generator(seed, x.device)) if training else x


class Dropout(nn.Dropout):
    """Dropout in training mode, from PyTorch's own random numbers, or from those of a generator that is set."""

    generator: Generator | None = None
    __call__: Callable[..., Tensor]  # nn.Module leaves it without types

    @checked
    def __init__(self, dropout: Rate = 0.1) -> None:
        super().__init__(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x."""
        return drop(x, self.p, self.generator) if self.training and self.p > 0 else x


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Let a model drop nothing for a while, also while it is trained."""
    dropping = [part for part in model.modules() if isinstance(part, nn.Dropout) and part.training]
    for part in dropping:
        part.training = False
    try:
        yield
    finally:
        for part in dropping:
            part.training = True

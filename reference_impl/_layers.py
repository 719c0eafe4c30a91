"""The parts that encoder and decoder share: the residual connection around a sub-layer, and the stack of layers."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self, TypedDict

import torch
from torch import Tensor, nn

from goldformer.reference_impl._building import build, build_inner
from goldformer.reference_impl._checks import ATTENTION, FEED_FORWARD, NORM, Block, check_positive_int, pick_params
from goldformer.reference_impl._random import Dropping, skip_dropout
from goldformer.reference_impl.feed_forward import Activation, FeedForward
from goldformer.reference_impl.layer_norm import EPS, LayerNorm
from goldformer.reference_impl.multi_head_attention import MultiHeadAttention


class LayerSettings(TypedDict, total=False):
    """The keywords that a stack passes on to its layers."""

    dropout: float  # 0.1
    norm_first: bool  # False
    activation: Activation  # "relu"
    bias: bool  # True
    device: torch.device | str | None
    dtype: torch.dtype | None


class ResidualLayer(nn.Module):
    """A layer that adds the output of each of its sub-layers to the sub-layer's input, and normalises."""

    blocks: ClassVar[Mapping[str, Block]]  # the sub-layers and norms, in the order of the computation
    norm_first: bool
    dropout: nn.Module

    @classmethod
    def from_params(
        cls,
        params: Mapping[str, Tensor],
        num_heads: int,
        *,
        norm_first: bool,
        activation: Activation,
        dropout: Dropping = skip_dropout,
    ) -> Self:
        """Build a layer from parameters that the function form has checked, with its dropout."""
        parts: dict[str, nn.Module] = {}
        for name, block in cls.blocks.items():
            own = pick_params(params, name, block)
            if block is ATTENTION:
                parts[name] = build_inner(MultiHeadAttention, num_heads=num_heads, **own)
            elif block is FEED_FORWARD:
                parts[name] = build_inner(FeedForward, dropout=dropout, activation=activation, **own)
            else:
                parts[name] = build_inner(LayerNorm, eps=EPS, **own)
        d_model = params["norm_1.gamma"].shape[0]
        settings = {"d_model": d_model, "num_heads": num_heads, "norm_first": norm_first, "dropout": dropout}
        return build(cls, **settings, **parts)

    def add_and_norm(
        self, x: Tensor, sublayer: Callable[[Tensor], tuple[Tensor, Tensor]], norm: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Add the output of a sub-layer to its input, and normalise.

        Formula:  LN(x + dropout(f(x))), post-norm; with norm_first x + dropout(f(LN(x))), pre-norm
        Shapes:   x (batch, seq, d_model) → (batch, seq, d_model), and the second result of the sub-layer
        Source:   n9 "编码层", primer 3.1; paper, section 3.1, and 5.4 for the dropout; they all have post-norm
        """
        update, detail = sublayer(norm(x) if self.norm_first else x)  # (batch, seq, d_model)
        total = x + self.dropout(update)  # (batch, seq, d_model)
        return total if self.norm_first else norm(total), detail


def run_layers(layers: Iterable[Callable[..., Any]], x: Tensor, *others: Tensor | None) -> list[Tensor]:
    """Hand x from layer to layer, the others to every layer, and return the output of each layer."""
    outputs = []
    for layer in layers:
        x = layer(x, *others).output  # (batch, seq, d_model)
        outputs.append(x)
    return outputs


def normalise_last(x: Tensor, norm: Callable[[Tensor], Tensor] | None) -> Tensor:
    """Normalise what the last layer of a stack gives, where the stack has a final norm."""
    # A pre-norm layer adds to its input whatever its sub-layers give, so without this norm the stack's output is a sum
    # that no layer has brought to one scale.
    return x if norm is None else norm(x)  # (batch, seq, d_model)


def make_final_norm(d_model: int, settings: LayerSettings) -> LayerNorm:
    """Make the norm after the last layer of a stack."""
    return LayerNorm(d_model, device=settings.get("device"), dtype=settings.get("dtype"))


def pick_final_norm(params: Mapping[str, Tensor], name: str) -> LayerNorm | None:
    """Build the final norm of a stack from checked parameters, or return None if they have no norm."""
    if f"{name}.gamma" not in params:
        return None
    return build_inner(LayerNorm, eps=EPS, **pick_params(params, name, NORM))


def make_stack(layer: Callable[[], nn.Module], num_layers: int, name: str = "num_layers") -> nn.ModuleList:
    """Make layers of one structure, each with weights of its own."""
    check_positive_int(name, num_layers)
    return nn.ModuleList(layer() for _ in range(num_layers))

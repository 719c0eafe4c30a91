"""The parts that encoder and decoder share: the residual connection around a sub-layer, and the stack of layers."""

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from goldformer.reference_impl._checks import check_positive_int


class LayerSettings(TypedDict, total=False):
    """The keywords that a stack passes on to its layers."""

    dropout: float  # 0.1
    norm_first: bool  # False
    bias: bool  # True
    device: torch.device | str | None
    dtype: torch.dtype | None


class ResidualLayer(nn.Module):
    """A layer that adds the output of each of its sub-layers to the sub-layer's input, and normalises."""

    norm_first: bool
    dropout: nn.Module

    def add_and_norm(
        self, x: Tensor, sublayer: Callable[[Tensor], tuple[Tensor, Tensor]], norm: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Add the output of a sub-layer to its input, and normalise.

        Formula:  LN(x + dropout(f(x))), post-norm; with norm_first x + dropout(f(LN(x))), pre-norm
        Shapes:   x (batch, seq, d_model) → (batch, seq, d_model), and the second result of the sub-layer
        Source:   n9 "编码层", primer 3.1; paper, section 3.1, and 5.4 for the dropout; none of them has pre-norm
        """
        update, detail = sublayer(norm(x) if self.norm_first else x)  # (batch, seq, d_model)
        total = x + self.dropout(update)  # (batch, seq, d_model)
        return total if self.norm_first else norm(total), detail


def through(layers: Iterable[Callable[..., Any]], x: Tensor, *others: Tensor | None) -> list[Tensor]:
    """Hand x from layer to layer, the others to every layer, and return the output of each layer."""
    outputs = []
    for layer in layers:
        x = layer(x, *others).output  # (batch, seq, d_model)
        outputs.append(x)
    return outputs


def make_stack(layer: Callable[[], nn.Module], num_layers: int, name: str = "num_layers") -> nn.ModuleList:
    """Make layers of one structure, each with weights of its own."""
    check_positive_int(name, num_layers)
    return nn.ModuleList(layer() for _ in range(num_layers))

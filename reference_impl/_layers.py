"""The steps that encoder and decoder share, for functions and modules alike.

A sub-layer, a norm and a dropout are callables here: a module, or a plain function that has its parameters
bound to it. So the data flow of a layer is written once.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from goldformer.reference_impl._checks import check_fraction, check_positive_int
from goldformer.reference_impl._random import drop


class LayerSettings(TypedDict, total=False):
    """The keywords that a stack hands on to its layers."""

    dropout: float  # 0.1
    norm_first: bool  # False
    bias: bool  # True
    device: torch.device | str | None
    dtype: torch.dtype | None


def add_and_norm(
    x: Tensor,
    sublayer: Callable[[Tensor], tuple[Tensor, Tensor]],
    norm: Callable[[Tensor], Tensor],
    dropout: Callable[[Tensor], Tensor],
    norm_first: bool,  # noqa: FBT001 - always passed on
) -> tuple[Tensor, Tensor]:
    """Add to x what a sub-layer makes of it, and normalise.

    Formula:  LN(x + dropout(f(x))), post-norm; with norm_first x + dropout(f(LN(x))), pre-norm
    Shapes:   x (batch, seq, d_model) → (batch, seq, d_model), and the sub-layer's second result as it is
    Source:   n9 "编码层", primer 3.1; paper, section 3.1, and 5.4 for the dropout; pre-norm is in none of them
    """
    update, detail = sublayer(norm(x) if norm_first else x)  # (batch, seq, d_model)
    total = x + dropout(update)  # (batch, seq, d_model)
    return total if norm_first else norm(total), detail


def through(layers: Iterable[Callable[..., Any]], x: Tensor, *others: Tensor | None) -> list[Tensor]:
    """Hand x from layer to layer, the others to every layer alike, and return what each layer gives."""
    outputs = []
    for layer in layers:
        x = layer(x, *others).output  # (batch, seq, d_model)
        outputs.append(x)
    return outputs


def bind_layers(
    layer: Callable[..., Any], params: Mapping[str, Tensor], stack: str, num_layers: int, **settings: Any
) -> list[Callable[..., Any]]:
    """Make the layers of a stack out of a function: each with the parameters that carry its number."""
    return [partial(layer, params=scoped(params, f"{stack}.{i}"), **settings) for i in range(num_layers)]


def scoped(params: Mapping[str, Tensor], prefix: str) -> dict[str, Any]:
    """Pick the parameters of a block, by their names within it: "norm_1.gamma" as "gamma"."""
    dotted = f"{prefix}."
    return {name.removeprefix(dotted): tensor for name, tensor in params.items() if name.startswith(dotted)}


def unchanged(x: Tensor) -> Tensor:
    """Drop nothing: the dropout of the plain functions."""
    return x


class _Dropout(nn.Dropout):
    """PyTorch's dropout by the formula of ours, with PyTorch's own random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.p) if self.training else x


def make_dropout(p: float) -> nn.Dropout:
    """Make the dropout of a module: in training an entry is 0 with probability p, the rest grows by 1/(1 − p)."""
    check_fraction("dropout", p)
    return _Dropout(p)


def make_stack(layer: Callable[[], nn.Module], num_layers: int, name: str = "num_layers") -> nn.ModuleList:
    """Make layers of one structure, each with weights of its own."""
    check_positive_int(name, num_layers)
    return nn.ModuleList(layer() for _ in range(num_layers))

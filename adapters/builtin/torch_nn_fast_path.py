"""The adapter of PyTorch's fast path: nn.TransformerEncoderLayer and nn.TransformerEncoder, one fused kernel a layer.

Evaluation without gradients takes it, where the heads are even in number. Under a mask of keys that hides the last
tokens of each sample alone, a stack goes on in nested tensors, which leave these tokens out and give them rows of 0.
PyTorch takes another way without a word where it must: that is declined, so that all that is judged is the kernel's.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from goldformer.adapters.builtin import torch_nn_layers as layers

NAME: Final = "torch-nn-fast-path"
VERSION: Final = torch.__version__
ARRAYS: Final = "torch"
DTYPES: Final = ("float64", "float32", "float16", "bfloat16")

# The kernel takes a plain softmax. In a nested tensor no query is without a key: such a sample has no tokens at all.
CONVENTIONS: Final = {"empty_row": "nan"}

Params = Mapping[str, Tensor]

_HOW: Final = {"batch_first": True, "norm_first": False}


def encoder_layer(x: Tensor, mask: Tensor | None = None, *, num_heads: int, params: Params) -> Tensor:
    """nn.TransformerEncoderLayer as one kernel, which gives the output alone."""
    layer = layers.encoder_layer(params, num_heads=num_heads, **_HOW)
    masks = layers.masks(mask, x, x, num_heads, ("src_key_padding_mask", "src_mask"))
    with fused(times=1):
        return _evaluated(layer, layers.layer_state(params), x, masks)


def encoder(x: Tensor, mask: Tensor | None = None, *, num_heads: int, num_layers: int, params: Params) -> Tensor:
    """nn.TransformerEncoder as one kernel a layer, without a final norm: the output alone."""
    stack = layers.encoder(params, num_heads=num_heads, num_layers=num_layers, nested=not num_heads % 2, **_HOW)
    masks = layers.masks(mask, x, x, num_heads, ("src_key_padding_mask", "mask"))
    with fused(times=num_layers):
        return _evaluated(stack, layers.stack_state(params, "encoder", num_layers), x, masks)


@contextmanager
def fused(times: int) -> Iterator[None]:
    """Raise NotImplementedError at the end unless the kernel of the fast path ran so many times."""
    with _Kernels() as ran:
        yield
    if ran.count != times:
        raise NotImplementedError("PyTorch's fast path asks for an even number of heads and for no gradients")


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch has it so
    """Counts how often the kernel runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        self.count += func is torch.ops.aten._transformer_encoder_layer_fwd.default
        return func(*args, **(kwargs or {}))


def _evaluated(module: nn.Module, state: Params, x: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
    output: Tensor = functional_call(module.eval(), dict(state), (x,), dict(masks))
    return output

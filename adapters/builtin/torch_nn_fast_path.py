"""The adapter of PyTorch's fast path: nn.TransformerEncoderLayer and nn.TransformerEncoder, one fused kernel a layer.

Evaluation without gradients takes it for an even number of heads. With a mask of keys that hides only the last tokens
of each sample, a stack uses nested tensors, which leave these tokens out and return rows of 0 for them. Where PyTorch
silently takes another path, the adapter raises NotImplementedError, so that only the kernel is judged.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from goldformer.adapters.builtin import _torch_nn_layers as layers

NAME: Final = "torch-nn-fast-path"
VERSION: Final = torch.__version__
ARRAYS: Final = "torch"
DTYPES: Final = ("float64", "float32", "float16", "bfloat16")

# The kernel uses a plain softmax. In a nested tensor every query has a key: a sample without keys has no tokens.
CONVENTIONS: Final = {"empty_row": "nan"}

Params = Mapping[str, Tensor]

_OPTIONS: Final = {"batch_first": True, "norm_first": False}


def encoder_layer(x: Tensor, mask: Tensor | None = None, *, num_heads: int, params: Params) -> Tensor:
    """Call nn.TransformerEncoderLayer as one kernel; return only the output."""
    layer = layers.encoder_layer(params, num_heads=num_heads, **_OPTIONS)
    masks = layers.make_masks(mask, x, x, num_heads, ("src_key_padding_mask", "src_mask"))
    with require_kernel(times=1):
        return _evaluate(layer, layers.map_layer(params), x, masks)


def encoder(x: Tensor, mask: Tensor | None = None, *, num_heads: int, num_layers: int, params: Params) -> Tensor:
    """Call nn.TransformerEncoder as one kernel a layer; return only the output."""
    stack = layers.encoder(params, num_heads=num_heads, num_layers=num_layers, nested=not num_heads % 2, **_OPTIONS)
    masks = layers.make_masks(mask, x, x, num_heads, ("src_key_padding_mask", "mask"))
    with require_kernel(times=num_layers):
        return _evaluate(stack, layers.map_stack(params, "encoder", num_layers), x, masks)


@contextmanager
def require_kernel(times: int) -> Iterator[None]:
    """Raise NotImplementedError at the end unless the kernel of the fast path ran `times` times."""
    with _Kernels() as ran:
        yield
    if ran.count != times:
        raise NotImplementedError("PyTorch's fast path asks for an even number of heads and for no gradients")


class _Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
    """Counter of the runs of the kernel."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        self.count += func is torch.ops.aten._transformer_encoder_layer_fwd.default
        return func(*args, **(kwargs or {}))


def _evaluate(module: nn.Module, state: Params, x: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
    output: Tensor = functional_call(module.eval(), dict(state), (x,), dict(masks))
    return output

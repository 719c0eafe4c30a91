"""The bridge to TorchCode: the functions and classes of its problems, in notebooks or Python files.

The names, parameters and attributes are those of the notebooks that the site hands out (duoan/TorchCode, templates).
Arrays of attention have three axes there, linear maps are nn.Linear with a bias, and nothing takes a mask.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from goldformer.adapters.bridges.functions import Functions, load_functions, restore_shape
from goldformer.adapters.layouts import is_causal, linear_weight, require_square_projections
from goldformer.adapters.notebook import SUFFIX
from goldformer.adapters.protocol import AdapterError

Params = Mapping[str, Tensor]

# Without a parameter that has a default, such as eps. Classes have the parameters of their constructors.
_SIGNATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "my_softmax": ("x", "dim"),
    "my_layer_norm": ("x", "gamma", "beta"),
    "rms_norm": ("x", "weight"),
    "scaled_dot_product_attention": ("Q", "K", "V"),
    "causal_attention": ("Q", "K", "V"),
    "MultiHeadAttention": ("d_model", "num_heads"),
    "SwiGLUMLP": ("d_model", "d_ff"),
    "MyEmbedding": ("num_embeddings", "embedding_dim"),
    "cross_entropy_loss": ("logits", "targets"),
}

_DEFINED: Final = re.compile(rf"(?:def|class)\s+({'|'.join(_SIGNATURES)})\b")


@dataclass(frozen=True)
class TorchCode:
    """The components that the site has problems for, computed by the solver's functions and classes."""

    functions: Functions

    ARRAYS = "torch"
    # As in the site's own tests.
    DTYPES = ("float32",)
    DEVICES = ("cpu",)

    def softmax(self, scores: Tensor) -> Any:
        """Call my_softmax over the last axis."""
        return self.functions.find("my_softmax")(scores, -1)

    def layer_norm(self, x: Tensor, *, params: Params) -> Any:
        """Call my_layer_norm with its own eps, which is 1e-5."""
        return self.functions.find("my_layer_norm")(x, params["gamma"], params["beta"])

    def rms_norm(self, x: Tensor, *, params: Params) -> Any:
        """Call rms_norm with its own eps, which is 1e-6."""
        return self.functions.find("rms_norm")(x, params["gamma"])

    def scaled_dot_product_attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Any:
        """Call scaled_dot_product_attention without a mask, and causal_attention for a causal one."""
        q_seq, kv_seq = query.shape[-2], key.shape[-2]
        if mask is not None and not (q_seq == kv_seq and is_causal(mask, q_seq=q_seq, kv_seq=kv_seq)):
            raise NotImplementedError("no problem has attention with a mask that is not causal")
        run = self.functions.find("scaled_dot_product_attention" if mask is None else "causal_attention")
        arrays = (x.reshape(-1, *x.shape[-2:]) for x in (query, key, value))
        return restore_shape(run(*arrays), (*query.shape[:-1], value.shape[-1]))

    def multi_head_attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, num_heads: int, params: Params
    ) -> Any:
        """Call MultiHeadAttention, whose projections are W_q, W_k, W_v and W_o."""
        make = self.functions.find("MultiHeadAttention")
        if mask is not None:
            raise NotImplementedError("MultiHeadAttention takes no mask")
        require_square_projections(params)
        layer = make(query.shape[-1], num_heads)
        for name in ("q", "k", "v", "o"):
            _set_linear(layer, f"W_{name}", params[f"w_{name}"], params.get(f"b_{name}"))
        return layer.forward(query, key, value)

    def gated_feed_forward(self, x: Tensor, *, params: Params) -> Any:
        """Call SwiGLUMLP, whose maps are gate_proj, up_proj and down_proj."""
        layer = self.functions.find("SwiGLUMLP")(*params["w_gate"].shape)
        for name in ("gate", "up", "down"):
            _set_linear(layer, f"{name}_proj", params[f"w_{name}"], params.get(f"b_{name}"))
        return layer.forward(x)

    def token_embedding(self, ids: Tensor, *, params: Params) -> Any:
        """Call MyEmbedding, whose table is its weight."""
        layer = self.functions.find("MyEmbedding")(*params["table"].shape)
        _set(layer, "weight", params["table"])
        return layer.forward(ids)

    def cross_entropy(self, logits: Tensor, targets: Tensor, *, pad_id: int) -> Any:
        """Call cross_entropy_loss on the tokens that are no padding, which it does not know."""
        counted = targets != pad_id
        return self.functions.find("cross_entropy_loss")(logits[counted], targets[counted])


def _set_linear(layer: Any, name: str, weight: Tensor, bias: Tensor | None) -> None:
    """Give a linear map of a layer its weight and its bias, 0 without one, so that gradients reach them."""
    linear = getattr(layer, name)
    _set(linear, "weight", linear_weight(weight))
    _set(linear, "bias", torch.zeros_like(weight[0]) if bias is None else bias)


def _set(module: Any, name: str, tensor: Tensor) -> None:
    """Put a tensor in the place of a parameter."""
    delattr(module, name)
    setattr(module, name, tensor)


def connect(path: Path) -> TorchCode:
    """Return the components of solutions: `path` is a notebook, a Python file, or a folder of them.

    AdapterError if there is no such path, if a file cannot be imported, or if nothing of a problem is defined there.
    """
    if not path.exists():
        raise AdapterError(
            f"{path}: no such file or folder. The bridge torchcode takes a notebook, a Python file, or a folder of them"
        )
    files = sorted(p for p in path.iterdir() if p.suffix in (".py", SUFFIX)) if path.is_dir() else [path]
    # Only a file that defines a part is read: the others import what goldformer does not need.
    files = [p for p in files if _DEFINED.search(p.read_text(encoding="utf-8", errors="replace"))]
    return TorchCode(load_functions(path, files, _SIGNATURES, frozenset(_SIGNATURES)))

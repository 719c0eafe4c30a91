"""The adapters of PyTorch's own layers: softmax, attention, embedding and nn.MultiheadAttention.

torch-nn                 the kernels that PyTorch picks; batch first, boolean masks, weights per head
torch-nn-sequence-first  the same kernels; sequence first, float masks of 0 and −inf
torch-nn-math            attention through the math backend of F.scaled_dot_product_attention
torch-nn-flash           attention through its flash backend, which on the CPU takes four axes and d_v = d_k
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's documentation gives it
from torch.nn.attention import SDPBackend, sdpa_kernel

from goldformer.adapters.layouts import (
    additive_mask,
    batch_first,
    flatten_heads,
    ignore_mask,
    key_padding,
    linear_weight,
    sequence_first,
)

Backend = Literal["default", "math", "flash"]

# Since 2.5 F.scaled_dot_product_attention gives an empty row zeros; before it gave NaN, on every backend.
# nn.MultiheadAttention goes through it unless asked for its weights: then it takes a plain softmax, and NaN.
_EMPTY_ROW: Final = "zeros" if torch.__version__ >= "2.5" else "nan"

_BACKENDS: Final = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}


@dataclass(frozen=True)
class TorchNN:
    """One way to call PyTorch's layers; its methods are the components that PyTorch has.

    With a backend chosen nn.MultiheadAttention is not asked for weights: with them it uses no backend.
    """

    backend: Backend = "default"
    batch_first: bool = True
    additive_masks: bool = False

    ARRAYS = "torch"
    VERSION = torch.__version__
    DTYPES = ("float64", "float32", "float16", "bfloat16")

    @property
    def NAME(self) -> str:  # noqa: N802 - the protocol's name
        """The name in the registry."""
        variant = "sequence-first" if not self.batch_first else self.backend
        return "torch-nn" if variant == "default" else f"torch-nn-{variant}"

    @property
    def CONVENTIONS(self) -> dict[str, str]:  # noqa: N802 - the protocol's name
        """What an empty row gives, found by calling each variant in each dtype."""
        return {
            "scaled_dot_product_attention.empty_row": _EMPTY_ROW,
            "multi_head_attention.empty_row": "nan" if self._weights else _EMPTY_ROW,
        }

    def softmax(self, scores: Tensor) -> Tensor:
        """F.softmax over the last axis."""
        return F.softmax(scores, dim=-1)

    def token_embedding(self, ids: Tensor, *, params: Mapping[str, Tensor]) -> Tensor:
        """F.embedding, which nn.Embedding calls."""
        return F.embedding(ids, params["table"])

    def causal_mask(self, *, q_seq: int, kv_seq: int) -> Tensor:
        """Where nn.Transformer's causal mask, a square of 0 and −inf, adds 0."""
        if q_seq != kv_seq:
            raise NotImplementedError("nn.Transformer.generate_square_subsequent_mask is square")
        return nn.Transformer.generate_square_subsequent_mask(q_seq) == 0

    def scaled_dot_product_attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """F.scaled_dot_product_attention, which gives the output alone."""
        if query.ndim == 4 and self.backend != "math" and key.shape[-2] != value.shape[-2]:
            # Not run: with four axes nothing checks it, and the kernel reads behind the shorter of the two.
            raise NotImplementedError("key and value of two lengths: a read out of bounds, pytorch/pytorch#193728")
        if mask is not None:
            # It documents any mask that broadcasts, but some kernels take no (kv_seq,) and no three axes.
            mask = mask[(None,) * (query.ndim - mask.ndim)]
            mask = additive_mask(mask, query.dtype) if self.additive_masks else mask
        with self._kernel():
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    def multi_head_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        num_heads: int,
        params: Mapping[str, Tensor],
    ) -> tuple[Tensor, Tensor] | Tensor:
        """nn.MultiheadAttention: output, and weights per head unless a backend is chosen."""
        layer = self._layer(num_heads, params)
        inputs = [query, key, value]
        if not self.batch_first:
            inputs = [sequence_first(x) for x in inputs]
        options: dict[str, Any] = {"need_weights": self._weights, "average_attn_weights": False}
        options |= self._masks(mask, query, key, num_heads)
        with self._kernel():
            output, weights = functional_call(layer, _state(layer, params), tuple(inputs), options)
        if not self.batch_first:
            output = batch_first(output)
        return (output, weights) if self._weights else output

    @property
    def _weights(self) -> bool:
        return self.backend == "default"

    def _layer(self, num_heads: int, params: Mapping[str, Tensor]) -> nn.MultiheadAttention:
        """Return the layer without numbers; it borrows `params` for the call, so gradients reach them."""
        d_query, embed_dim = params["w_q"].shape
        widths = {
            "query": d_query,
            "heads·d_v": params["w_v"].shape[1],
            "output": params["w_o"].shape[1],
        }
        for what, width in widths.items():
            if width != embed_dim:
                limit = f"nn.MultiheadAttention has one width, embed_dim, for heads·d_k and {what}"
                raise NotImplementedError(f"{limit}: {embed_dim} and {width} differ")
        layer = nn.MultiheadAttention(
            embed_dim,
            num_heads,
            bias=any(params.get(f"b_{role}") is not None for role in "qkvo"),
            kdim=params["w_k"].shape[0],
            vdim=params["w_v"].shape[0],
            batch_first=self.batch_first,
            device="meta",
            dtype=params["w_q"].dtype,
        )
        # Without dropout training differs from evaluation in one thing: it never takes the fast path, one
        # fused kernel that knows no backends.
        return layer.train(not self._weights)

    def _masks(self, mask: Tensor | None, query: Tensor, key: Tensor, num_heads: int) -> dict[str, Tensor]:
        """Return the mask as key_padding_mask (batch, kv_seq) if that can hold it, else as attn_mask."""
        if mask is None:
            return {}
        (batch, q_seq, _), kv_seq = query.shape, key.shape[1]
        name, mine = "key_padding_mask", key_padding(mask, batch=batch, kv_seq=kv_seq)
        if mine is None:
            full = flatten_heads(mask, batch=batch, heads=num_heads, q_seq=q_seq, kv_seq=kv_seq)
            name, mine = "attn_mask", full
        return {name: additive_mask(mine, query.dtype) if self.additive_masks else ignore_mask(mine)}

    @contextmanager
    def _kernel(self) -> Iterator[None]:
        """Hold attention to the backend; NotImplementedError, with PyTorch's reason, where it declines."""
        if self.backend == "default":
            yield
            return
        # PyTorch tells the reason in warnings, and then raises without it.
        with sdpa_kernel(_BACKENDS[self.backend]), warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                yield
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
                reasons = [str(warning.message).partition(" (Triggered")[0] for warning in told]
                why = " ".join(why for why in reasons if not why.endswith("because:"))
                raise NotImplementedError(f"no {self.backend} kernel: {why or 'no reason given'}") from error


def _state(layer: nn.MultiheadAttention, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters by the layer's names: weights (out, in); q, k and v in one where it has one."""
    names = {name for name, _ in layer.named_parameters()}
    weights = {role: linear_weight(params[f"w_{role}"]) for role in "qkvo"}
    state: dict[str, Tensor] = {"out_proj.weight": weights["o"]}
    if "in_proj_weight" in names:
        state["in_proj_weight"] = torch.cat([weights[role] for role in "qkv"])
    else:
        state |= {f"{role}_proj_weight": weights[role] for role in "qkv"}
    if "in_proj_bias" in names:
        # It has all biases or none; one that is absent here is zero there.
        given = {role: params.get(f"b_{role}") for role in "qkvo"}
        bias = {r: weights[r].new_zeros(len(weights[r])) if b is None else b for r, b in given.items()}
        state |= {"in_proj_bias": torch.cat([bias[r] for r in "qkv"]), "out_proj.bias": bias["o"]}
    return state


torch_nn: Final = TorchNN()
torch_nn_math: Final = TorchNN(backend="math")
torch_nn_flash: Final = TorchNN(backend="flash")
torch_nn_sequence_first: Final = TorchNN(batch_first=False, additive_masks=True)

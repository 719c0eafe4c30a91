"""How the suite calls what students write in submission.py."""

from __future__ import annotations

from collections.abc import Mapping

import submission
import torch
from torch import Tensor
from torch.func import functional_call

ARRAYS = "torch"
DEVICES = ("cpu",)  # as it is graded
NAME = "submission"

#: Each layer of the module with its weight and its bias in the suite's own names.
LAYERS = {"w_q": ("w_q", "b_q"), "w_k": ("w_k", "b_k"), "w_v": ("w_v", "b_v"), "w_o": ("w_o", "b_o")}


def softmax(scores: Tensor) -> Tensor:
    """As it is written."""
    return submission.softmax(scores)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """As it is written: the output and the weights."""
    every_query_has_a_key(mask)
    output, weights = both(submission.scaled_dot_product_attention(query, key, value, mask))
    return output, weights


def every_query_has_a_key(mask: Tensor | None) -> None:
    """What a query without any key gets is not asked for."""
    if mask is not None and not mask.any(dim=-1).all():
        raise NotImplementedError("a query without any key is not asked for")


def both(returned: object) -> tuple[Tensor, Tensor]:
    """What is to be a pair; a tensor alone could be taken apart too, and its rows would be compared."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError("return both the output and the weights: return output, weights")
    return returned


def causal_mask(*, q_seq: int, kv_seq: int) -> Tensor:
    """As it is written."""
    return submission.causal_mask(q_seq, kv_seq)


def padding_mask(ids: Tensor, *, pad_id: int) -> Tensor:
    """As it is written."""
    return submission.padding_mask(ids, pad_id)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Mapping[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """The module, with the weights of the call: nn.Linear holds them as (out, in), and a bias that is absent is 0."""
    every_query_has_a_key(mask)
    d_model = params["w_q"].shape[0]
    if any(params[weight].shape[-1] != d_model for weight in LAYERS):
        raise NotImplementedError("heads that are not d_model // num_heads wide are not asked for")
    module = submission.MultiHeadAttention(query.shape[-1], num_heads)
    loaded = {}
    for layer, (weight, bias) in LAYERS.items():
        loaded[f"{layer}.weight"] = params[weight].T
        loaded[f"{layer}.bias"] = params[bias] if bias in params else torch.zeros_like(params[weight][0])
    return both(functional_call(module, loaded, (query, key, value, mask), strict=True))

"""Let the suite call what students write in submission.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import submission
import torch
from torch import Tensor
from torch.func import functional_call

ARRAYS = "torch"
DEVICES = ("cpu",)  # as in grading
NAME = "submission"

#: Each layer of the module with its weight and its bias in the suite's own names.
LAYERS = {"w_q": ("w_q", "b_q"), "w_k": ("w_k", "b_k"), "w_v": ("w_v", "b_v"), "w_o": ("w_o", "b_o")}


def softmax(scores: Tensor) -> Tensor:
    """Call the function."""
    return submission.softmax(scores)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the output and the weights."""
    require_keys(mask)
    output, weights = require_pair(submission.scaled_dot_product_attention(query, key, value, mask))
    return output, weights


def require_keys(mask: Tensor | None) -> None:
    """Skip a case in which a query has no key: the assignment does not ask for it."""
    if mask is not None and not mask.any(dim=-1).all():
        raise NotImplementedError("a query without any key is not asked for")


def require_pair(returned: object) -> tuple[Tensor, Tensor]:
    """Return the pair, and refuse a single tensor: its rows would be taken for output and weights."""
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise TypeError("return both the output and the weights: return output, weights")
    return returned


def causal_mask(*, q_seq: int, kv_seq: int) -> Tensor:
    """Call the function."""
    return submission.causal_mask(q_seq, kv_seq)


def padding_mask(ids: Tensor, *, pad_id: int) -> Tensor:
    """Call the function."""
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
    """Run the module with the weights of the call. nn.Linear has them as (out, in); an absent bias is 0."""
    require_keys(mask)
    d_model = params["w_q"].shape[0]
    if any(params[weight].shape[-1] != d_model for weight in LAYERS):
        raise NotImplementedError("heads that are not d_model // num_heads wide are not asked for")
    module = build_module(query.shape[-1], num_heads)
    parameters = {}
    for layer, (weight, bias) in LAYERS.items():
        parameters[f"{layer}.weight"] = params[weight].T
        parameters[f"{layer}.bias"] = params[bias] if bias in params else torch.zeros_like(params[weight][0])
    return require_pair(functional_call(module, parameters, (query, key, value, mask), strict=True))


@cache
def build_module(d_model: int, num_heads: int) -> torch.nn.Module:
    """Build the module of a size once, as a model does: what it keeps from one call must not change the next."""
    module: torch.nn.Module = submission.MultiHeadAttention(d_model, num_heads)
    return module

"""Let the suite call what students write in submission.py."""

from __future__ import annotations

from collections.abc import Mapping

import submission
import torch
from torch import Tensor, nn
from torch.func import functional_call

ARRAYS = "torch"
DEVICES = ("cpu",)  # as in grading
NAME = "submission"
CONVENTIONS = {"biases": "none"}

Params = Mapping[str, Tensor]


def rename_parameters(params: Params) -> dict[str, Tensor]:
    """Name parameters as the modules do. nn.Linear has weights as (out, in), under the name of the layer."""
    return {
        f"{name}.weight" if is_weight(name) else name: tensor.T if is_weight(name) else tensor
        for name, tensor in params.items()
    }


def is_weight(name: str) -> bool:
    """Return True for the weight of a linear layer."""
    return name.rpartition(".")[2].startswith("w_")


def find_sizes(params: Params, num_heads: int, num_kv_heads: int) -> tuple[int, ...]:
    """Return what a layer is built from; `params` are those of the layer."""
    d_model, columns = params["w_q"].shape
    d_k, rest = divmod(columns, num_heads)
    if rest or num_heads % num_kv_heads:
        raise ValueError(f"num_heads: {num_heads} heads do not fit w_q or {num_kv_heads} heads of keys")
    return d_model, num_heads, num_kv_heads, d_k, params["feed_forward.w_gate"].shape[1]


def require_keys(mask: Tensor | None) -> None:
    """Skip a case in which a query has no key: the assignment does not ask for it."""
    if mask is not None and not mask.any(dim=-1).all():
        raise NotImplementedError("a query without any key is not asked for")


def require_early_keys(mask: Tensor | None, seq: int) -> None:
    """Skip the same case of a layer, whose queries read no later key."""
    if mask is not None and mask.shape[-2:] in ((seq, seq), (1, seq)):
        require_keys(mask & torch.ones(seq, seq, dtype=torch.bool).tril())


def rms_norm(x: Tensor, *, params: Params) -> Tensor:
    """Run the module."""
    return functional_call(submission.RMSNorm(x.shape[-1]), dict(params), (x,), strict=True)


def rotary_embedding(x: Tensor, positions: Tensor, *, base: float = 10000.0) -> Tensor:
    """Call the function."""
    return submission.rotary_embedding(x, positions, base)


def gated_feed_forward(x: Tensor, *, params: Params) -> Tensor:
    """Run the module."""
    module = submission.GatedFeedForward(*params["w_gate"].shape)
    return functional_call(module, rename_parameters(params), (x,), strict=True)


def grouped_query_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Call the function."""
    require_keys(mask)
    return submission.grouped_query_attention(query, key, value, mask)


def decoder_only_layer(
    x: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    num_kv_heads: int,
    base: float = 10000.0,
    params: Params,
) -> Tensor:
    """Run the module."""
    require_early_keys(mask, x.shape[1])
    module = submission.DecoderOnlyLayer(*find_sizes(params, num_heads, num_kv_heads), base)
    return functional_call(module, rename_parameters(params), (x, mask), strict=True)


def make_model(
    params: Params, num_heads: int, num_kv_heads: int, num_layers: int, base: float, pad_id: int | None
) -> nn.Module:
    """Make the whole model with its own parameters."""
    first = {name.removeprefix("layers.0."): tensor for name, tensor in params.items()}
    sizes = find_sizes(first, num_heads, num_kv_heads)
    return submission.DecoderOnlyModel(len(params["table"]), *sizes, num_layers, base, pad_id)


def decoder_only_model(
    ids: Tensor,
    *,
    num_heads: int,
    num_kv_heads: int,
    num_layers: int,
    base: float = 10000.0,
    pad_id: int | None = None,
    params: Params,
) -> Tensor:
    """Run the module."""
    module = make_model(params, num_heads, num_kv_heads, num_layers, base, pad_id)
    return functional_call(module, rename_parameters(params), (ids,), strict=True)


def cached_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, state: object = None
) -> tuple[Tensor, object]:
    """Call the function. What a query without a key returns is not compared."""
    return submission.cached_attention(query, key, value, mask, state)


def cached_model(
    ids: Tensor,
    state: object = None,
    *,
    num_heads: int,
    num_kv_heads: int,
    num_layers: int,
    base: float = 10000.0,
    pad_id: int | None = None,
    params: Params,
) -> tuple[Tensor, object]:
    """Extend a sequence with a module that has the parameters of the call."""
    module = make_model(params, num_heads, num_kv_heads, num_layers, base, pad_id)
    module.load_state_dict(rename_parameters(params), strict=True, assign=True)
    with torch.no_grad():
        return module.extend(ids, state)


def token_filter(logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0) -> Tensor:
    """Call the function."""
    return submission.token_filter(logits, temperature, top_k, top_p)

"""The adapter of x-transformers: attention with and without projections, feed-forward network, norm, positions.

Its projections have no biases and its norm has no shift, so its layers cannot hold the parameters of the spec.
"""

from collections.abc import Mapping
from fractions import Fraction
from importlib.metadata import version
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call
from x_transformers.attend import Attend
from x_transformers.x_transformers import Attention, FeedForward, LayerNorm, ScaledSinusoidalEmbedding

from goldformer.adapters.layouts import four_axes, four_axes_mask, linear_weight
from goldformer.adapters.libraries._joint_context import join_context

NAME: Final = "x-transformers"
VERSION: Final = version("x-transformers")
ARRAYS: Final = "torch"

# The output of a row without a key is 0; positions are sines, then cosines, of an even width.
CONVENTIONS: Final = {"empty_row": "zeros", "pe_layout": "concatenated", "odd_d_model": "refused"}

Params = Mapping[str, Tensor]


def positional_encoding(x: Tensor) -> Tensor:
    """Add the output of ScaledSinusoidalEmbedding with the scale 1."""
    encoding = ScaledSinusoidalEmbedding(x.shape[-1]).to(x.device)
    positions: Tensor = functional_call(encoding, {"scale": torch.ones(1, device=x.device)}, (x,))
    return x + positions.to(x.dtype)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout_rate: float = 0.0,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Call Attend; return output and weights."""
    q, k, v, masked, restore = four_axes(query, key, value, mask)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        output, between = Attend(dropout=dropout_rate)(q, k, v, mask=masked)
    return restore(output), restore(between.post_softmax_attn)


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    num_heads: int,
    params: Params,
) -> tuple[Tensor, Tensor]:
    """Call Attention, which projects keys and values from one input without biases; return output and weights."""
    context, wide = join_context(key, value, params)
    # A bias is the weight of an additional channel that is always 1.
    inputs = [torch.cat([x, x.new_ones(*x.shape[:-1], 1)], dim=-1) for x in (query, context)]
    weights = {role: torch.cat([wide[f"w_{role}"], _get_bias(params, role)[None]]) for role in "qkv"} | {
        "o": wide["w_o"]
    }
    with torch.device("meta"):
        layer = Attention(
            len(weights["q"]),
            dim_context=len(weights["k"]),
            heads=num_heads,
            dim_head=weights["k"].shape[1] // num_heads,
            value_dim_head=weights["v"].shape[1] // num_heads,
            dim_out=weights["o"].shape[1],
        ).eval()
    names = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out"}
    state = {f"{names[role]}.weight": linear_weight(weight) for role, weight in weights.items()}
    _check_shapes(layer, state)
    masked = None if mask is None else four_axes_mask(mask)
    options = {"context": inputs[1], "attn_mask": masked, "return_intermediates": True}
    output, between = functional_call(layer, state, (inputs[0],), options)
    return output + _get_bias(params, "o"), between.post_softmax_attn


def feed_forward(x: Tensor, *, params: Params) -> Tensor:
    """Call FeedForward with ReLU; return only the output."""
    (d_model, d_ff), d_out = params["w_1"].shape, params["w_2"].shape[1]
    with torch.device("meta"):
        # Its width is int(dim · mult).
        layer = FeedForward(d_model, d_out, mult=Fraction(d_ff, d_model), custom_activation=nn.ReLU())
    names = [name.removesuffix(".weight") for name, _ in layer.named_parameters() if name.endswith(".weight")]
    state: dict[str, Tensor] = {}
    for number, theirs in enumerate(names, start=1):
        state[f"{theirs}.weight"] = linear_weight(params[f"w_{number}"])
        state[f"{theirs}.bias"] = _get_bias(params, str(number))
    _check_shapes(layer, state)
    output: Tensor = functional_call(layer, state, (x,))
    return output


def layer_norm(x: Tensor, *, params: Params) -> Tensor:
    """Call LayerNorm, which has no shift, and add beta."""
    layer = LayerNorm(x.shape[-1]).to(x.device)
    normed: Tensor = functional_call(layer, {"gamma": params["gamma"]}, (x,))
    return normed + params["beta"]


def _get_bias(params: Params, name: str) -> Tensor:
    """Return a bias, or zeros if it is absent."""
    weight, bias = params[f"w_{name}"], params.get(f"b_{name}")
    return weight.new_zeros(weight.shape[1]) if bias is None else bias


def _check_shapes(layer: nn.Module, state: Mapping[str, Any]) -> None:
    """Raise ValueError for a parameter of the wrong shape, which functional_call does not check."""
    for name, own in layer.named_parameters():
        if state[name].shape != own.shape:
            raise ValueError(f"{name} has shape {tuple(own.shape)} here, not {tuple(state[name].shape)}")

"""The adapter of x-transformers: attention with and without projections, networks, norm, positions.

Its attention repeats the heads of keys as a whole, and its ALiBi also serves encoders. Its RMSNorm has no eps. Its
projections have no biases and its norm has no shift, so its layers cannot hold the parameters of the spec.
"""

from collections.abc import Mapping
from fractions import Fraction
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from x_transformers.attend import Attend
from x_transformers.x_transformers import (
    AlibiPositionalBias,
    Attention,
    FeedForward,
    LayerNorm,
    RotaryEmbedding,
    ScaledSinusoidalEmbedding,
    apply_rotary_pos_emb,
)

from goldformer.adapters.layouts import four_axes, four_axes_mask, linear_weight
from goldformer.adapters.libraries._joint_context import join_context

NAME: Final = "x-transformers"
VERSION: Final = version("x-transformers")
ARRAYS: Final = "torch"

# The output of a row without a key is 0; positions are sines, then cosines, of an even width.
CONVENTIONS: Final = {
    "empty_row": "zeros",
    "pe_layout": "concatenated",
    "odd_d_model": "refused",
    "gqa_groups": "tile",
    "alibi_form": "absolute",
    "alibi_bias.causal_corner": "bottom_right",
}

Params = Mapping[str, Tensor]


class Cache(NamedTuple):
    """The keys and values of all tokens so far."""

    key: Tensor
    value: Tensor


def positional_encoding(x: Tensor) -> Tensor:
    """Add the output of ScaledSinusoidalEmbedding with the scale 1."""
    encoding = ScaledSinusoidalEmbedding(x.shape[-1]).to(x.device)
    positions: Tensor = functional_call(encoding, {"scale": torch.ones(1, device=x.device)}, (x,))
    return x + positions.to(x.dtype)


def rotary_embedding(
    x: Tensor,
    positions: Tensor,
    *,
    base: float = 10000.0,
    rotary_width: int | None = None,
    scaling_factor: float = 1.0,
    original_length: int | None = None,
) -> Tensor:
    """Call apply_rotary_pos_emb with the angles of RotaryEmbedding, whose interpolation_factor scales them."""
    del original_length  # linear scaling needs none
    width = x.shape[-1] if rotary_width is None else rotary_width
    angles = RotaryEmbedding(width, base=base, interpolation_factor=scaling_factor).to(x.device)
    places = positions.expand(x.shape[:-1]).reshape(-1, x.shape[-2])
    turned: Tensor = apply_rotary_pos_emb(x.reshape(-1, 1, *x.shape[-2:]), *angles(places))
    return turned.reshape(x.shape)


def alibi_bias(like: Tensor) -> Tensor:
    """Call AlibiPositionalBias."""
    heads, q_seq, kv_seq = like.shape
    bias: Tensor = AlibiPositionalBias(heads).to(like.device)(q_seq, kv_seq)
    return bias.to(like.dtype)


def grouped_query_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Call Attend with fewer heads of keys; return output and weights."""
    caps = {} if softcap is None else {"softclamp_logits": True, "logit_softclamp_value": softcap}
    attend = Attend(heads=query.shape[1], scale=scale, head_learned_sink=sinks is not None, **caps)
    masked = None if mask is None else four_axes_mask(mask)
    state = {} if sinks is None else {"head_attn_sink": sinks}
    output, between = functional_call(attend, state, (query, key, value, masked), {"attn_bias": bias})
    return output, between.post_softmax_attn[..., -key.shape[2] :]


def cached_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, state: Cache | None = None
) -> tuple[Tensor, Cache]:
    """Call Attend, which is causal up to the last key, with all keys so far, as Attention does."""
    if state is not None:
        key, value = torch.cat([state.key, key], dim=2), torch.cat([state.value, value], dim=2)
    output, _ = Attend(causal=True)(query, key, value, mask=mask)
    return output, Cache(key, value)


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


def gated_feed_forward(x: Tensor, *, params: Params) -> dict[str, Tensor]:
    """Call FeedForward with glu and swish; return output and hidden."""
    (d_model, d_ff), d_out = params["w_gate"].shape, params["w_down"].shape[1]
    with torch.device("meta"):
        layer = FeedForward(d_model, d_out, mult=Fraction(d_ff, d_model), glu=True, swish=True)
    wide, narrow = (name.removesuffix(".weight") for name, _ in layer.named_parameters() if name.endswith(".weight"))
    state = {}
    # Its gate is the second half.
    for theirs, ours in ((wide, ("up", "gate")), (narrow, ("down",))):
        state[f"{theirs}.weight"] = torch.cat([linear_weight(params[f"w_{name}"]) for name in ours])
        state[f"{theirs}.bias"] = torch.cat([_get_bias(params, name) for name in ours])
    _check_shapes(layer, state)
    found: dict[str, Tensor] = {}
    layer.get_submodule(narrow).register_forward_pre_hook(lambda _module, args: found.update(hidden=args[0]))
    output: Tensor = functional_call(layer, state, (x,))
    return {"output": output, **found}


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

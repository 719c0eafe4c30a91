"""PyTorch's attention, layers and stacks without numbers, and the parameters of a call by their names.

A layer is built on the meta device, where it costs nothing. `torch.func.functional_call` runs it with the parameters
of the call, so gradients reach those.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from goldformer.adapters.layouts import additive_mask, flatten_heads, ignore_mask, key_padding, linear_weight, part

Params = Mapping[str, Tensor]

# Its feed-forward network and its norms are part of the layer itself.
_ATTENTIONS: Final = {"self_attention": "self_attn", "cross_attention": "multihead_attn"}


@contextmanager
def fork_seed(seed: int | None) -> Iterator[None]:
    """Seed PyTorch's own random numbers, and restore their state at the end; without a seed do nothing."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def attention(params: Params, *, num_heads: int, batch_first: bool, dropout: float = 0.0) -> nn.MultiheadAttention:
    """Return nn.MultiheadAttention of the parameters' widths; NotImplementedError if it cannot have them."""
    return nn.MultiheadAttention(
        _embed_dim(params),
        num_heads,
        dropout,
        bias=any(params.get(f"b_{role}") is not None for role in "qkvo"),
        kdim=params["w_k"].shape[0],
        vdim=params["w_v"].shape[0],
        batch_first=batch_first,
        device="meta",
        dtype=params["w_q"].dtype,
    )


def encoder_layer(params: Params, **options: Any) -> nn.TransformerEncoderLayer:
    """Return nn.TransformerEncoderLayer of the parameters' widths; `options` as _layer_options has them."""
    return nn.TransformerEncoderLayer(**_layer_options(params, **options))


def decoder_layer(params: Params, **options: Any) -> nn.TransformerDecoderLayer:
    """Return nn.TransformerDecoderLayer of the parameters' widths; `options` as _layer_options has them."""
    _embed_dim(part(params, "cross_attention"))
    return nn.TransformerDecoderLayer(**_layer_options(params, **options))


def encoder(params: Params, *, num_layers: int, nested: bool = False, **options: Any) -> nn.TransformerEncoder:
    """Return nn.TransformerEncoder, with a final norm if it has parameters; `nested` allows nested tensors."""
    layer = encoder_layer(part(params, "encoder.0"), **options)
    return nn.TransformerEncoder(layer, num_layers, norm=_final_norm(params), enable_nested_tensor=nested)


def decoder(params: Params, *, num_layers: int, **options: Any) -> nn.TransformerDecoder:
    """Return nn.TransformerDecoder, with a final norm if it has parameters."""
    return nn.TransformerDecoder(decoder_layer(part(params, "decoder.0"), **options), num_layers, _final_norm(params))


def make_masks(
    mask: Tensor | None,
    query: Tensor,
    key: Tensor,
    num_heads: int,
    names: tuple[str, str],
    *,
    additive: bool = False,
) -> dict[str, Tensor]:
    """Return the mask under the first name if it is a mask of keys, (batch, kv_seq), else under the second."""
    if mask is None:
        return {}
    (batch, q_seq, _), kv_seq = query.shape, key.shape[1]
    name, mine = names[0], key_padding(mask, batch=batch, kv_seq=kv_seq)
    if mine is None:
        name, mine = names[1], flatten_heads(mask, batch=batch, heads=num_heads, q_seq=q_seq, kv_seq=kv_seq)
    return {name: additive_mask(mine, query.dtype) if additive else ignore_mask(mine)}


def map_attention(params: Params) -> dict[str, Tensor]:
    """Return the parameters by the names in nn.MultiheadAttention: weights (out, in), q, k and v in one if they can."""
    weights = {role: linear_weight(params[f"w_{role}"]) for role in "qkvo"}
    state: dict[str, Tensor] = {"out_proj.weight": weights["o"]}
    if len({weights[role].shape for role in "qkv"}) == 1:
        state["in_proj_weight"] = torch.cat([weights[role] for role in "qkv"])
    else:
        state |= {f"{role}_proj_weight": weights[role] for role in "qkv"}
    # It has all biases or no bias: an absent bias becomes zeros, unless all are absent.
    bias = {role: _fill_bias(params.get(f"b_{role}"), weights[role]) for role in "qkvo"}
    if any(params.get(f"b_{role}") is not None for role in "qkvo"):
        state |= {"in_proj_bias": torch.cat([bias[role] for role in "qkv"]), "out_proj.bias": bias["o"]}
    return state


def map_layer(params: Params) -> dict[str, Tensor]:
    """Return the parameters by the names in nn.TransformerEncoderLayer and nn.TransformerDecoderLayer."""
    state: dict[str, Tensor] = {}
    for name, theirs in _ATTENTIONS.items():
        if mine := part(params, name):
            # bias=False would also remove the beta of the norms, so the layers always have biases.
            zeros = {f"b_{role}": _fill_bias(None, linear_weight(mine[f"w_{role}"])) for role in "qkvo"}
            present = {bias: value for bias, value in mine.items() if value is not None}
            state |= {f"{theirs}.{key}": value for key, value in map_attention(zeros | present).items()}
    feed = part(params, "feed_forward")
    for number in (1, 2):
        weight = linear_weight(feed[f"w_{number}"])
        bias = _fill_bias(feed.get(f"b_{number}"), weight)
        state |= {f"linear{number}.weight": weight, f"linear{number}.bias": bias}
    for number in (1, 2, 3):
        if norm := part(params, f"norm_{number}"):
            state |= {f"norm{number}.weight": norm["gamma"], f"norm{number}.bias": norm["beta"]}
    return state


def map_stack(params: Params, stack: str, num_layers: int) -> dict[str, Tensor]:
    """Return the parameters by the names in nn.TransformerEncoder and nn.TransformerDecoder."""
    layers = {index: map_layer(part(params, f"{stack}.{index}")) for index in range(num_layers)}
    named = {f"layers.{index}.{name}": value for index, state in layers.items() for name, value in state.items()}
    if norm := part(params, "norm"):
        named |= {"norm.weight": norm["gamma"], "norm.bias": norm["beta"]}
    return named


def _final_norm(params: Params) -> nn.LayerNorm | None:
    """Return the norm after the last layer of a stack, or None if it has no parameters."""
    norm = part(params, "norm")
    return nn.LayerNorm(len(norm["gamma"]), device="meta", dtype=norm["gamma"].dtype) if norm else None


def _layer_options(
    params: Params,
    *,
    num_heads: int,
    batch_first: bool,
    norm_first: bool,
    activation: str = "relu",
    dropout: float = 0.0,
) -> dict[str, Any]:
    attention, hidden = part(params, "self_attention"), params["feed_forward.w_1"]
    return {
        "d_model": _embed_dim(attention),
        "nhead": num_heads,
        "dim_feedforward": hidden.shape[1],
        "dropout": dropout,
        "batch_first": batch_first,
        "norm_first": norm_first,
        "activation": activation,
        "device": "meta",
        "dtype": hidden.dtype,
    }


def _embed_dim(params: Params) -> int:
    """Return the one width of nn.MultiheadAttention; NotImplementedError if the parameters have several."""
    d_query, embed_dim = params["w_q"].shape
    widths = {"query": d_query, "heads·d_v": params["w_v"].shape[1], "output": params["w_o"].shape[1]}
    for what, width in widths.items():
        if width != embed_dim:
            limit = f"nn.MultiheadAttention has one width, embed_dim, for heads·d_k and {what}"
            raise NotImplementedError(f"{limit}: {embed_dim} and {width} differ")
    return embed_dim


def _fill_bias(bias: Tensor | None, weight: Tensor) -> Tensor:
    """Return the bias, or zeros for a weight (out, in)."""
    return weight.new_zeros(len(weight)) if bias is None else bias

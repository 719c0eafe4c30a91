"""nn.Transformer and its layers, with the weights copied in; sequence first, masks of −∞."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "multihead_attn"}


def copied(layer, p):
    """The layer as module state: in_proj stacked, zeros for absent biases."""
    state = {}
    for ours, name in ATTENTIONS.items():
        if f"{ours}.w_q" in p:
            weights = {role: p[f"{ours}.w_{role}"] for role in "qkvo"}
            if len({side for w in weights.values() for side in w.shape}) > 1:
                raise NotImplementedError("nn.MultiheadAttention has one embed_dim")
            bias = {role: p.get(f"{ours}.b_{role}", w.new_zeros(w.shape[1])) for role, w in weights.items()}
            state[f"{name}.in_proj_weight"] = torch.cat([weights[role] for role in "qkv"], dim=1).t()
            state[f"{name}.in_proj_bias"] = torch.cat([bias[role] for role in "qkv"])
            state |= {f"{name}.out_proj.weight": weights["o"].t(), f"{name}.out_proj.bias": bias["o"]}
    for i in (1, 2):
        weight = p[f"feed_forward.w_{i}"]
        state[f"linear{i}.weight"] = weight.t()
        state[f"linear{i}.bias"] = p.get(f"feed_forward.b_{i}", weight.new_zeros(weight.shape[1]))
    for i in (1, 2, 3):
        if f"norm_{i}.gamma" in p:
            state |= {f"norm{i}.weight": p[f"norm_{i}.gamma"], f"norm{i}.bias": p[f"norm_{i}.beta"]}
    return {f"{layer}{name}": array for name, array in state.items()}


def of_layer(params, name):
    return {key[len(name) + 1 :]: array for key, array in params.items() if key.startswith(f"{name}.")}


def built(params, heads, depths):
    """nn.Transformer without the norms that it puts behind its stacks, and its state."""
    weight = next(array for name, array in params.items() if name.endswith("self_attention.w_q"))
    d_ff = next(array for name, array in params.items() if name.endswith("feed_forward.w_1")).shape[1]
    how: dict[str, Any] = {"nhead": heads, "dim_feedforward": d_ff, "dropout": 0.0}
    how |= {"device": "meta", "dtype": weight.dtype}
    d_model = weight.shape[0]
    if d_model % heads:
        raise NotImplementedError("nn.MultiheadAttention wants embed_dim divisible by its heads")
    stacks: dict[str, Any] = {
        "custom_encoder": nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d_model, **how), depths[0], norm=None, enable_nested_tensor=False
        ),
        "custom_decoder": nn.TransformerDecoder(nn.TransformerDecoderLayer(d_model, **how), depths[1]),
    }
    model = nn.Transformer(d_model, **stacks, **how)
    state = {}
    for stack, depth in zip(("encoder", "decoder"), depths, strict=True):
        for i in range(depth):
            state |= copied(f"{stack}.layers.{i}.", of_layer(params, f"{stack}.{i}"))
    return model.train(), state


def additive(mask, like):
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -math.inf)


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    model, state = built(params, num_heads, (num_encoder_layers, num_decoder_layers))
    table = params["table"]
    wide = torch.promote_types(table.dtype, torch.float32)

    def embedded(ids):
        half = torch.arange(0, table.shape[1], 2, dtype=wide)
        angle = torch.arange(ids.shape[1], dtype=wide)[:, None] / 10000 ** (half / table.shape[1])
        position = torch.stack((angle.sin(), angle.cos()), dim=2).view(ids.shape[1], -1)[:, : table.shape[1]]
        return (nn.functional.embedding(ids.t(), table) + position[:, None].to(ids.device)).to(table.dtype)

    src, tgt = embedded(source), embedded(target)
    later = torch.ones(len(tgt), len(tgt), dtype=torch.bool, device=tgt.device).triu(1)
    masks = {
        "tgt_mask": additive(later, tgt),
        "src_key_padding_mask": additive(source == pad_id, src),
        "tgt_key_padding_mask": additive(target == pad_id, tgt),
        "memory_key_padding_mask": additive(source == pad_id, src),
    }
    decoded = torch.func.functional_call(model, state, (src, tgt), masks).transpose(0, 1)
    return nn.functional.linear(decoded, params["w_vocab"].t(), params.get("b_vocab"))


FUNCTIONS = {"transformer": transformer}

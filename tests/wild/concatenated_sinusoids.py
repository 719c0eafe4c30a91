# deserves: variant pe_layout=concatenated
"""A speech model's layers: sines and cosines in two halves, feed-forward by convolution, masks with True where nothing is seen."""

import numpy as np
import torch
import torch.nn as nn


class PositionalEmbedding(nn.Module):
    def __init__(self, demb):
        super().__init__()
        self.demb = demb
        inv_freq = 1 / (10000 ** (torch.arange(0.0, demb, 2.0) / demb))
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, length):
        pos_seq = torch.arange(length, device=self.inv_freq.device).float()
        sinusoid_inp = torch.outer(pos_seq, self.inv_freq.float())
        return torch.cat([sinusoid_inp.sin(), sinusoid_inp.cos()], dim=1)


class FFTBlock(nn.Module):
    """Attention and convolution, each with what it started from, normalised after the sum."""

    def __init__(self, d_model, n_head, d_inner, dropout=0.1):
        super().__init__()
        if d_model % n_head:
            raise ValueError("num_heads: does not divide d_model")
        self.n_head, self.d_head = n_head, d_model // n_head
        self.qkv_net = nn.Linear(d_model, 3 * d_model)
        self.o_net = nn.Linear(d_model, d_model)
        self.layer_norm_att = nn.LayerNorm(d_model)
        self.conv_net = nn.Sequential(
            nn.Conv1d(d_model, d_inner, 1),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Conv1d(d_inner, d_model, 1),
            nn.Dropout(dropout),
        )
        self.layer_norm_conv = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)
        self.scale = 1 / np.sqrt(self.d_head)

    def forward(self, inp, hidden=None):
        n, length, width = inp.shape
        q, k, v = torch.chunk(self.qkv_net(inp), 3, dim=2)
        q = q.view(n, length, self.n_head, self.d_head).permute(2, 0, 1, 3).reshape(-1, length, self.d_head)
        k = k.view(n, length, self.n_head, self.d_head).permute(2, 0, 1, 3).reshape(-1, length, self.d_head)
        v = v.view(n, length, self.n_head, self.d_head).permute(2, 0, 1, 3).reshape(-1, length, self.d_head)
        score = torch.bmm(q, k.transpose(1, 2)) * self.scale
        if hidden is not None:
            hidden = hidden.repeat(self.n_head, 1, 1)
            score = score.masked_fill(hidden, -float("inf"))
        prob = torch.softmax(score, dim=2)
        vec = torch.bmm(self.drop(prob), v)
        vec = vec.view(self.n_head, n, length, self.d_head)
        vec = vec.permute(1, 2, 0, 3).contiguous().view(n, length, width)
        out = self.layer_norm_att(inp + self.drop(self.o_net(vec)))
        conv = self.conv_net(out.transpose(1, 2)).transpose(1, 2)
        return self.layer_norm_conv(out + conv)


class Stack(nn.Module):
    def __init__(self, n_layer, *sizes):
        super().__init__()
        self.layers = nn.ModuleList([FFTBlock(*sizes) for _ in range(n_layer)])

    def forward(self, x, hidden=None):
        for layer in self.layers:
            x = layer(x, hidden)
        return x


# The adapter.

ARRAYS = "torch"
NAME = "sinusoids in halves"


def _hidden(mask, x):
    """(batch, q, kv), True where nothing is seen."""
    if mask is None:
        return None
    if mask.dim() == 3 or (mask.dim() == 4 and mask.shape[1] != 1):
        raise NotImplementedError("all heads have one mask")
    b, t, _ = x.shape
    full = mask.broadcast_to(b, 1, t, t)[:, 0]
    if mask.device.type != "meta" and not full.any(-1).all():
        raise NotImplementedError("a query without a key")
    return ~full


def _state(params, prefix=""):
    attention = {name[15:]: p for name, p in params.items() if name.startswith("self_attention.")}
    d = attention["w_q"].size(0)
    if any(attention[f"w_{role}"].shape != (d, d) for role in "qkvo"):
        raise NotImplementedError("square projections")
    zeros = attention["w_q"].new_zeros(d)
    state = {
        "qkv_net.weight": torch.cat([attention[f"w_{role}"] for role in "qkv"], dim=1).T,
        "qkv_net.bias": torch.cat([attention.get(f"b_{role}", zeros) for role in "qkv"]),
        "o_net.weight": attention["w_o"].T,
        "o_net.bias": attention.get("b_o", zeros),
    }
    for number, place in ((1, 0), (2, 3)):
        w, b = params[f"feed_forward.w_{number}"], params.get(f"feed_forward.b_{number}")
        state[f"conv_net.{place}.weight"] = w.T.unsqueeze(2)
        state[f"conv_net.{place}.bias"] = w.new_zeros(w.size(1)) if b is None else b
    for number, name in ((1, "layer_norm_att"), (2, "layer_norm_conv")):
        state[f"{name}.weight"], state[f"{name}.bias"] = params[f"norm_{number}.gamma"], params[f"norm_{number}.beta"]
    return {prefix + name: value for name, value in state.items()}


def positional_encoding(x):
    if x.size(2) % 2:
        raise NotImplementedError("two halves")
    return x + PositionalEmbedding(x.size(2)).to(x.device)(x.size(1)).to(x.dtype)


def encoder_layer(x, mask=None, *, num_heads, params):
    state = _state(params)
    block = FFTBlock(x.size(2), num_heads, params["feed_forward.w_1"].size(1)).to(x).eval()
    return torch.func.functional_call(block, state, (x, _hidden(mask, x)))


def encoder(x, mask=None, *, num_heads, num_layers, params):
    state = {}
    for i in range(num_layers):
        start = f"encoder.{i}."
        state |= _state({n[len(start) :]: p for n, p in params.items() if n.startswith(start)}, f"layers.{i}.")
    d_inner = params["encoder.0.feed_forward.w_1"].size(1)
    stack = Stack(num_layers, x.size(2), num_heads, d_inner).to(x).eval()
    return torch.func.functional_call(stack, state, (x, _hidden(mask, x)))


MISTAKES = {
    "mask-repeated-per-sample": (
        "hidden = hidden.repeat(self.n_head, 1, 1)",
        "hidden = hidden.repeat_interleave(self.n_head, dim=0)",
        "The mask is repeated in another order than the heads, so samples use each other's masks.",
        (
            "mask-repeat-order",
            "encoder_layer.edit@weigh_keys/mask@mask:tiled",
        ),
    ),
    "heads-and-samples-swapped": (
        "vec = vec.view(self.n_head, n, length, self.d_head)\n        vec = vec.permute(1, 2, 0, 3)",
        "vec = vec.view(n, self.n_head, length, self.d_head)\n        vec = vec.permute(0, 2, 1, 3)",
        "Heads are taken for samples when they are joined.",
        ("head-merge-hb", "encoder_layer.edit@multi_head_attention/result.heads@reshaped:-4:-3"),
    ),
    "convolution-without-transpose": (
        "conv = self.conv_net(out.transpose(1, 2)).transpose(1, 2)",
        "conv = self.conv_net(out.reshape(n, width, length)).reshape(n, length, width)",
        "The convolution reads reshaped numbers and not the transposed ones.",
        ("ffn-mixes-tokens",),
    ),
    "convolution-of-input": (
        "return self.layer_norm_conv(out + conv)",
        "return self.layer_norm_conv(inp + conv)",
        "The second residual starts from the block's input.",
        ("residual-wrong-x",),
    ),
    "values-and-keys": (
        "q, k, v = torch.chunk(self.qkv_net(inp), 3, dim=2)",
        "q, v, k = torch.chunk(self.qkv_net(inp), 3, dim=2)",
        "The thirds of the fused projection are taken in another order.",
        ("kv-swap",),
    ),
    "cosine-first": (
        "torch.cat([sinusoid_inp.sin(), sinusoid_inp.cos()], dim=1)",
        "torch.cat([sinusoid_inp.cos(), sinusoid_inp.sin()], dim=1)",
        "The cosines stand in the left half.",
        ("pe-sin-cos-swap",),
    ),
    "scale-of-model": (
        "self.scale = 1 / np.sqrt(self.d_head)",
        "self.scale = 1 / np.sqrt(d_model)",
        "The scores are scaled by the width of the model.",
        ("scale-d-model",),
    ),
}

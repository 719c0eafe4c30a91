"""Short classes over fused weights, as minGPT and nanoGPT are, but with a source, ReLU and norms behind."""

from __future__ import annotations

import math

import torch
from torch.nn import functional as F


def block(params, prefix):
    return {name[len(prefix) + 1 :]: array for name, array in params.items() if name.startswith(f"{prefix}.")}


def optional_bias(p, *roles):
    """The biases side by side, zeros for those that are absent, None if all are."""
    if all(p.get(f"b_{role}") is None for role in roles):
        return None
    absent = {role: p[f"w_{role}"].new_zeros(p[f"w_{role}"].shape[1]) for role in roles}
    return torch.cat([absent[role] if p.get(f"b_{role}") is None else p[f"b_{role}"] for role in roles])


class Conv1D:
    """As GPT-2 keeps its weights: (in, out)."""

    def __init__(self, weight, bias):
        self.weight, self.bias = weight, bias

    def __call__(self, x):
        rows = x.reshape(-1, x.size(-1))
        y = rows.mm(self.weight) if self.bias is None else torch.addmm(self.bias, rows, self.weight)
        return y.view(*x.shape[:-1], -1)


class Attention:
    def __init__(self, p, n_head):
        self.n_head = n_head
        self.sizes = [p[f"w_{role}"].shape[1] for role in "qkv"]
        self.c_attn = Conv1D(torch.cat([p[f"w_{role}"] for role in "qkv"], dim=1), optional_bias(p, *"qkv"))
        self.c_proj = Conv1D(p["w_o"], p.get("b_o"))

    def project(self, x, memory):
        if memory is None:
            return self.c_attn(x).split(self.sizes, dim=2)
        # The fused weight twice, and only the columns that are wanted.
        q, _, _ = self.c_attn(x).split(self.sizes, dim=2)
        _, k, v = self.c_attn(memory).split(self.sizes, dim=2)
        return q, k, v

    def __call__(self, x, mask, memory=None):
        q, k, v = (
            y.view(y.size(0), y.size(1), self.n_head, y.size(2) // self.n_head).transpose(1, 2)
            for y in self.project(x, memory)
        )
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        if mask is not None:
            att = att.masked_fill(~mask, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(x.size(0), x.size(1), -1)
        return self.c_proj(y)


class MLP:
    def __init__(self, p):
        self.c_fc = Conv1D(p["w_1"], p.get("b_1"))
        self.c_proj = Conv1D(p["w_2"], p.get("b_2"))

    def __call__(self, x):
        return self.c_proj(F.relu(self.c_fc(x)))


class LayerNorm:
    def __init__(self, p):
        self.weight, self.bias = p["gamma"], p["beta"]

    def __call__(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class Block:
    def __init__(self, p, n_head):
        self.attn, self.ln_1 = Attention(block(p, "self_attention"), n_head), LayerNorm(block(p, "norm_1"))
        crosses = "cross_attention.w_q" in p
        self.cross = Attention(block(p, "cross_attention"), n_head) if crosses else None
        self.ln_c = LayerNorm(block(p, "norm_2")) if crosses else None
        self.mlp, self.ln_2 = MLP(block(p, "feed_forward")), LayerNorm(block(p, "norm_3" if crosses else "norm_2"))

    def __call__(self, x, mask, memory=None, memory_mask=None):
        x = self.ln_1(x + self.attn(x, mask))
        if self.cross is not None:
            x = self.ln_c(x + self.cross(x, memory_mask, memory))
        return self.ln_2(x + self.mlp(x))


class Model:
    def __init__(self, params, n_head, depths, pad):
        self.wte, self.pad = params["table"], pad
        self.lm_head = Conv1D(params["w_vocab"], params.get("b_vocab"))
        self.enc = [Block(block(params, f"encoder.{i}"), n_head) for i in range(depths[0])]
        self.dec = [Block(block(params, f"decoder.{i}"), n_head) for i in range(depths[1])]

    def embed(self, idx):
        """Positions in float64 whatever the dtype, as a table made once is."""
        t, n = idx.size(1), self.wte.size(1)
        even = torch.arange(n, device=idx.device) // 2 * 2
        angle = torch.arange(t, device=idx.device).double()[:, None] * 10000.0 ** (-even.double() / n)
        wpe = torch.where(torch.arange(n, device=idx.device) % 2 == 0, angle.sin(), angle.cos())
        return (F.embedding(idx, self.wte) + wpe).to(self.wte.dtype)

    def forward(self, source, target):
        keep = (source != self.pad)[:, None, None]
        memory = self.embed(source)
        for layer in self.enc:
            memory = layer(memory, keep)
        bias = torch.tril(torch.ones(target.size(1), target.size(1), device=target.device)).bool()
        x = self.embed(target)
        for layer in self.dec:
            x = layer(x, bias & (target != self.pad)[:, None, None], memory, keep)
        return self.lm_head(x), memory, x


def encoder_layer(x, mask=None, *, num_heads, params):
    return Block(params, num_heads)(x, mask)


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    return Block(params, num_heads)(x, self_mask, memory, memory_mask)


def encoder(x, mask=None, *, num_heads, num_layers, params):
    layers = []
    for i in range(num_layers):
        layers.append(Block(block(params, f"encoder.{i}"), num_heads)(layers[-1] if layers else x, mask))
    return layers[-1], torch.stack(layers)


def decoder(x, memory, self_mask=None, memory_mask=None, *, num_heads, num_layers, params):
    layers = [x]
    for i in range(num_layers):
        each = Block(block(params, f"decoder.{i}"), num_heads)
        layers.append(each(layers[-1], self_mask, memory, memory_mask))
    return layers[-1], torch.stack(layers[1:])


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    return Model(params, num_heads, (num_encoder_layers, num_decoder_layers), pad_id).forward(source, target)


FUNCTIONS = {f.__name__: f for f in (encoder_layer, decoder_layer, encoder, decoder, transformer)}

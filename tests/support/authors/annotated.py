"""Modules within modules, as the Annotated Transformer is built, but normalised as the paper says."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn
from torch.func import functional_call

THEIRS = {
    "self_attention": "self_attn", "cross_attention": "src_attn", "feed_forward": "feed_forward",
    "norm_1": "sublayer.0.norm", "norm_2": "sublayer.1.norm", "norm_3": "sublayer.2.norm",
    "encoder": "encoder.layers", "decoder": "decoder.layers",
    "w_q": "linears.0.weight", "w_k": "linears.1.weight", "w_v": "linears.2.weight", "w_o": "linears.3.weight",
    "b_q": "linears.0.bias", "b_k": "linears.1.bias", "b_v": "linears.2.bias", "b_o": "linears.3.bias",
    "w_1": "w_1.weight", "b_1": "w_1.bias", "w_2": "w_2.weight", "b_2": "w_2.bias",
    "gamma": "weight", "beta": "bias", "table": "embed.weight",
    "w_vocab": "generator.weight", "b_vocab": "generator.bias",
}  # fmt: skip


def state(params):
    """The parameters by the modules' names, each weight as nn.Linear keeps it."""
    renamed = {}
    for name, array in params.items():
        path = ".".join(THEIRS.get(word, word) for word in name.split("."))
        renamed[path] = array.t() if name.rpartition(".")[2].startswith("w_") else array
    return renamed


def run(module, params, *args):
    """Call a module with the parameters in place of its own; modules of other biases are no matter."""
    given = state(params)
    for name, _ in list(module.named_parameters()):
        if name not in given:
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, None)
    return functional_call(module, given, args)


def clones(module, number):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(number)])


def attention(query, key, value, mask=None):
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, torch.finfo(scores.dtype).min)
    p_attn = scores.softmax(dim=-1)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.h = h
        self.linears = clones(nn.Linear(1, 1, device="meta"), 4)
        self.attn = None

    def forward(self, query, key, value, mask=None):
        query, key, value = (
            lin(x).view(x.size(0), x.size(1), self.h, -1).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value), strict=False)
        )
        x, self.attn = attention(query, key, value, mask=mask)
        return self.linears[-1](x.transpose(1, 2).contiguous().flatten(2))


class PositionwiseFeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w_1, self.w_2 = clones(nn.Linear(1, 1, device="meta"), 2)

    def forward(self, x):
        return self.w_2(self.w_1(x).relu())


class SublayerConnection(nn.Module):
    def __init__(self, size, *, norm_first):
        super().__init__()
        self.norm = nn.LayerNorm(size, device="meta")
        self.norm_first = norm_first

    def forward(self, x, sublayer):
        return x + sublayer(self.norm(x)) if self.norm_first else self.norm(x + sublayer(x))


class EncoderLayer(nn.Module):
    def __init__(self, size, h, *, norm_first):
        super().__init__()
        self.self_attn = MultiHeadedAttention(h)
        self.feed_forward = PositionwiseFeedForward()
        self.sublayer = clones(SublayerConnection(size, norm_first=norm_first), 2)

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, mask))
        return self.sublayer[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    def __init__(self, size, h, *, norm_first):
        super().__init__()
        self.self_attn, self.src_attn = MultiHeadedAttention(h), MultiHeadedAttention(h)
        self.feed_forward = PositionwiseFeedForward()
        self.sublayer = clones(SublayerConnection(size, norm_first=norm_first), 3)

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.sublayer[0](x, lambda x: self.self_attn(x, x, x, tgt_mask))
        x = self.sublayer[1](x, lambda x: self.src_attn(x, memory, memory, src_mask))
        return self.sublayer[2](x, self.feed_forward)


class Stack(nn.Module):
    def __init__(self, layer, number):
        super().__init__()
        self.layers = clones(layer, number)

    def forward(self, x, *others):
        for layer in self.layers:
            x = layer(x, *others)
        return x


class Holder(nn.Module):
    """A stack under the name that its parameters have."""

    def __init__(self, name, stack):
        super().__init__()
        self.add_module(name, stack)
        self.name = name

    def forward(self, *args):
        return getattr(self, self.name)(*args)


class EncoderDecoder(nn.Module):
    def __init__(self, size, h, depths, pad, *, norm_first):
        super().__init__()
        self.encoder = Stack(EncoderLayer(size, h, norm_first=norm_first), depths[0])
        self.decoder = Stack(DecoderLayer(size, h, norm_first=norm_first), depths[1])
        self.embed = nn.Embedding(1, 1, device="meta")
        self.generator = nn.Linear(1, 1, device="meta")
        self.pad = pad

    def positions(self, x):
        wide = torch.promote_types(x.dtype, torch.float32)
        pe = torch.zeros(x.size(1), x.size(2), dtype=wide)
        position = torch.arange(0, x.size(1), dtype=wide).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, x.size(2), 2, dtype=wide) * -(math.log(10000.0) / x.size(2)))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)[:, : x.size(2) // 2]
        return x + pe.to(x)

    def encode(self, src):
        return self.encoder(self.positions(self.embed(src)), (src != self.pad).unsqueeze(-2).unsqueeze(1))

    def forward(self, src, tgt):
        tgt_mask = (tgt != self.pad).unsqueeze(-2)
        subsequent = torch.triu(torch.ones(1, tgt.size(1), tgt.size(1), device=tgt.device), diagonal=1) == 0
        src_mask = (src != self.pad).unsqueeze(-2).unsqueeze(1)
        tgt_mask = (tgt_mask & subsequent).unsqueeze(1)
        x = self.decoder(self.positions(self.embed(tgt)), self.encode(src), src_mask, tgt_mask)
        return self.generator(x)


def functions(*, norm_first=False):
    """Its components, under the names of the contracts."""

    def encoder_layer(x, mask=None, *, num_heads, params):
        layer = EncoderLayer(x.size(-1), num_heads, norm_first=norm_first)
        output = run(layer, params, x, mask)
        return {"output": output, "weights": layer.self_attn.attn}

    def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
        layer = DecoderLayer(x.size(-1), num_heads, norm_first=norm_first)
        output = run(layer, params, x, memory, memory_mask, self_mask)
        return {"output": output, "weights": layer.self_attn.attn, "cross_weights": layer.src_attn.attn}

    def encoder(x, mask=None, *, num_heads, num_layers, params):
        stack = Stack(EncoderLayer(x.size(-1), num_heads, norm_first=norm_first), num_layers)
        return run(Holder("encoder", stack), params, x, mask)

    def decoder(x, memory, self_mask=None, memory_mask=None, *, num_heads, num_layers, params):
        stack = Stack(DecoderLayer(x.size(-1), num_heads, norm_first=norm_first), num_layers)
        return run(Holder("decoder", stack), params, x, memory, memory_mask, self_mask)

    def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
        depths, size = (num_encoder_layers, num_decoder_layers), params["table"].size(1)
        model = EncoderDecoder(size, num_heads, depths, pad_id, norm_first=norm_first)
        return run(model, params, source, target)

    return {f.__name__: f for f in (encoder_layer, decoder_layer, encoder, decoder, transformer)}

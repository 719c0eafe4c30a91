# deserves: correct
"""An annotated model as the paper has it: copied layers, normalisation after each residual, a generator and smoothed labels."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

from goldformer.adapters.layouts import drop_heads, map_state, nest_names, require_square_projections


def clones(module, n):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])


class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, unbiased=False, keepdim=True)
        return self.a_2 * (x - mean) / (var + self.eps).sqrt() + self.b_2


class ResidualNorm(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.norm = LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return self.norm(x + self.dropout(sublayer(x)))


def attention(query, key, value, mask=None, dropout=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    p = scores.softmax(-1)
    return (p if dropout is None else dropout(p)) @ value, p


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.dropout = nn.Dropout(dropout)
        self.attn = None

    def forward(self, query, key, value, mask=None):
        n, _, d = query.shape
        assert d % self.h == 0
        query, key, value = (
            lin(x).view(n, -1, self.h, d // self.h).transpose(1, 2) for lin, x in zip(self.linears, (query, key, value))
        )
        mask = mask if mask is None else mask.unsqueeze(1)
        x, self.attn = attention(query, key, value, mask, self.dropout)
        return self.linears[3](x.transpose(1, 2).reshape(n, -1, d))


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.w_2(self.dropout(F.relu(self.w_1(x))))


class EncoderLayer(nn.Module):
    def __init__(self, size, self_attn, feed_forward, dropout):
        super().__init__()
        self.self_attn, self.feed_forward = self_attn, feed_forward
        self.sublayer = clones(ResidualNorm(size, dropout), 2)

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda y: self.self_attn(y, y, y, mask))
        return self.sublayer[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    def __init__(self, size, self_attn, src_attn, feed_forward, dropout):
        super().__init__()
        self.self_attn, self.src_attn, self.feed_forward = self_attn, src_attn, feed_forward
        self.sublayer = clones(ResidualNorm(size, dropout), 3)

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.sublayer[0](x, lambda y: self.self_attn(y, y, y, tgt_mask))
        x = self.sublayer[1](x, lambda y: self.src_attn(y, memory, memory, src_mask))
        return self.sublayer[2](x, self.feed_forward)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, d_model)
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return self.dropout(x + self.pe[: x.size(1)])


class EncoderDecoder(nn.Module):
    def __init__(self, vocab, d_model, d_ff, h, n_enc, n_dec, dropout=0.1):
        super().__init__()
        attn, ff = MultiHeadedAttention(h, d_model), FeedForward(d_model, d_ff)
        c = copy.deepcopy
        self.embed = nn.Embedding(vocab, d_model)
        self.position = PositionalEncoding(d_model, dropout)
        self.encoder = clones(EncoderLayer(d_model, c(attn), c(ff), dropout), n_enc)
        self.decoder = clones(DecoderLayer(d_model, c(attn), c(attn), c(ff), dropout), n_dec)
        self.generator = nn.Linear(d_model, vocab)

    def encode(self, src, src_mask):
        x = self.position(self.embed(src))
        for layer in self.encoder:
            x = layer(x, src_mask)
        return x

    def decode(self, memory, src_mask, tgt, tgt_mask):
        x = self.position(self.embed(tgt))
        for layer in self.decoder:
            x = layer(x, memory, src_mask, tgt_mask)
        return x

    def forward(self, src, tgt, src_mask, tgt_mask):
        return self.generator(self.decode(self.encode(src, src_mask), src_mask, tgt, tgt_mask))


class Batch:
    def __init__(self, src, tgt, pad):
        self.src, self.tgt = src, tgt
        self.src_mask = (src != pad).unsqueeze(-2)
        future = torch.triu(torch.ones(1, tgt.size(-1), tgt.size(-1), device=tgt.device), diagonal=1)
        self.tgt_mask = (tgt != pad).unsqueeze(-2) & (future == 0)


class PaddedLoss(nn.Module):
    """A divergence from one-hot targets whose column and rows of padding are zero, over the number of words."""

    def __init__(self, size, padding_idx):
        super().__init__()
        self.criterion = nn.KLDivLoss(reduction="none")
        self.size, self.padding_idx = size, padding_idx

    def forward(self, x, target):
        true_dist = torch.zeros_like(x)
        true_dist.scatter_(-1, target.unsqueeze(-1), 1.0)
        true_dist[..., self.padding_idx] = 0
        each = self.criterion(x, true_dist).sum(-1)
        return each.sum() / (target != self.padding_idx).sum(), each


# The adapter.

ARRAYS = "torch"
NAME = "annotated, after the paper"
CONVENTIONS = {"odd_d_model": "refused"}

ATTENTION = {f"w_{role}": f"linears.{i}.weight" for i, role in enumerate("qkvo")}
FEED_FORWARD = {"w_1": "w_1.weight", "w_2": "w_2.weight"}
NORM = {"gamma": "norm.a_2", "beta": "norm.b_2"}
ENCODER_LAYER = nest_names(ATTENTION, "self_attention", "self_attn")
ENCODER_LAYER |= nest_names(FEED_FORWARD, "feed_forward", "feed_forward")
ENCODER_LAYER |= nest_names(NORM, "norm_1", "sublayer.0") | nest_names(NORM, "norm_2", "sublayer.1")
DECODER_LAYER = nest_names(ATTENTION, "cross_attention", "src_attn") | ENCODER_LAYER
DECODER_LAYER |= nest_names(NORM, "norm_3", "sublayer.2")
MODEL = nest_names(ENCODER_LAYER, "encoder.*", "encoder.*") | nest_names(DECODER_LAYER, "decoder.*", "decoder.*")
MODEL |= {"table": "embed.weight", "w_vocab": "generator.weight"}


def _mask(mask, x, keys):
    shared = None if mask is None else drop_heads(mask, batch=x.size(0), q_seq=x.size(1), kv_seq=keys.size(1))
    if mask is not None and shared is None:
        raise NotImplementedError("heads share their mask")
    return shared


def _call(module, like, names, params, args):
    module = module.to(like).eval()
    return functional_call(module, map_state(names, params, module), args, strict=True)


def scaled_dot_product_attention(query, key, value, mask=None):
    return attention(query, key, value, mask)


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    require_square_projections(params)
    module = MultiHeadedAttention(num_heads, query.size(-1))
    return _call(module, query, ATTENTION, params, (query, key, value, _mask(mask, query, key))), module.attn


def layer_norm(x, *, params):
    return _call(LayerNorm(x.size(-1)), x, {"gamma": "a_2", "beta": "b_2"}, params, (x,))


def feed_forward(x, *, params):
    return _call(FeedForward(*params["w_1"].shape), x, FEED_FORWARD, params, (x,))


def positional_encoding(x):
    return PositionalEncoding(x.size(-1), 0.1).to(x).eval()(x)


def encoder_layer(x, mask=None, *, num_heads, params):
    require_square_projections(params)
    d_model, d_ff = params["feed_forward.w_1"].shape
    module = EncoderLayer(d_model, MultiHeadedAttention(num_heads, d_model), FeedForward(d_model, d_ff), 0.1)
    return _call(module, x, ENCODER_LAYER, params, (x, _mask(mask, x, x)))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    require_square_projections(params)
    d_model, d_ff = params["feed_forward.w_1"].shape
    parts = [MultiHeadedAttention(num_heads, d_model) for _ in range(2)] + [FeedForward(d_model, d_ff)]
    masks = _mask(memory_mask, x, memory), _mask(self_mask, x, x)
    return _call(DecoderLayer(d_model, *parts, 0.1), x, DECODER_LAYER, params, (x, memory, *masks))


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    require_square_projections(params)
    table, d_ff = params["table"], params["encoder.0.feed_forward.w_1"].size(1)
    model = EncoderDecoder(*table.shape, d_ff, num_heads, num_encoder_layers, num_decoder_layers)
    batch = Batch(source, target, pad_id)
    return _call(model, table, MODEL, params, (batch.src, batch.tgt, batch.src_mask, batch.tgt_mask))


def cross_entropy(logits, targets, *, pad_id):
    if logits.shape[:2] != targets.shape:
        raise ValueError("targets: as many as rows of logits")
    if not 0 <= pad_id < logits.size(-1):
        raise NotImplementedError("padding is a word")
    return PaddedLoss(logits.size(-1), pad_id)(F.log_softmax(logits, dim=-1), targets)


MISTAKES = {
    "norm-around-sublayer": (
        "return self.norm(x + self.dropout(sublayer(x)))",
        "return x + self.norm(self.dropout(sublayer(x)))",
        "What the sub-layer gives is normalised and not its sum with the residual.",
        ("norm-before-add",),
    ),
    "source-mask-for-target": (
        "return self.generator(self.decode(self.encode(src, src_mask), src_mask, tgt, tgt_mask))",
        "return self.generator(self.decode(self.encode(src, src_mask), None, tgt, tgt_mask))",
        "The decoder is not told of the source's padding.",
        ("cross-mask-absent",),
    ),
    "memory-and-queries": (
        "lambda y: self.src_attn(y, memory, memory, src_mask)",
        "lambda y: self.src_attn(y, memory, y if y.shape == memory.shape else memory, src_mask)",
        "The values of the cross-attention come from the decoder where its length allows it.",
        ("decoder_layer.edit@multi_head_attention/value@read:multi_head_attention/query",),
    ),
    "encoder-feed-forward-first": (
        "        x = self.sublayer[0](x, lambda y: self.self_attn(y, y, y, mask))\n        return self.sublayer[1](x, self.feed_forward)",
        "        x = self.sublayer[1](x, self.feed_forward)\n        return self.sublayer[0](x, lambda y: self.self_attn(y, y, y, mask))",
        "The encoder's feed-forward network comes before its attention.",
        (),
    ),
    "unbiased": (
        "x.var(-1, unbiased=False, keepdim=True)",
        "x.var(-1, keepdim=True)",
        "The variance is divided by one less than the width.",
        ("ln-unbiased",),
    ),
    "mask-of-diagonal": (
        "diagonal=1)\n        self.tgt_mask",
        "diagonal=0)\n        self.tgt_mask",
        "The target's own position is hidden too.",
        ("causal-strict",),
    ),
    "loss-of-padding": (
        "        true_dist[..., self.padding_idx] = 0\n",
        "",
        "Padding adds to the sum of the loss.",
        ("loss-pad-counted",),
    ),
    "angles-without-halving": (
        "div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))",
        "div_term = torch.exp(torch.arange((d_model + 1) // 2) * -(math.log(10000.0) / d_model))",
        "The exponent counts pairs where it should count channels.",
        ("pe-half-exp",),
    ),
}

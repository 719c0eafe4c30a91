# deserves: correct
"""A thin model class around the framework's own encoder and decoder layers, batch first, with masks where True means hidden."""

import math

import torch
from torch import nn

from goldformer.adapters.layouts import (
    flatten_heads,
    fuse_projections,
    map_state,
    part,
    require_square_projections,
)


class TextEncoder(nn.Module):
    def __init__(self, d_model, nhead, dim_feedforward, num_layers, dropout=0.1):
        super().__init__()
        layer = nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)

    def forward(self, x, hidden=None, padding=None):
        return self.encoder(x, mask=hidden, src_key_padding_mask=padding)


class TextDecoder(nn.Module):
    def __init__(self, d_model, nhead, dim_feedforward, num_layers, dropout=0.1):
        super().__init__()
        layer = nn.TransformerDecoderLayer(d_model, nhead, dim_feedforward, dropout, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, num_layers)

    def forward(self, x, memory, hidden=None, padding=None, memory_hidden=None, memory_padding=None):
        return self.decoder(
            x,
            memory,
            tgt_mask=hidden,
            memory_mask=memory_hidden,
            tgt_key_padding_mask=padding,
            memory_key_padding_mask=memory_padding,
        )


class Positions(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(1, max_len, d_model)
        pe[0, :, 0::2] = torch.sin(position * div_term)
        pe[0, :, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1)])


class Translator(nn.Module):
    def __init__(self, vocab, d_model, nhead, dim_feedforward, enc, dec, pad):
        super().__init__()
        self.pad = pad
        self.embedding = nn.Embedding(vocab, d_model)
        self.positions = Positions(d_model)
        self.encoder = TextEncoder(d_model, nhead, dim_feedforward, enc)
        self.decoder = TextDecoder(d_model, nhead, dim_feedforward, dec)
        self.head = nn.Linear(d_model, vocab)

    def forward(self, source, target):
        source_padding, target_padding = source == self.pad, target == self.pad
        length = target.size(1)
        future = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        memory = self.encoder(self.positions(self.embedding(source)), padding=source_padding)
        x = self.positions(self.embedding(target))
        x = self.decoder(x, memory, future, target_padding, memory_padding=source_padding)
        return self.head(x)


# The adapter.

ARRAYS = "torch"
NAME = "library layers"
CONVENTIONS = {"empty_row": "unspecified", "odd_d_model": "refused"}

NORMS = {f"norm_{i}.gamma": f"norm{i}.weight" for i in "123"}


def _linear(start, weight, bias):
    return {f"{start}weight": weight.T, f"{start}bias": weight.new_zeros(weight.shape[1]) if bias is None else bias}


def _layer(params, prefix):
    """The state of the library's layer, whose attentions have one projection for three."""
    require_square_projections(params)
    state = map_state(NORMS, {name: value for name, value in params.items() if name.startswith("norm")})
    for i in "12":
        state |= _linear(f"linear{i}.", params[f"feed_forward.w_{i}"], params.get(f"feed_forward.b_{i}"))
    for ours, theirs in {"self_attention": "self_attn", "cross_attention": "multihead_attn"}.items():
        if own := part(params, ours):
            state |= _linear(f"{theirs}.in_proj_", *fuse_projections(own, 1))
            state |= _linear(f"{theirs}.out_proj.", own["w_o"], own.get("b_o"))
    return {f"{prefix}{name}": value for name, value in state.items()}


def _hide(mask, x, keys, heads):
    if mask is None:
        return None
    return ~flatten_heads(mask, batch=x.size(0), heads=heads, q_seq=x.size(1), kv_seq=keys.size(1))


def _heads(d_model, heads):
    if d_model % heads:
        raise ValueError(f"num_heads: {heads} heads do not divide {d_model}")


def _encode(x, mask, heads, layers):
    state = {}
    for i, params in enumerate(layers):
        state |= _layer(params, f"encoder.layers.{i}.")
    _heads(x.size(-1), heads)
    module = TextEncoder(x.size(-1), heads, layers[0]["feed_forward.w_1"].size(1), len(layers)).to(x).eval()
    return torch.func.functional_call(module, state, (x, _hide(mask, x, x, heads)), strict=True)


def _decode(x, memory, self_mask, memory_mask, heads, layers):
    if any("cross_attention.w_q" not in params for params in layers):
        raise ValueError("cross_attention.w_q: missing")
    state = {}
    for i, params in enumerate(layers):
        state |= _layer(params, f"decoder.layers.{i}.")
    _heads(x.size(-1), heads)
    module = TextDecoder(x.size(-1), heads, layers[0]["feed_forward.w_1"].size(1), len(layers)).to(x).eval()
    masks = {"hidden": _hide(self_mask, x, x, heads), "memory_hidden": _hide(memory_mask, x, memory, heads)}
    return torch.func.functional_call(module, state, (x, memory), masks, strict=True)


def encoder_layer(x, mask=None, *, num_heads, params):
    return _encode(x, mask, num_heads, [params])


def encoder(x, mask=None, *, num_heads, num_layers, params):
    return _encode(x, mask, num_heads, [part(params, f"encoder.{i}") for i in range(num_layers)])


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    return _decode(x, memory, self_mask, memory_mask, num_heads, [params])


def decoder(x, memory, self_mask=None, memory_mask=None, *, num_heads, num_layers, params):
    layers = [part(params, f"decoder.{i}") for i in range(num_layers)]
    return _decode(x, memory, self_mask, memory_mask, num_heads, layers)


def positional_encoding(x):
    return Positions(x.size(-1)).to(x).eval()(x)


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    vocab, d_model = params["table"].shape
    state = {"embedding.weight": params["table"], "head.weight": params["w_vocab"].mT}
    state["head.bias"] = params.get("b_vocab", params["table"].new_zeros(vocab))
    for i in range(num_encoder_layers):
        state |= _layer(part(params, f"encoder.{i}"), f"encoder.encoder.layers.{i}.")
    for i in range(num_decoder_layers):
        state |= _layer(part(params, f"decoder.{i}"), f"decoder.decoder.layers.{i}.")
    _heads(d_model, num_heads)
    d_ff = params["encoder.0.feed_forward.w_1"].size(1)
    model = Translator(vocab, d_model, num_heads, d_ff, num_encoder_layers, num_decoder_layers, pad_id)
    return torch.func.functional_call(model.to(params["table"]).eval(), state, (source, target))


MISTAKES = {
    "sequence-first-by-default": (
        "nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward, dropout, batch_first=True)",
        "nn.TransformerEncoderLayer(d_model, nhead, dim_feedforward, dropout)",
        "The encoder's layers take the batch for the sequence.",
        ("seq-batch-swap",),
    ),
    "memory-padding-forgotten": (
        "x = self.decoder(x, memory, future, target_padding, memory_padding=source_padding)",
        "x = self.decoder(x, memory, future, target_padding)",
        "The decoder attends to the padding of the source.",
        ("cross-mask-absent",),
    ),
    "masks-swapped": (
        "            tgt_mask=hidden,\n            memory_mask=memory_hidden,",
        "            tgt_mask=memory_hidden,\n            memory_mask=hidden,",
        "The masks of self-attention and cross-attention change places.",
        (
            "cross-uses-tgt-mask",
            "decoder_layer.edit@decoder_layer/result.output@arguments-exchanged:self_mask:memory_mask",
        ),
    ),
    "memory-is-embedding": (
        "memory = self.encoder(self.positions(self.embedding(source)), padding=source_padding)",
        "memory = self.positions(self.embedding(source))",
        "The encoder is never run.",
        ("cross-raw-src",),
    ),
    "norm-first": (
        "nn.TransformerDecoderLayer(d_model, nhead, dim_feedforward, dropout, batch_first=True)",
        "nn.TransformerDecoderLayer(d_model, nhead, dim_feedforward, dropout, batch_first=True, norm_first=True)",
        "The decoder normalises before its sub-layers and the encoder after them.",
        ("norm_placement: pre",),
    ),
    "future-shifted": (
        "device=target.device).triu(1)",
        "device=target.device).triu(2)",
        "Each position sees the one after it.",
        ("causal-plus-one",),
    ),
    "target-without-positions": (
        "        x = self.positions(self.embedding(target))\n",
        "        x = self.embedding(target)\n",
        "The target has no positional encoding.",
        ("pe-missing",),
    ),
    "activation": (
        "batch_first=True)\n        self.encoder = ",
        'batch_first=True, activation="gelu")\n        self.encoder = ',
        "The encoder's layers use another activation than the rectifier.",
        (),
    ),
}

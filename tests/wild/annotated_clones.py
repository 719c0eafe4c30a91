# deserves: variant norm_placement=pre, embedding_scale=sqrt_d_model, odd_d_model=refused, final_norm=after_stack, norm_divisor=std_plus_eps, layer_norm_eps=1e-6
"""A model in the style of a line-by-line annotation of the paper: deep copies, sub-layer wrappers and a generator."""

import copy
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

from goldformer.adapters.layouts import linear_weight, part


def clones(module, n):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])


class EncoderDecoder(nn.Module):
    def __init__(self, encoder, decoder, src_embed, tgt_embed, generator):
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.src_embed = src_embed
        self.tgt_embed = tgt_embed
        self.generator = generator

    def forward(self, src, tgt, src_mask, tgt_mask):
        return self.decode(self.encode(src, src_mask), src_mask, tgt, tgt_mask)

    def encode(self, src, src_mask):
        return self.encoder(self.src_embed(src), src_mask)

    def decode(self, memory, src_mask, tgt, tgt_mask):
        return self.decoder(self.tgt_embed(tgt), memory, src_mask, tgt_mask)


class Generator(nn.Module):
    def __init__(self, d_model, vocab):
        super().__init__()
        self.proj = nn.Linear(d_model, vocab)

    def forward(self, x):
        return F.log_softmax(self.proj(x), dim=-1)


class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class SublayerConnection(nn.Module):
    def __init__(self, size, dropout):
        super().__init__()
        self.norm = LayerNorm(size)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, sublayer):
        return x + self.dropout(sublayer(self.norm(x)))


class EncoderLayer(nn.Module):
    def __init__(self, size, self_attn, feed_forward, dropout):
        super().__init__()
        self.self_attn = self_attn
        self.feed_forward = feed_forward
        self.sublayer = clones(SublayerConnection(size, dropout), 2)
        self.size = size

    def forward(self, x, mask):
        x = self.sublayer[0](x, lambda y: self.self_attn(y, y, y, mask))
        return self.sublayer[1](x, self.feed_forward)


class Encoder(nn.Module):
    def __init__(self, layer, n):
        super().__init__()
        self.layers = clones(layer, n)
        self.norm = LayerNorm(layer.size)

    def forward(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask)
        return self.norm(x)


class DecoderLayer(nn.Module):
    def __init__(self, size, self_attn, src_attn, feed_forward, dropout):
        super().__init__()
        self.size = size
        self.self_attn = self_attn
        self.src_attn = src_attn
        self.feed_forward = feed_forward
        self.sublayer = clones(SublayerConnection(size, dropout), 3)

    def forward(self, x, memory, src_mask, tgt_mask):
        m = memory
        x = self.sublayer[0](x, lambda y: self.self_attn(y, y, y, tgt_mask))
        x = self.sublayer[1](x, lambda y: self.src_attn(y, m, m, src_mask))
        return self.sublayer[2](x, self.feed_forward)


class Decoder(nn.Module):
    def __init__(self, layer, n):
        super().__init__()
        self.layers = clones(layer, n)
        self.norm = LayerNorm(layer.size)

    def forward(self, x, memory, src_mask, tgt_mask):
        for layer in self.layers:
            x = layer(x, memory, src_mask, tgt_mask)
        return self.norm(x)


def subsequent_mask(size):
    upper = torch.triu(torch.ones(1, size, size), diagonal=1).type(torch.uint8)
    return upper == 0


def attention(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


class MultiHeadedAttention(nn.Module):
    def __init__(self, h, d_model, dropout=0.1):
        super().__init__()
        assert d_model % h == 0
        self.d_k = d_model // h
        self.h = h
        self.linears = clones(nn.Linear(d_model, d_model), 4)
        self.attn = None
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, query, key, value, mask=None):
        if mask is not None:
            mask = mask.unsqueeze(1)
        nbatches = query.size(0)
        query, key, value = [
            lin(x).view(nbatches, -1, self.h, self.d_k).transpose(1, 2)
            for lin, x in zip(self.linears, (query, key, value))
        ]
        x, self.attn = attention(query, key, value, mask=mask, dropout=self.dropout)
        x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)
        return self.linears[-1](x)


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.w_2(self.dropout(self.w_1(x).relu()))


class Embeddings(nn.Module):
    def __init__(self, d_model, vocab):
        super().__init__()
        self.lut = nn.Embedding(vocab, d_model)
        self.d_model = d_model

    def forward(self, x):
        return self.lut(x) * math.sqrt(self.d_model)


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * -(math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        x = x + self.pe[:, : x.size(1)].requires_grad_(False)
        return self.dropout(x)


def make_model(vocab, n_enc=6, n_dec=6, d_model=512, d_ff=2048, h=8, dropout=0.1):
    c = copy.deepcopy
    attn = MultiHeadedAttention(h, d_model)
    ff = PositionwiseFeedForward(d_model, d_ff, dropout)
    position = PositionalEncoding(d_model, dropout)
    model = EncoderDecoder(
        Encoder(EncoderLayer(d_model, c(attn), c(ff), dropout), n_enc),
        Decoder(DecoderLayer(d_model, c(attn), c(attn), c(ff), dropout), n_dec),
        nn.Sequential(Embeddings(d_model, vocab), c(position)),
        nn.Sequential(Embeddings(d_model, vocab), c(position)),
        Generator(d_model, vocab),
    )
    for p in model.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    return model


# The adapter.

ARRAYS = "torch"
NAME = "annotated clones"


def _attention(params, prefix=""):
    state = {}
    for i, role in enumerate("qkvo"):
        weight = params[f"w_{role}"]
        if weight.shape[0] != weight.shape[1]:
            raise NotImplementedError("all projections are d_model by d_model")
        state[f"{prefix}linears.{i}.weight"] = linear_weight(weight)
        state[f"{prefix}linears.{i}.bias"] = params.get(f"b_{role}", weight.new_zeros(weight.shape[1]))
    return state


def _ffn(params, prefix=""):
    state = {}
    for i in "12":
        weight = params[f"w_{i}"]
        state[f"{prefix}w_{i}.weight"] = linear_weight(weight)
        state[f"{prefix}w_{i}.bias"] = params.get(f"b_{i}", weight.new_zeros(weight.shape[1]))
    return state


def _layer(params, prefix="", decoder=False):
    names = (
        {"self_attention": "self_attn", "cross_attention": "src_attn"} if decoder else {"self_attention": "self_attn"}
    )
    state = _ffn(part(params, "feed_forward"), f"{prefix}feed_forward.")
    for ours, theirs in names.items():
        state |= _attention(part(params, ours), f"{prefix}{theirs}.")
    for i in range(3 if decoder else 2):
        state[f"{prefix}sublayer.{i}.norm.a_2"] = params[f"norm_{i + 1}.gamma"]
        state[f"{prefix}sublayer.{i}.norm.b_2"] = params[f"norm_{i + 1}.beta"]
    return state


def _stack(params, name, n):
    # Undeclared, the stack's own norm is that of a new module.
    norm = part(params, "norm") or part(params, f"{name}_norm")
    state = {"norm.a_2": norm["gamma"], "norm.b_2": norm["beta"]} if norm else {}
    for i in range(n):
        state |= _layer(part(params, f"{name}.{i}"), f"layers.{i}.", decoder=name == "decoder")
    return state


def _mask(mask, batch):
    if mask is None:
        return None
    if mask.dim() == 4 and mask.size(1) == 1:
        return mask[:, 0]
    if mask.dim() == 2:
        return mask.unsqueeze(0)
    raise NotImplementedError("one mask for all heads")


def causal_mask(*, q_seq, kv_seq):
    if q_seq != kv_seq:
        raise NotImplementedError("square masks alone")
    return subsequent_mask(q_seq)[0]


def padding_mask(ids, *, pad_id):
    return (ids != pad_id).unsqueeze(-2).unsqueeze(1)


def scaled_dot_product_attention(query, key, value, mask=None):
    return attention(query, key, value, mask)


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    state = _attention(params)
    module = MultiHeadedAttention(num_heads, query.size(-1)).to(query).eval()
    out = functional_call(module, state, (query, key, value, _mask(mask, query.size(0))))
    return out, module.attn


def feed_forward(x, *, params):
    module = PositionwiseFeedForward(*params["w_1"].shape).to(x).eval()
    return functional_call(module, _ffn(params), (x,))


def layer_norm(x, *, params):
    return functional_call(LayerNorm(x.size(-1)).to(x), {"a_2": params["gamma"], "b_2": params["beta"]}, (x,))


def token_embedding(ids, *, params):
    vocab, d_model = params["table"].shape
    return functional_call(Embeddings(d_model, vocab), {"lut.weight": params["table"]}, (ids,))


def positional_encoding(x):
    return PositionalEncoding(x.size(-1), 0.1).to(x).eval()(x)


def output_probabilities(x, *, params):
    weight = params["w_vocab"]
    state = {"proj.weight": weight.mT, "proj.bias": params.get("b_vocab", weight.new_zeros(weight.size(1)))}
    return functional_call(Generator(*weight.shape), state, (x,)).exp()


def _build(params, d_model, heads, name="encoder.0."):
    d_ff = params[f"{name}feed_forward.w_1"].size(1)
    return MultiHeadedAttention(heads, d_model), PositionwiseFeedForward(d_model, d_ff)


def encoder_layer(x, mask=None, *, num_heads, params):
    state = _layer(params)
    module = EncoderLayer(x.size(-1), *_build(params, x.size(-1), num_heads, ""), 0.1).to(x).eval()
    return functional_call(module, state, (x, _mask(mask, x.size(0))))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    state = _layer(params, decoder=True)
    attn, ff = _build(params, x.size(-1), num_heads, "")
    module = DecoderLayer(x.size(-1), attn, copy.deepcopy(attn), ff, 0.1).to(x).eval()
    masks = _mask(memory_mask, x.size(0)), _mask(self_mask, x.size(0))
    return functional_call(module, state, (x, memory, *masks))


def encoder(x, mask=None, *, num_heads, num_layers, params):
    layer = EncoderLayer(x.size(-1), *_build(params, x.size(-1), num_heads), 0.1)
    module = Encoder(layer, num_layers).to(x).eval()
    return functional_call(module, _stack(params, "encoder", num_layers), (x, _mask(mask, x.size(0))))


def decoder(x, memory, self_mask=None, memory_mask=None, *, num_heads, num_layers, params):
    attn, ff = _build(params, x.size(-1), num_heads, "decoder.0.")
    layer = DecoderLayer(x.size(-1), attn, copy.deepcopy(attn), ff, 0.1)
    module = Decoder(layer, num_layers).to(x).eval()
    masks = _mask(memory_mask, x.size(0)), _mask(self_mask, x.size(0))
    return functional_call(module, _stack(params, "decoder", num_layers), (x, memory, *masks))


class _WithLogits(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args):
        return self.model.generator.proj(self.model(*args))


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    vocab, d_model = params["table"].shape
    d_ff = params["encoder.0.feed_forward.w_1"].size(1)
    model = make_model(vocab, num_encoder_layers, num_decoder_layers, d_model, d_ff, num_heads)
    model = _WithLogits(model).to(params["table"]).eval()
    state = {"model.src_embed.0.lut.weight": params["table"], "model.tgt_embed.0.lut.weight": params["table"]}
    state["model.generator.proj.weight"] = params["w_vocab"].mT
    state["model.generator.proj.bias"] = params.get("b_vocab", params["table"].new_zeros(vocab))
    for name, n in (("encoder", num_encoder_layers), ("decoder", num_decoder_layers)):
        state |= {f"model.{name}.{key}": value for key, value in _stack(params, name, n).items()}
    src_mask = (source != pad_id).unsqueeze(-2)
    tgt_mask = (target != pad_id).unsqueeze(-2) & subsequent_mask(target.size(-1)).to(target.device)
    return functional_call(model, state, (source, target, src_mask, tgt_mask))


MISTAKES = {
    "cross-reads-decoder": (
        "lambda y: self.src_attn(y, m, m, src_mask)",
        "lambda y: self.src_attn(m, y, y, src_mask)",
        "The cross-attention takes its queries from the memory and its keys and values from the decoder.",
        ("cross-q-source",),
    ),
    "cross-masked-as-self": (
        "lambda y: self.self_attn(y, y, y, tgt_mask)",
        "lambda y: self.self_attn(y, y, y, src_mask)",
        "The decoder's self-attention is given the mask of the source.",
        (),
    ),
    "residual-from-norm": (
        "return x + self.dropout(sublayer(self.norm(x)))",
        "x = self.norm(x)\n        return x + self.dropout(sublayer(x))",
        "The residual is taken after the normalisation and not before it.",
        ("residual-normed",),
    ),
    "heads-not-moved-back": (
        "x = x.transpose(1, 2).contiguous().view(nbatches, -1, self.h * self.d_k)",
        "x = x.contiguous().view(nbatches, -1, self.h * self.d_k)",
        "The heads are joined without moving their axis back behind the tokens.",
        ("head-merge-view",),
    ),
    "scale-by-width": (
        "/ math.sqrt(d_k)",
        "/ d_k",
        "The scores are divided by the width of a head and not by its root.",
        ("scale-no-root",),
    ),
    "mask-inverted": (
        "scores.masked_fill(mask == 0, -1e9)",
        "scores.masked_fill(mask == 1, -1e9)",
        "The positions that may be attended to are the ones that are hidden.",
        ("mask-inverted",),
    ),
    "position-ten-thousandth": (
        "math.log(10000.0) / d_model",
        "math.log(1000.0) / d_model",
        "The wavelengths of the positional encoding grow to a thousand and not to ten thousand.",
        ("pe-base",),
    ),
    "relu-after-second": (
        "self.w_2(self.dropout(self.w_1(x).relu()))",
        "self.w_2(self.dropout(self.w_1(x))).relu()",
        "The feed-forward network applies the rectifier after the second map and not between the two.",
        ("ffn-no-relu", "ffn-output-relu"),
    ),
}

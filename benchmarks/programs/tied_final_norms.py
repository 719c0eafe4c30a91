# deserves: variant final_norm=after_stack, embedding_scale=sqrt_d_model, output_layer=tied
"""A model of copied layers that ties the output to the embedding and normalises once more after each stack."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F


def attention(q, k, v, mask=None, dropout=None):
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    scores = F.softmax(scores, dim=-1)
    if dropout is not None:
        scores = dropout(scores)
    return torch.matmul(scores, v)


class Norm(nn.Module):
    def __init__(self, d_model, eps=1e-5):
        super().__init__()
        self.size = d_model
        self.alpha = nn.Parameter(torch.ones(self.size))
        self.bias = nn.Parameter(torch.zeros(self.size))
        self.eps = eps

    def forward(self, x):
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return self.alpha * (x - mean) / torch.sqrt(variance + self.eps) + self.bias


class MultiHeadAttention(nn.Module):
    def __init__(self, heads, d_model, dropout=0.1):
        super().__init__()
        self.d_model, self.d_k, self.h = d_model, d_model // heads, heads
        self.q_linear = nn.Linear(d_model, d_model)
        self.v_linear = nn.Linear(d_model, d_model)
        self.k_linear = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, q, k, v, mask=None):
        bs = q.size(0)
        k = self.k_linear(k).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        q = self.q_linear(q).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        v = self.v_linear(v).view(bs, -1, self.h, self.d_k).transpose(1, 2)
        mask = None if mask is None else mask.unsqueeze(1)
        scores = attention(q, k, v, mask, self.dropout)
        concat = scores.transpose(1, 2).contiguous().view(bs, -1, self.d_model)
        return self.out(concat)


class FeedForward(nn.Module):
    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.linear_1 = nn.Linear(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)
        self.linear_2 = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.linear_2(self.dropout(F.relu(self.linear_1(x))))


class EncoderLayer(nn.Module):
    def __init__(self, d_model, heads, d_ff, dropout=0.1):
        super().__init__()
        self.norm_1, self.norm_2 = Norm(d_model), Norm(d_model)
        self.attn = MultiHeadAttention(heads, d_model)
        self.ff = FeedForward(d_model, d_ff)
        self.dropout_1, self.dropout_2 = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.norm_1(x + self.dropout_1(self.attn(x, x, x, mask)))
        return self.norm_2(x + self.dropout_2(self.ff(x)))


class DecoderLayer(nn.Module):
    def __init__(self, d_model, heads, d_ff, dropout=0.1):
        super().__init__()
        self.norm_1, self.norm_2, self.norm_3 = Norm(d_model), Norm(d_model), Norm(d_model)
        self.attn_1, self.attn_2 = MultiHeadAttention(heads, d_model), MultiHeadAttention(heads, d_model)
        self.ff = FeedForward(d_model, d_ff)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, e_outputs, src_mask, trg_mask):
        x = self.norm_1(x + self.dropout(self.attn_1(x, x, x, trg_mask)))
        x = self.norm_2(x + self.dropout(self.attn_2(x, e_outputs, e_outputs, src_mask)))
        return self.norm_3(x + self.dropout(self.ff(x)))


def get_clones(module, n):
    return nn.ModuleList([copy.deepcopy(module) for _ in range(n)])


class PositionalEncoder(nn.Module):
    def __init__(self, d_model, max_seq_len=200):
        super().__init__()
        self.d_model = d_model
        pe = torch.zeros(max_seq_len, d_model)
        for pos in range(max_seq_len):
            for i in range(0, d_model, 2):
                pe[pos, i] = math.sin(pos / (10000 ** (i / d_model)))
                if i + 1 < d_model:
                    pe[pos, i + 1] = math.cos(pos / (10000 ** (i / d_model)))
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return x * math.sqrt(self.d_model) + self.pe[:, : x.size(1)]


class Transformer(nn.Module):
    def __init__(self, vocab, d_model, n_enc, n_dec, heads, d_ff):
        super().__init__()
        self.embed = nn.Embedding(vocab, d_model)
        self.pe = PositionalEncoder(d_model)
        self.enc = get_clones(EncoderLayer(d_model, heads, d_ff), n_enc)
        self.enc_norm = Norm(d_model)
        self.dec = get_clones(DecoderLayer(d_model, heads, d_ff), n_dec)
        self.dec_norm = Norm(d_model)

    def forward(self, src, trg, src_mask, trg_mask):
        x = self.pe(self.embed(src))
        for layer in self.enc:
            x = layer(x, src_mask)
        e_outputs = self.enc_norm(x)
        x = self.pe(self.embed(trg))
        for layer in self.dec:
            x = layer(x, e_outputs, src_mask, trg_mask)
        return F.linear(self.dec_norm(x), self.embed.weight)


def create_masks(src, trg, pad):
    src_mask = (src != pad).unsqueeze(-2)
    trg_mask = (trg != pad).unsqueeze(-2)
    size = trg.size(1)
    np_mask = torch.ones(1, size, size, device=trg.device).triu(1) == 0
    return src_mask, trg_mask & np_mask


# The adapter.

ARRAYS = "torch"
NAME = "tied, with final norms"


def _named(params, weight, at):
    w, b = params[weight], params.get(weight.replace("w_", "b_"))
    return {f"{at}.weight": w.t(), f"{at}.bias": torch.zeros_like(w[0]) if b is None else b}


def _layer(params, ours, theirs):
    pairs = {"self_attention": "attn_1", "cross_attention": "attn_2"}
    if f"{ours}cross_attention.w_q" not in params:
        pairs = {"self_attention": "attn"}
    state = {}
    for name, at in pairs.items():
        for role, linear in {"q": "q_linear", "k": "k_linear", "v": "v_linear", "o": "out"}.items():
            if params[f"{ours}{name}.w_{role}"].size(0) != params[f"{ours}{name}.w_{role}"].size(1):
                raise NotImplementedError("d_model for all")
            state |= _named(params, f"{ours}{name}.w_{role}", f"{theirs}{at}.{linear}")
    for i in (1, 2):
        state |= _named(params, f"{ours}feed_forward.w_{i}", f"{theirs}ff.linear_{i}")
    for i in range(1, len(pairs) + 2):
        state[f"{theirs}norm_{i}.alpha"] = params[f"{ours}norm_{i}.gamma"]
        state[f"{theirs}norm_{i}.bias"] = params[f"{ours}norm_{i}.beta"]
    return state


def _three(mask):
    if mask is None:
        return None
    if mask.dim() == 3 or (mask.dim() == 4 and mask.size(1) != 1):
        raise NotImplementedError("one mask for all heads")
    return mask[:, 0] if mask.dim() == 4 else mask.reshape(1, *mask.shape[-2:]) if mask.dim() == 2 else mask


def encoder_layer(x, mask=None, *, num_heads, params):
    state = _layer(params, "", "")
    module = EncoderLayer(x.size(-1), num_heads, params["feed_forward.w_1"].size(1)).to(x).eval()
    return torch.func.functional_call(module, state, (x, _three(mask)))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    state = _layer(params, "", "")
    module = DecoderLayer(x.size(-1), num_heads, params["feed_forward.w_1"].size(1)).to(x).eval()
    return torch.func.functional_call(module, state, (x, memory, _three(memory_mask), _three(self_mask)))


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    if "b_vocab" in params:
        raise NotImplementedError("the output has no bias")
    table = params["table"]
    state = {"embed.weight": table}
    for i in range(num_encoder_layers):
        state |= _layer(params, f"encoder.{i}.", f"enc.{i}.")
    for i in range(num_decoder_layers):
        state |= _layer(params, f"decoder.{i}.", f"dec.{i}.")
    for side, end in {"encoder": "enc_norm", "decoder": "dec_norm"}.items():
        if f"{side}_norm.gamma" in params:  # without the declaration the module's own is that of a new one
            state[f"{end}.alpha"], state[f"{end}.bias"] = params[f"{side}_norm.gamma"], params[f"{side}_norm.beta"]
    d_ff = params["encoder.0.feed_forward.w_1"].size(1)
    model = Transformer(*table.shape, num_encoder_layers, num_decoder_layers, num_heads, d_ff).to(table).eval()
    return torch.func.functional_call(model, state, (source, target, *create_masks(source, target, pad_id)))


MISTAKES = {
    "target-without-positions": (
        "        x = self.pe(self.embed(trg))\n",
        "        x = self.embed(trg)\n",
        "The target is embedded without its factor and without positions.",
        (
            "pe-missing",
            "transformer.edit@transformer/result.target_embedded@read:read_rows/result",
        ),
    ),
    "masks-in-other-order": (
        "            x = layer(x, e_outputs, src_mask, trg_mask)",
        "            x = layer(x, e_outputs, None, trg_mask)",
        "The decoder's layers are given no mask for the source.",
        ("cross-mask-absent",),
    ),
    "queries-from-memory": (
        "self.attn_2(x, e_outputs, e_outputs, src_mask)",
        "self.attn_1(x, e_outputs, e_outputs, src_mask)",
        "The cross-attention uses the weights of the self-attention.",
        ("cross-self-weights",),
    ),
    "value-linear-of-keys": (
        "v = self.v_linear(v)",
        "v = self.k_linear(v)",
        "The values are made with the keys' projection.",
        ("values-by-w-k",),
    ),
    "second-norm-of-first": (
        "return self.norm_2(x + self.dropout_2(self.ff(x)))",
        "return self.norm_2(self.dropout_2(self.ff(x)))",
        "The feed-forward network has no residual.",
        ("residual-missing",),
    ),
    "eps-as-fraction": (
        "torch.sqrt(variance + self.eps)",
        "(torch.sqrt(variance) + self.eps)",
        "The small number is added to the standard deviation.",
        ("ln-eps-outside",),
    ),
    "exponent-doubled": (
        "pe[pos, i] = math.sin(pos / (10000 ** (i / d_model)))",
        "pe[pos, i] = math.sin(pos / (10000 ** (2 * i / d_model)))",
        "The exponent of the sine is doubled, though the index counts in twos already.",
        (),
    ),
}

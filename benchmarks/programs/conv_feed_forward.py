# deserves: variant layer_norm_eps=1e-6
# declares: biases=not_in_attention
"""Sub-layers that keep residual, dropout and normalisation to themselves, with a feed-forward network of 1 by 1 convolutions."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def sinusoid_table(n_position, d_hid):
    def angle(pos, j):
        return pos / np.power(10000, 2 * (j // 2) / d_hid)

    table = np.array([[angle(pos, j) for j in range(d_hid)] for pos in range(n_position)])
    table[:, 0::2] = np.sin(table[:, 0::2])
    table[:, 1::2] = np.cos(table[:, 1::2])
    return torch.FloatTensor(table).unsqueeze(0)


def get_pad_mask(seq, pad_idx):
    return (seq != pad_idx).unsqueeze(-2)


def get_subsequent_mask(seq):
    _, len_s = seq.size()
    return (1 - torch.triu(torch.ones((1, len_s, len_s), device=seq.device), diagonal=1)).bool()


class ScaledDotProductAttention(nn.Module):
    def __init__(self, temperature, attn_dropout=0.1):
        super().__init__()
        self.temperature = temperature
        self.dropout = nn.Dropout(attn_dropout)

    def forward(self, q, k, v, mask=None):
        attn = torch.matmul(q / self.temperature, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        attn = self.dropout(F.softmax(attn, dim=-1))
        return torch.matmul(attn, v), attn


class MultiHeadAttention(nn.Module):
    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head = n_head
        self.d_k = d_k
        self.d_v = d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)
        self.attention = ScaledDotProductAttention(temperature=d_k**0.5)
        self.dropout = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, q, k, v, mask=None):
        d_k, d_v, n_head = self.d_k, self.d_v, self.n_head
        sz_b, len_q, len_k, len_v = q.size(0), q.size(1), k.size(1), v.size(1)
        residual = q
        q = self.w_qs(q).view(sz_b, len_q, n_head, d_k)
        k = self.w_ks(k).view(sz_b, len_k, n_head, d_k)
        v = self.w_vs(v).view(sz_b, len_v, n_head, d_v)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if mask is not None:
            mask = mask.unsqueeze(1)
        q, attn = self.attention(q, k, v, mask=mask)
        q = q.transpose(1, 2).contiguous().view(sz_b, len_q, -1)
        q = self.dropout(self.fc(q))
        q += residual
        return self.layer_norm(q), attn


class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_in, d_hid, dropout=0.1):
        super().__init__()
        self.w_1 = nn.Conv1d(d_in, d_hid, 1)
        self.w_2 = nn.Conv1d(d_hid, d_in, 1)
        self.layer_norm = nn.LayerNorm(d_in, eps=1e-6)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        residual = x
        output = x.transpose(1, 2)
        output = self.w_2(F.relu(self.w_1(output)))
        output = output.transpose(1, 2)
        output = self.dropout(output)
        return self.layer_norm(output + residual)


class EncoderLayer(nn.Module):
    def __init__(self, d_model, d_inner, n_head, d_k, d_v, dropout=0.1):
        super().__init__()
        self.slf_attn = MultiHeadAttention(n_head, d_model, d_k, d_v, dropout=dropout)
        self.pos_ffn = PositionwiseFeedForward(d_model, d_inner, dropout=dropout)

    def forward(self, enc_input, slf_attn_mask=None):
        enc_output, enc_slf_attn = self.slf_attn(enc_input, enc_input, enc_input, mask=slf_attn_mask)
        return self.pos_ffn(enc_output), enc_slf_attn


class DecoderLayer(nn.Module):
    def __init__(self, d_model, d_inner, n_head, d_k, d_v, dropout=0.1):
        super().__init__()
        self.slf_attn = MultiHeadAttention(n_head, d_model, d_k, d_v, dropout=dropout)
        self.enc_attn = MultiHeadAttention(n_head, d_model, d_k, d_v, dropout=dropout)
        self.pos_ffn = PositionwiseFeedForward(d_model, d_inner, dropout=dropout)

    def forward(self, dec_input, enc_output, slf_attn_mask=None, dec_enc_attn_mask=None):
        dec_output, slf_attn = self.slf_attn(dec_input, dec_input, dec_input, mask=slf_attn_mask)
        dec_output, enc_attn = self.enc_attn(dec_output, enc_output, enc_output, mask=dec_enc_attn_mask)
        return self.pos_ffn(dec_output), slf_attn, enc_attn


class Transformer(nn.Module):
    def __init__(self, n_vocab, pad_idx, d_model, d_inner, n_enc, n_dec, n_head, d_k, d_v, n_position=200):
        super().__init__()
        self.pad_idx = pad_idx
        self.word_emb = nn.Embedding(n_vocab, d_model)
        self.register_buffer("pos_table", sinusoid_table(n_position, d_model))
        self.enc = nn.ModuleList([EncoderLayer(d_model, d_inner, n_head, d_k, d_v) for _ in range(n_enc)])
        self.dec = nn.ModuleList([DecoderLayer(d_model, d_inner, n_head, d_k, d_v) for _ in range(n_dec)])
        self.dropout = nn.Dropout(0.1)
        self.prj = nn.Linear(d_model, n_vocab)

    def embed(self, seq):
        x = self.word_emb(seq)
        return self.dropout(x + self.pos_table[:, : x.size(1)].clone().detach())

    def forward(self, src_seq, trg_seq):
        src_mask = get_pad_mask(src_seq, self.pad_idx)
        trg_mask = get_pad_mask(trg_seq, self.pad_idx) & get_subsequent_mask(trg_seq)
        enc = self.embed(src_seq)
        for layer in self.enc:
            enc, _ = layer(enc, slf_attn_mask=src_mask)
        dec = self.embed(trg_seq)
        for layer in self.dec:
            dec, _, _ = layer(dec, enc, slf_attn_mask=trg_mask, dec_enc_attn_mask=src_mask)
        return self.prj(dec), enc, dec


# The adapter.

ARRAYS = "torch"
NAME = "convolutions for the feed-forward network"
DEVICES = ("cpu",)


def _mask(mask):
    if mask is None:
        return None
    if mask.dim() == 2:
        return mask[None]
    if mask.dim() == 4 and mask.size(1) == 1:
        return mask.squeeze(1)
    raise NotImplementedError("masks of (batch, q_seq, kv_seq)")


def _state(params, prefix_ours, prefix, attentions):
    """State of one layer. Attention has no biases here."""
    state = {}
    for number, (ours, theirs) in enumerate(attentions.items(), 1):
        for role, name in {"q": "w_qs", "k": "w_ks", "v": "w_vs", "o": "fc"}.items():
            if f"{prefix_ours}{ours}.b_{role}" in params:
                raise NotImplementedError("attention has no biases")
            state[f"{prefix}{theirs}.{name}.weight"] = params[f"{prefix_ours}{ours}.w_{role}"].mT
        state[f"{prefix}{theirs}.layer_norm.weight"] = params[f"{prefix_ours}norm_{number}.gamma"]
        state[f"{prefix}{theirs}.layer_norm.bias"] = params[f"{prefix_ours}norm_{number}.beta"]
    last = len(attentions) + 1
    state[f"{prefix}pos_ffn.layer_norm.weight"] = params[f"{prefix_ours}norm_{last}.gamma"]
    state[f"{prefix}pos_ffn.layer_norm.bias"] = params[f"{prefix_ours}norm_{last}.beta"]
    for i in "12":
        weight = params[f"{prefix_ours}feed_forward.w_{i}"]
        bias = params.get(f"{prefix_ours}feed_forward.b_{i}")
        state[f"{prefix}pos_ffn.w_{i}.weight"] = weight.mT.unsqueeze(-1)
        state[f"{prefix}pos_ffn.w_{i}.bias"] = weight.new_zeros(weight.size(1)) if bias is None else bias
    return state


def _sizes(params, prefix, num_heads):
    columns, values = params[f"{prefix}self_attention.w_q"].size(1), params[f"{prefix}self_attention.w_v"].size(1)
    if columns % num_heads or values % num_heads:
        raise ValueError("num_heads: does not divide the width")
    d_model, d_inner = params[f"{prefix}feed_forward.w_1"].shape
    return d_model, d_inner, num_heads, columns // num_heads, values // num_heads


def scaled_dot_product_attention(query, key, value, mask=None):
    if query.dim() != 4:
        raise NotImplementedError("four axes")
    return ScaledDotProductAttention(query.size(-1) ** 0.5).eval()(query, key, value, mask)


def padding_mask(ids, *, pad_id):
    return get_pad_mask(ids, pad_id).unsqueeze(1)


def positional_encoding(x):
    return x + sinusoid_table(x.size(1), x.size(2)).to(x.dtype)


SELF = {"self_attention": "slf_attn"}
BOTH = {"self_attention": "slf_attn", "cross_attention": "enc_attn"}


def encoder_layer(x, mask=None, *, num_heads, params):
    state = _state(params, "", "", SELF)
    layer = EncoderLayer(*_sizes(params, "", num_heads)).to(x.dtype).eval()
    output, weights = torch.func.functional_call(layer, state, (x, _mask(mask)))
    return {"output": output, "weights": weights}


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    state = _state(params, "", "", BOTH)
    layer = DecoderLayer(*_sizes(params, "", num_heads)).to(x.dtype).eval()
    masks = _mask(self_mask), _mask(memory_mask)
    output, weights, cross_weights = torch.func.functional_call(layer, state, (x, memory, *masks))
    return {"output": output, "weights": weights, "cross_weights": cross_weights}


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    d_model, d_inner, *rest = _sizes(params, "encoder.0.", num_heads)
    model = Transformer(len(params["table"]), pad_id, d_model, d_inner, num_encoder_layers, num_decoder_layers, *rest)
    state = {"word_emb.weight": params["table"], "prj.weight": params["w_vocab"].mT}
    state["prj.bias"] = params.get("b_vocab", params["table"].new_zeros(len(params["table"])))
    for i in range(num_encoder_layers):
        state |= _state(params, f"encoder.{i}.", f"enc.{i}.", SELF)
    for i in range(num_decoder_layers):
        state |= _state(params, f"decoder.{i}.", f"dec.{i}.", BOTH)
    model = model.to(params["table"].dtype).eval()
    logits, memory, decoded = torch.func.functional_call(model, state, (source, target))
    return {"logits": logits, "memory": memory, "decoded": decoded}


MISTAKES = {
    "no-transpose-before-convolution": (
        "output = x.transpose(1, 2)\n",
        "output = x.reshape(x.size(0), x.size(2), x.size(1))\n",
        "The convolution reads reshaped numbers and not the transposed ones.",
        ("ffn-mixes-tokens", "encoder_layer.edit@feed_through/x@unread:-2:-1"),
    ),
    "heads-viewed-directly": (
        "k = self.w_ks(k).view(sz_b, len_k, n_head, d_k)\n",
        "k = self.w_ks(k).view(sz_b, n_head, len_k, d_k).transpose(1, 2)\n",
        "The keys are cut into heads without regard to the tokens.",
        ("head-split-view", "multi_head_attention.edit@project_heads#1/result@reshaped:-3:-2"),
    ),
    "memory-as-query": (
        "self.enc_attn(dec_output, enc_output, enc_output, mask=dec_enc_attn_mask)",
        "self.enc_attn(dec_output, enc_output, dec_output, mask=dec_enc_attn_mask)",
        "The values of the cross-attention come from the decoder.",
        (),
    ),
    "masks-joined-with-or": (
        "get_pad_mask(trg_seq, self.pad_idx) & get_subsequent_mask(trg_seq)",
        "get_pad_mask(trg_seq, self.pad_idx) | get_subsequent_mask(trg_seq)",
        "The padding mask and the causal mask are joined with or.",
        ("tgt-masks-joined-or",),
    ),
    "temperature-of-model": (
        "ScaledDotProductAttention(temperature=d_k**0.5)",
        "ScaledDotProductAttention(temperature=d_model**0.5)",
        "The scores are divided by the root of the width of the model.",
        ("scale-d-model",),
    ),
    "exponent-not-shared": (
        "2 * (j // 2) / d_hid",
        "j / d_hid",
        "Sine and cosine of a pair have different frequencies.",
        ("pe-cos-exp",),
    ),
    "eps-too-large": (
        "self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)",
        "self.layer_norm = nn.LayerNorm(d_model, eps=1e-3)",
        "The normalisation of attention adds a thousandth to the variance.",
        ("layer_norm_eps: 1e-3",),
    ),
    "relu-missing": (
        "self.w_2(F.relu(self.w_1(output)))",
        "self.w_2(self.w_1(output))",
        "The feed-forward network has no rectifier.",
        ("ffn-no-relu",),
    ),
}

# deserves: correct
"""A course notebook's encoder with one projection for query, key and value, laid out head by head, and a positional buffer."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F


def scaled_dot_product(q, k, v, mask=None):
    d_k = q.size()[-1]
    attn_logits = torch.matmul(q, k.transpose(-2, -1))
    attn_logits = attn_logits / math.sqrt(d_k)
    if mask is not None:
        attn_logits = attn_logits.masked_fill(mask == 0, -9e15)
    attention = F.softmax(attn_logits, dim=-1)
    values = torch.matmul(attention, v)
    return values, attention


def expand_mask(mask):
    assert mask.ndim >= 2, "a mask needs at least the axes of queries and keys"
    if mask.ndim == 3:
        mask = mask.unsqueeze(1)
    while mask.ndim < 4:
        mask = mask.unsqueeze(0)
    return mask


class MultiheadAttention(nn.Module):
    def __init__(self, input_dim, embed_dim, num_heads):
        super().__init__()
        assert embed_dim % num_heads == 0, "num_heads must divide embed_dim"
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.qkv_proj = nn.Linear(input_dim, 3 * embed_dim)
        self.o_proj = nn.Linear(embed_dim, embed_dim)
        self._reset_parameters()

    def _reset_parameters(self):
        nn.init.xavier_uniform_(self.qkv_proj.weight)
        self.qkv_proj.bias.data.fill_(0)
        nn.init.xavier_uniform_(self.o_proj.weight)
        self.o_proj.bias.data.fill_(0)

    def forward(self, x, mask=None, return_attention=False):
        batch_size, seq_length, _ = x.size()
        if mask is not None:
            mask = expand_mask(mask)
        qkv = self.qkv_proj(x)
        qkv = qkv.reshape(batch_size, seq_length, self.num_heads, 3 * self.head_dim)
        qkv = qkv.permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        values, attention = scaled_dot_product(q, k, v, mask=mask)
        values = values.permute(0, 2, 1, 3)
        values = values.reshape(batch_size, seq_length, self.embed_dim)
        o = self.o_proj(values)
        if return_attention:
            return o, attention
        return o


class EncoderBlock(nn.Module):
    def __init__(self, input_dim, num_heads, dim_feedforward, dropout=0.0):
        super().__init__()
        self.self_attn = MultiheadAttention(input_dim, input_dim, num_heads)
        self.linear_net = nn.Sequential(
            nn.Linear(input_dim, dim_feedforward),
            nn.Dropout(dropout),
            nn.ReLU(inplace=True),
            nn.Linear(dim_feedforward, input_dim),
        )
        self.norm1 = nn.LayerNorm(input_dim)
        self.norm2 = nn.LayerNorm(input_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        attn_out = self.self_attn(x, mask=mask)
        x = x + self.dropout(attn_out)
        x = self.norm1(x)
        linear_out = self.linear_net(x)
        x = x + self.dropout(linear_out)
        x = self.norm2(x)
        return x


class TransformerEncoder(nn.Module):
    def __init__(self, num_layers, **block_args):
        super().__init__()
        self.layers = nn.ModuleList([EncoderBlock(**block_args) for _ in range(num_layers)])

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = layer(x, mask=mask)
        return x


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=5000):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(0, max_len, dtype=torch.float).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2).float() * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div_term)
        pe[:, 1::2] = torch.cos(position * div_term)
        pe = pe.unsqueeze(0)
        self.register_buffer("pe", pe, persistent=False)

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


# The adapter.

ARRAYS = "torch"
NAME = "course notebook"
CONVENTIONS = {"odd_d_model": "refused"}


def scaled_dot_product_attention(query, key, value, mask=None):
    return scaled_dot_product(query, key, value, mask)


def _attention(params, prefix=""):
    weight, out = params[f"{prefix}w_qkv"], params[f"{prefix}w_o"]
    return {
        "qkv_proj.weight": weight.T,
        "qkv_proj.bias": params.get(f"{prefix}b_qkv", weight.new_zeros(weight.size(1))),
        "o_proj.weight": out.T,
        "o_proj.bias": params.get(f"{prefix}b_o", weight.new_zeros(out.size(1))),
    }


def fused_multi_head_attention(x, mask=None, *, num_heads, params):
    if mask is not None and mask.ndim == 3:
        mask = mask.unsqueeze(0)
    if params["w_qkv"].size(1) != 3 * params["w_o"].size(0):
        raise ValueError("w_qkv: three times the width of w_o is needed")
    module = MultiheadAttention(x.size(-1), params["w_o"].size(0), num_heads).to(x)
    return torch.func.functional_call(module, _attention(params), (x, mask, True))


def _fuse(params, heads):
    """Lay three projections side by side, head by head."""

    def fuse(letter, lead):
        parts = []
        for role in "qkv":
            weight = params[f"self_attention.w_{role}"]
            if letter == "w":
                columns = weight
            else:
                columns = params.get(f"self_attention.b_{role}", weight.new_zeros(weight.size(1)))
            parts.append(columns.reshape(*lead, heads, -1))
        return torch.cat(parts, dim=-1).flatten(-2)

    width = params["self_attention.w_q"].size(0)
    for role in "qkvo":
        if params[f"self_attention.w_{role}"].shape != (width, width):
            raise NotImplementedError("square projections")
    fused = {"w_qkv": fuse("w", (width,)), "b_qkv": fuse("b", ()), "w_o": params["self_attention.w_o"]}
    if "self_attention.b_o" in params:
        fused["b_o"] = params["self_attention.b_o"]
    return fused


def _block(params, heads, prefix=""):
    state = {f"{prefix}self_attn.{name}": value for name, value in _attention(_fuse(params, heads)).items()}
    for ours, theirs in {1: 0, 2: 3}.items():
        weight = params[f"feed_forward.w_{ours}"]
        state[f"{prefix}linear_net.{theirs}.weight"] = weight.T
        bias = params.get(f"feed_forward.b_{ours}")
        state[f"{prefix}linear_net.{theirs}.bias"] = weight.new_zeros(weight.size(1)) if bias is None else bias
        state[f"{prefix}norm{ours}.weight"] = params[f"norm_{ours}.gamma"]
        state[f"{prefix}norm{ours}.bias"] = params[f"norm_{ours}.beta"]
    return state


def _mask(mask):
    return mask.unsqueeze(0) if mask is not None and mask.ndim == 3 else mask


def encoder_layer(x, mask=None, *, num_heads, params):
    state = _block(params, num_heads)
    block = EncoderBlock(x.size(-1), num_heads, params["feed_forward.w_1"].size(1)).to(x).eval()
    return torch.func.functional_call(block, state, (x, _mask(mask)))


def encoder(x, mask=None, *, num_heads, num_layers, params):
    sizes = {"input_dim": x.size(-1), "num_heads": num_heads}
    sizes["dim_feedforward"] = params["encoder.0.feed_forward.w_1"].size(1)
    stack = TransformerEncoder(num_layers, **sizes).to(x).eval()
    state = {}
    for i in range(num_layers):
        own = {name.removeprefix(f"encoder.{i}."): p for name, p in params.items() if name.startswith(f"encoder.{i}.")}
        state |= _block(own, num_heads, f"layers.{i}.")
    return torch.func.functional_call(stack, state, (x, _mask(mask)))


def positional_encoding(x):
    return PositionalEncoding(x.size(-1)).to(x)(x)


MISTAKES = {
    "cut-in-thirds-first": (
        "        qkv = qkv.reshape(batch_size, seq_length, self.num_heads, 3 * self.head_dim)\n"
        "        qkv = qkv.permute(0, 2, 1, 3)\n"
        "        q, k, v = qkv.chunk(3, dim=-1)\n",
        "        qkv = qkv.reshape(batch_size, seq_length, 3, self.num_heads, self.head_dim)\n"
        "        q, k, v = qkv.permute(2, 0, 3, 1, 4)\n",
        "The fused columns are cut in three before they are split into heads.",
        ("qkv-layout",),
    ),
    "heads-reshaped-at-once": (
        "        qkv = qkv.reshape(batch_size, seq_length, self.num_heads, 3 * self.head_dim)\n"
        "        qkv = qkv.permute(0, 2, 1, 3)\n",
        "        qkv = qkv.reshape(batch_size, self.num_heads, seq_length, 3 * self.head_dim)\n",
        "The heads are split by a reshape alone, so that tokens and heads mix.",
        ("head-split-view",),
    ),
    "heads-joined-unmoved": (
        "        values = values.permute(0, 2, 1, 3)\n",
        "",
        "The heads are joined without moving their axis back.",
        ("head-merge-view",),
    ),
    "norms-swapped": (
        "        x = self.norm1(x)\n",
        "        x = self.norm2(x)\n",
        "Both sub-layers are normalised by the second normalisation.",
        ("encoder_layer.edit@encoder_layer/norm_1@read-part:norm_2",),
    ),
    "keys-and-values-swapped": (
        "scaled_dot_product(q, k, v, mask=mask)",
        "scaled_dot_product(q, v, k, mask=mask)",
        "Keys and values change places.",
        ("kv-swap",),
    ),
    "mask-fill-small": (
        "-9e15",
        "-9",
        "Masked scores are set to minus nine, which leaves them weight.",
        ("fill-dampens", "fill-too-small"),
    ),
    "scale-forgotten": (
        "attn_logits = attn_logits / math.sqrt(d_k)\n",
        "attn_logits = attn_logits\n",
        "The scores are not divided by the root of the head's width.",
        ("scale-missing",),
    ),
    "one-layer-only": (
        "            x = layer(x, mask=mask)\n        return x",
        "            out = layer(x, mask=mask)\n        return out",
        "Every layer of the stack reads the stack's input.",
        (),
    ),
}

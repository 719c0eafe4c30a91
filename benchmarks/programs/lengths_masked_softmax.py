# deserves: correct
"""A textbook chapter's code: valid lengths in place of masks, heads folded into the batch, an add-and-norm block."""

import math

import torch
from torch import nn


def sequence_mask(X, valid_len, value=0):
    maxlen = X.size(1)
    mask = torch.arange(maxlen, device=X.device)[None, :] < valid_len[:, None]
    return X.masked_fill(~mask, value)


def masked_softmax(X, valid_lens):
    if valid_lens is None:
        return nn.functional.softmax(X, dim=-1)
    shape = X.shape
    if valid_lens.dim() == 1:
        valid_lens = torch.repeat_interleave(valid_lens, shape[1])
    else:
        valid_lens = valid_lens.reshape(-1)
    X = sequence_mask(X.reshape(-1, shape[-1]), valid_lens, value=-1e9)
    return nn.functional.softmax(X.reshape(shape), dim=-1)


class DotProductAttention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries, keys, values, valid_lens=None):
        d = queries.shape[-1]
        scores = torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(d)
        self.attention_weights = masked_softmax(scores, valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values)


class MultiHeadAttention(nn.Module):
    def __init__(self, num_hiddens, num_heads, dropout, bias=True):
        super().__init__()
        self.num_heads = num_heads
        self.attention = DotProductAttention(dropout)
        self.W_q = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_k = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_v = nn.Linear(num_hiddens, num_hiddens, bias=bias)
        self.W_o = nn.Linear(num_hiddens, num_hiddens, bias=bias)

    def transpose_qkv(self, X):
        X = X.reshape(X.shape[0], X.shape[1], self.num_heads, -1)
        X = X.permute(0, 2, 1, 3)
        return X.reshape(-1, X.shape[2], X.shape[3])

    def transpose_output(self, X):
        X = X.reshape(-1, self.num_heads, X.shape[1], X.shape[2])
        X = X.permute(0, 2, 1, 3)
        return X.reshape(X.shape[0], X.shape[1], -1)

    def forward(self, queries, keys, values, valid_lens):
        queries = self.transpose_qkv(self.W_q(queries))
        keys = self.transpose_qkv(self.W_k(keys))
        values = self.transpose_qkv(self.W_v(values))
        if valid_lens is not None:
            valid_lens = torch.repeat_interleave(valid_lens, repeats=self.num_heads, dim=0)
        output = self.attention(queries, keys, values, valid_lens)
        return self.W_o(self.transpose_output(output))


class PositionWiseFFN(nn.Module):
    def __init__(self, num_inputs, ffn_num_hiddens):
        super().__init__()
        self.dense1 = nn.Linear(num_inputs, ffn_num_hiddens)
        self.relu = nn.ReLU()
        self.dense2 = nn.Linear(ffn_num_hiddens, num_inputs)

    def forward(self, X):
        return self.dense2(self.relu(self.dense1(X)))


class AddNorm(nn.Module):
    def __init__(self, norm_shape, dropout):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.ln = nn.LayerNorm(norm_shape)

    def forward(self, X, Y):
        return self.ln(self.dropout(Y) + X)


class TransformerEncoderBlock(nn.Module):
    def __init__(self, num_hiddens, ffn_num_hiddens, num_heads, dropout):
        super().__init__()
        self.attention = MultiHeadAttention(num_hiddens, num_heads, dropout)
        self.addnorm1 = AddNorm(num_hiddens, dropout)
        self.ffn = PositionWiseFFN(num_hiddens, ffn_num_hiddens)
        self.addnorm2 = AddNorm(num_hiddens, dropout)

    def forward(self, X, valid_lens):
        Y = self.addnorm1(X, self.attention(X, X, X, valid_lens))
        return self.addnorm2(Y, self.ffn(Y))


class TransformerDecoderBlock(nn.Module):
    def __init__(self, num_hiddens, ffn_num_hiddens, num_heads, dropout):
        super().__init__()
        self.attention1 = MultiHeadAttention(num_hiddens, num_heads, dropout)
        self.addnorm1 = AddNorm(num_hiddens, dropout)
        self.attention2 = MultiHeadAttention(num_hiddens, num_heads, dropout)
        self.addnorm2 = AddNorm(num_hiddens, dropout)
        self.ffn = PositionWiseFFN(num_hiddens, ffn_num_hiddens)
        self.addnorm3 = AddNorm(num_hiddens, dropout)

    def forward(self, X, enc_outputs, enc_valid_lens, dec_valid_lens):
        X2 = self.attention1(X, X, X, dec_valid_lens)
        Y = self.addnorm1(X, X2)
        Y2 = self.attention2(Y, enc_outputs, enc_outputs, enc_valid_lens)
        Z = self.addnorm2(Y, Y2)
        return self.addnorm3(Z, self.ffn(Z))


class PositionalEncoding(nn.Module):
    def __init__(self, num_hiddens, dropout, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.P = torch.zeros((1, max_len, num_hiddens))
        X = torch.arange(max_len, dtype=torch.float32).reshape(-1, 1) / torch.pow(
            10000, torch.arange(0, num_hiddens, 2, dtype=torch.float32) / num_hiddens
        )
        self.P[:, :, 0::2] = torch.sin(X)
        self.P[:, :, 1::2] = torch.cos(X)

    def forward(self, X):
        X = X + self.P[:, : X.shape[1], :].to(X.device)
        return self.dropout(X)


# The adapter.

ARRAYS = "torch"
NAME = "valid lengths"
CONVENTIONS = {"odd_d_model": "refused"}


def _lengths(mask, batch, q_seq, kv_seq):
    """The lengths (batch,) or (batch, q_seq) that say the same as a mask, where there are any."""
    if mask is None:
        return None
    if mask.dim() == 3 or (mask.dim() == 4 and mask.shape[1] != 1):
        raise NotImplementedError("one mask for all heads")
    full = mask.broadcast_to(batch, 1, q_seq, kv_seq)[:, 0]
    lengths = full.sum(-1)
    if not torch.equal(torch.arange(kv_seq, device=mask.device) < lengths.unsqueeze(-1), full):
        raise NotImplementedError("masks that hide the end alone")
    return lengths[:, 0] if bool((lengths == lengths[:, :1]).all()) else lengths


def _attention(params, prefix, name):
    state = {}
    for role in "qkvo":
        weight = params[f"{prefix}w_{role}"]
        if weight.shape[0] != weight.shape[1]:
            raise NotImplementedError("num_hiddens is the width of everything")
        bias = params.get(f"{prefix}b_{role}")
        state[f"{name}W_{role}.weight"] = weight.T
        state[f"{name}W_{role}.bias"] = torch.zeros_like(weight[0]) if bias is None else bias
    return state


def _rest(params, norms):
    state = {}
    for i in range(1, norms + 1):
        state[f"addnorm{i}.ln.weight"] = params[f"norm_{i}.gamma"]
        state[f"addnorm{i}.ln.bias"] = params[f"norm_{i}.beta"]
    for i in "12":
        weight = params[f"feed_forward.w_{i}"]
        bias = params.get(f"feed_forward.b_{i}")
        state[f"ffn.dense{i}.weight"] = weight.T
        state[f"ffn.dense{i}.bias"] = torch.zeros_like(weight[0]) if bias is None else bias
    return state


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    state = _attention(params, "", "")
    if query.shape[-1] % num_heads:
        raise ValueError("num_heads: does not divide num_hiddens")
    lengths = _lengths(mask, query.shape[0], query.shape[1], key.shape[1])
    module = MultiHeadAttention(query.shape[-1], num_heads, 0.5).to(query).eval()
    return torch.func.functional_call(module, state, (query, key, value, lengths))


def encoder_layer(x, mask=None, *, num_heads, params):
    state = _attention(params, "self_attention.", "attention.") | _rest(params, 2)
    if x.shape[-1] % num_heads:
        raise ValueError("num_heads: does not divide num_hiddens")
    block = TransformerEncoderBlock(x.shape[-1], params["feed_forward.w_1"].shape[1], num_heads, 0.5).to(x).eval()
    return torch.func.functional_call(block, state, (x, _lengths(mask, x.shape[0], x.shape[1], x.shape[1])))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    state = _attention(params, "self_attention.", "attention1.") | _rest(params, 3)
    state |= _attention(params, "cross_attention.", "attention2.")
    if x.shape[-1] % num_heads:
        raise ValueError("num_heads: does not divide num_hiddens")
    block = TransformerDecoderBlock(x.shape[-1], params["feed_forward.w_1"].shape[1], num_heads, 0.5).to(x).eval()
    enc = _lengths(memory_mask, x.shape[0], x.shape[1], memory.shape[1])
    dec = _lengths(self_mask, x.shape[0], x.shape[1], x.shape[1])
    return torch.func.functional_call(block, state, (x, memory, enc, dec))


def positional_encoding(x):
    return PositionalEncoding(x.shape[-1], 0.1).eval()(x).to(x.dtype)


MISTAKES = {
    "lengths-repeated-wrongly": (
        "torch.repeat_interleave(valid_lens, repeats=self.num_heads, dim=0)",
        "valid_lens.repeat(self.num_heads, *[1] * (valid_lens.dim() - 1))",
        "The lengths are repeated in another order than the heads, so samples use each other's lengths.",
        ("mask-repeat-order",),
    ),
    "output-not-permuted": (
        "        X = X.permute(0, 2, 1, 3)\n        return X.reshape(X.shape[0], X.shape[1], -1)",
        "        return X.reshape(X.shape[0], X.shape[2], -1)",
        "The heads are joined without moving their axis back.",
        ("head-merge-view",),
    ),
    "lengths-swapped": (
        "Y2 = self.attention2(Y, enc_outputs, enc_outputs, enc_valid_lens)",
        "Y2 = self.attention2(Y, enc_outputs, enc_outputs, None)",
        "The cross-attention is given no lengths.",
        ("cross-mask-absent",),
    ),
    "add-norm-of-input": (
        "        Z = self.addnorm2(Y, Y2)\n",
        "        Z = self.addnorm2(X, Y2)\n",
        "The second residual starts from the block's input.",
        ("residual-wrong-x",),
    ),
    "off-by-one-length": (
        "[None, :] < valid_len[:, None]",
        "[None, :] <= valid_len[:, None]",
        "One key more than the length says is seen.",
        ("causal-plus-one",),
    ),
    "fill-of-nought": (
        "valid_lens, value=-1e9)",
        "valid_lens, value=0)",
        "Masked scores are set to nought, which leaves them weight.",
        ("mask-multiply-zero",),
    ),
    "scale-by-keys": (
        "d = queries.shape[-1]",
        "d = queries.shape[-2]",
        "The scores are divided by the root of the number of queries.",
        ("scale-seq-len",),
    ),
    "normalised-before-sum": (
        "return self.ln(self.dropout(Y) + X)",
        "return self.ln(self.dropout(Y)) + X",
        "The residual is added after the normalisation.",
        ("norm-before-add",),
    ),
}

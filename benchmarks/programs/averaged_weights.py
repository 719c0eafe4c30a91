# deserves: correct
"""Layers around the framework's multi-head attention that hand back its weights averaged over the heads, for plotting."""

import torch
import torch.nn as nn

ARRAYS = "torch"
NAME = "averaged weights"
CONVENTIONS = {"empty_row": "nan"}


class SelfBlock(nn.Module):
    def __init__(self, dim, heads, hidden, dropout=0.2):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.ln1 = nn.LayerNorm(dim, eps=1e-5)
        self.ln2 = nn.LayerNorm(dim, eps=1e-5)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.act = nn.ReLU()
        self.drop = nn.Dropout(dropout)

    def forward(self, x, pad=None, blocked=None):
        y, weights = self.attn(x, x, x, key_padding_mask=pad, attn_mask=blocked, need_weights=True)
        x = self.ln1(x + self.drop(y))
        y = self.fc2(self.drop(self.act(self.fc1(x))))
        return self.ln2(x + self.drop(y)), weights


class CrossBlock(nn.Module):
    def __init__(self, dim, heads, hidden, dropout=0.2):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)
        self.ln1 = nn.LayerNorm(dim)
        self.ln2 = nn.LayerNorm(dim)
        self.ln3 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, memory, blocked=None, pad=None, memory_pad=None, memory_blocked=None):
        y, _ = self.self_attn(x, x, x, attn_mask=blocked, key_padding_mask=pad)
        x = self.ln1(x + self.drop(y))
        y, weights = self.cross_attn(x, memory, memory, key_padding_mask=memory_pad, attn_mask=memory_blocked)
        x = self.ln2(x + self.drop(y))
        y = self.fc2(torch.relu(self.fc1(x)))
        return self.ln3(x + self.drop(y)), weights


# The adapter. The averaged weights are none of those that are asked for, so they are not returned.


def _split(mask, batch, q_seq, kv_seq):
    """A padding mask (batch, kv_seq) or a mask (q_seq, kv_seq), True where nothing may be seen."""
    if mask is None:
        return {}
    if mask.dim() == 4 and mask.shape[1] == mask.shape[2] == 1:
        return {"pad": ~mask[:, 0, 0].expand(batch, kv_seq)}
    if mask.dim() == 2:
        return {"blocked": ~mask.expand(q_seq, kv_seq)}
    if mask.dim() == 4 and mask.size(1) == 1:
        both = ~mask[:, 0].expand(batch, q_seq, kv_seq)
        return {"blocked": both}
    raise NotImplementedError("masks that differ from head to head")


def _per_head(masks, heads):
    if masks.get("blocked") is not None and masks["blocked"].dim() == 3:
        masks["blocked"] = masks["blocked"].repeat_interleave(heads, dim=0)
    return masks


def _load_attention(attention, params, prefix):
    """Copy our weights in; gradients go through torch.func in the layers below."""
    width = attention.embed_dim
    names = {}
    for role in "qkvo":
        if tuple(params[f"{prefix}w_{role}"].shape) != (width, width):
            raise NotImplementedError("one width")
    zero = params[f"{prefix}w_q"].new_zeros(width)
    names["in_proj_weight"] = torch.cat([params[f"{prefix}w_{role}"] for role in "qkv"], dim=1).mT
    names["in_proj_bias"] = torch.cat([params.get(f"{prefix}b_{role}", zero) for role in "qkv"])
    names["out_proj.weight"] = params[f"{prefix}w_o"].mT
    names["out_proj.bias"] = params.get(f"{prefix}b_o", zero)
    return names


def _rest(params, count):
    state = {}
    for i in "12":
        weight = params[f"feed_forward.w_{i}"]
        bias = params.get(f"feed_forward.b_{i}")
        state[f"fc{i}.weight"] = weight.mT
        state[f"fc{i}.bias"] = weight.new_zeros(weight.size(1)) if bias is None else bias
    for i in range(1, count + 1):
        state[f"ln{i}.weight"], state[f"ln{i}.bias"] = params[f"norm_{i}.gamma"], params[f"norm_{i}.beta"]
    return state


def _check(params, heads, d_model):
    if params["self_attention.w_q"].size(1) != d_model:
        raise NotImplementedError("heads divide the width")
    if d_model % heads:
        raise ValueError("num_heads: does not divide the width")


def encoder_layer(x, mask=None, *, num_heads, params):
    _check(params, num_heads, x.size(-1))
    block = SelfBlock(x.size(-1), num_heads, params["feed_forward.w_1"].size(1)).to(x).eval()
    attention = _load_attention(block.attn, params, "self_attention.")
    state = {f"attn.{name}": value for name, value in attention.items()} | _rest(params, 2)
    masks = _per_head(_split(mask, x.size(0), x.size(1), x.size(1)), num_heads)
    return torch.func.functional_call(block, state, (x,), masks)[0]


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    _check(params, num_heads, x.size(-1))
    block = CrossBlock(x.size(-1), num_heads, params["feed_forward.w_1"].size(1)).to(x).eval()
    state = _rest(params, 3)
    for ours, theirs in {"self_attention": "self_attn", "cross_attention": "cross_attn"}.items():
        attention = _load_attention(getattr(block, theirs), params, f"{ours}.")
        state |= {f"{theirs}.{name}": value for name, value in attention.items()}
    masks = _per_head(_split(self_mask, x.size(0), x.size(1), x.size(1)), num_heads)
    other = _per_head(_split(memory_mask, x.size(0), x.size(1), memory.size(1)), num_heads)
    masks |= {f"memory_{name}": value for name, value in other.items()}
    return torch.func.functional_call(block, state, (x, memory), masks)[0]


MISTAKES = {
    "weights-taken-for-output": (
        "y, weights = self.cross_attn(x, memory, memory, key_padding_mask=memory_pad, attn_mask=memory_blocked)",
        "y, weights = self.cross_attn(x, x, memory, key_padding_mask=memory_pad, attn_mask=memory_blocked)"
        " if x.shape == memory.shape else self.cross_attn(x, memory, x[:, :1].expand_as(memory))",
        "The keys or the values of the cross-attention come from the decoder.",
        (),
    ),
    "memory-mask-left-out": (
        "key_padding_mask=memory_pad, attn_mask=memory_blocked)",
        "attn_mask=memory_blocked)",
        "The padding of the memory is not hidden.",
        ("cross-mask-absent", "decoder_layer.edit@run_sublayer#1/weigh_keys/mask@mask:without-padding"),
    ),
    "self-padding-left-out": (
        "self.self_attn(x, x, x, attn_mask=blocked, key_padding_mask=pad)",
        "self.self_attn(x, x, x, attn_mask=blocked)",
        "The padding of the decoder's own sequence is not hidden.",
        (
            "target_mask: causal_only",
            "mask-not-inplace",
            "decoder_layer.edit@run_sublayer#0/weigh_keys/mask@mask:without-padding",
        ),
    ),
    "batch-second": (
        "self.attn = nn.MultiheadAttention(dim, heads, dropout=dropout, batch_first=True)",
        "self.attn = nn.MultiheadAttention(dim, heads, dropout=dropout)",
        "The attention takes the batch for the sequence.",
        ("seq-batch-swap",),
    ),
    "norm-before-residual": (
        "x = self.ln1(x + self.drop(y))\n        y = self.fc2(self.drop(",
        "x = x + self.ln1(self.drop(y))\n        y = self.fc2(self.drop(",
        "The first normalisation covers the attention and not the sum.",
        ("norm-before-add",),
    ),
    "eps": (
        "self.ln2 = nn.LayerNorm(dim, eps=1e-5)",
        "self.ln2 = nn.LayerNorm(dim, eps=1e-1)",
        "A tenth is added to the variance.",
        ("layer_norm_eps: 1e-1",),
    ),
    "third-norm-reused": (
        "return self.ln3(x + self.drop(y)), weights",
        "return self.ln2(x + self.drop(y)), weights",
        "The decoder's feed-forward network shares the normalisation of the cross-attention.",
        ("wrong-ln-reused",),
    ),
}

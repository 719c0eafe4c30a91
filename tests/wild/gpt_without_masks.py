# deserves: variant norm_placement=pre, final_norm=after_stack
"""A decoder-only model as in lectures: a buffer of tril, no argument for a mask, one fused projection in thirds."""

import math

import torch
import torch.nn as nn
from torch.nn import functional as F


class CausalAttention(nn.Module):
    def __init__(self, width, heads, context=32):
        super().__init__()
        assert width % heads == 0
        self.attn = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.drop = nn.Dropout(0.1)
        self.heads = heads
        self.register_buffer("past", torch.tril(torch.ones(context, context)).view(1, 1, context, context))

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = self.attn(x).split(width, dim=-1)
        q = q.view(batch, tokens, self.heads, -1).transpose(1, 2)
        k = k.view(batch, tokens, self.heads, -1).transpose(1, 2)
        v = v.view(batch, tokens, self.heads, -1).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.shape[-1]))
        att = att.masked_fill(self.past[:, :, :tokens, :tokens] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = self.drop(att) @ v
        y = y.transpose(1, 2).contiguous().view(batch, tokens, width)
        return self.proj(y)


class Block(nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
        self.wide, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.narrow(F.relu(self.wide(self.norm_2(x))))


class Trunk(nn.Module):
    def __init__(self, layers, width, heads, inner):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width, heads, inner) for _ in range(layers)])
        self.last_norm = nn.LayerNorm(width)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.last_norm(x)


# The adapter.

from torch.func import functional_call  # noqa: E402

from goldformer.adapters.layouts import (  # noqa: E402
    is_causal,
    join_projections,
    map_state,
    nest_names,
    require_square_projections,
    separate_projections,
)

ARRAYS = "torch"
NAME = "lecture GPT"
CONVENTIONS = {"later_tokens": "hidden_only"}
ATTENTION = {"w_qkv": "attn.weight", "w_o": "proj.weight"}
LAYER = {
    "self_attention.w_qkv": "attention.attn.weight",
    "self_attention.w_o": "attention.proj.weight",
    "feed_forward.w_1": "wide.weight",
    "feed_forward.w_2": "narrow.weight",
    "norm_1.gamma": "norm_1.weight",
    "norm_2.gamma": "norm_2.weight",
}
STACK = {**nest_names(LAYER, "encoder.*", "blocks.*"), "norm.gamma": "last_norm.weight"}


def _run(build, names, x, mask, num_heads, params):
    if not is_causal(mask, q_seq=x.shape[1], kv_seq=x.shape[1]):
        raise NotImplementedError("it takes no mask")
    if x.shape[1] > 32:
        raise NotImplementedError("it is built for 32 tokens")
    require_square_projections(params)
    module = build(x.shape[-1]).to(x).eval()
    state = map_state(names, join_projections(params, num_heads, "qkv"), module)
    return functional_call(module, state, (x,), strict=True)


def fused_multi_head_attention(x, mask=None, *, num_heads, params):
    params = separate_projections(params, num_heads)
    return _run(lambda width: CausalAttention(width, num_heads), ATTENTION, x, mask, num_heads, params)


def encoder_layer(x, mask=None, *, num_heads, params):
    inner = params["feed_forward.w_1"].shape[1]
    return _run(lambda width: Block(width, num_heads, inner), LAYER, x, mask, num_heads, params)


def encoder(x, mask=None, *, num_heads, num_layers, params):
    inner = params["encoder.0.feed_forward.w_1"].shape[1]
    width = x.shape[-1]
    # Without the declaration the last norm is that of a new module.
    norm = {"norm.gamma": x.new_ones(width), "norm.beta": x.new_zeros(width)}
    return _run(lambda w: Trunk(num_layers, w, num_heads, inner), STACK, x, mask, num_heads, norm | dict(params))


MISTAKES = {
    "thirds-in-other-order": (
        "q, k, v = self.attn(x)",
        "k, q, v = self.attn(x)",
        "The thirds of the fused projection are taken as key, query and value.",
        (
            "fused_multi_head_attention.edit@attend_heads/result.output@arguments-exchanged:query:key",
            "scaled_dot_product_attention.edit@score_keys/result@transposed:-2:-1",
        ),
    ),
    "scale-missing": (
        " * (1.0 / math.sqrt(k.shape[-1]))",
        "",
        "The scores are not divided.",
        ("scale-missing",),
    ),
    "scale-of-the-model": (
        "math.sqrt(k.shape[-1])",
        "math.sqrt(width)",
        "The scores are divided by the root of the model's width.",
        ("scale-d-model",),
    ),
    "hidden-after-softmax": (
        'att = att.masked_fill(self.past[:, :, :tokens, :tokens] == 0, float("-inf"))\n        att = F.softmax(att, dim=-1)',
        "att = F.softmax(att, dim=-1)\n        att = att.masked_fill(self.past[:, :, :tokens, :tokens] == 0, 0.0)",
        "Later tokens are hidden after the softmax.",
        ("mask-after-softmax",),
    ),
    "next-token-seen": (
        "torch.tril(torch.ones(context, context))",
        "torch.tril(torch.ones(context, context), diagonal=1)",
        "Every token sees the one that it should predict.",
        (),
    ),
    "softmax-over-queries": (
        "F.softmax(att, dim=-1)",
        "F.softmax(att, dim=-2)",
        "The softmax runs over the queries.",
        ("softmax-query-axis",),
    ),
    "output-projection-unused": (
        "return self.proj(y)",
        "return y",
        "The heads are concatenated and not projected.",
        ("wo-missing",),
    ),
    "masked-scores-of-minus-one": (
        'float("-inf")',
        "-1.0",
        "Masked scores become -1.",
        (),
    ),
    "second-norm-unused": (
        "self.wide(self.norm_2(x))",
        "self.wide(self.norm_1(x))",
        "The feed-forward network reads through the first normalisation.",
        ("wrong-ln-reused",),
    ),
}

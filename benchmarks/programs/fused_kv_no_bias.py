# deserves: correct
# declares: biases=none
"""Terse modules with one projection for queries and one for keys and values together, no biases, and chunked results."""

import torch
from torch import einsum, nn


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.scale = dim_head**-0.5
        self.heads = heads
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.attn_drop = nn.Dropout(dropout)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, context=None, mask=None):
        h = self.heads
        context = default(context, x)
        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (t.reshape(*t.shape[:2], h, -1).transpose(1, 2) for t in (q, k, v))
        sim = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        if exists(mask):
            max_neg_value = -torch.finfo(sim.dtype).max
            sim = sim.masked_fill(~mask, max_neg_value)
        attn = sim.softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", self.attn_drop(attn), v)
        out = out.transpose(1, 2).flatten(2)
        return self.to_out(out)


def FeedForward(dim, hidden, dropout=0.0):
    return nn.Sequential(
        nn.Linear(dim, hidden, bias=False),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, dim, bias=False),
    )


class PostNorm(nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.fn = fn
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, **kwargs):
        return self.norm(self.fn(x, **kwargs) + x)


class Encoder(nn.Module):
    def __init__(self, dim, depth, heads, dim_head, hidden):
        super().__init__()
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(
                nn.ModuleList(
                    [PostNorm(dim, Attention(dim, heads, dim_head, 0.1)), PostNorm(dim, FeedForward(dim, hidden, 0.1))]
                )
            )

    def forward(self, x, mask=None):
        for attn, ff in self.layers:
            x = attn(x, mask=mask)
            x = ff(x)
        return x


class Decoder(nn.Module):
    def __init__(self, dim, depth, heads, dim_head, hidden):
        super().__init__()
        self.layers = nn.ModuleList([])
        for _ in range(depth):
            self.layers.append(
                nn.ModuleList(
                    [
                        PostNorm(dim, Attention(dim, heads, dim_head, 0.1)),
                        PostNorm(dim, Attention(dim, heads, dim_head, 0.1)),
                        PostNorm(dim, FeedForward(dim, hidden, 0.1)),
                    ]
                )
            )

    def forward(self, x, context, mask=None, context_mask=None):
        for attn, cross, ff in self.layers:
            x = attn(x, mask=mask)
            x = cross(x, context=context, mask=context_mask)
            x = ff(x)
        return x


# The adapter.

ARRAYS = "torch"
NAME = "keys and values fused"


def _attention(params, prefix, ours):
    if any(f"{ours}.b_{role}" in params for role in "qkvo"):
        raise NotImplementedError("no biases")
    if params[f"{ours}.w_v"].shape != params[f"{ours}.w_k"].shape:
        raise NotImplementedError("keys and values of one width")
    keys_values = torch.cat([params[f"{ours}.w_k"], params[f"{ours}.w_v"]], dim=1)
    return {
        f"{prefix}.fn.to_q.weight": params[f"{ours}.w_q"].t(),
        f"{prefix}.fn.to_kv.weight": keys_values.t(),
        f"{prefix}.fn.to_out.weight": params[f"{ours}.w_o"].t(),
    }


def _layer(params, ours, prefix, attentions):
    state = {}
    for i, name in enumerate(attentions):
        state |= _attention(params, f"{prefix}.{i}", f"{ours}{name}")
    last = len(attentions)
    if f"{ours}feed_forward.b_1" in params or f"{ours}feed_forward.b_2" in params:
        raise NotImplementedError("no biases")
    state[f"{prefix}.{last}.fn.0.weight"] = params[f"{ours}feed_forward.w_1"].t()
    state[f"{prefix}.{last}.fn.3.weight"] = params[f"{ours}feed_forward.w_2"].t()
    for i in range(last + 1):
        state[f"{prefix}.{i}.norm.weight"] = params[f"{ours}norm_{i + 1}.gamma"]
        state[f"{prefix}.{i}.norm.bias"] = params[f"{ours}norm_{i + 1}.beta"]
    return state


def _run(kind, depth, heads, params, names, attentions, args):
    width = params[f"{names[0]}self_attention.w_q"].size(1)
    if width % heads:
        raise ValueError(f"num_heads: {heads} does not divide {width}")
    dim, hidden = params[f"{names[0]}feed_forward.w_1"].shape
    with torch.device("meta"):
        module = kind(dim, depth, heads, width // heads, hidden).eval()
    state = {}
    for i, name in enumerate(names):
        state |= _layer(params, name, f"layers.{i}", attentions)
    return torch.func.functional_call(module, state, args, strict=True)


def _mask(mask, x, heads, keys):
    return None if mask is None else mask.broadcast_to(x.size(0), heads, x.size(1), keys.size(1))


def encoder_layer(x, mask=None, *, num_heads, params):
    return _run(Encoder, 1, num_heads, params, [""], ["self_attention"], (x, _mask(mask, x, num_heads, x)))


def encoder(x, mask=None, *, num_heads, num_layers, params):
    names = [f"encoder.{i}." for i in range(num_layers)]
    return _run(Encoder, num_layers, num_heads, params, names, ["self_attention"], (x, _mask(mask, x, num_heads, x)))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    args = (x, memory, _mask(self_mask, x, num_heads, x), _mask(memory_mask, x, num_heads, memory))
    return _run(Decoder, 1, num_heads, params, [""], ["self_attention", "cross_attention"], args)


def decoder(x, memory, self_mask=None, memory_mask=None, *, num_heads, num_layers, params):
    args = (x, memory, _mask(self_mask, x, num_heads, x), _mask(memory_mask, x, num_heads, memory))
    names = [f"decoder.{i}." for i in range(num_layers)]
    return _run(Decoder, num_layers, num_heads, params, names, ["self_attention", "cross_attention"], args)


MISTAKES = {
    "context-ignored": (
        "context = default(context, x)",
        "context = x",
        "The cross-attention attends to the decoder itself, as the context is thrown away.",
        (
            "cross-q-source",
            "cross-missing",
            "decoder_layer.edit@cross_attend/memory@read:cross_attend/x",
            "decoder_layer.edit@cross_attend/memory@read:run_sublayer/x",
        ),
    ),
    "keys-and-values-swapped": (
        "k, v = self.to_kv(context).chunk(2, dim=-1)",
        "v, k = self.to_kv(context).chunk(2, dim=-1)",
        "The halves of the fused projection are taken in the wrong order.",
        ("kv-swap",),
    ),
    "context-mask-of-self": (
        "x = cross(x, context=context, mask=context_mask)",
        "x = cross(x, context=context)",
        "The padding of the memory is not hidden.",
        ("cross-mask-absent",),
    ),
    "order-of-sublayers": (
        "            x = attn(x, mask=mask)\n            x = cross(x, context=context, mask=context_mask)\n",
        "            x = cross(x, context=context, mask=context_mask)\n            x = attn(x, mask=mask)\n",
        "The decoder attends to the memory before it attends to itself.",
        ("cross-before-self",),
    ),
    "scale-by-inner-width": (
        "self.scale = dim_head**-0.5",
        "self.scale = inner_dim**-0.5",
        "The scores are scaled by the width of all heads together.",
        ("scale-d-model",),
    ),
    "mask-not-inverted": (
        "sim = sim.masked_fill(~mask, max_neg_value)",
        "sim = sim.masked_fill(mask, max_neg_value)",
        "What may be attended to is hidden.",
        ("mask-inverted",),
    ),
    "residual-of-result": (
        "self.norm(self.fn(x, **kwargs) + x)",
        "self.norm(self.fn(x, **kwargs)) + x",
        "The residual is added after the normalisation.",
        ("norm-before-add",),
    ),
    "dropout-stays-on": (
        'out = einsum("b h i j, b h j d -> b h i d", self.attn_drop(attn), v)',
        'out = einsum("b h i j, b h j d -> b h i d", nn.functional.dropout(attn, 0.1), v)',
        "Weights are dropped in evaluation too.",
        ("dropout-in-evaluation", "nondeterminism"),
    ),
}

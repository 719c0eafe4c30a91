# deserves: correct
"""A notebook in which every head is a module of its own with three small linear maps, joined by a concatenation."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ARRAYS = "torch"


class Head(nn.Module):
    def __init__(self, d_query, d_key, d_value, d_k, d_v):
        super().__init__()
        self.query = nn.Linear(d_query, d_k)
        self.key = nn.Linear(d_key, d_k)
        self.value = nn.Linear(d_value, d_v)
        self.d_k = d_k

    def forward(self, q, k, v, mask=None):
        q, k, v = self.query(q), self.key(k), self.value(v)
        energy = q @ k.transpose(1, 2)
        energy = energy / self.d_k**0.5
        if mask is not None:
            energy = energy.masked_fill(~mask, -1e9)
        attention = F.softmax(energy, dim=-1)
        return attention @ v, attention


class MultiHead(nn.Module):
    def __init__(self, heads, d_query, d_key, d_value, d_k, d_v, d_out):
        super().__init__()
        self.heads = nn.ModuleList(Head(d_query, d_key, d_value, d_k, d_v) for _ in range(heads))
        self.out = nn.Linear(heads * d_v, d_out)

    def forward(self, q, k, v, mask=None):
        results, attentions = [], []
        for i, head in enumerate(self.heads):
            own = mask if mask is None or mask.dim() == 3 else mask[:, i]
            result, attention = head(q, k, v, own)
            results.append(result)
            attentions.append(attention)
        return self.out(torch.cat(results, dim=-1)), torch.stack(attentions, dim=1)


class Block(nn.Module):
    def __init__(self, heads, d_model, d_k, d_v, d_ff):
        super().__init__()
        self.attention = MultiHead(heads, d_model, d_model, d_model, d_k, d_v, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norm2 = nn.LayerNorm(d_model)

    def forward(self, x, mask=None):
        attended, weights = self.attention(x, x, x, mask)
        x = self.norm1(x + attended)
        return self.norm2(x + self.ff(x)), weights


# The adapter.

NAME = "a list of heads"


def _linear(layer, weight, bias):
    """Make the layer compute with our arrays, so that gradients reach them."""
    del layer.weight, layer.bias
    layer.weight = weight.t()
    layer.bias = bias


def _bias(params, name, width):
    bias = params.get(name)
    return params["w_" + name[-1]].new_zeros(width) if bias is None else bias


def _fill(module, params, heads):
    for role, attribute in {"q": "query", "k": "key", "v": "value"}.items():
        weight = params[f"w_{role}"]
        bias = _bias(params, f"b_{role}", weight.size(1))
        width = weight.size(1) // heads
        for i, head in enumerate(module.heads):
            block = slice(i * width, (i + 1) * width)
            _linear(getattr(head, attribute), weight[:, block], bias[block])
    _linear(module.out, params["w_o"], _bias(params, "b_o", params["w_o"].size(1)))


def _widths(params, heads):
    columns = [params[f"w_{role}"].size(1) for role in "qkv"]
    if any(width % heads for width in columns) or columns[0] != columns[1]:
        raise ValueError(f"num_heads: {heads} heads do not divide {columns}")
    if params["w_o"].size(0) != columns[2]:
        raise ValueError("w_o: needs as many rows as w_v has columns")
    return columns[0] // heads, columns[2] // heads


def _mask(mask, batch, heads, q_seq, kv_seq):
    return None if mask is None else mask.broadcast_to(batch, heads, q_seq, kv_seq)


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    d_k, d_v = _widths(params, num_heads)
    module = MultiHead(num_heads, *(params[f"w_{r}"].size(0) for r in "qkv"), d_k, d_v, params["w_o"].size(1))
    _fill(module, params, num_heads)
    return module(query, key, value, _mask(mask, query.size(0), num_heads, query.size(1), key.size(1)))


def encoder_layer(x, mask=None, *, num_heads, params):
    attention = {name[15:]: value for name, value in params.items() if name.startswith("self_attention.")}
    d_model, d_ff = params["feed_forward.w_1"].shape
    block = Block(num_heads, d_model, *_widths(attention, num_heads), d_ff)
    _fill(block.attention, attention, num_heads)
    for layer, i, width in ((block.ff[0], 1, d_ff), (block.ff[2], 2, d_model)):
        bias = params.get(f"feed_forward.b_{i}")
        _linear(layer, params[f"feed_forward.w_{i}"], x.new_zeros(width) if bias is None else bias)
    for norm, i in ((block.norm1, 1), (block.norm2, 2)):
        del norm.weight, norm.bias
        norm.weight, norm.bias = params[f"norm_{i}.gamma"], params[f"norm_{i}.beta"]
    output, weights = block(x, _mask(mask, x.size(0), num_heads, x.size(1), x.size(1)))
    return {"output": output, "weights": weights}


MISTAKES = {
    "one-head-for-all": (
        "result, attention = head(q, k, v, own)",
        "result, attention = self.heads[0](q, k, v, own)",
        "Every round of the loop asks the first head.",
        ("head-shared-w",),
    ),
    "mask-of-first-head": (
        "mask[:, i]",
        "mask[:, 0]",
        "All heads are given the mask of the first head.",
        ("mask-first-head",),
    ),
    "heads-averaged": (
        "torch.stack(attentions, dim=1)",
        "torch.stack(attentions, dim=1).mean(dim=1)",
        "The weights of the heads are averaged.",
        ("weights-averaged",),
    ),
    "keys-from-query-input": (
        "q, k, v = self.query(q), self.key(k), self.value(v)",
        "q, k, v = self.query(q), self.key(k), self.value(k)",
        "The values are projected from the keys' input.",
        ("value-from-key-input",),
    ),
    "softmax-over-queries": (
        "F.softmax(energy, dim=-1)",
        "F.softmax(energy, dim=1)",
        "The softmax runs over the queries.",
        ("softmax-query-axis",),
    ),
    "scale-after-mask": (
        "energy = energy / self.d_k**0.5",
        "energy = energy / q.size(1) ** 0.5",
        "The scores are divided by the root of the number of queries.",
        ("scale-seq-len",),
    ),
    "heads-reversed": (
        "torch.cat(results, dim=-1)",
        "torch.cat(results[::-1], dim=-1)",
        "The heads are joined in the opposite order.",
        ("multi_head_attention.edit@merge_heads/heads@reversed:-3",),
    ),
    "second-residual-missing": (
        "self.norm2(x + self.ff(x))",
        "self.norm2(self.ff(x))",
        "The feed-forward network has no residual.",
        ("residual-missing",),
    ),
}

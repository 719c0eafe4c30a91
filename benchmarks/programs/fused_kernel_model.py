# deserves: correct
"""A compact whole model on the framework's fused attention kernel, with boolean masks and a positional table as a buffer."""

import torch
import torch.nn.functional as F
from torch import nn

from goldformer.adapters.layouts import part


class Attend(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        if width % heads:
            raise ValueError("num_heads: heads must divide the width")
        self.heads = heads
        self.wq = nn.Linear(width, width)
        self.wkv = nn.Linear(width, 2 * width)
        self.wo = nn.Linear(width, width)

    def forward(self, x, y, keep=None):
        b, t, c = x.shape
        s = y.shape[1]
        q = self.wq(x).view(b, t, self.heads, c // self.heads).transpose(1, 2)
        kv = self.wkv(y).view(b, s, 2, self.heads, c // self.heads)
        k, v = kv.permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.wo(out.transpose(1, 2).reshape(b, t, c))


class Layer(nn.Module):
    def __init__(self, width, heads, hidden, cross=False, p=0.1):
        super().__init__()
        self.own = Attend(width, heads)
        self.own_norm = nn.LayerNorm(width)
        self.other = Attend(width, heads) if cross else None
        self.other_norm = nn.LayerNorm(width) if cross else None
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(p), nn.Linear(hidden, width))
        self.mlp_norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(p)

    def forward(self, x, keep=None, memory=None, memory_keep=None):
        x = self.own_norm(x + self.drop(self.own(x, x, keep)))
        if self.other is not None:
            x = self.other_norm(x + self.drop(self.other(x, memory, memory_keep)))
        return self.mlp_norm(x + self.drop(self.mlp(x)))


class Seq2Seq(nn.Module):
    def __init__(self, words, width, heads, hidden, enc, dec, pad, longest=5000):
        super().__init__()
        self.pad = pad
        self.words = nn.Embedding(words, width)
        self.register_buffer("table", self.make_table(longest, width), persistent=False)
        self.enc = nn.ModuleList(Layer(width, heads, hidden) for _ in range(enc))
        self.dec = nn.ModuleList(Layer(width, heads, hidden, cross=True) for _ in range(dec))
        self.out = nn.Linear(width, words)

    @staticmethod
    def make_table(longest, width):
        i = torch.arange(width)
        rate = torch.pow(10000.0, -(i - i % 2).float() / width)
        angle = torch.arange(longest).float()[:, None] * rate[None]
        return torch.where(i % 2 == 0, angle.sin(), angle.cos())

    def read(self, ids):
        return self.words(ids) + self.table[: ids.shape[1]]

    def forward(self, source, target):
        keep = (source != self.pad)[:, None, None, :]
        n = target.shape[1]
        causal = torch.ones(n, n, dtype=torch.bool, device=target.device).tril()
        target_keep = causal & (target != self.pad)[:, None, None, :]
        memory = self.read(source)
        for layer in self.enc:
            memory = layer(memory, keep)
        x = self.read(target)
        for layer in self.dec:
            x = layer(x, target_keep, memory, keep)
        return self.out(x), memory, x


# The adapter.

ARRAYS = "torch"
NAME = "fused kernel"
CONVENTIONS = {"empty_row": "zeros"}


def scaled_dot_product_attention(query, key, value, mask=None):
    if query.shape[:-2] != key.shape[:-2]:
        raise ValueError("query, key: other leading axes")
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def _linear(state, name, weight, bias):
    state[f"{name}.weight"] = weight.mT
    state[f"{name}.bias"] = weight.new_zeros(weight.size(1)) if bias is None else bias


def _attention(state, name, p):
    width = p["w_q"].size(0)
    if any(p[f"w_{r}"].shape != (width, width) for r in "qkvo"):
        raise NotImplementedError("one width")
    _linear(state, f"{name}.wq", p["w_q"], p.get("b_q"))
    _linear(state, f"{name}.wo", p["w_o"], p.get("b_o"))
    zero = p["w_k"].new_zeros(width)
    bias = torch.cat([p.get("b_k", zero), p.get("b_v", zero)])
    _linear(state, f"{name}.wkv", torch.cat([p["w_k"], p["w_v"]], 1), bias)


def _layer(state, name, p, cross):
    _attention(state, f"{name}own", part(p, "self_attention"))
    norms = ["own_norm", "other_norm", "mlp_norm"] if cross else ["own_norm", "mlp_norm"]
    if cross:
        _attention(state, f"{name}other", part(p, "cross_attention"))
    for i, norm in enumerate(norms, 1):
        state[f"{name}{norm}.weight"], state[f"{name}{norm}.bias"] = p[f"norm_{i}.gamma"], p[f"norm_{i}.beta"]
    _linear(state, f"{name}mlp.0", p["feed_forward.w_1"], p.get("feed_forward.b_1"))
    _linear(state, f"{name}mlp.3", p["feed_forward.w_2"], p.get("feed_forward.b_2"))


def encoder_layer(x, mask=None, *, num_heads, params):
    state = {}
    _layer(state, "", params, cross=False)
    with torch.device("meta"):
        layer = Layer(x.size(-1), num_heads, params["feed_forward.w_1"].size(1)).eval()
    return torch.func.functional_call(layer, state, (x, mask))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    state = {}
    _layer(state, "", params, cross=True)
    with torch.device("meta"):
        layer = Layer(x.size(-1), num_heads, params["feed_forward.w_1"].size(1), cross=True).eval()
    return torch.func.functional_call(layer, state, (x, self_mask, memory, memory_mask))


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    table = params["table"]
    state = {"words.weight": table}
    for i in range(num_encoder_layers):
        _layer(state, f"enc.{i}.", part(params, f"encoder.{i}"), cross=False)
    for i in range(num_decoder_layers):
        _layer(state, f"dec.{i}.", part(params, f"decoder.{i}"), cross=True)
    _linear(state, "out", params["w_vocab"], params.get("b_vocab"))
    hidden = params["encoder.0.feed_forward.w_1"].size(1)
    model = Seq2Seq(*table.shape, num_heads, hidden, num_encoder_layers, num_decoder_layers, pad_id)
    logits, memory, decoded = torch.func.functional_call(model.to(table).eval(), state, (source, target))
    return {"logits": logits, "memory": memory, "decoded": decoded}


MISTAKES = {
    "kv-axes-confused": (
        "kv = self.wkv(y).view(b, s, 2, self.heads, c // self.heads)\n        k, v = kv.permute(2, 0, 3, 1, 4)",
        "kv = self.wkv(y).view(b, s, self.heads, 2, c // self.heads)\n        k, v = kv.permute(3, 0, 2, 1, 4)",
        "The fused columns are read as if they were laid out head by head.",
        (),
    ),
    "memory-mask-and-own-mask": (
        "x = layer(x, target_keep, memory, keep)",
        "x = layer(x, keep & causal if keep.shape[-1] == n else causal, memory, keep)",
        "The target's self-attention is given the padding of the source where the lengths agree, and none elsewhere.",
        ("target_mask: causal_only",),
    ),
    "memory-through-norm": (
        "self.other(x, memory, memory_keep)",
        "self.other(x, self.other_norm(memory), memory_keep)",
        "The memory is normalised before the decoder reads it.",
        (),
    ),
    "output-not-moved": (
        "self.wo(out.transpose(1, 2).reshape(b, t, c))",
        "self.wo(out.reshape(b, t, c))",
        "The heads are joined without moving their axis back.",
        ("head-merge-view",),
    ),
    "kernel-scale": (
        "attn_mask=keep)\n        return self.wo",
        "attn_mask=keep, scale=c**-0.5)\n        return self.wo",
        "The scores are scaled by the width of the model.",
        ("scale-d-model",),
    ),
    "mask-inverted": (
        "target_keep = causal & (target != self.pad)",
        "target_keep = causal & (target == self.pad)",
        "The target's words are hidden and its padding is kept.",
        (),
    ),
    "last-layer-skipped": (
        "        for layer in self.enc:\n            memory = layer(memory, keep)",
        "        for layer in self.enc[: max(1, len(self.enc) - 1)]:\n            memory = layer(memory, keep)",
        "The last encoder layer of several is never run.",
        ("layer-skipped",),
    ),
    "dropout-in-evaluation": (
        "x = self.own_norm(x + self.drop(self.own(x, x, keep)))",
        "x = self.own_norm(x + F.dropout(self.own(x, x, keep), 0.1))",
        "The functional dropout drops in evaluation too.",
        ("dropout-in-evaluation", "nondeterminism"),
    ),
}

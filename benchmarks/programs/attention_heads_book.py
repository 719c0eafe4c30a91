# deserves: variant norm_placement=pre, layer_norm_eps=1e-12, empty_row=nan, positions=learned
"""A book chapter's encoder: a class for each head, normalisation with skip connections before each sub-layer, learnt positions."""

from math import sqrt

import torch
import torch.nn.functional as F
from torch import nn


def scaled_dot_product(query, key, value, mask=None):
    dim_k = query.size(-1)
    scores = torch.bmm(query, key.transpose(1, 2)) / sqrt(dim_k)
    if mask is not None:
        scores = scores.masked_fill(mask == 0, float("-inf"))
    weights = F.softmax(scores, dim=-1)
    return torch.bmm(weights, value)


class AttentionHead(nn.Module):
    def __init__(self, embed_dim, head_dim):
        super().__init__()
        self.q = nn.Linear(embed_dim, head_dim)
        self.k = nn.Linear(embed_dim, head_dim)
        self.v = nn.Linear(embed_dim, head_dim)

    def forward(self, query, key, value, mask=None):
        return scaled_dot_product(self.q(query), self.k(key), self.v(value), mask)


class MultiHeadAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        embed_dim = config["hidden_size"]
        num_heads = config["num_attention_heads"]
        head_dim = embed_dim // num_heads
        self.heads = nn.ModuleList([AttentionHead(embed_dim, head_dim) for _ in range(num_heads)])
        self.output_linear = nn.Linear(embed_dim, embed_dim)

    def forward(self, query, key, value, mask=None):
        x = torch.cat([h(query, key, value, mask) for h in self.heads], dim=-1)
        return self.output_linear(x)


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.linear_1 = nn.Linear(config["hidden_size"], config["intermediate_size"])
        self.linear_2 = nn.Linear(config["intermediate_size"], config["hidden_size"])
        self.dropout = nn.Dropout(config["hidden_dropout_prob"])

    def forward(self, x):
        x = self.linear_1(x)
        x = F.relu(x)
        x = self.linear_2(x)
        return self.dropout(x)


class TransformerEncoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layer_norm_1 = nn.LayerNorm(config["hidden_size"], eps=1e-12)
        self.layer_norm_2 = nn.LayerNorm(config["hidden_size"], eps=1e-12)
        self.attention = MultiHeadAttention(config)
        self.feed_forward = FeedForward(config)

    def forward(self, x, mask=None):
        hidden_state = self.layer_norm_1(x)
        x = x + self.attention(hidden_state, hidden_state, hidden_state, mask=mask)
        return x + self.feed_forward(self.layer_norm_2(x))


class Embeddings(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.token_embeddings = nn.Embedding(config["vocab_size"], config["hidden_size"])
        self.position_embeddings = nn.Embedding(config["max_position_embeddings"], config["hidden_size"])
        self.layer_norm = nn.LayerNorm(config["hidden_size"], eps=1e-12)
        self.dropout = nn.Dropout(0.5)

    def forward(self, input_ids):
        position_ids = torch.arange(input_ids.size(1), dtype=torch.long, device=input_ids.device).unsqueeze(0)
        embeddings = self.token_embeddings(input_ids) + self.position_embeddings(position_ids)
        return self.dropout(self.layer_norm(embeddings))


class TransformerEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList([TransformerEncoderLayer(config) for _ in range(config["num_hidden_layers"])])

    def run_layers(self, x, mask=None):
        for layer in self.layers:
            x = layer(x, mask=mask)
        return x

    def forward(self, input_ids, mask=None):
        return self.run_layers(self.embeddings(input_ids), mask)


# The adapter. The embeddings of this model have no counterpart and are left out.

ARRAYS = "torch"
NAME = "a class for each head"


def _config(params, heads, layers=1, prefix=""):
    hidden_size, intermediate_size = params[f"{prefix}feed_forward.w_1"].shape
    return {
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "hidden_dropout_prob": 0.1,
        "vocab_size": 4,
        "max_position_embeddings": 4,
    }


def _attention(params, prefix, at, heads):
    state = {}
    for role, name in {"q": "q", "k": "k", "v": "v", "o": None}.items():
        weight = params[f"{prefix}w_{role}"]
        if weight.size(0) != weight.size(1):
            raise NotImplementedError("hidden_size in and out")
        if weight.size(1) % heads:
            raise ValueError("num_heads: does not divide hidden_size")
        bias = params.get(f"{prefix}b_{role}", weight.new_zeros(weight.size(1)))
        if name is None:
            state[f"{at}output_linear.weight"], state[f"{at}output_linear.bias"] = weight.T, bias
            continue
        for i, (w, b) in enumerate(zip(weight.chunk(heads, dim=1), bias.chunk(heads))):
            state[f"{at}heads.{i}.{name}.weight"], state[f"{at}heads.{i}.{name}.bias"] = w.T, b
    return state


def _layer(params, prefix, at, heads):
    state = _attention(params, f"{prefix}self_attention.", f"{at}attention.", heads)
    for i in "12":
        w = params[f"{prefix}feed_forward.w_{i}"]
        state[f"{at}feed_forward.linear_{i}.weight"] = w.T
        state[f"{at}feed_forward.linear_{i}.bias"] = params.get(f"{prefix}feed_forward.b_{i}", w.new_zeros(w.size(1)))
        state[f"{at}layer_norm_{i}.weight"] = params[f"{prefix}norm_{i}.gamma"]
        state[f"{at}layer_norm_{i}.bias"] = params[f"{prefix}norm_{i}.beta"]
    return state


def _mask(mask, x, keys):
    if mask is None:
        return None
    if mask.dim() == 3 or (mask.dim() == 4 and mask.size(1) > 1):
        raise NotImplementedError("every head has the same mask")
    return mask.broadcast_to(x.size(0), 1, x.size(1), keys.size(1))[:, 0]


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    state = _attention(params, "", "", num_heads)
    module = MultiHeadAttention({"hidden_size": query.size(-1), "num_attention_heads": num_heads}).to(query)
    return torch.func.functional_call(module, state, (query, key, value, _mask(mask, query, key)))


def encoder_layer(x, mask=None, *, num_heads, params):
    state = _layer(params, "", "", num_heads)
    module = TransformerEncoderLayer(_config(params, num_heads)).to(x).eval()
    return torch.func.functional_call(module, state, (x, _mask(mask, x, x)))


class _Layers(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encoder = TransformerEncoder(config)

    def forward(self, x, mask):
        return self.encoder.run_layers(x, mask)


def encoder(x, mask=None, *, num_heads, num_layers, params):
    state = {}
    for i in range(num_layers):
        state |= _layer(params, f"encoder.{i}.", f"encoder.layers.{i}.", num_heads)
    module = _Layers(_config(params, num_heads, num_layers, "encoder.0.")).to(x).eval()
    return torch.func.functional_call(module, state, (x, _mask(mask, x, x)))


MISTAKES = {
    "heads-share-values": (
        "[h(query, key, value, mask) for h in self.heads]",
        "[h(query, value, key, mask) for h in self.heads]",
        "Keys and values change places on the way into the heads.",
        (
            "kv-swap",
            "multi_head_attention.edit@multi_head_attention/key@exchange:multi_head_attention/value",
        ),
    ),
    "heads-side-by-side-in-time": (
        "for h in self.heads], dim=-1)",
        "for h in self.heads], dim=-1).flip(-1)",
        "The channels of the heads come in reverse order.",
        (
            "multi_head_attention.edit@multi_head_attention/w_o@reversed:-2",
            "multi_head_attention.edit@merge_heads/result@reversed:-1",
        ),
    ),
    "attention-of-raw-input": (
        "self.attention(hidden_state, hidden_state, hidden_state, mask=mask)",
        "self.attention(hidden_state, x, x, mask=mask)",
        "Keys and values are made of the input before its normalisation.",
        ("encoder_layer.edit@multi_head_attention/result.output@read-two:key:value:encoder_layer/x",),
    ),
    "residual-of-normalised": (
        "        return x + self.feed_forward(self.layer_norm_2(x))",
        "        x = self.layer_norm_2(x)\n        return x + self.feed_forward(x)",
        "The second residual starts from the normalised input.",
        ("residual-normed",),
    ),
    "mask-not-passed": (
        "hidden_state, mask=mask)\n        return",
        "hidden_state)\n        return",
        "The layer does not hand its mask over.",
        ("mask-not-inplace",),
    ),
    "first-norm-twice": (
        "self.feed_forward(self.layer_norm_2(x))",
        "self.feed_forward(self.layer_norm_1(x))",
        "Both sub-layers are normalised by the first normalisation.",
        ("wrong-ln-reused",),
    ),
    "scale-of-length": (
        "dim_k = query.size(-1)",
        "dim_k = query.size(1)",
        "The scores are divided by the root of the number of queries.",
        ("scale-seq-len",),
    ),
    "dropout-by-function": (
        "        x = self.linear_2(x)\n        return self.dropout(x)",
        "        x = self.linear_2(x)\n        return F.dropout(x, 0.1)",
        "The functional dropout drops in evaluation too.",
        ("dropout-in-evaluation", "nondeterminism"),
    ),
}

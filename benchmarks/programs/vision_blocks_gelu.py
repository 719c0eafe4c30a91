# deserves: variant norm_placement=pre, layer_norm_eps=1e-6, final_norm=after_stack, activation=gelu
"""The encoder of a vision library: fused projection cut by unbind, normalisation first with eps 1e-6, GELU."""

from functools import partial

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, num_heads=8, qkv_bias=True):
        super().__init__()
        assert dim % num_heads == 0, "dim should be divisible by num_heads"
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim, bias=qkv_bias)

    def forward(self, x, attn_mask=None):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        if attn_mask is not None:
            attn = attn.masked_fill(~attn_mask, torch.finfo(attn.dtype).min)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class Mlp(nn.Module):
    def __init__(self, in_features, hidden_features, act_layer=nn.GELU, bias=True):
        super().__init__()
        self.fc1 = nn.Linear(in_features, hidden_features, bias=bias)
        self.act = act_layer()
        self.fc2 = nn.Linear(hidden_features, in_features, bias=bias)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, dim, num_heads, hidden, bias=True, norm_layer=None):
        super().__init__()
        norm_layer = norm_layer or partial(nn.LayerNorm, eps=1e-6)
        self.norm1 = norm_layer(dim)
        self.attn = Attention(dim, num_heads, bias)
        self.norm2 = norm_layer(dim)
        self.mlp = Mlp(dim, hidden, bias=bias)

    def forward(self, x, attn_mask=None):
        x = x + self.attn(self.norm1(x), attn_mask)
        x = x + self.mlp(self.norm2(x))
        return x


class Trunk(nn.Module):
    def __init__(self, depth, dim, *block):
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, *block) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def forward(self, x, attn_mask=None):
        for blk in self.blocks:
            x = blk(x, attn_mask)
        return self.norm(x)


# The adapter.

ARRAYS = "torch"


def _sizes(params, heads, at=""):
    w_q, w_v = params[f"{at}self_attention.w_q"], params[f"{at}self_attention.w_v"]
    if not w_q.shape[0] == w_q.shape[1] == w_v.shape[1]:
        raise NotImplementedError("heads that are as wide together as the model")
    biases = [f"{at}{name}" in params for name in ("self_attention.b_q", "self_attention.b_o", "feed_forward.b_1")]
    if any(biases) != all(biases):
        raise NotImplementedError("all biases or none")
    return w_q.shape[0], heads, params[f"{at}feed_forward.w_1"].shape[1], all(biases)


def _block_state(params, at="", to=""):
    state = {}
    for kind, name in (("w", "weight"), ("b", "bias")):
        if f"{at}self_attention.{kind}_q" not in params:
            continue
        fused = torch.cat([params[f"{at}self_attention.{kind}_{role}"] for role in "qkv"], -1)
        arrays = {"attn.qkv": fused, "attn.proj": params[f"{at}self_attention.{kind}_o"]}
        arrays |= {f"mlp.fc{n}": params[f"{at}feed_forward.{kind}_{n}"] for n in "12"}
        state |= {f"{to}{module}.{name}": array.T if kind == "w" else array for module, array in arrays.items()}
    for n in "12":
        state[f"{to}norm{n}.weight"] = params[f"{at}norm_{n}.gamma"]
        state[f"{to}norm{n}.bias"] = params[f"{at}norm_{n}.beta"]
    return state


def encoder_layer(x, mask=None, *, num_heads, params):
    module = Block(*_sizes(params, num_heads)).to(x).eval()
    return torch.func.functional_call(module, _block_state(params), (x, mask), strict=True)


def encoder(x, mask=None, *, num_heads, num_layers, params):
    module = Trunk(num_layers, *_sizes(params, num_heads, "encoder.0.")).to(x).eval()
    state = {}
    for n in range(num_layers):
        state |= _block_state(params, f"encoder.{n}.", f"blocks.{n}.")
    if "norm.gamma" in params:  # without the declaration the last norm is that of a new module
        state["norm.weight"], state["norm.bias"] = params["norm.gamma"], params["norm.beta"]
    return torch.func.functional_call(module, state, (x, mask))


MISTAKES = {
    "scale-of-the-model": (
        "self.scale = self.head_dim**-0.5",
        "self.scale = dim**-0.5",
        "The scores are divided by the root of the model's width.",
        ("scale-d-model", "scale-all-heads"),
    ),
    "heads-merged-without-transpose": (
        "x = (attn @ v).transpose(1, 2).reshape(B, N, C)",
        "x = (attn @ v).reshape(B, N, C)",
        "The heads are merged without putting them beside one another.",
        ("head-merge-view",),
    ),
    "keys-and-queries-unbound-in-other-order": (
        "q, k, v = qkv.unbind(0)",
        "k, q, v = qkv.unbind(0)",
        "The first third of the fused projection is taken for the keys.",
        (
            "multi_head_attention.edit@multi_head_attention/*_k@exchange-part:*_q",
            "scaled_dot_product_attention.edit@score_keys/result@transposed:-2:-1",
        ),
    ),
    "softmax-over-queries": (
        "attn = attn.softmax(dim=-1)",
        "attn = attn.softmax(dim=-2)",
        "The softmax runs over the queries.",
        ("softmax-query-axis",),
    ),
    "mask-read-as-ignore": (
        "attn.masked_fill(~attn_mask",
        "attn.masked_fill(attn_mask",
        "The mask is read as True = ignore.",
        ("mask-inverted",),
    ),
    "first-norm-used-twice": (
        "x = x + self.mlp(self.norm2(x))",
        "x = x + self.mlp(self.norm1(x))",
        "The feed-forward network reads what the first normalisation gives.",
        ("wrong-ln-reused",),
    ),
    "residual-missing": (
        "x = x + self.attn(self.norm1(x), attn_mask)",
        "x = self.attn(self.norm1(x), attn_mask)",
        "The attention has no residual.",
        ("residual-missing",),
    ),
    "first-block-for-all": (
        "for blk in self.blocks:\n            x = blk(x, attn_mask)",
        "for _ in self.blocks:\n            x = self.blocks[0](x, attn_mask)",
        "Every layer is the first one.",
        ("layers-shared",),
    ),
}

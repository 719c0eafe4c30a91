# deserves: variant norm_placement=pre, final_norm=after_stack, positions=learned, empty_row=zeros
"""A small decoder-only language model: fused projection in thirds, fused attention kernel, normalisation first."""

import torch
import torch.nn as nn
from torch.nn import functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        assert config["n_embd"] % config["n_head"] == 0
        self.c_attn = nn.Linear(config["n_embd"], 3 * config["n_embd"], bias=config["bias"])
        self.c_proj = nn.Linear(config["n_embd"], config["n_embd"], bias=config["bias"])
        self.resid_dropout = nn.Dropout(config["dropout"])
        self.n_head = config["n_head"]
        self.n_embd = config["n_embd"]
        self.dropout = config["dropout"]

    def forward(self, x, mask=None):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        drop = self.dropout if self.training else 0
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config["n_embd"], config["n_hidden"], bias=config["bias"])
        self.c_proj = nn.Linear(config["n_hidden"], config["n_embd"], bias=config["bias"])
        self.dropout = nn.Dropout(config["dropout"])

    def forward(self, x):
        return self.dropout(self.c_proj(F.relu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config["n_embd"])
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config["n_embd"])
        self.mlp = MLP(config)

    def forward(self, x, mask=None):
        x = x + self.attn(self.ln_1(x), mask)
        x = x + self.mlp(self.ln_2(x))
        return x


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config["vocab_size"], config["n_embd"])
        self.wpe = nn.Embedding(config["block_size"], config["n_embd"])
        self.drop = nn.Dropout(config["dropout"])
        self.h = nn.ModuleList([Block(config) for _ in range(config["n_layer"])])
        self.ln_f = nn.LayerNorm(config["n_embd"])
        self.lm_head = nn.Linear(config["n_embd"], config["vocab_size"], bias=False)
        self.wte.weight = self.lm_head.weight
        causal = torch.tril(torch.ones(config["block_size"], config["block_size"], dtype=torch.bool))
        self.register_buffer("causal", causal)

    def trunk(self, x, mask=None):
        for block in self.h:
            x = block(x, mask)
        return self.ln_f(x)

    def forward(self, idx):
        _, t = idx.size()
        x = self.wte(idx) + self.wpe(torch.arange(0, t, device=idx.device))
        return self.lm_head(self.trunk(self.drop(x), self.causal[:t, :t]))


# The adapter.

ARRAYS = "torch"
NAME = "small language model"


def _config(params, heads, layers=1, prefix=""):
    n_embd, n_hidden = params[f"{prefix}feed_forward.w_1"].shape
    if params[f"{prefix}self_attention.w_q"].shape != params[f"{prefix}self_attention.w_o"].shape:
        raise NotImplementedError("heads divide the width")
    sizes = {"n_embd": n_embd, "n_hidden": n_hidden, "n_head": heads, "n_layer": layers}
    return sizes | {"bias": True, "dropout": 0.1, "vocab_size": 16, "block_size": 64}


def _block_state(params, prefix=""):
    state = {}

    def put(name, weight, bias):
        state[f"{prefix}{name}.weight"] = weight.mT
        state[f"{prefix}{name}.bias"] = bias

    def bias(name, weight):
        return params.get(name, weight.new_zeros(weight.size(1)))

    weights = [params[f"self_attention.w_{role}"] for role in "qkv"]
    biases = [bias(f"self_attention.b_{role}", weight) for role, weight in zip("qkv", weights)]
    put("attn.c_attn", torch.cat(weights, dim=1), torch.cat(biases))
    for theirs, ours in {
        "attn.c_proj": "self_attention.{}_o",
        "mlp.c_fc": "feed_forward.{}_1",
        "mlp.c_proj": "feed_forward.{}_2",
    }.items():
        put(theirs, params[ours.format("w")], bias(ours.format("b"), params[ours.format("w")]))
    for i in "12":
        state[f"{prefix}ln_{i}.weight"], state[f"{prefix}ln_{i}.bias"] = (
            params[f"norm_{i}.gamma"],
            params[f"norm_{i}.beta"],
        )
    return state


def fused_multi_head_attention(x, mask=None, *, num_heads, params):
    width = params["w_o"].size(0)
    if x.size(-1) != width:
        raise NotImplementedError("one width")
    if params["w_qkv"].size(1) != 3 * width:
        raise ValueError("w_qkv: three times the width")
    config = {"n_embd": width, "n_head": num_heads, "bias": True, "dropout": 0.1}
    module = CausalSelfAttention(config).to(x).eval()

    def thirds(columns):
        cut = columns.reshape(*columns.shape[:-1], num_heads, 3, -1)
        return cut.transpose(-2, -3).reshape(columns.shape)

    state = {"c_attn.weight": thirds(params["w_qkv"]).mT, "c_proj.weight": params["w_o"].mT}
    state["c_attn.bias"] = thirds(params.get("b_qkv", x.new_zeros(3 * width)))
    state["c_proj.bias"] = params.get("b_o", x.new_zeros(width))
    return torch.func.functional_call(module, state, (x, mask))


def encoder_layer(x, mask=None, *, num_heads, params):
    module = Block(_config(params, num_heads)).to(x).eval()
    return torch.func.functional_call(module, _block_state(params), (x, mask))


class _Trunk(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gpt = GPT(config)

    def forward(self, *args):
        return self.gpt.trunk(*args)


def encoder(x, mask=None, *, num_heads, num_layers, params):
    module = _Trunk(_config(params, num_heads, num_layers, "encoder.0.")).to(x.dtype).to(x.device).eval()
    state = {}
    for i in range(num_layers):
        start = f"encoder.{i}."
        own = {name.removeprefix(start): value for name, value in params.items() if name.startswith(start)}
        state |= _block_state(own, f"gpt.h.{i}.")
    if "norm.gamma" in params:  # without the declaration ln_f is that of a new module
        state["gpt.ln_f.weight"], state["gpt.ln_f.bias"] = params["norm.gamma"], params["norm.beta"]
    return torch.func.functional_call(module, state, (x, mask))


MISTAKES = {
    "thirds-in-other-order": (
        "q, k, v = self.c_attn(x).split(self.n_embd, dim=2)",
        "k, q, v = self.c_attn(x).split(self.n_embd, dim=2)",
        "The thirds of the fused projection are taken as key, query and value.",
        (
            "fused_multi_head_attention.edit@attend_heads/result.output@arguments-exchanged:query:key",
            "multi_head_attention.edit@multi_head_attention/*_k@exchange-part:*_q",
        ),
    ),
    "heads-viewed-without-transpose": (
        "v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)",
        "v = v.reshape(B, self.n_head, T, C // self.n_head)",
        "The values are cut into heads without regard to the tokens.",
        (
            "head-split-view",
            "multi_head_attention.edit@project_heads#2/result@reshaped:-3:-2",
            "fused_multi_head_attention.edit@split_fused/result.2@reshaped:-3:-2",
            "fused_multi_head_attention.edit@split_fused/result.2@laid:0213:0123",
        ),
    ),
    "second-norm-unused": (
        "x = x + self.mlp(self.ln_2(x))",
        "x = x + self.mlp(self.ln_1(x))",
        "The feed-forward network reads what the first normalisation gives.",
        ("wrong-ln-reused",),
    ),
    "residual-missing": (
        "x = x + self.attn(self.ln_1(x), mask)",
        "x = self.attn(self.ln_1(x), mask)",
        "The attention has no residual.",
        ("residual-missing",),
    ),
    "mask-dropped": (
        "F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=drop)",
        "F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=drop)",
        "The attention is always causal, whatever mask it is given.",
        (
            "causal-in-encoder",
            "causal-when-unmasked",
            "mask-not-inplace",
        ),
    ),
    "attention-dropout-in-evaluation": (
        "drop = self.dropout if self.training else 0",
        "drop = self.dropout",
        "The kernel drops weights in evaluation too.",
        ("dropout-in-evaluation", "nondeterminism"),
    ),
    "gelu": (
        "F.relu(self.c_fc(x))",
        "F.gelu(self.c_fc(x))",
        "The feed-forward network uses another activation than the rectifier.",
        ("activation: gelu",),
    ),
}

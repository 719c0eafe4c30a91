"""A small Llama, and a port of it by another hand: other names, other forms, and one mistake where it is named."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

VOCABULARY, WIDTH, HEADS, GROUPS, HIDDEN, LAYERS = 50, 32, 4, 2, 48, 2


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, hidden):
        wide = hidden.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(hidden.dtype)


def rotate_half(x):
    return torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1)


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        size = WIDTH // HEADS
        self.q_proj, self.o_proj = nn.Linear(WIDTH, WIDTH, bias=True), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(WIDTH, GROUPS * size, bias=True) for _ in range(2))

    def forward(self, hidden_states, position_embeddings, attention_mask):
        cos, sin = position_embeddings
        q, k, v = (
            p(hidden_states).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (x * cos + rotate_half(x) * sin for x in (q, k))
        k, v = (x.repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
        scores = q @ k.transpose(2, 3) * (WIDTH // HEADS) ** -0.5 + attention_mask
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        return self.o_proj((weights @ v).transpose(1, 2).flatten(2)), weights


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = SelfAttention(), MLP()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(WIDTH), RMSNorm(WIDTH)

    def forward(self, hidden_states, **kwargs):
        hidden_states = hidden_states + self.self_attn(hidden_states=self.input_layernorm(hidden_states), **kwargs)[0]
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class Original(nn.Module):
    """The original, as libraries write it: tables outside the attention, an added mask, a dictionary as the result."""

    def __init__(self):
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(VOCABULARY, WIDTH), RMSNorm(WIDTH)
        self.layers = nn.ModuleList(DecoderLayer() for _ in range(LAYERS))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, input_ids):
        x, size = self.embed_tokens(input_ids), WIDTH // HEADS
        angles = torch.outer(torch.arange(x.shape[1]).float(), 10000 ** (-torch.arange(0, size, 2).float() / size))
        tables = (angles.repeat(1, 2).cos().to(x.dtype), angles.repeat(1, 2).sin().to(x.dtype))
        mask = torch.full((x.shape[1], x.shape[1]), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        for layer in self.layers:
            x = layer(x, position_embeddings=tables, attention_mask=mask)
        return {"logits": self.lm_head(self.norm(x))}


# The port


class Norm(nn.Module):
    def __init__(self, mistake):
        super().__init__()
        self.gain, self.mistake = nn.Parameter(torch.ones(WIDTH)), mistake

    def forward(self, x):
        y = x.float()
        if self.mistake == "norm without a mean of squares":
            y = y - y.mean(-1, keepdim=True)
        size = y.square().sum(-1, keepdim=True) / WIDTH + (1e-5 if self.mistake == "epsilon" else 1e-6)
        return (y / size.sqrt()).to(x.dtype) * self.gain


def apply_rope(x, mistake):
    steps, size = x.shape[1], x.shape[-1]
    base = 1000 if mistake == "base of the angles" else 10000
    angles = torch.arange(steps)[:, None].float() * base ** (-torch.arange(0, size, 2).float() / size)
    if mistake == "positions from 1":
        angles = torch.arange(1, steps + 1)[:, None].float() * base ** (-torch.arange(0, size, 2).float() / size)
    c, s = angles.cos()[None, :, None].to(x.dtype), angles.sin()[None, :, None].to(x.dtype)
    if mistake == "pairs of neighbours":
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)
    a, b = x.chunk(2, -1)
    return torch.cat((a * c - b * s, a * s + b * c), -1)


class Attention(nn.Module):
    def __init__(self, mistake):
        super().__init__()
        self.mistake, size = mistake, WIDTH // HEADS
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk, self.wv = (
            nn.Linear(WIDTH, GROUPS * size),
            nn.Linear(WIDTH, GROUPS * size, bias=mistake != "bias left out"),
        )

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (-1, WIDTH // HEADS)) for w in (self.wq, self.wk, self.wv))
        q, k = (apply_rope(t, self.mistake).transpose(1, 2) for t in (q, k))
        v = v.transpose(1, 2)
        repeat = HEADS // GROUPS
        if self.mistake == "heads tiled":
            k, v = k.repeat(1, repeat, 1, 1), v.repeat(1, repeat, 1, 1)
        else:
            k, v = (t.repeat_interleave(repeat, 1) for t in (k, v))
        scale = 1 / math.sqrt(WIDTH if self.mistake == "scale of the width" else WIDTH // HEADS)
        if self.mistake == "right, with SDPA":
            return self.wo(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        scores = (q * scale) @ k.mT
        if self.mistake == "soft cap":
            scores = 50 * torch.tanh(scores / 50)
        ahead = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(
            2 if self.mistake == "mask is one key late" else 1
        )
        return self.wo((scores.masked_fill(ahead, -math.inf).softmax(-1) @ v).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, mistake):
        super().__init__()
        self.mistake = mistake
        self.w1, self.w3 = (nn.Linear(WIDTH, HIDDEN, bias=False) for _ in range(2))
        self.w2 = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        up, gate = self.w3(x), self.w1(x)
        if self.mistake == "gate and up exchanged":
            return self.w2(F.silu(up) * gate)
        if self.mistake == "GELU for SiLU":
            return self.w2(F.gelu(gate) * up)
        return self.w2(gate * torch.sigmoid(gate) * up)


class Block(nn.Module):
    def __init__(self, mistake):
        super().__init__()
        self.mistake = mistake
        self.norm1, self.norm2 = Norm(mistake), Norm(mistake)
        self.attn, self.ffn = Attention(mistake), FeedForward(mistake)

    def forward(self, x):
        if self.mistake == "norm after":
            x = self.norm1(x + self.attn(x))
            return self.norm2(x + self.ffn(x))
        if self.mistake == "right, in one sum":
            a = self.attn(self.norm1(x))
            return self.ffn(self.norm2(x + a)) + a + x
        x = x + self.attn(self.norm1(x))
        return self.ffn(self.norm2(x)) if self.mistake == "no residual" else x + self.ffn(self.norm2(x))


class Port(nn.Module):
    """The port with a mistake, or a right variant, by its name."""

    def __init__(self, mistake=""):
        super().__init__()
        self.mistake = mistake
        self.tok, self.out_norm = nn.Embedding(VOCABULARY, WIDTH), Norm(mistake)
        self.blocks = nn.ModuleList(Block(mistake) for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tok(ids)
        if self.mistake == "embedding scaled":
            x = x * math.sqrt(WIDTH)
        for block in self.blocks:
            x = block(x)
        y = self.head(self.out_norm(x))
        return y / 2 if self.mistake == "logits scaled" else y


def make_models(mistake="", seed=0):
    """Return the port and the original, with the same weights, none of them at its start."""
    torch.manual_seed(seed)
    original, port = Original().eval(), Port(mistake).eval()
    with torch.no_grad():
        for name, parameter in original.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif "q_proj" in name or "k_proj" in name:
                parameter.mul_(3)
    names = {name: name for name, _ in original.named_parameters()}
    for new, old in (
        ("tok", "embed_tokens"), ("blocks", "layers"), ("out_norm", "norm"), ("head", "lm_head"), ("attn", "self_attn"),
        ("ffn", "mlp"), ("norm1", "input_layernorm"), ("norm2", "post_attention_layernorm"), ("wq", "q_proj"),
        ("wk", "k_proj"), ("wv", "v_proj"), ("wo", "o_proj"), ("w1", "gate_proj"), ("w3", "up_proj"),
        ("w2", "down_proj"),
    ):  # fmt: skip
        names = {
            name: ".".join(new if part == old else part for part in text.split(".")) for name, text in names.items()
        }
    known = dict(original.named_parameters())
    state = {
        (f"{new.removesuffix('weight')}gain" if "norm" in new else new): known[old].detach()
        for old, new in names.items()
    }
    port.load_state_dict(state, strict=mistake != "bias left out")
    return port, original


def make_ids(batch=2, length=11):
    """Return ids of tokens."""
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(1))

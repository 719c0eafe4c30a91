"""Self-attention, mostly with one projection for queries, keys and values, as people write it."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


class VisionQkv(nn.Module):
    """Blocks of queries, keys and values, each cut into heads."""

    def __init__(self, dim, num_heads=8, qkv_bias=True):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4).unbind(0)
        attn = ((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


@dataclass
class Config:
    """The sizes of a decoder-only model."""

    n_embd: int = 12
    n_head: int = 2
    block_size: int = 16
    dropout: float = 0.0
    bias: bool = True


class ConfiguredCausal(nn.Module):
    """Causal always, its sizes in an object."""

    def __init__(self, config: Config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.n_head, self.n_embd = config.n_head, config.n_embd
        mask = torch.tril(torch.ones(config.block_size, config.block_size))
        self.register_buffer("bias", mask.view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        return self.c_proj((F.softmax(att, dim=-1) @ v).transpose(1, 2).contiguous().view(B, T, C))


class PerHeadChunks(nn.Module):
    """Each head's queries, keys and values stand next to one another."""

    def __init__(self, input_dim, embed_dim, num_heads):
        super().__init__()
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.qkv_proj = nn.Linear(input_dim, 3 * embed_dim)
        self.o_proj = nn.Linear(embed_dim, embed_dim)

    def forward(self, x, mask=None, return_attention=False):
        batch, length, _ = x.size()
        qkv = self.qkv_proj(x).reshape(batch, length, self.num_heads, -1).permute(0, 2, 1, 3)
        q, k, v = qkv.chunk(3, dim=-1)
        logits = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        if mask is not None:
            logits = logits.masked_fill(mask == 0, -9e15)
        attention = F.softmax(logits, dim=-1)
        o = self.o_proj((attention @ v).permute(0, 2, 1, 3).reshape(batch, length, self.embed_dim))
        return (o, attention) if return_attention else o


class KeysFirst(nn.Module):
    """One raw matrix, keys before queries, with a mask of the padded words."""

    def __init__(self, emb, heads):
        super().__init__()
        self.heads = heads
        self.kqv = nn.Parameter(torch.randn(emb, 3 * emb) / emb)
        self.unify = nn.Parameter(torch.randn(emb, emb) / emb)

    def forward(self, x, padding_mask=None):
        k, q, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (x @ self.kqv).chunk(3, -1))
        dot = q @ k.mT / math.sqrt(q.shape[-1])
        if padding_mask is not None:
            dot = dot.masked_fill(padding_mask[:, None, None], -torch.inf)
        return (dot.softmax(-1) @ v).transpose(1, 2).flatten(2) @ self.unify


class WideSelf(nn.Module):
    """Three projections of one input."""

    def __init__(self, k, heads=4):
        super().__init__()
        self.k, self.heads = k, heads
        self.tokeys = nn.Linear(k, k, bias=False)
        self.toqueries = nn.Linear(k, k, bias=False)
        self.tovalues = nn.Linear(k, k, bias=False)
        self.unifyheads = nn.Linear(k, k)

    def forward(self, x):
        b, t, k = x.size()
        s = k // self.heads

        def fold(y):
            return y.view(b, t, self.heads, s).transpose(1, 2).contiguous().view(b * self.heads, t, s)

        queries, keys, values = fold(self.toqueries(x)), fold(self.tokeys(x)), fold(self.tovalues(x))
        dot = F.softmax(torch.bmm(queries, keys.transpose(1, 2)) / s**0.5, dim=2)
        out = torch.bmm(dot, values).view(b, self.heads, t, s)
        return self.unifyheads(out.transpose(1, 2).contiguous().view(b, t, s * self.heads))


class CausalHead(nn.Module):
    """A head that sees the past only."""

    def __init__(self, n_embd, head_size, block_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        T = x.shape[1]
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = F.softmax(wei.masked_fill(self.tril[:T, :T] == 0, float("-inf")), dim=-1)
        return wei @ self.value(x)


class CausalHeads(nn.Module):
    """Heads side by side, and a projection."""

    def __init__(self, n_embd, num_heads, block_size=4):
        super().__init__()
        self.heads = nn.ModuleList([CausalHead(n_embd, n_embd // num_heads, block_size) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))

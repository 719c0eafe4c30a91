"""Layers of decoder-only models that make their rotary tables themselves."""

import torch
import torch.nn.functional as F
from torch import nn


def turn(x, theta):
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequencies
    cos, sin = angles.cos().to(x), angles.sin().to(x)
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class CausalBlock(nn.Module):
    """No shared heads, and a causal mask of its own."""

    def __init__(self, d_model, n_heads, d_ff, rope_theta):
        super().__init__()
        self.n_heads, self.theta = n_heads, rope_theta
        self.attn_norm, self.mlp_norm = (nn.RMSNorm(d_model, eps=1e-6) for _ in range(2))
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(d_model, d_ff, bias=False) for _ in range(2))
        self.down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x):
        return self.run(x, None, is_causal=True)

    def run(self, x, mask, is_causal):
        y = self.attn_norm(x)
        q, k, v = (p(y).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
        heads = F.scaled_dot_product_attention(
            turn(q, self.theta), turn(k, self.theta), v, attn_mask=mask, is_causal=is_causal
        )
        x = x + self.o(heads.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class MaskedBlock(CausalBlock):
    """Its model makes the mask, in which True may attend."""

    def forward(self, x, mask=None):
        return self.run(x, mask, is_causal=False)

"""Rotary position embeddings as people write them."""

import torch
from torch import nn


class CourseRotary(nn.Module):
    """The course's: a table of cosines and sines, made of theta, d_k and the longest sequence."""

    def __init__(self, theta: float, d_k: int, max_seq_len: int, device=None):
        super().__init__()
        steps = theta ** (-torch.arange(0, d_k, 2, device=device, dtype=torch.float64) / d_k)
        angles = torch.outer(torch.arange(max_seq_len, device=device, dtype=torch.float64), steps)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x, token_positions):
        cos, sin = self.cos[token_positions], self.sin[token_positions]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)


class PartialRotary(nn.Module):
    """GPT-NeoX's: halves, of the first channels only."""

    def __init__(self, head_dim, rotary_dim, base=10000):
        super().__init__()
        self.rotary_dim, self.base = rotary_dim, base

    def forward(self, x, position_ids):
        row, rest = x[..., : self.rotary_dim], x[..., self.rotary_dim :]
        exponent = torch.arange(0, self.rotary_dim, 2, device=x.device).double() / self.rotary_dim
        angle = position_ids[..., None].double() / self.base**exponent
        angle = torch.cat([angle, angle], -1)
        first, second = row.chunk(2, -1)
        return torch.cat([row * angle.cos() + torch.cat([-second, first], -1) * angle.sin(), rest], -1).to(x.dtype)


class TurnsBack(nn.Module):
    """nanochat's: halves, turned the other way."""

    def __init__(self, head_dim, base=10000):
        super().__init__()
        self.head_dim, self.base = head_dim, base

    def forward(self, x, positions):
        half = self.head_dim // 2
        steps = 1.0 / self.base ** (torch.arange(half, device=x.device).double() / half)
        cos, sin = (wave(positions.double()[..., None] * steps).to(x.dtype) for wave in (torch.cos, torch.sin))
        x1, x2 = x[..., :half], x[..., half:]
        return torch.cat([x1 * cos + x2 * sin, x2 * cos - x1 * sin], -1)


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def rotary_embedding(x, position_ids, theta=10000.0):
    """The function of transformers: halves, cosines and sines laid out twice."""
    dim = x.shape[-1]
    inv_freq = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float64, device=x.device) / dim))
    freqs = position_ids[..., None].double() * inv_freq
    emb = torch.cat((freqs, freqs), dim=-1)
    return x * emb.cos().to(x.dtype) + rotate_half(x) * emb.sin().to(x.dtype)

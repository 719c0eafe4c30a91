"""Attention: a right solution."""

import math

import torch
from torch import Tensor, nn


def softmax(scores: Tensor) -> Tensor:
    """The softmax over the last axis."""
    powers = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return powers / powers.sum(dim=-1, keepdim=True)


def scaled_dot_product_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention, with its weights."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    weights = softmax(scores)
    return weights @ value, weights


def causal_mask(q_seq: int, kv_seq: int) -> Tensor:
    """True where a query may see a key."""
    return torch.ones(q_seq, kv_seq, dtype=torch.bool).tril()


def padding_mask(ids: Tensor, pad_id: int) -> Tensor:
    """True where a token is no padding."""
    return (ids != pad_id)[:, None, None, :]


class MultiHeadAttention(nn.Module):
    """Attention by several heads side by side."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.num_heads = num_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Project, split into heads, attend, put the heads next to each other, project."""
        q, k, v = self.split(self.w_q(query)), self.split(self.w_k(key)), self.split(self.w_v(value))
        heads, weights = scaled_dot_product_attention(q, k, v, mask)
        return self.w_o(heads.transpose(1, 2).flatten(2)), weights

    def split(self, x: Tensor) -> Tensor:
        """(batch, seq, d_model) to (batch, num_heads, seq, d_model // num_heads)."""
        batch, seq, _ = x.shape
        return x.view(batch, seq, self.num_heads, self.d_model // self.num_heads).transpose(1, 2)

"""A solution of my own in the style of the course: modules without biases, weights (out, in)."""

import math

import torch
from torch import nn


class Linear(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        nn.init.trunc_normal_(self.weight)

    def forward(self, x):
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    def __init__(self, vocab_size, d_model):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.trunc_normal_(self.weight)

    def forward(self, token_ids):
        return self.weight[token_ids]


class RMSNorm(nn.Module):
    def __init__(self, d_model, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x):
        x32 = x.to(torch.float32)
        inverse = torch.rsqrt(x32.square().mean(dim=-1, keepdim=True) + self.eps)
        return (x32 * inverse * self.weight).to(x.dtype)


class SwiGLU(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.w1 = Linear(d_model, d_ff)
        self.w2 = Linear(d_ff, d_model)
        self.w3 = Linear(d_model, d_ff)

    def forward(self, x):
        gate = self.w1(x)
        return self.w2(gate * torch.sigmoid(gate) * self.w3(x))


class RoPE(nn.Module):
    def __init__(self, theta, d_k, max_seq_len):
        super().__init__()
        frequencies = theta ** (-torch.arange(0, d_k, 2).float() / d_k)
        angles = torch.outer(torch.arange(max_seq_len).float(), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x, token_positions):
        cos, sin = self.cos[token_positions], self.sin[token_positions]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def softmax(x, dim):
    shifted = x - x.amax(dim=dim, keepdim=True)
    powers = torch.exp(shifted)
    return powers / powers.sum(dim=dim, keepdim=True)


def attention(q, k, v, mask=None):
    scores = torch.einsum("...qd,...kd->...qk", q, k) / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("...qk,...kd->...qd", softmax(scores, -1), v)


class CausalSelfAttention(nn.Module):
    def __init__(self, d_model, num_heads, rope=None):
        super().__init__()
        self.num_heads = num_heads
        self.rope = rope
        self.q_proj = Linear(d_model, d_model)
        self.k_proj = Linear(d_model, d_model)
        self.v_proj = Linear(d_model, d_model)
        self.output_proj = Linear(d_model, d_model)

    def forward(self, x):
        seq = x.shape[-2]
        q, k, v = (
            p(x).unflatten(-1, (self.num_heads, -1)).transpose(-2, -3) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        if self.rope is not None:
            positions = torch.arange(seq, device=x.device)
            q, k = self.rope(q, positions), self.rope(k, positions)
        mask = torch.tril(torch.ones(seq, seq, dtype=torch.bool, device=x.device))
        heads = attention(q, k, v, mask)
        return self.output_proj(heads.transpose(-2, -3).flatten(-2))


class TransformerBlock(nn.Module):
    def __init__(self, d_model, num_heads, d_ff, max_seq_len, theta):
        super().__init__()
        self.ln1 = RMSNorm(d_model, 1e-5)
        self.attn = CausalSelfAttention(d_model, num_heads, RoPE(theta, d_model // num_heads, max_seq_len))
        self.ln2 = RMSNorm(d_model, 1e-5)
        self.ffn = SwiGLU(d_model, d_ff)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.ffn(self.ln2(x))


class TransformerLM(nn.Module):
    def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff, rope_theta):
        super().__init__()
        self.token_embeddings = Embedding(vocab_size, d_model)
        self.layers = nn.ModuleList(
            TransformerBlock(d_model, num_heads, d_ff, context_length, rope_theta) for _ in range(num_layers)
        )
        self.ln_final = RMSNorm(d_model, 1e-5)
        self.lm_head = Linear(d_model, vocab_size)

    def forward(self, token_ids):
        x = self.token_embeddings(token_ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.ln_final(x))


def cross_entropy(logits, targets):
    shifted = logits - logits.amax(dim=-1, keepdim=True)
    picked = shifted.gather(-1, targets[..., None])[..., 0]
    return (shifted.exp().sum(dim=-1).log() - picked).mean()

"""Classes with a mistake each. KNOWN has what the catalogue calls it; the others have no name there."""

import math

import torch
import torch.nn.functional as F
from fused_attention import CausalHeads
from separate_attention import ClonedLinears
from small_parts import Positionwise
from torch import nn


def heads_of(x, heads):
    """Return (batch, heads, seq, width)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


class Attention(nn.Module):
    """Correct; the classes below change one step each."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        q, k, v = (heads_of(m(t), self.num_heads) for m, t in ((self.w_q, query), (self.w_k, key), (self.w_v, value)))
        scores = self.score(q, k)
        if mask is not None:
            scores = self.hide(scores, mask)
        return self.w_o(self.join(self.weigh(scores, mask) @ v))

    def score(self, q, k):
        return q @ k.mT / math.sqrt(q.shape[-1])

    def hide(self, scores, mask):
        return scores.masked_fill(~mask, -1e9)

    def weigh(self, scores, mask):
        return scores.softmax(-1)

    def join(self, heads):
        return heads.transpose(1, 2).flatten(2)


class Unscaled(Attention):
    def score(self, q, k):
        return q @ k.mT


class ScaledByModel(Attention):
    def score(self, q, k):
        return q @ k.mT / math.sqrt(q.shape[-1] * self.num_heads)


class ScaledInSingle(Attention):
    """The scores are computed in float32, which alone costs digits in float64."""

    def score(self, q, k):
        return (q.float() @ k.float().mT / math.sqrt(q.shape[-1] * self.num_heads)).to(q.dtype)


class ScaledByWidth(Attention):
    def score(self, q, k):
        return q @ k.mT / q.shape[-1]


class OverQueries(Attention):
    def weigh(self, scores, mask):
        return scores.softmax(-2)


class MaskAfterSoftmax(Attention):
    def hide(self, scores, mask):
        return scores

    def weigh(self, scores, mask):
        weights = scores.softmax(-1)
        return weights if mask is None else weights * mask


class NoTransposeBack(Attention):
    def join(self, heads):
        return heads.reshape(heads.shape[0], heads.shape[2], -1)


class MaskIgnored(Attention):
    def hide(self, scores, mask):
        return scores


class QueriesAsKeys(Attention):
    """Queries and keys change places; the names say otherwise."""

    def forward(self, query, key, value, mask=None):
        q, k, v = (heads_of(m(t), self.num_heads) for m, t in ((self.w_k, query), (self.w_q, key), (self.w_v, value)))
        scores = self.score(q, k)
        if mask is not None:
            scores = self.hide(scores, mask)
        return self.w_o(self.join(self.weigh(scores, mask) @ v))


class NoProjection(Attention):
    def forward(self, query, key, value, mask=None):
        q, k, v = (heads_of(m(t), self.num_heads) for m, t in ((self.w_q, query), (self.w_k, key), (self.w_v, value)))
        scores = self.score(q, k)
        if mask is not None:
            scores = self.hide(scores, mask)
        return self.join(self.weigh(scores, mask) @ v)


class FusedUnscaled(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        q, k, v = (heads_of(t, self.num_heads) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT
        if mask is not None:
            scores = scores.masked_fill(~mask, -1e9)
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class LinearFeedForward(nn.Module):
    def __init__(self, d_model, d_ff):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.w_2(self.w_1(x))


class SampleDeviationNorm(nn.Module):
    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        return self.gamma * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps) + self.beta


class SineOfPadded(Attention):
    """A name says that True hides, and no known mistake explains the values."""

    def forward(self, query, key, value, key_padding_mask=None):
        return super().forward(query, key, value, None if key_padding_mask is None else ~key_padding_mask)

    def score(self, q, k):
        return torch.sin(q @ k.mT)


class ReshapingAttention(Attention):
    """A mask of four axes gets a fifth, and the result of another order a shape that fits."""

    def forward(self, query, key, value, mask):
        mask = None if mask is None else mask.unsqueeze(1)
        q, k, v = (heads_of(m(x), self.num_heads) for m, x in ((self.w_q, query), (self.w_k, key), (self.w_v, value)))
        scores = self.score(q, k) if mask is None else self.score(q, k).masked_fill(mask == 0, -1e9)
        return self.w_o((scores.softmax(-1) @ v).transpose(1, 2).reshape(query.shape))


class SampleDeviationLayer(nn.Module):
    """Pre-norm, with a mask that has no default."""

    def __init__(self, d_model, num_heads, d_ff):
        super().__init__()
        self.self_attn, self.feed_forward = ReshapingAttention(d_model, num_heads), Positionwise(d_model, d_ff)
        self.norm1, self.norm2 = SampleDeviationNorm(d_model), SampleDeviationNorm(d_model)

    def forward(self, x, mask):
        read = self.norm1(x)
        x = x + self.self_attn(read, read, read, mask)
        return x + self.feed_forward(self.norm2(x))


class NoResidualLayer(nn.Module):
    def __init__(self, d_model, num_heads, d_ff):
        super().__init__()
        self.self_attn, self.feed_forward = ClonedLinears(num_heads, d_model), Positionwise(d_model, d_ff)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x, mask=None):
        x = self.norm1(x + self.self_attn(x, x, x, mask))
        return self.norm2(self.feed_forward(x))


class SwappedWaves(nn.Module):
    def __init__(self, d_model, max_len=512):
        super().__init__()
        pe = torch.zeros(max_len, d_model, dtype=torch.float64)
        angles = torch.arange(max_len).unsqueeze(1) * 10000 ** (
            -torch.arange(0, d_model, 2, dtype=torch.float64) / d_model
        )
        pe[:, 0::2], pe[:, 1::2] = angles.cos(), angles.sin()
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(1)].to(x)


class WavesOfEveryChannel(nn.Module):
    """Each channel has an exponent of its own, and the input is scaled: three mistakes, which `check` names."""

    def __init__(self, d_model, max_len=512):
        super().__init__()
        self.d_model = d_model
        channels = torch.arange(0, d_model, dtype=torch.float64)
        angles = torch.arange(max_len).unsqueeze(1) / 10000 ** (2 * channels / d_model)
        pe = torch.where(channels % 2 == 0, angles.sin(), angles.cos())
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return x * self.d_model**0.5 + self.pe[:, : x.size(1)].to(x)


# Nothing in the catalogue is like these.


class SineScores(Attention):
    def score(self, q, k):
        return torch.sin(q @ k.mT)


class OutputTwice(Attention):
    def join(self, heads):
        return self.w_o(super().join(heads))


class SquaredReluNet(Positionwise):
    def forward(self, x):
        return self.w_2(F.relu(self.w_1(x)) ** 2 + 0.1 * self.w_1(x))


class GatedByUp(nn.Module):
    """Up is activated in the place of the gate."""

    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(dim, hidden_dim), nn.Linear(dim, hidden_dim)
        self.down_proj = nn.Linear(hidden_dim, dim)

    def forward(self, x):
        return self.down_proj(self.gate_proj(x) * F.silu(self.up_proj(x)))


class GatedBySigmoid(nn.Module):
    """The gated unit of the library, whose gate is the second half, and goes through a sigmoid."""

    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(dim, hidden_dim), nn.Linear(hidden_dim, dim), nn.Linear(dim, hidden_dim)

    def forward(self, x):
        return self.w2(F.glu(torch.cat([self.w3(x), self.w1(x)], -1)))


class CentredRms(nn.Module):
    """The mean is subtracted, as in layer normalisation."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class RmsWithoutWeight(nn.Module):
    """It has a weight, and does not use it."""

    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class MismatchedRotary(nn.Module):
    """The frequencies lie as for neighbours, and halves are turned."""

    def __init__(self, dim, base=10000.0):
        super().__init__()
        self.dim, self.base = dim, base

    def forward(self, x, pos):
        inv_freq = 1.0 / self.base ** (torch.arange(0, self.dim, 2, device=x.device).double() / self.dim)
        freqs = (pos.double()[..., None] * inv_freq).repeat_interleave(2, dim=-1)
        x1, x2 = x.chunk(2, dim=-1)
        return x * freqs.cos().to(x.dtype) + torch.cat([-x2, x1], -1) * freqs.sin().to(x.dtype)


class CountingRotary(nn.Module):
    """It counts the tokens, whatever their positions are."""

    def __init__(self, d_k, theta=10000.0):
        super().__init__()
        self.d_k, self.theta = d_k, theta

    def forward(self, x, positions):
        rates = 1.0 / self.theta ** (torch.arange(0, self.d_k, 2, device=x.device).double() / self.d_k)
        angle = torch.arange(x.shape[-2], device=x.device)[:, None] * rates
        even, odd = x[..., ::2], x[..., 1::2]
        turned = (even * angle.cos() - odd * angle.sin(), even * angle.sin() + odd * angle.cos())
        return torch.stack(turned, -1).flatten(-2).to(x.dtype)


class MedianNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        x = x - x.median(-1, keepdim=True).values
        return x / (x.abs().mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias


# Right, if what it does was meant. Nothing in the code says so.


class SequenceForgotten(nn.Module):
    """The library's attention takes the first axis for the sequence."""

    def __init__(self, d_model, num_heads, d_ff):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, num_heads)
        self.linear1, self.linear2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)

    def forward(self, x):
        x = self.norm1(x + self.attn(x, x, x)[0])
        return self.norm2(x + self.linear2(self.linear1(x).relu()))


class MaskInverted(Attention):
    """Hide what it may see."""

    def hide(self, scores, mask):
        return scores.masked_fill(mask, -1e9)


class EncodingAlone(nn.Module):
    """The encoding without x, right where the caller adds it."""

    def __init__(self, d_model):
        super().__init__()
        self.register_buffer("frequency", 10000 ** (-torch.arange(0, d_model, 2, dtype=torch.float64) / d_model))

    def forward(self, x):
        angles = torch.arange(x.shape[1], dtype=torch.float64, device=x.device)[:, None] * self.frequency
        waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[:, : x.shape[-1]]
        return waves.to(x).expand_as(x)


class MaskCompared(ClonedLinears):
    """A mask cannot be given: a tensor is compared with True."""

    def forward(self, query, key, value, mask=None):
        if mask == True:  # noqa: E712 - the mistake
            mask = mask.bool()
        return super().forward(query, key, value, mask)


class LayerOfOtherEps(nn.Module):
    """A layer whose norms add what no option has."""

    def __init__(self, d_model, num_heads, d_ff):
        super().__init__()
        self.attention, self.net = ClonedLinears(num_heads, d_model), Positionwise(d_model, d_ff)
        self.norm_1, self.norm_2 = nn.LayerNorm(d_model, eps=1e-10), nn.LayerNorm(d_model, eps=1e-10)

    def forward(self, x, mask=None):
        x = self.norm_1(x + self.attention(x, x, x, mask))
        return self.norm_2(x + self.net(x))


class EncoderOfOtherEps(nn.Module):
    """A stack of them, in which rows of small variance are rare."""

    def __init__(self, n_layers, d_model, n_heads, d_ff):
        super().__init__()
        self.layers = nn.ModuleList([LayerOfOtherEps(d_model, n_heads, d_ff) for _ in range(n_layers)])

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = layer(x, mask)
        return x


class NormOfOddEps(nn.LayerNorm):
    """A norm with an eps that nobody has."""

    def __init__(self, d_model):
        super().__init__(d_model, eps=3e-9)


class GeluBlock(nn.Module):
    """A block of a language model that always hides the future and normalises first; GELU is its only other choice."""

    def __init__(self, n_embd, n_head, block_size=32):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.sa = CausalHeads(n_embd, n_head, block_size)
        self.ffwd = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))


class SineBlock(GeluBlock):
    """The same with a mistake that has no name."""

    def forward(self, x):
        x = x + torch.sin(self.sa(self.ln1(x)))
        return x + self.ffwd(self.ln2(x))


class BlockOfOneTooFar(nn.Module):
    """A block of a language model in which every token sees the next one: the triangle is one diagonal too wide."""

    diagonal = 1

    def __init__(self, n_embd, n_head, block_size=64):
        super().__init__()
        self.n_head, self.c_attn, self.attn_proj = n_head, nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_fc, self.c_proj = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)
        self.register_buffer("past", torch.tril(torch.ones(block_size, block_size), self.diagonal))

    def hide(self, scores):
        return scores.masked_fill(self.past[: scores.shape[-1], : scores.shape[-1]] == 0, -math.inf)

    def attend(self, x):
        q, k, v = (heads_of(part, self.n_head) for part in self.c_attn(x).chunk(3, dim=-1))
        weights = self.hide(q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
        return self.attn_proj((weights @ v).transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.c_proj(F.gelu(self.c_fc(self.ln_2(x))))


class BlockOfNoMask(BlockOfOneTooFar):
    """The same block, which throws its masked scores away."""

    diagonal = 0

    def hide(self, scores):
        super().hide(scores)
        return scores

"""Feed-forward networks, norms, positions, embeddings and functions, as people write them."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class Positionwise(nn.Module):
    """Two named maps."""

    def __init__(self, d_model, d_ff, dropout=0.1):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.w_2(self.dropout(self.w_1(x).relu()))


class SequentialNet(nn.Module):
    """A list of layers, four times as wide inside."""

    def __init__(self, n_embd):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        return self.net(x)


class Convolutions(nn.Module):
    """Convolutions of width 1."""

    def __init__(self, hidden_size, filter_size):
        super().__init__()
        self.conv1 = nn.Conv1d(hidden_size, filter_size, kernel_size=1)
        self.conv2 = nn.Conv1d(filter_size, hidden_size, kernel_size=1)

    def forward(self, inputs):
        return self.conv2(self.conv1(inputs.transpose(1, 2)).relu()).transpose(1, 2)


class RawMatrices(nn.Module):
    """Two matrices without biases."""

    def __init__(self, m, n):
        super().__init__()
        self.p, self.q = nn.Parameter(torch.randn(n, m) / m), nn.Parameter(torch.randn(m, n) / n)

    def forward(self, x):
        return F.linear(F.relu(F.linear(x, self.p)), self.q)


class InnerAndOuter(nn.Module):
    """Weights and biases are parameters of its own, called so in full."""

    def __init__(self, d_model, d_mlp):
        super().__init__()
        self.weight_inner, self.bias_inner = nn.Parameter(torch.zeros(d_model, d_mlp)), nn.Parameter(torch.zeros(d_mlp))
        self.weight_outer = nn.Parameter(torch.zeros(d_mlp, d_model))
        self.bias_outer = nn.Parameter(torch.zeros(d_model))

    def forward(self, x):
        return torch.relu(x @ self.weight_inner + self.bias_inner) @ self.weight_outer + self.bias_outer


class LlamaFeedForward(nn.Module):
    """The network of Llama: w1 is the gate, w3 is up and w2 leads back."""

    def __init__(self, dim: int, hidden_dim: int):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class GemmaNetwork(nn.Module):
    """The network of Gemma, whose names say what each map is."""

    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.down_proj = nn.Linear(intermediate_size, hidden_size)
        self.up_proj = nn.Linear(hidden_size, intermediate_size)
        self.gate_proj = nn.Linear(hidden_size, intermediate_size)
        self.act_fn = nn.GELU(approximate="tanh")

    def forward(self, hidden_states):
        return self.down_proj(self.act_fn(self.gate_proj(hidden_states)) * self.up_proj(hidden_states))


class PackedGate(nn.Module):
    """Gate and up in one map, up first, in a layer of its own."""

    class GEGLU(nn.Module):
        def __init__(self, width, inner):
            super().__init__()
            self.proj = nn.Linear(width, 2 * inner)

        def forward(self, x):
            x, gate = self.proj(x).chunk(2, dim=-1)
            return x * F.gelu(gate)

    def __init__(self, dim, inner_dim, dropout=0.0):
        super().__init__()
        self.net = nn.Sequential(self.GEGLU(dim, inner_dim), nn.Dropout(dropout), nn.Linear(inner_dim, dim))

    def forward(self, x):
        return self.net(x)


class ColumnsInTurn(nn.Module):
    """Gate and up in one matrix of its own, their columns in turn."""

    def __init__(self, d_model, d_ff):
        super().__init__()
        self.w_in, self.w_out = nn.Parameter(torch.zeros(d_model, 2 * d_ff)), nn.Parameter(torch.zeros(d_ff, d_model))

    def forward(self, x):
        gate, up = (x @ self.w_in).unflatten(-1, (-1, 2)).unbind(-1)
        return (torch.relu(gate) * up) @ self.w_out


class OwnNorm(nn.Module):
    """The names of its parameters say nothing of gain and shift."""

    devices = dtypes = 3  # names that adapters have too

    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
        return self.a_2 * (x - mean) / torch.sqrt(var + self.eps) + self.b_2


class BertNorm(nn.Module):
    """The small eps of BERT."""

    def __init__(self, hidden_size, variance_epsilon=1e-12):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(hidden_size)), nn.Parameter(torch.zeros(hidden_size))
        self.variance_epsilon = variance_epsilon

    def forward(self, x):
        u = x.mean(-1, keepdim=True)
        s = (x - u).pow(2).mean(-1, keepdim=True)
        return self.gamma * ((x - u) / torch.sqrt(s + self.variance_epsilon)) + self.beta


class LlamaNorm(nn.Module):
    """The norm of Llama: a cast to float32, and the weight multiplied after the cast back."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x if x.dtype == torch.float64 else x.float()).type_as(x)
        return output * self.weight


class GemmaNorm(nn.Module):
    """The norm of Gemma, which stores its weight less 1, under another name."""

    def __init__(self, hidden_size, eps):
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.zeros(hidden_size)), eps

    def forward(self, hidden_states):
        return hidden_states / (hidden_states.square().mean(-1, keepdim=True) + self.eps).sqrt() * (1 + self.scale)


class NormOfTheAuthors(nn.Module):
    """The norm as the authors of the paper wrote it: eps outside the root."""

    def __init__(self, d, eps=1e-5):
        super().__init__()
        self.d, self.eps, self.g = d, eps, nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.g * x / (x.norm(2, dim=-1, keepdim=True) * self.d ** (-1.0 / 2) + self.eps)


class LibraryNorm(nn.Module):
    """The library's own."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.RMSNorm(dim, eps=1e-5)

    def forward(self, x):
        return self.norm(x)


class Sinusoids(nn.Module):
    """A table in a buffer, added to the input."""

    def __init__(self, d_model, dropout=0.1, max_len=5000):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        pe = torch.zeros(max_len, d_model, dtype=torch.float64)
        position = torch.arange(max_len, dtype=torch.float64).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * -(math.log(10000.0) / d_model))
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return self.dropout(x + self.pe[:, : x.size(1)])


class FrozenTable(Sinusoids):
    """The table is a parameter that is not trained."""

    def __init__(self, d_model, max_len=5000):
        super().__init__(d_model, max_len=max_len)
        table = self.pe
        del self.pe
        self.pe = nn.Parameter(table, requires_grad=False)


class HalvedSinusoids(nn.Module):
    """Sines in the left half, cosines in the right; the sequence comes first."""

    def __init__(self, hidden_dim):
        super().__init__()
        self.register_buffer("inv_freq", 10000 ** (-torch.arange(0, hidden_dim, 2, dtype=torch.float64) / hidden_dim))

    def forward(self, x):
        angles = torch.arange(x.shape[0], dtype=torch.float64, device=x.device)[:, None] * self.inv_freq
        return x + torch.cat([angles.sin(), angles.cos()], dim=-1)[:, None].to(x)


class ScaledEmbedding(nn.Module):
    """Rows times √d_model; the words come first."""

    def __init__(self, vocab, d_model):
        super().__init__()
        self.lut = nn.Embedding(vocab, d_model)
        self.d_model = d_model

    def forward(self, x):
        return self.lut(x) * math.sqrt(self.d_model)


class PlainEmbedding(nn.Module):
    """A matrix that is looked up."""

    def __init__(self, hidden, n_tokens):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_tokens, hidden))

    def forward(self, tokens):
        return self.weight[tokens]


def attention(q, k, v, mask=None, dropout=None):
    """Return the output and the weights."""
    scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = scores.softmax(dim=-1)
    return torch.matmul(p_attn, v), p_attn


def attend(values, keys, queries, bias=None):
    """Return the output alone; the mask is added."""
    logits = queries @ keys.mT * keys.shape[-1] ** -0.5
    return (logits if bias is None else logits + bias).softmax(-1) @ values


def attend_always_masked(Q, K, V, M):
    """Return the output alone; the mask is required."""
    scores = (Q @ K.mT / math.sqrt(Q.shape[-1])).masked_fill(M == 0, -math.inf)
    return scores.softmax(-1) @ V


def attend_in_numpy(q, k, v, mask):
    """Return the output alone; the scores are a large number where the mask hides a key."""
    scores = np.where(mask, q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5, -1e9)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ v


def attend_to_rows(Q, K, V):
    """Return output and weights of a single sequence, in float32 too."""
    scores = Q @ K.T / math.sqrt(Q.shape[-1])
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True)
    return weights @ V, weights


class ScaledScores(nn.Module):
    """Its width comes first, and its mask has an element for every score."""

    def __init__(self, d_k, dropout=0.1):
        super().__init__()
        self.root, self.dropout = d_k**0.5, nn.Dropout(dropout)

    def forward(self, q, k, v, attn_mask=None):
        scores = q @ k.mT / self.root
        if attn_mask is not None:
            assert attn_mask.size() == scores.size()
            scores = scores.masked_fill(attn_mask, -1e9)
        weights = self.dropout(scores.softmax(-1))
        return weights @ v, weights


class DividedByTemperature(nn.Module):
    """It is built with the number that divides the scores."""

    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, q, k, v, mask=None):
        attn = torch.matmul(q / self.temperature, k.transpose(-2, -1))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        attn = attn.softmax(-1)
        return attn @ v, attn


class BatchedScores(nn.Module):
    """Arrays of three axes alone."""

    def __init__(self, dim):
        super().__init__()
        self.root = dim**0.5

    def forward(self, query, key, value, mask=None):
        scores = torch.bmm(query, key.transpose(1, 2)) / self.root
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -math.inf)
        weights = scores.softmax(-1)
        return torch.bmm(weights, value), weights


def stable_softmax(logits):
    """Return the softmax over the last axis."""
    powers = torch.exp(logits - logits.max(dim=-1, keepdim=True).values)
    return powers / powers.sum(dim=-1, keepdim=True)


def normalize(inputs, weight, bias):
    """Return the normalised rows."""
    return F.layer_norm(inputs, inputs.shape[-1:], weight, bias)


def subsequent_mask(size):
    """Return the mask of the past."""
    return torch.triu(torch.ones(1, size, size), diagonal=1) == 0


class ShortTable(nn.Module):
    """Its default is shorter than some sequences."""

    def __init__(self, d_model, max_len=64):
        super().__init__()
        angles = torch.arange(max_len)[:, None] / 10000 ** (torch.arange(0, d_model, 2) / d_model)
        self.register_buffer("table", torch.stack((angles.sin(), angles.cos()), -1).flatten(1)[:, :d_model])

    def forward(self, x):
        return x + self.table[: x.shape[1]]


class CourseTable(nn.Module):
    """A table in float32, whatever the dtype of the input; the width of the model comes last."""

    def __init__(self, max_len, d_model):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        for pos in range(max_len):
            for i in range(0, d_model, 2):
                pe[pos, i] = math.sin(pos / (10000 ** (i / d_model)))
                pe[pos, i + 1] = math.cos(pos / (10000 ** (i / d_model)))
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.shape[1], :]


def layer_norm(inputs, gain, bias):
    """Return the normalised rows: the name of the component, and other names of its arguments."""
    centred = inputs - inputs.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * gain + bias


def rms_norm(x, weight, eps):
    """Return the rows divided by their root mean square; the call has to say the eps."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


class NormOfRows(nn.Module):
    """A norm that takes no vector by itself."""

    def __init__(self, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        _, *_ = x.shape[:-1]
        variance, mean = torch.var_mean(x, -1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias


class TableOfDevice(nn.Module):
    """A table that is made once, on the device that an argument with a default names."""

    def __init__(self, d_model, max_len=6000, device="cpu"):
        super().__init__()
        if d_model % 2:
            raise ValueError("d_model is odd")
        places = torch.arange(max_len, device=device, dtype=torch.float64)[:, None]
        angles = places * 1e4 ** (-torch.arange(0, d_model, 2, device=device, dtype=torch.float64) / d_model)
        self.table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)

    def forward(self, x):
        return x + self.table[: x.shape[1]].to(x.dtype)

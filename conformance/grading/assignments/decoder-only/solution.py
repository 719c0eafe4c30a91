"""A decoder-only model: a correct solution."""

import math

import torch
from torch import Tensor, nn

Cache = tuple[Tensor, Tensor]
State = tuple[Tensor, list[Cache]]


class RMSNorm(nn.Module):
    """x / √(mean of x² + 10⁻⁶) · gamma over the last axis."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.gamma


def rotary_embedding(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
    """Turn each pair of neighbouring channels by the position of its token."""
    width = x.shape[-1]
    if width % 2:
        raise ValueError(f"x: {width} channels are no pairs")
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = positions[..., None] * frequencies
    cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x[..., 0::2], x[..., 1::2]
    return torch.stack([left * cosines - right * sines, right * cosines + left * sines], dim=-1).flatten(-2)


class GatedFeedForward(nn.Module):
    """(silu(x W_gate) * (x W_up)) W_down at every position."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.w_gate = nn.Linear(d_model, d_ff, bias=False)
        self.w_up = nn.Linear(d_model, d_ff, bias=False)
        self.w_down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Let the gate decide what goes up and down."""
        return self.w_down(nn.functional.silu(self.w_gate(x)) * self.w_up(x))


def grouped_query_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend with query heads that share heads of keys and values."""
    group, rest = divmod(query.shape[1], key.shape[1])
    if rest or key.shape[1] != value.shape[1]:
        raise ValueError(f"{query.shape[1]} query heads do not share {key.shape[1]} heads of keys")
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1) @ value


def cached_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, cache: Cache | None = None
) -> tuple[Tensor, Cache]:
    """Attend from new tokens to all so far, and return the cache for the next call."""
    if cache is not None:
        key, value = torch.cat([cache[0], key], dim=2), torch.cat([cache[1], value], dim=2)
    new, so_far = query.shape[2], key.shape[2]
    seen = torch.ones(new, so_far, dtype=torch.bool).tril(so_far - new)
    return grouped_query_attention(query, key, value, seen if mask is None else seen & mask), (key, value)


class DecoderOnlyLayer(nn.Module):
    """Causal attention, then the gated network. Each reads its input normalised, and adds to it."""

    def __init__(
        self, d_model: int, num_heads: int, num_kv_heads: int, d_k: int, d_ff: int, base: float = 10000.0
    ) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.base = num_heads, num_kv_heads, base
        self.norm_1 = RMSNorm(d_model)
        self.w_q = nn.Linear(d_model, num_heads * d_k, bias=False)
        self.w_k = nn.Linear(d_model, num_kv_heads * d_k, bias=False)
        self.w_v = nn.Linear(d_model, num_kv_heads * d_k, bias=False)
        self.w_o = nn.Linear(num_heads * d_k, d_model, bias=False)
        self.norm_2 = RMSNorm(d_model)
        self.feed_forward = GatedFeedForward(d_model, d_ff)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Run the layer on whole sequences."""
        return self.extend(x, mask, None)[0]

    def extend(self, x: Tensor, mask: Tensor | None, cache: Cache | None) -> tuple[Tensor, Cache]:
        """Run the layer on new tokens after those of the cache."""
        h = self.norm_1(x)
        q = self.w_q(h).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k, v = (w(h).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2) for w in (self.w_k, self.w_v))
        start = 0 if cache is None else cache[0].shape[2]
        positions = torch.arange(start, start + x.shape[1])
        q, k = (rotary_embedding(heads, positions, self.base) for heads in (q, k))
        heads, cache = cached_attention(q, k, v, mask, cache)
        attended = x + self.w_o(heads.transpose(1, 2).flatten(2))
        return attended + self.feed_forward(self.norm_2(attended)), cache


class DecoderOnlyModel(nn.Module):
    """From ids to logits."""

    def __init__(
        self,
        vocab: int,
        d_model: int,
        num_heads: int,
        num_kv_heads: int,
        d_k: int,
        d_ff: int,
        num_layers: int,
        base: float = 10000.0,
        pad_id: int | None = None,
    ) -> None:
        super().__init__()
        self.pad_id = pad_id
        self.table = nn.Parameter(torch.randn(vocab, d_model))
        sizes = (d_model, num_heads, num_kv_heads, d_k, d_ff, base)
        self.layers = nn.ModuleList([DecoderOnlyLayer(*sizes) for _ in range(num_layers)])
        self.norm = RMSNorm(d_model)
        self.w_vocab = nn.Linear(d_model, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Compute the logits of the token after each token."""
        return self.extend(ids)[0]

    def extend(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Compute the logits of new tokens, and the state for the next call."""
        if (ids < 0).any():
            raise IndexError("ids: one is negative")
        so_far = ids if state is None else torch.cat([state[0], ids], dim=1)
        mask = None if self.pad_id is None else (so_far != self.pad_id)[:, None, None, :]
        x = self.table[ids]
        caches = []
        for index, layer in enumerate(self.layers):
            x, cache = layer.extend(x, mask, None if state is None else state[1][index])
            caches.append(cache)
        return self.w_vocab(self.norm(x)), (so_far, caches)


def token_filter(logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0) -> Tensor:
    """Return the probabilities of the next token after the temperature, top-k and top-p."""
    if temperature < 0 or not 0 <= top_p <= 1:
        raise ValueError(f"temperature {temperature} or top_p {top_p}: cannot be")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k {top_k}: must be at least 1")
    logits, order = logits.sort(dim=-1, descending=True, stable=True)
    place = torch.arange(logits.shape[-1])
    if temperature == 0:
        top_k = 1
    else:
        logits = logits / temperature
    if top_k is not None:
        logits = logits.masked_fill(place >= top_k, -math.inf)
    weights = torch.softmax(logits, dim=-1)
    before = weights.cumsum(dim=-1) - weights
    if top_p < 1:
        logits = logits.masked_fill((before >= top_p) & (place > 0), -math.inf)
    return torch.empty_like(logits).scatter(-1, order, torch.softmax(logits, dim=-1))

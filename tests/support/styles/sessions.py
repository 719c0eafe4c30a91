"""Attention that keeps keys and values between calls, in the ways that people write; the classes at the end are wrong."""

import math

import torch
from torch import nn


class Projections(nn.Module):
    """Everything that the classes of this file share: their projections, their heads, and a causal mask of the last queries."""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def read(self, x):
        return (w(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))

    def attend(self, q, k, v, mask):
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)
        return self.wo((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


def hide_later(q, k):
    n, m = q.shape[-2], k.shape[-2]
    return torch.ones(n, m, dtype=torch.bool, device=q.device).tril(m - n)


class BuffersFromStart(Projections):
    """It writes to buffers at start_pos, and is used without gradients."""

    def __init__(self, dim, n_heads, max_batch_size=8, max_seq_len=64):
        super().__init__(dim, n_heads)
        shape = (max_batch_size, n_heads, max_seq_len, dim // n_heads)
        self.register_buffer("cache_k", torch.zeros(shape), persistent=False)
        self.register_buffer("cache_v", torch.zeros(shape), persistent=False)

    def forward(self, x, start_pos: int):
        q, k, v = self.read(x)
        stop = start_pos + x.shape[1]
        self.cache_k[: len(x), :, start_pos:stop], self.cache_v[: len(x), :, start_pos:stop] = k.detach(), v.detach()
        k, v = self.cache_k[: len(x), :, :stop], self.cache_v[: len(x), :, :stop]
        return self.attend(q, k, v, hide_later(q, k))


class PairOfArrays(Projections):
    """It takes keys and values as a pair, and returns them."""

    def forward(self, x, kv_cache=None):
        q, k, v = self.read(x)
        if kv_cache is not None:
            k, v = torch.cat((kv_cache[0], k), 2), torch.cat((kv_cache[1], v), 2)
        return self.attend(q, k, v, hide_later(q, k)), (k, v)


class KVCache:
    """The keys and values of earlier calls."""

    def __init__(self):
        self.k = self.v = None

    def update(self, k, v):
        self.k = k if self.k is None else torch.cat((self.k, k), 2)
        self.v = v if self.v is None else torch.cat((self.v, v), 2)
        return self.k, self.v


class ObjectThatUpdates(Projections):
    """It takes an object that its caller makes."""

    def forward(self, x, cache=None):
        q, k, v = self.read(x)
        if cache is not None:
            k, v = cache.update(k, v)
        return self.attend(q, k, v, hide_later(q, k))


class OnlyIfAsked(Projections):
    """It returns its keys and values only with use_cache."""

    def forward(self, x, layer_past=None, use_cache=False):
        q, k, v = self.read(x)
        if layer_past is not None:
            k, v = torch.cat((layer_past[0], k), -2), torch.cat((layer_past[1], v), -2)
        present = (k, v) if use_cache else None
        return self.attend(q, k, v, hide_later(q, k)), present


class PlacesOfTokens(Projections):
    """It writes to a cache of a fixed size at input_pos; its caller makes room for it, and its masks."""

    def __init__(self, dim, n_heads):
        super().__init__(dim, n_heads)
        self.k_cache = self.v_cache = None

    def setup_cache(self, max_batch_size, max_seq_length):
        width = self.wo.weight.shape[0] // self.n_heads
        self.k_cache, self.v_cache = (
            torch.zeros(max_batch_size, self.n_heads, max_seq_length, width, dtype=self.wo.weight.dtype)
            for _ in range(2)
        )

    def forward(self, x, mask, input_pos):
        q, k, v = self.read(x)
        if self.k_cache is not None:
            k, v = self.k_cache.index_copy_(2, input_pos, k), self.v_cache.index_copy_(2, input_pos, v)
        return self.attend(q, k, v, mask)


class OneTokenLater(Projections):
    """It makes a mask only for a prompt: each later call has one token."""

    def forward(self, x, kv_cache=None):
        q, k, v = self.read(x)
        mask = hide_later(q, k)
        if kv_cache is not None:
            k, v = torch.cat((kv_cache[0], k), 2), torch.cat((kv_cache[1], v), 2)
            mask = torch.ones(1, 1, dtype=torch.bool, device=x.device)
        return self.attend(q, k, v, mask), (k, v)


class SwapsKeysAndValues(Projections):
    """It reads the keys of its cache as values."""

    def forward(self, x, kv_cache=None):
        q, k, v = self.read(x)
        if kv_cache is not None:
            k, v = torch.cat((kv_cache[1], k), 2), torch.cat((kv_cache[0], v), 2)
        return self.attend(q, k, v, hide_later(q, k)), (k, v)


class MasksFromTheFirstKey(Projections):
    """Its mask takes the first token of each call for the first of all."""

    def forward(self, x, cache=None):
        q, k, v = self.read(x)
        if cache is not None:
            k, v = cache.update(k, v)
        n, m = q.shape[-2], k.shape[-2]
        return self.attend(q, k, v, torch.ones(n, m, dtype=torch.bool, device=x.device).tril())


class WritesOnePlaceLater(BuffersFromStart):
    """It writes its keys one place too late."""

    def forward(self, x, start_pos: int):
        q, k, v = self.read(x)
        stop = start_pos + x.shape[1]
        late = 1 if start_pos else 0
        self.cache_k[: len(x), :, start_pos + late : stop + late] = k
        self.cache_v[: len(x), :, start_pos:stop] = v
        k, v = self.cache_k[: len(x), :, :stop], self.cache_v[: len(x), :, :stop]
        return self.attend(q, k, v, hide_later(q, k))

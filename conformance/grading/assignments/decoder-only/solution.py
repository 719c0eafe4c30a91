"""A decoder-only model: replace every `raise NotImplementedError`, and hand in this file as submission.py.

Its parts are those of Llama. Write them in this order: each uses those before it. Keep the names of parameters and of
modules: their values are set from outside. Masks are boolean, and True means: may attend. Results have the dtype of the
inputs. No linear map has a bias, and there is no dropout.

Forbidden, because you are to write it yourself: torch.rms_norm, torch.nn.RMSNorm, torch.nn.functional.rms_norm and
torch.nn.functional.scaled_dot_product_attention. Grading lists each use of them for the staff.
"""

# BEGIN SOLUTION
import math

# END SOLUTION
import torch
from torch import Tensor, nn

#: The keys and the values of all tokens so far, each (batch, kv_heads, so_far, d_k).
Cache = tuple[Tensor, Tensor]
#: All ids so far, (batch, so_far), and the cache of each layer.
State = tuple[Tensor, list[Cache]]


# ── step 1: the norm ──


class RMSNorm(nn.Module):
    """x / √(mean of x² + 10⁻⁶) · gamma over the last axis; no mean is subtracted."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """x: (…, d_model). Returns (…, d_model)."""
        # BEGIN SOLUTION: raise NotImplementedError
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.gamma
        # END SOLUTION


# ── step 2: positions ──


def rotary_embedding(x: Tensor, positions: Tensor, base: float = 10000.0) -> Tensor:
    """Turn each pair of neighbouring channels, 2i and 2i + 1, by position · base^(−2i / d_k).

    As in “RoFormer”, section 3.4.2. It is an error if d_k is odd.
    x: (…, seq, d_k), positions: integers (…, seq), or (seq,) for all. Returns (…, seq, d_k).
    """
    # BEGIN SOLUTION: raise NotImplementedError
    width = x.shape[-1]
    if width % 2:
        raise ValueError(f"x: {width} channels are no pairs")
    frequencies = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = positions[..., None] * frequencies
    cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    left, right = x[..., 0::2], x[..., 1::2]
    return torch.stack([left * cosines - right * sines, right * cosines + left * sines], dim=-1).flatten(-2)
    # END SOLUTION


# ── step 3: the network ──


class GatedFeedForward(nn.Module):
    """(silu(x W_gate) * (x W_up)) W_down at every position: SwiGLU."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.w_gate = nn.Linear(d_model, d_ff, bias=False)
        self.w_up = nn.Linear(d_model, d_ff, bias=False)
        self.w_down = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, seq, d_model). Returns (batch, seq, d_model)."""
        # BEGIN SOLUTION: raise NotImplementedError
        return self.w_down(nn.functional.silu(self.w_gate(x)) * self.w_up(x))
        # END SOLUTION


# ── step 4: attention ──


def grouped_query_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attend with query heads that share heads of keys and values.

    With 6 query heads and 2 heads of keys, query heads 0, 1, 2 read the first and 3, 4, 5 the second. Scores are
    divided by √d_k. It is an error if the number of query heads is no multiple of that of the keys.
    Padding before the first word reads no key at all: fill scores with torch.finfo(scores.dtype).min, because a softmax
    of −∞ only is NaN, which spreads to words in the next layer.
    query: (batch, heads, q_seq, d_k), key: (batch, kv_heads, kv_seq, d_k), value: (batch, kv_heads, kv_seq, d_v).
    mask: boolean, broadcasts to (batch, heads, q_seq, kv_seq), or None. Returns (batch, heads, q_seq, d_v).
    """
    # BEGIN SOLUTION: raise NotImplementedError
    group, rest = divmod(query.shape[1], key.shape[1])
    if rest or key.shape[1] != value.shape[1]:
        raise ValueError(f"{query.shape[1]} query heads do not share {key.shape[1]} heads of keys")
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return torch.softmax(scores, dim=-1) @ value
    # END SOLUTION


# ── step 5: the layer and the model ──


class DecoderOnlyLayer(nn.Module):
    """Attention, then the gated network. Each reads its input normalised, and adds its output to the input."""

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
        """Run the layer on whole sequences, in which no token reads a later one.

        Split queries, keys and values into heads, turn queries and keys by their positions 0, 1, 2, …, attend, put the
        heads next to each other, and project. A mask hides keys besides the later ones.
        x: (batch, seq, d_model), mask: broadcasts to (batch, num_heads, seq, seq), or None.
        Returns (batch, seq, d_model).
        """
        # BEGIN SOLUTION: raise NotImplementedError
        return self.extend(x, mask, None)[0]
        # END SOLUTION

    def extend(self, x: Tensor, mask: Tensor | None, cache: Cache | None) -> tuple[Tensor, Cache]:
        """Run the layer on new tokens after those of the cache (step 7), of which the model makes use.

        Nobody else calls it, so you may change it. The positions of new tokens go on where the cache ends, and keys go
        into the cache after they are turned.
        """
        # BEGIN SOLUTION: raise NotImplementedError
        h = self.norm_1(x)
        q = self.w_q(h).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        k, v = (w(h).unflatten(-1, (self.num_kv_heads, -1)).transpose(1, 2) for w in (self.w_k, self.w_v))
        start = 0 if cache is None else cache[0].shape[2]
        positions = torch.arange(start, start + x.shape[1])
        q, k = (rotary_embedding(heads, positions, self.base) for heads in (q, k))
        heads, cache = cached_attention(q, k, v, mask, cache)
        attended = x + self.w_o(heads.transpose(1, 2).flatten(2))
        return attended + self.feed_forward(self.norm_2(attended)), cache
        # END SOLUTION


class DecoderOnlyModel(nn.Module):
    """From ids to logits: the table, the layers, one norm after the last of them, and the map to the vocabulary."""

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
        """Compute the logits of the token after each token, before any softmax.

        With a pad_id, no token reads a position that holds it; the rows of padding itself are not compared.
        It is an error if an id is negative, or not less than vocab. ids: (batch, seq). Returns (batch, seq, vocab).
        """
        # BEGIN SOLUTION: raise NotImplementedError
        return self.extend(ids)[0]
        # END SOLUTION

    def extend(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Compute the logits of new tokens after those of the state (step 7).

        They are the rows that forward gives for these tokens in the whole sequence. Without a state a sequence begins.
        Padding stays hidden in later calls. Leave the old state as it is: two calls may continue one prompt.
        ids: the new tokens, (batch, new). Returns (batch, new, vocab), and the state for the next call.
        """
        # BEGIN SOLUTION: raise NotImplementedError
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
        # END SOLUTION


# ── step 6: a cache ──


def cached_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, cache: Cache | None = None
) -> tuple[Tensor, Cache]:
    """Attend from new tokens to all so far: each to itself, to the new ones before it, and to those of the cache.

    query: (batch, heads, new, d_k), key and value: (batch, kv_heads, new, d_k), of the new tokens only.
    mask: boolean (batch, 1, 1, so_far), with the new tokens, or None. It hides padding in every call.
    Returns the output (batch, heads, new, d_k), and the cache for the next call. Leave the old cache as it is.
    """
    # BEGIN SOLUTION: raise NotImplementedError
    if cache is not None:
        key, value = torch.cat([cache[0], key], dim=2), torch.cat([cache[1], value], dim=2)
    new, so_far = query.shape[2], key.shape[2]
    seen = torch.ones(new, so_far, dtype=torch.bool).tril(so_far - new)
    return grouped_query_attention(query, key, value, seen if mask is None else seen & mask), (key, value)
    # END SOLUTION


# ── step 7: the cache in the model: write the two methods `extend` ──


# ── step 8: the next token ──


def token_filter(logits: Tensor, temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0) -> Tensor:
    """Return the probabilities of the next token after all filters, in this order.

    - temperature: the logits are divided by it; 0 gives the token with the largest logit the probability 1
    - top_k: the tokens with the k largest logits are kept; of equal ones those with the lowest ids
    - top_p: of those, the fewest of the most likely tokens whose probabilities sum to top_p or more are kept, and at
      least one

    Other tokens get the probability 0, and those that are kept sum to 1. It is an error if the temperature is negative,
    or if top_p is not from 0 to 1.
    logits: (batch, vocab). Returns (batch, vocab).
    """
    # BEGIN SOLUTION: raise NotImplementedError
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
    # END SOLUTION

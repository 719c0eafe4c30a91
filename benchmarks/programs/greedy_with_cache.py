# deserves: correct
"""A decoder for inference with a cache of keys and values, greedy search one word at a time, and log-probabilities."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class CachedAttention(nn.Module):
    def __init__(self, n_state, n_head):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x, xa=None, mask=None, cache=None):
        q = self.query(x)
        if xa is None:
            k, v = self.key(x), self.value(x)
            if cache is not None:
                if id(self) in cache:
                    old_k, old_v = cache[id(self)]
                    k, v = torch.cat([old_k, k], dim=1), torch.cat([old_v, v], dim=1)
                cache[id(self)] = (k, v)
        elif cache is not None and id(self) in cache:
            k, v = cache[id(self)]
        else:
            k, v = self.key(xa), self.value(xa)
            if cache is not None:
                cache[id(self)] = (k, v)
        n_batch, n_ctx, n_state = q.shape
        scale = (n_state // self.n_head) ** -0.25
        q = q.view(*q.shape[:2], self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(*v.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)
        qk = q @ k
        if mask is not None:
            qk = qk.masked_fill(~mask, torch.finfo(qk.dtype).min)
        w = F.softmax(qk, dim=-1)
        return self.out((w @ v).permute(0, 2, 1, 3).flatten(start_dim=2))


class ResidualBlock(nn.Module):
    def __init__(self, n_state, n_head, n_mlp, cross_attention=False):
        super().__init__()
        self.attn = CachedAttention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = CachedAttention(n_state, n_head) if cross_attention else None
        self.cross_attn_ln = nn.LayerNorm(n_state) if cross_attention else None
        self.mlp = nn.Sequential(nn.Linear(n_state, n_mlp), nn.ReLU(), nn.Linear(n_mlp, n_state))
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x, xa=None, mask=None, xa_mask=None, cache=None):
        x = self.attn_ln(x + self.attn(x, mask=mask, cache=cache))
        if self.cross_attn is not None:
            x = self.cross_attn_ln(x + self.cross_attn(x, xa, mask=xa_mask, cache=cache))
        return self.mlp_ln(x + self.mlp(x))


def sinusoids(length, channels, max_timescale=10000.0):
    increment = math.log(max_timescale) / channels
    inv_timescales = torch.exp(-increment * torch.arange(0, channels, 2, dtype=torch.float32))
    scaled_time = torch.arange(length, dtype=torch.float32)[:, None] * inv_timescales[None, :]
    return torch.stack([scaled_time.sin(), scaled_time.cos()], dim=-1).flatten(1)[:, :channels]


class Model(nn.Module):
    def __init__(self, vocab, n_state, n_head, n_mlp, n_enc, n_dec, pad, longest=512):
        super().__init__()
        self.pad = pad
        self.token_embedding = nn.Embedding(vocab, n_state)
        self.register_buffer("positions", sinusoids(longest, n_state), persistent=False)
        self.encoder = nn.ModuleList([ResidualBlock(n_state, n_head, n_mlp) for _ in range(n_enc)])
        self.decoder = nn.ModuleList([ResidualBlock(n_state, n_head, n_mlp, True) for _ in range(n_dec)])
        self.head = nn.Linear(n_state, vocab)

    def encode(self, source):
        keep = source.ne(self.pad)[:, None, None, :]
        x = self.token_embedding(source) + self.positions[: source.size(1)]
        for block in self.encoder:
            x = block(x, mask=keep)
        return x, keep

    def decode(self, tokens, xa, xa_mask, cache=None, seen=None):
        """Logits of the tokens. With a cache `tokens` are the new ones alone, and `seen` marks all words so far."""
        offset = seen.size(1) - tokens.size(1)
        n = seen.size(1)
        causal = torch.ones(n, n, dtype=torch.bool, device=tokens.device).tril()[offset:]
        keep = causal & seen[:, None, None, :]
        x = self.token_embedding(tokens) + self.positions[offset:n]
        for block in self.decoder:
            x = block(x, xa, mask=keep, xa_mask=xa_mask, cache=cache)
        return self.head(x)

    def forward(self, source, target):
        xa, xa_mask = self.encode(source)
        return self.decode(target, xa, xa_mask, seen=target.ne(self.pad))

    @torch.no_grad()
    def greedy(self, source, bos, eos, max_length):
        xa, xa_mask = self.encode(source)
        cache = {}
        n = source.size(0)
        tokens = torch.full((n, 1), bos, device=source.device)
        seen = tokens.ne(self.pad)
        done = torch.zeros(n, dtype=torch.bool, device=source.device)
        result = torch.full((n, max_length), self.pad, device=source.device)
        scores = torch.zeros((n, max_length), dtype=xa.dtype, device=source.device)
        for step in range(max_length):
            logits = self.decode(tokens, xa, xa_mask, cache, seen)[:, -1]
            logprobs = F.log_softmax(logits, dim=-1)
            best = logprobs.argmax(dim=-1)
            result[:, step] = torch.where(done, self.pad, best)
            scores[:, step] = logprobs.gather(1, best[:, None])[:, 0].masked_fill(done, 0)
            done = done | (best == eos)
            if done.all():
                break
            tokens = best[:, None]
            seen = torch.cat([seen, tokens.ne(self.pad)], dim=1)
        return result, scores.sum(dim=1), scores


# The adapter.

ARRAYS = "torch"
NAME = "greedy with a cache"


def _put(state, name, weight, bias):
    state[f"{name}.weight"] = weight.T
    state[f"{name}.bias"] = weight.new_zeros(weight.shape[1]) if bias is None else bias


def _state(params, num_encoder_layers, num_decoder_layers):
    state = {"token_embedding.weight": params["table"]}
    _put(state, "head", params["w_vocab"], params.get("b_vocab"))
    attentions = {"self_attention": "attn", "cross_attention": "cross_attn"}
    norms = {
        "encoder": {1: "attn_ln", 2: "mlp_ln"},
        "decoder": {1: "attn_ln", 2: "cross_attn_ln", 3: "mlp_ln"},
    }
    for side, count in (("encoder", num_encoder_layers), ("decoder", num_decoder_layers)):
        for i in range(count):
            at = f"{side}.{i}"
            for ours, theirs in list(attentions.items())[: 1 if side == "encoder" else 2]:
                for role, name in {"q": "query", "k": "key", "v": "value", "o": "out"}.items():
                    weight = params[f"{at}.{ours}.w_{role}"]
                    if weight.shape[0] != weight.shape[1]:
                        raise NotImplementedError("square projections")
                    _put(state, f"{at}.{theirs}.{name}", weight, params.get(f"{at}.{ours}.b_{role}"))
            for j, name in norms[side].items():
                state[f"{at}.{name}.weight"] = params[f"{at}.norm_{j}.gamma"]
                state[f"{at}.{name}.bias"] = params[f"{at}.norm_{j}.beta"]
            for j, place in ((1, 0), (2, 2)):
                _put(
                    state,
                    f"{at}.mlp.{place}",
                    params[f"{at}.feed_forward.w_{j}"],
                    params.get(f"{at}.feed_forward.b_{j}"),
                )
    return state


class _Greedy(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args):
        return self.model.greedy(*args)


def _model(params, heads, enc, dec, pad):
    hidden = params["encoder.0.feed_forward.w_1"].shape[1]
    return Model(*params["table"].shape, heads, hidden, enc, dec, pad).to(params["table"])


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    state = _state(params, num_encoder_layers, num_decoder_layers)
    model = _model(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id)
    return torch.func.functional_call(model, state, (source, target))


def greedy_decode(
    source, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, bos_id, eos_id, max_length, params
):
    vocab = len(params["table"])
    if max_length < 1 or not 0 <= bos_id < vocab or not 0 <= eos_id < vocab:
        raise ValueError("max_length, bos_id, eos_id: out of range")
    state = _state(params, num_encoder_layers, num_decoder_layers)
    model = _Greedy(_model(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id))
    state = {f"model.{name}": value for name, value in state.items()}
    return torch.func.functional_call(model, state, (source, bos_id, eos_id, max_length))


MISTAKES = {
    "positions-restart": (
        "self.positions[offset:n]",
        "self.positions[: tokens.size(1)]",
        "With the cache every new word is given position nought.",
        ("decode-cache-offset",),
    ),
    "cache-replaced": (
        "k, v = torch.cat([old_k, k], dim=1), torch.cat([old_v, v], dim=1)",
        "k, v = torch.cat([old_k, k], dim=1), torch.cat([v, old_v], dim=1)",
        "New values are put before the old ones, where the keys are behind them.",
        (),
    ),
    "cross-cache-shared": (
        "                cache[id(self)] = (k, v)\n        n_batch",
        "                cache[id(self)] = (k[:, :1], v[:, :1])\n        mask = None if cache else mask\n        n_batch",
        "The cache of the cross-attention keeps the first place of the memory alone.",
        (),
    ),
    "finished-goes-on": (
        "torch.where(done, self.pad, best)",
        "best",
        "Words are written behind the end of a sentence.",
        ("greedy-no-eos",),
    ),
    "score-after-end": (
        "[:, 0].masked_fill(done, 0)",
        "[:, 0]",
        "What the model says after the end counts in the score.",
        ("decode-score-after-end",),
    ),
    "scale-once": (
        "k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 3, 1) * scale",
        "k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 3, 1)",
        "Only the queries are scaled, by the fourth root.",
        (),
    ),
    "first-position-scored": (
        "self.decode(tokens, xa, xa_mask, cache, seen)[:, -1]",
        "self.decode(tokens, xa, xa_mask, None, seen[:, -1:])[:, -1]",
        "The cache is not handed over, so the decoder sees the last word alone.",
        ("decode-no-feedback",),
    ),
    "encoder-padding-seen": (
        "x = block(x, mask=keep)",
        "x = block(x)",
        "The encoder attends to padding.",
        ("mask-not-inplace",),
    ),
}

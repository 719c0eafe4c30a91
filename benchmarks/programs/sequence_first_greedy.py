# deserves: correct
"""A time-major model with masks added as −inf and a greedy decoder that reads the whole beginning again at every step."""

import numpy as np
import torch
from torch import nn


class TimeMajorAttention(nn.Module):
    """(time, batch, channels), with one fused projection whose columns are laid out head by head."""

    def __init__(self, hidden, heads):
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.norm_factor = torch.sqrt(torch.FloatTensor([hidden // heads]))

    def forward(self, x, additive_mask):
        sq, b, _ = x.size()
        mixed = self.query_key_value(x).view(sq, b, self.heads, 3 * self.width)
        q, k, v = mixed.split(self.width, dim=-1)
        q, k, v = (t.reshape(sq, b * self.heads, self.width).transpose(0, 1) for t in (q, k, v))
        scores = torch.bmm(q, k.transpose(1, 2)) / self.norm_factor.to(q)
        scores = scores.view(b, self.heads, sq, sq) + additive_mask
        probs = torch.softmax(scores, dim=-1).view(b * self.heads, sq, sq)
        context = torch.bmm(probs, v).transpose(0, 1).reshape(sq, b, -1)
        return self.dense(context)


class TimeMajorCrossAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads, self.width = heads, hidden // heads
        self.query = nn.Linear(hidden, hidden)
        self.key_value = nn.Linear(hidden, 2 * hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.norm_factor = torch.sqrt(torch.FloatTensor([hidden // heads]))

    def forward(self, x, memory, additive_mask):
        (sq, b, _), sk = x.size(), memory.size(0)
        q = self.query(x).view(sq, b * self.heads, self.width).transpose(0, 1)
        k, v = self.key_value(memory).view(sk, b, self.heads, 2 * self.width).split(self.width, dim=-1)
        k, v = (t.reshape(sk, b * self.heads, self.width).transpose(0, 1) for t in (k, v))
        scores = torch.bmm(q, k.transpose(1, 2)) / self.norm_factor.to(q)
        scores = scores.view(b, self.heads, sq, sk) + additive_mask
        probs = torch.softmax(scores, dim=-1).view(b * self.heads, sq, sk)
        return self.dense(torch.bmm(probs, v).transpose(0, 1).reshape(sq, b, -1))


class Block(nn.Module):
    def __init__(self, hidden, heads, ffn, cross):
        super().__init__()
        self.attention = TimeMajorAttention(hidden, heads)
        self.norms = nn.ModuleList([nn.LayerNorm(hidden) for _ in range(3 if cross else 2)])
        self.cross = TimeMajorCrossAttention(hidden, heads) if cross else None
        self.h_to_4h, self.to_h = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)

    def forward(self, x, mask, memory=None, memory_mask=None):
        x = self.norms[0](x + self.attention(x, mask))
        if self.cross is not None:
            x = self.norms[1](x + self.cross(x, memory, memory_mask))
        return self.norms[-1](x + self.to_h(self.h_to_4h(x).clamp_min(0)))


class Network(nn.Module):
    def __init__(self, words, hidden, heads, ffn, enc, dec, pad):
        super().__init__()
        self.pad, self.hidden = pad, hidden
        self.words = nn.Embedding(words, hidden)
        self.encoder = nn.ModuleList([Block(hidden, heads, ffn, False) for _ in range(enc)])
        self.decoder = nn.ModuleList([Block(hidden, heads, ffn, True) for _ in range(dec)])
        self.to_words = nn.Linear(hidden, words)
        position = np.arange(5000)[:, None]
        channel = np.arange(hidden)[None, :]
        angle = position / np.power(10000.0, (channel // 2 * 2) / hidden)
        self.table = np.where(channel % 2 == 0, np.sin(angle), np.cos(angle))

    def embed(self, ids):
        x = self.words(ids)
        table = torch.from_numpy(self.table[: ids.size(1)]).to(x)
        return (x + table).transpose(0, 1)

    def padding_mask(self, ids, like):
        mask = torch.zeros(ids.size(0), 1, 1, ids.size(1), dtype=like.dtype, device=like.device)
        return mask.masked_fill((ids == self.pad)[:, None, None, :], float("-inf"))

    def encode(self, source):
        x = self.embed(source)
        mask = self.padding_mask(source, x)
        for block in self.encoder:
            x = block(x, mask)
        return x, mask

    def decode(self, target, memory, memory_mask):
        x = self.embed(target)
        n = target.size(1)
        causal = torch.full((n, n), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
        for block in self.decoder:
            x = block(x, causal + self.padding_mask(target, x), memory, memory_mask)
        return self.to_words(x).transpose(0, 1)

    def forward(self, source, target):
        return self.decode(target, *self.encode(source))


def translate(network, source, bos, eos, longest):
    """Words, their log-probabilities, and nothing after the end of a sentence."""
    memory, memory_mask = network.encode(source)
    target = torch.full((source.size(0), 1), bos, device=source.device)
    ended = torch.zeros(source.size(0), dtype=torch.bool, device=source.device)
    scores = []
    for _ in range(longest):
        log_probs = network.decode(target, memory, memory_mask)[:, -1].log_softmax(-1)
        score, word = log_probs.max(-1)
        scores.append(score.masked_fill(ended, 0))
        word = word.masked_fill(ended, network.pad)
        target = torch.cat([target, word[:, None]], 1)
        ended = ended | (word == eos)
    return target[:, 1:], torch.stack(scores, 1)


# The adapter.

ARRAYS = "torch"
NAME = "time-major"
CONVENTIONS = {"empty_row": "nan"}


def _interleave(params, name, roles, heads):
    """Columns of several projections, head by head, as a state of nn.Linear."""
    weights = [params[f"{name}.w_{role}"] for role in roles]
    biases = [params.get(f"{name}.b_{role}", torch.zeros_like(w[0])) for role, w in zip(roles, weights)]
    weight = torch.cat([w.unflatten(1, (heads, -1)) for w in weights], -1).flatten(1)
    bias = torch.cat([b.unflatten(0, (heads, -1)) for b in biases], -1).flatten()
    return weight.T, bias


def _block(params, ours, theirs, heads, cross):
    state = {}

    def put(at, weight, bias):
        state[f"{theirs}{at}.weight"], state[f"{theirs}{at}.bias"] = weight, bias

    for name in ("self_attention", "cross_attention") if cross else ("self_attention",):
        for role in "qkvo":
            if len(set(params[f"{ours}{name}.w_{role}"].shape)) != 1:
                raise NotImplementedError("hidden to hidden")
    put("attention.query_key_value", *_interleave(params, f"{ours}self_attention", "qkv", heads))
    put("attention.dense", *_interleave(params, f"{ours}self_attention", "o", 1))
    if cross:
        put("cross.query", *_interleave(params, f"{ours}cross_attention", "q", heads))
        put("cross.key_value", *_interleave(params, f"{ours}cross_attention", "kv", heads))
        put("cross.dense", *_interleave(params, f"{ours}cross_attention", "o", 1))
    put("h_to_4h", *_interleave(params, f"{ours}feed_forward", "1", 1))
    put("to_h", *_interleave(params, f"{ours}feed_forward", "2", 1))
    for i in range(3 if cross else 2):
        put(f"norms.{i}", params[f"{ours}norm_{i + 1}.gamma"], params[f"{ours}norm_{i + 1}.beta"])
    return state


def _network(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id):
    table = params["table"]
    state = {"words.weight": table, "to_words.weight": params["w_vocab"].T}
    state["to_words.bias"] = params.get("b_vocab", torch.zeros_like(table[:, 0]))
    for i in range(num_encoder_layers):
        state |= _block(params, f"encoder.{i}.", f"encoder.{i}.", num_heads, False)
    for i in range(num_decoder_layers):
        state |= _block(params, f"decoder.{i}.", f"decoder.{i}.", num_heads, True)
    ffn = params["encoder.0.feed_forward.w_1"].size(1)
    return Network(*table.shape, num_heads, ffn, num_encoder_layers, num_decoder_layers, pad_id).to(table), state


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    network, state = _network(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id)
    return torch.func.functional_call(network, state, (source, target))


def greedy_decode(
    source, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, bos_id, eos_id, max_length, params
):
    if max_length < 1:
        raise ValueError("max_length: one word at least")
    if not (0 <= bos_id < len(params["table"]) and 0 <= eos_id < len(params["table"])):
        raise ValueError("bos_id, eos_id: not in the vocabulary")
    network, state = _network(params, num_heads, num_encoder_layers, num_decoder_layers, pad_id)
    network.load_state_dict(state)
    with torch.no_grad():
        ids, token_scores = translate(network, source, bos_id, eos_id, max_length)
    return ids, token_scores.sum(1), token_scores


MISTAKES = {
    "batch-and-heads-swapped": (
        "scores = scores.view(b, self.heads, sq, sk) + additive_mask",
        "scores = scores.view(self.heads, b, sq, sk).transpose(0, 1) + additive_mask",
        "Heads and samples change places before the mask is added.",
        (),
    ),
    "fused-in-thirds": (
        "mixed = self.query_key_value(x).view(sq, b, self.heads, 3 * self.width)\n        q, k, v = mixed.split(self.width, dim=-1)",
        "mixed = self.query_key_value(x)\n        q, k, v = mixed.chunk(3, dim=-1)",
        "The fused columns are cut in thirds, though they are laid out head by head.",
        ("qkv-layout",),
    ),
    "memory-in-batch-order": (
        "return x, mask\n",
        "return x.flip(1), mask\n",
        "The memory's samples come in reverse order.",
        (),
    ),
    "positions-along-batch": (
        "return (x + table).transpose(0, 1)",
        "return x.transpose(0, 1) + table[: x.size(0)].unsqueeze(0) if x.size(0) <= len(table) and x.size(0) == 1"
        " else (x + table.flip(0)).transpose(0, 1)",
        "The positional encoding runs from the end to the beginning.",
        (),
    ),
    "word-from-probabilities-of-first": (
        "network.decode(target, memory, memory_mask)[:, -1].log_softmax(-1)",
        "network.decode(target[:, -1:], memory, memory_mask)[:, -1].log_softmax(-1)",
        "The decoder reads the last word alone.",
        ("decode-no-feedback",),
    ),
    "end-not-noticed": (
        "        ended = ended | (word == eos)\n",
        "        ended = ended | (word == network.pad)\n",
        "A sentence ends with padding and not with the word for the end.",
        ("greedy-no-eos",),
    ),
    "target-padding-seen": (
        "causal + self.padding_mask(target, x)",
        "causal",
        "The target's padding is not hidden.",
        ("target_mask: causal_only",),
    ),
    "norm-factor-of-hidden": (
        "self.query = nn.Linear(hidden, hidden)\n        self.key_value = nn.Linear(hidden, 2 * hidden)\n        self.dense = nn.Linear(hidden, hidden)\n        self.norm_factor = torch.sqrt(torch.FloatTensor([hidden // heads]))",
        "self.query = nn.Linear(hidden, hidden)\n        self.key_value = nn.Linear(hidden, 2 * hidden)\n        self.dense = nn.Linear(hidden, hidden)\n        self.norm_factor = torch.sqrt(torch.FloatTensor([hidden]))",
        "The cross-attention's scores are divided by the root of the width of the model.",
        ("scale-d-model",),
    ),
}

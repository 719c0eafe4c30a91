"""Calls of components on inputs as test suites draw them, and correct code for them in styles of its own.

The code computes as libraries and courses do: fused kernels, other orders of summation, other forms of one formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

Torch = torch.Tensor


@dataclass(frozen=True)
class DrawnCall:
    component: str
    arguments: Mapping[str, Any]
    author: Callable[..., Any]
    conventions: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> Any:
        return self.author(**self.arguments)


#: Most tests draw unit normals; some draw small or large ones, and some uniform ones.
SCALES = (1.0, 1.0, 1.0, 0.02, 0.5, 4.0)
TORCH_DTYPES = (torch.float64, torch.float32, torch.float32, torch.bfloat16, torch.float16)


class Draws:
    """Arrays of one library and dtype from a seeded generator."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.numpy = bool(self.rng.random() < 0.25)
        self.dtype: Any = self.choose((np.float64, np.float32)) if self.numpy else self.choose(TORCH_DTYPES)
        self.scale = self.choose(SCALES)

    def choose(self, options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def size(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def array(self, *shape: int, scale: float | None = None) -> Any:
        scale = self.scale if scale is None else scale
        values = scale * (self.rng.standard_normal(shape) if self.rng.random() < 0.8 else self.rng.random(shape))
        return values.astype(self.dtype) if self.numpy else torch.from_numpy(values).to(self.dtype)

    def weight(self, rows: int, columns: int) -> Any:
        return self.array(rows, columns, scale=rows**-0.5)

    def whole(self, array: Any) -> Any:
        return array if self.numpy else torch.from_numpy(array)

    def mask(self, batch: int, queries: int, keys: int) -> Any:
        """A causal mask, one of padding, or none; every query keeps a key."""
        kind = self.rng.random()
        if kind < 0.4:
            return None
        if kind < 0.7 and queries == keys:
            return self.whole(np.tril(np.ones((queries, keys), dtype=bool)))
        lengths = self.rng.integers(1, keys + 1, batch)
        return self.whole((np.arange(keys) < lengths[:, None])[:, None, None, :])


# ── softmax and losses ──


def softmax_by_log(scores):
    return torch.exp(F.log_softmax(scores, dim=-1))


def softmax_by_library(scores):
    return F.softmax(scores, dim=-1)


def softmax_in_numpy(scores):
    shifted = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    return shifted / np.sum(shifted, axis=-1, keepdims=True)


def draw_softmax(draws):
    arguments = {"scores": draws.array(draws.size(1, 3), draws.size(2, 12))}
    return "softmax", arguments, softmax_in_numpy if draws.numpy else draws.choose((softmax_by_log, softmax_by_library))


def cross_entropy_by_library(logits, targets, pad_id):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=pad_id)


def cross_entropy_by_gather(logits, targets, pad_id):
    losses = torch.logsumexp(logits, -1) - logits.gather(-1, targets[..., None])[..., 0]
    kept = targets != pad_id
    losses = losses.masked_fill(~kept, 0.0)
    return losses.sum() / kept.sum(), losses


def cross_entropy_in_numpy(logits, targets, pad_id):
    shifted = logits - logits.max(-1, keepdims=True)
    log = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log, targets[..., None], -1)[..., 0]
    return losses[targets != pad_id].mean()


def draw_cross_entropy(draws):
    batch, seq, vocab = draws.size(1, 3), draws.size(2, 6), draws.size(3, 20)
    targets = draws.rng.integers(0, vocab, (batch, seq))
    targets[0, 0] = 1
    arguments = {"logits": draws.array(batch, seq, vocab), "targets": draws.whole(targets), "pad_id": 0}
    authors = (cross_entropy_by_library, cross_entropy_by_gather)
    return "cross_entropy", arguments, cross_entropy_in_numpy if draws.numpy else draws.choose(authors)


def kl_by_library(target, logits):
    return F.kl_div(F.log_softmax(logits, -1), target, reduction="none").sum(-1)


def kl_in_numpy(target, logits):
    shifted = logits - logits.max(-1, keepdims=True)
    log = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return (target * (np.log(target) - log)).sum(-1)


def draw_kl(draws):
    rows, width = draws.size(1, 4), draws.size(2, 10)
    target = draws.rng.dirichlet(np.ones(width), rows)
    target = target.astype(draws.dtype) if draws.numpy else torch.from_numpy(target).to(draws.dtype)
    arguments = {"target": target, "logits": draws.array(rows, width)}
    return "kl_divergence", arguments, kl_in_numpy if draws.numpy else kl_by_library


# ── layer normalisation ──


def layer_norm_by_library(x, params):
    return F.layer_norm(x, x.shape[-1:], params["gamma"], params["beta"], 1e-5)


def layer_norm_by_var(x, params):
    mean, var = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
    return params["gamma"] * (x - mean) * torch.rsqrt(var + 1e-5) + params["beta"]


def layer_norm_in_numpy(x, params):
    centred = x - x.mean(-1, keepdims=True)
    var = np.einsum("...i,...i->...", centred, centred)[..., None] / x.dtype.type(x.shape[-1])
    return centred / np.sqrt(var + x.dtype.type(1e-5)) * params["gamma"] + params["beta"]


def draw_layer_norm(draws):
    width = draws.size(4, 48)
    params = {"gamma": 1 + draws.array(width, scale=0.2), "beta": draws.array(width, scale=0.2)}
    arguments = {"x": draws.array(draws.size(1, 2), draws.size(1, 10), width), "params": params}
    authors = (layer_norm_by_library, layer_norm_by_var)
    return "layer_norm", arguments, layer_norm_in_numpy if draws.numpy else draws.choose(authors)


# ── attention ──


def attention_by_library(query, key, value, mask=None):
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


def attention_by_einsum(query, key, value, mask=None):
    scores = torch.einsum("...qd,...kd->...qk", query / math.sqrt(query.shape[-1]), key)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = scores.softmax(-1)
    return torch.einsum("...qk,...kd->...qd", weights, value), weights


def attention_in_numpy(query, key, value, mask=None):
    scores = query @ np.swapaxes(key, -1, -2) * query.dtype.type(query.shape[-1] ** -0.5)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights = weights / weights.sum(-1, keepdims=True)
    return {"output": weights @ value, "weights": weights}


def draw_attention(draws):
    batch, heads, queries, width = draws.size(1, 2), draws.size(1, 3), draws.size(1, 8), draws.size(2, 16)
    keys = queries if draws.rng.random() < 0.6 else draws.size(1, 8)
    arguments = {"query": draws.array(batch, heads, queries, width), "key": draws.array(batch, heads, keys, width)}
    arguments["value"] = draws.array(batch, heads, keys, draws.size(2, 16))
    if (mask := draws.mask(batch, queries, keys)) is not None:
        arguments["mask"] = mask
    authors = (attention_by_library, attention_by_einsum)
    name = "scaled_dot_product_attention"
    return name, arguments, attention_in_numpy if draws.numpy else draws.choose(authors)


def split(x, heads):
    return x.reshape(*x.shape[:-1], heads, -1).swapaxes(-2, -3)


def heads_by_hand(query, key, value, params, num_heads, mask=None):
    p = params
    q, k, v = (x @ p[f"w_{n}"] + p[f"b_{n}"] for n, x in (("q", query), ("k", key), ("v", value)))
    run = attention_by_einsum if isinstance(query, torch.Tensor) else attention_in_numpy
    made = run(split(q, num_heads), split(k, num_heads), split(v, num_heads), mask)
    output = made["output"] if isinstance(made, dict) else made[0]
    return output.swapaxes(-2, -3).reshape(*query.shape[:2], -1) @ p["w_o"] + p["b_o"]


def heads_by_library(query, key, value, params, num_heads, mask=None):
    p = params
    if mask is not None:
        mask = mask.broadcast_to(query.shape[0], num_heads, query.shape[1], key.shape[1]).flatten(0, 1).logical_not()
    width = query.shape[-1]
    made, _ = F.multi_head_attention_forward(
        query.swapaxes(0, 1), key.swapaxes(0, 1), value.swapaxes(0, 1), width, num_heads, None,
        torch.cat([p["b_q"], p["b_k"], p["b_v"]]), None, None, False, 0.0, p["w_o"].T, p["b_o"], training=False,
        need_weights=False, attn_mask=mask, use_separate_proj_weight=True, q_proj_weight=p["w_q"].T,
        k_proj_weight=p["w_k"].T, v_proj_weight=p["w_v"].T,
    )  # fmt: skip
    return made.swapaxes(0, 1)


def draw_weights(draws, width):
    params = {f"w_{n}": draws.weight(width, width) for n in "qkvo"}
    return params | {f"b_{n}": draws.array(width, scale=0.1) for n in "qkvo"}


def draw_heads(draws):
    heads, batch, seq = draws.size(1, 4), draws.size(1, 2), draws.size(2, 8)
    width = heads * draws.size(2, 8)
    x = draws.array(batch, seq, width)
    arguments = {"query": x, "key": x, "value": x, "params": draw_weights(draws, width), "num_heads": heads}
    if (mask := draws.mask(batch, seq, seq)) is not None:
        arguments["mask"] = mask
    return (
        "multi_head_attention",
        arguments,
        heads_by_hand if draws.numpy else draws.choose((heads_by_hand, heads_by_library)),
    )


# ── layers ──


def feed_forward_by_linear(x, params):
    hidden = F.relu(F.linear(x, params["w_1"].T, params["b_1"]))
    return F.linear(hidden, params["w_2"].T, params["b_2"])


def feed_forward_in_numpy(x, params):
    return np.maximum(x @ params["w_1"] + params["b_1"], 0) @ params["w_2"] + params["b_2"]


def draw_feed_forward(draws, width=None):
    width = width or draws.size(3, 32)
    hidden = draws.size(4, 64)
    params = {"w_1": draws.weight(width, hidden), "b_1": draws.array(hidden, scale=0.1)}
    params |= {"w_2": draws.weight(hidden, width), "b_2": draws.array(width, scale=0.1)}
    arguments = {"x": draws.array(draws.size(1, 2), draws.size(1, 8), width), "params": params}
    return "feed_forward", arguments, feed_forward_in_numpy if draws.numpy else feed_forward_by_linear


def encoder_layer_by_hand(x, params, num_heads, mask=None):
    def part(name):
        return {key.removeprefix(f"{name}."): a for key, a in params.items() if key.startswith(f"{name}.")}

    in_torch = isinstance(x, torch.Tensor)
    norm, feed = (layer_norm_by_library, feed_forward_by_linear)
    if not in_torch:
        norm, feed = (layer_norm_in_numpy, feed_forward_in_numpy)
    attended = norm(x + heads_by_hand(x, x, x, part("self_attention"), num_heads, mask), part("norm_1"))
    return norm(attended + feed(attended, part("feed_forward")), part("norm_2"))


def encoder_layer_by_library(x, params, num_heads, mask=None):
    p = params
    width, hidden = p["feed_forward.w_1"].shape
    layer = torch.nn.TransformerEncoderLayer(width, num_heads, hidden, 0.0, batch_first=True, dtype=x.dtype).eval()
    state = {
        "self_attn.in_proj_weight": torch.cat([p[f"self_attention.w_{n}"].T for n in "qkv"]),
        "self_attn.in_proj_bias": torch.cat([p[f"self_attention.b_{n}"] for n in "qkv"]),
        "self_attn.out_proj.weight": p["self_attention.w_o"].T, "self_attn.out_proj.bias": p["self_attention.b_o"],
    }  # fmt: skip
    for n in (1, 2):
        state |= {f"linear{n}.weight": p[f"feed_forward.w_{n}"].T, f"linear{n}.bias": p[f"feed_forward.b_{n}"]}
        state |= {f"norm{n}.weight": p[f"norm_{n}.gamma"], f"norm{n}.bias": p[f"norm_{n}.beta"]}
    layer.load_state_dict(state)
    if mask is not None:
        mask = mask.broadcast_to(x.shape[0], num_heads, x.shape[1], x.shape[1]).flatten(0, 1).logical_not()
    with torch.no_grad():
        return layer(x, src_mask=mask)


def draw_encoder_layer(draws):
    heads, batch, seq = draws.size(1, 2), draws.size(1, 2), draws.size(2, 6)
    width = heads * draws.size(3, 8)
    _, feed, _ = draw_feed_forward(draws, width)
    params = {f"self_attention.{n}": a for n, a in draw_weights(draws, width).items()}
    params |= {f"feed_forward.{n}": a for n, a in feed["params"].items()}
    for norm in ("norm_1", "norm_2"):
        params |= {f"{norm}.gamma": 1 + draws.array(width, scale=0.1), f"{norm}.beta": draws.array(width, scale=0.1)}
    arguments = {"x": draws.array(batch, seq, width), "params": params, "num_heads": heads}
    if (mask := draws.mask(batch, seq, seq)) is not None:
        arguments["mask"] = mask
    authors = (encoder_layer_by_hand, encoder_layer_by_library)
    return "encoder_layer", arguments, encoder_layer_by_hand if draws.numpy else draws.choose(authors)


# ── embeddings and the output layer ──


#: The embedding of the paper multiplies by √d_model.
SCALED = {"embedding_scale": "sqrt_d_model"}


def embed(ids, params):
    width = params["table"].shape[1]
    if isinstance(ids, torch.Tensor):
        return F.embedding(ids, params["table"]) * math.sqrt(width)
    return params["table"][ids] * params["table"].dtype.type(math.sqrt(width))


def draw_embedding(draws):
    vocab = draws.size(2, 12)
    ids = draws.whole(draws.rng.integers(0, vocab, (draws.size(1, 3), draws.size(1, 6))))
    return "token_embedding", {"ids": ids, "params": {"table": draws.array(vocab, draws.size(2, 24))}}, embed, SCALED


def add_positions(x):
    seq, width = x.shape[1:]
    position = np.arange(seq)[:, None]
    step = np.exp(np.arange(0, width, 2) * (-math.log(10000.0) / width))
    table = np.zeros((seq, width))
    table[:, 0::2], table[:, 1::2] = np.sin(position * step), np.cos(position * step)
    return x + (torch.from_numpy(table).to(x.dtype) if isinstance(x, torch.Tensor) else table.astype(x.dtype))


def draw_positions(draws):
    return "positional_encoding", {"x": draws.array(2, draws.size(2, 20), 2 * draws.size(1, 12))}, add_positions


def project(x, params):
    logits = x @ params["w_vocab"] + params["b_vocab"]
    return (softmax_by_library if isinstance(x, torch.Tensor) else softmax_in_numpy)(logits), logits


def draw_projection(draws):
    width, vocab = draws.size(2, 24), draws.size(2, 24)
    params = {"w_vocab": draws.weight(width, vocab), "b_vocab": draws.array(vocab, scale=0.1)}
    return "output_probabilities", {"x": draws.array(2, draws.size(1, 6), width), "params": params}, project


#: How each component is drawn, and how often.
DRAWN = {
    "softmax": (draw_softmax, 1),
    "cross_entropy": (draw_cross_entropy, 1),
    "kl_divergence": (draw_kl, 1),
    "layer_norm": (draw_layer_norm, 1),
    "scaled_dot_product_attention": (draw_attention, 2),
    "multi_head_attention": (draw_heads, 2),
    "feed_forward": (draw_feed_forward, 1),
    "encoder_layer": (draw_encoder_layer, 1),
    "token_embedding": (draw_embedding, 1),
    "positional_encoding": (draw_positions, 1),
    "output_probabilities": (draw_projection, 1),
}


def draw_call(seed: int, component: str | None = None) -> DrawnCall:
    """Draw a call: the component, the sizes, the dtype and the scale follow from the seed.

    A component that is named is drawn in NumPy, for the textbook.
    """
    draws = Draws(seed)
    if component is None:
        component = draws.choose([name for name, (_, often) in DRAWN.items() for _ in range(often)])
    else:
        draws.numpy, draws.dtype = True, (np.float64, np.float32)[seed % 2]
    return DrawnCall(*DRAWN[component][0](draws))

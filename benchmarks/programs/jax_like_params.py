# deserves: correct
"""Functional code in the manner of array libraries with transformations, here on NumPy: pure functions and trees of parameters."""

from functools import partial

import numpy as np

ARRAYS = "numpy"
NAME = "pure functions over parameter trees"


def linear(p, x):
    y = x @ p["kernel"]
    return y + p["bias"] if "bias" in p else y


def log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def nn_softmax(z, where=None):
    if where is not None:
        z = np.where(where, z, np.finfo(z.dtype).min)
    unnormalized = np.exp(z - z.max(-1, keepdims=True))
    return unnormalized / unnormalized.sum(-1, keepdims=True)


def attention_head(p, x, y, allowed):
    """One head of one sample; x is (q, m) and y is (k, m)."""
    q, k, v = linear(p["query"], x), linear(p["key"], y), linear(p["value"], y)
    logits = np.einsum("qd,kd->qk", q, k) * np.asarray(q.shape[-1] ** -0.5, dtype=q.dtype)
    probs = nn_softmax(logits, allowed)
    return probs @ v


def attention(p, x, y, allowed):
    heads = [attention_head(head, x, y, allowed[i]) for i, head in enumerate(p["heads"])]
    return linear(p["out"], np.concatenate(heads, axis=-1))


def layer_norm_fn(p, x, eps=1e-5):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.asarray(eps, x.dtype)) * p["scale"] + p["offset"]


def mlp(p, x):
    return linear(p["wo"], np.maximum(linear(p["wi"], x), 0))


def encode_layer(p, x, allowed):
    x = layer_norm_fn(p["ln_0"], x + attention(p["attn"], x, x, allowed))
    return layer_norm_fn(p["ln_1"], x + mlp(p["mlp"], x))


def decode_layer(p, x, memory, allowed, memory_allowed):
    x = layer_norm_fn(p["ln_0"], x + attention(p["attn"], x, x, allowed))
    x = layer_norm_fn(p["ln_1"], x + attention(p["cross"], x, memory, memory_allowed))
    return layer_norm_fn(p["ln_2"], x + mlp(p["mlp"], x))


def vmap(function, *arrays):
    return np.stack([function(*sample) for sample in zip(*arrays, strict=True)])


def scan(layers, function, carry):
    for p in layers:
        carry = function(p, carry)
    return carry


def sinusoid(length, width, dtype):
    channel = np.arange(width)
    angle = np.arange(length)[:, None] * 10000.0 ** (-(channel - channel % 2) / width)
    return np.where(channel % 2 == 0, np.sin(angle), np.cos(angle)).astype(dtype)


def apply_model(p, source, target, pad):
    def one(src, tgt):
        src_allowed = src != pad
        tgt_allowed = (tgt != pad)[None, :] & (np.arange(len(tgt))[:, None] >= np.arange(len(tgt))[None, :])
        heads = p["n_heads"]
        src_self = np.broadcast_to(src_allowed, (heads, len(src), len(src)))
        cross = np.broadcast_to(src_allowed, (heads, len(tgt), len(src)))
        tgt_self = np.broadcast_to(tgt_allowed, (heads, len(tgt), len(tgt)))
        table = p["embed"]
        x = table[src] + sinusoid(len(src), table.shape[1], table.dtype)
        memory = scan(p["encoder"], lambda q, h: encode_layer(q, h, src_self), x)
        y = table[tgt] + sinusoid(len(tgt), table.shape[1], table.dtype)
        y = scan(p["decoder"], lambda q, h: decode_layer(q, h, memory, tgt_self, cross), y)
        return linear(p["logits"], y)

    return vmap(one, source, target)


# The adapter.


def _linear(params, name, columns=slice(None)):
    weight_name, bias_name = name, name.replace("w_", "b_")
    p = {"kernel": params[weight_name][:, columns]}
    if bias_name in params:
        p["bias"] = params[bias_name][columns]
        if params[bias_name].shape != params[weight_name].shape[1:]:
            raise ValueError(f"{bias_name}: as many elements as {weight_name} has columns")
    return p


def _attention(params, prefix, heads):
    widths = {role: params[f"{prefix}w_{role}"].shape[1] for role in "qkv"}
    if any(width % heads for width in widths.values()):
        raise ValueError(f"num_heads: {heads} does not divide {widths}")
    tree = {"heads": [], "out": _linear(params, f"{prefix}w_o")}
    for i in range(heads):
        cut = {role: slice(i * width // heads, (i + 1) * width // heads) for role, width in widths.items()}
        named = {"query": "q", "key": "k", "value": "v"}
        tree["heads"].append({name: _linear(params, f"{prefix}w_{r}", cut[r]) for name, r in named.items()})
    return tree


def _layer(params, prefix, heads, *, decoder):
    tree = {"attn": _attention(params, f"{prefix}self_attention.", heads)}
    if decoder:
        tree["cross"] = _attention(params, f"{prefix}cross_attention.", heads)
    tree["mlp"] = {
        "wi": _linear(params, f"{prefix}feed_forward.w_1"),
        "wo": _linear(params, f"{prefix}feed_forward.w_2"),
    }
    for i in range(3 if decoder else 2):
        norm = {"scale": params[f"{prefix}norm_{i + 1}.gamma"], "offset": params[f"{prefix}norm_{i + 1}.beta"]}
        tree[f"ln_{i}"] = norm
    return tree


def _allowed(mask, x, keys, heads):
    shape = (len(x), heads, x.shape[1], keys.shape[1])
    return np.ones(shape, dtype=bool) if mask is None else np.broadcast_to(mask, shape)


def softmax(scores):
    return nn_softmax(scores)


def layer_norm(x, *, params):
    if params["gamma"].shape != x.shape[-1:] or params["beta"].shape != x.shape[-1:]:
        raise ValueError("gamma, beta: one number for each channel")
    return layer_norm_fn({"scale": params["gamma"], "offset": params["beta"]}, x)


def feed_forward(x, *, params):
    return mlp({"wi": _linear(params, "w_1"), "wo": _linear(params, "w_2")}, x)


def positional_encoding(x):
    return x + sinusoid(x.shape[1], x.shape[2], x.dtype)


def encoder_layer(x, mask=None, *, num_heads, params):
    tree = _layer(params, "", num_heads, decoder=False)
    return vmap(partial(encode_layer, tree), x, _allowed(mask, x, x, num_heads))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    tree = _layer(params, "", num_heads, decoder=True)
    masks = _allowed(self_mask, x, x, num_heads), _allowed(memory_mask, x, memory, num_heads)
    return vmap(partial(decode_layer, tree), x, memory, *masks)


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    vocab = len(params["table"])
    if min(source.min(), target.min()) < 0 or max(source.max(), target.max()) >= vocab:
        raise IndexError("source, target: ids below the size of the vocabulary")
    tree = {"embed": params["table"], "n_heads": num_heads, "logits": _linear(params, "w_vocab")}
    if params["w_vocab"].shape[1] != vocab:
        raise ValueError("w_vocab: a column for each word")
    tree["encoder"] = [_layer(params, f"encoder.{i}.", num_heads, decoder=False) for i in range(num_encoder_layers)]
    tree["decoder"] = [_layer(params, f"decoder.{i}.", num_heads, decoder=True) for i in range(num_decoder_layers)]
    return apply_model(tree, source, target, pad_id)


MISTAKES = {
    "memory-is-carry": (
        "lambda q, h: decode_layer(q, h, memory, tgt_self, cross), y)",
        "lambda q, h: decode_layer(q, h, h[: len(src)] if len(h) >= len(src) else memory, tgt_self, cross), y)",
        "Where lengths allow it the decoder attends to its own carry and not to the memory.",
        ("cross-q-source",),
    ),
    "scan-forgets-carry": (
        "        carry = function(p, carry)\n    return carry",
        "        result = function(p, carry)\n    return result",
        "Every layer reads what the first layer reads.",
        (),
    ),
    "cross-norm-shared": (
        'layer_norm_fn(p["ln_1"], x + attention(p["cross"]',
        'layer_norm_fn(p["ln_0"], x + attention(p["cross"]',
        "The cross-attention is normalised with the parameters of the first normalisation.",
        ("wrong-ln-reused",),
    ),
    "causal-strict": (
        "np.arange(len(tgt))[:, None] >= np.arange(len(tgt))[None, :]",
        "np.arange(len(tgt))[:, None] > np.arange(len(tgt))[None, :]",
        "No position sees itself.",
        ("causal-strict",),
    ),
    "scale-not-root": (
        "np.asarray(q.shape[-1] ** -0.5, dtype=q.dtype)",
        "np.asarray(q.shape[-1] ** -1.0, dtype=q.dtype)",
        "The scores are divided by the width and not by its root.",
        ("scale-no-root",),
    ),
    "where-after-softmax": (
        "    return unnormalized / unnormalized.sum(-1, keepdims=True)",
        "    return np.exp(z - z.max()) / np.exp(z - z.max()).sum(-1, keepdims=True)",
        "The largest score of all rows is taken off, so that rows of small scores underflow.",
        (),
    ),
    "sinusoid-parity": (
        "np.where(channel % 2 == 0, np.sin(angle), np.cos(angle))",
        "np.where(channel % 2 == 1, np.sin(angle), np.cos(angle))",
        "Even channels hold the cosine and odd ones the sine.",
        ("pe-sin-cos-swap",),
    ),
    "heads-share-mask": (
        "attention_head(head, x, y, allowed[i])",
        "attention_head(head, x, y, allowed[0])",
        "All heads use the mask of the first one.",
        ("mask-first-head",),
    ),
}

"""NumPy and loops: sample by sample, head by head, layer by layer, as one writes it to understand it."""

from __future__ import annotations

import numpy as np


def affine(x, w, b=None):
    y = x @ w
    return y if b is None else y + b


def softmax(row):
    e = np.exp(row - np.max(row, axis=-1, keepdims=True))
    return e / np.sum(e, axis=-1, keepdims=True)


def mean_and_root(x):
    mu = np.mean(x, axis=-1, keepdims=True)
    return mu, np.sqrt(np.mean((x - mu) ** 2, axis=-1, keepdims=True) + x.dtype.type(1e-5))


def layer_norm(x, p, name):
    mu, root = mean_and_root(x)
    return p[f"{name}.gamma"] * ((x - mu) / root) + p[f"{name}.beta"]


def attention(x, y, mask, p, name, heads):
    """One sample: x asks, y answers; the mask is (heads, len(x), len(y)) or None."""
    q, k, v = (affine(t, p[f"{name}.w_{r}"], p.get(f"{name}.b_{r}")) for t, r in ((x, "q"), (y, "k"), (y, "v")))
    outputs, weights = [], []
    for h, (qh, kh, vh) in enumerate(zip(*(np.split(t, heads, axis=1) for t in (q, k, v)), strict=True)):
        scores = qh @ kh.T / x.dtype.type(np.sqrt(qh.shape[1]))
        if mask is not None:
            scores[~mask[h]] = np.finfo(x.dtype).min
        weights.append(softmax(scores))
        outputs.append(weights[-1] @ vh)
    return affine(np.hstack(outputs), p[f"{name}.w_o"], p.get(f"{name}.b_o")), np.stack(weights)


def feed_forward(x, p):
    hidden = affine(x, p["feed_forward.w_1"], p.get("feed_forward.b_1"))
    hidden[hidden < 0] = 0
    return affine(hidden, p["feed_forward.w_2"], p.get("feed_forward.b_2"))


def masks_of(mask, batch, heads, x, y):
    """A mask for each sample."""
    return [None] * batch if mask is None else list(np.broadcast_to(mask, (batch, heads, x.shape[1], y.shape[1])))


def encode_one(x, mask, p, heads):
    change, weights = attention(x, x, mask, p, "self_attention", heads)
    attended = layer_norm(x + change, p, "norm_1")
    return layer_norm(attended + feed_forward(attended, p), p, "norm_2"), attended, weights


def decode_one(x, memory, mask, memory_mask, p, heads):
    change, weights = attention(x, x, mask, p, "self_attention", heads)
    attended = layer_norm(x + change, p, "norm_1")
    change, cross_weights = attention(attended, memory, memory_mask, p, "cross_attention", heads)
    crossed = layer_norm(attended + change, p, "norm_2")
    return layer_norm(crossed + feed_forward(crossed, p), p, "norm_3"), attended, crossed, weights, cross_weights


def encoder_layer(x, mask=None, *, num_heads, params):
    samples = zip(x, masks_of(mask, len(x), num_heads, x, x), strict=True)
    return tuple(map(np.stack, zip(*(encode_one(one, m, params, num_heads) for one, m in samples), strict=True)))


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    own, theirs = masks_of(self_mask, len(x), num_heads, x, x), masks_of(memory_mask, len(x), num_heads, x, memory)
    made = [decode_one(*given, params, num_heads) for given in zip(x, memory, own, theirs, strict=True)]
    return tuple(np.stack(each) for each in zip(*made, strict=True))


def of_layer(params, name):
    return {key.removeprefix(f"{name}."): array for key, array in params.items() if key.startswith(f"{name}.")}


def encoder(x, mask=None, *, num_heads, num_layers, params):
    layers = []
    for i in range(num_layers):
        x = encoder_layer(x, mask, num_heads=num_heads, params=of_layer(params, f"encoder.{i}"))[0]
        layers.append(x)
    return x, np.array(layers)


def decoder(x, memory, self_mask=None, memory_mask=None, *, num_heads, num_layers, params):
    layers = []
    for i in range(num_layers):
        mine = of_layer(params, f"decoder.{i}")
        x = decoder_layer(x, memory, self_mask, memory_mask, num_heads=num_heads, params=mine)[0]
        layers.append(x)
    return x, np.array(layers)


def embedded(ids, table):
    """In float64, rounded once."""
    out = np.zeros((*ids.shape, table.shape[1]))
    for (b, t), word in np.ndenumerate(ids):
        for c in range(table.shape[1]):
            angle = t / 10000 ** ((c - c % 2) / table.shape[1])
            out[b, t, c] = table[word, c] + (np.cos(angle) if c % 2 else np.sin(angle))
    return out.astype(table.dtype)


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    words, read = source != pad_id, target != pad_id
    memory = embedded(source, params["table"])
    how = {"num_heads": num_heads, "params": params}
    memory, _ = encoder(memory, words[:, None, None], num_layers=num_encoder_layers, **how)
    sees = np.tri(target.shape[1], dtype=bool) & read[:, None, None]
    x, _ = decoder(
        embedded(target, params["table"]), memory, sees, words[:, None, None], num_layers=num_decoder_layers, **how
    )
    return affine(x, params["w_vocab"], params.get("b_vocab")), memory, x


FUNCTIONS = {f.__name__: f for f in (encoder_layer, decoder_layer, encoder, decoder, transformer)}

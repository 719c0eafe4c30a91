"""Right code in plain NumPy functions, which named.yaml edits."""

import numpy as np

ARRAYS = "numpy"


def soft(s):
    e = np.exp(s - s.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def weigh(scores, mask):
    if mask is not None:
        scores = np.where(mask, scores, np.finfo(scores.dtype).min)
    return soft(scores)


def heads_of(x, h):
    b, t, d = x.shape
    return x.reshape(b, t, h, d // h).transpose(0, 2, 1, 3)


def joined(x):
    b, h, t, d = x.shape
    return x.transpose(0, 2, 1, 3).reshape(b, t, h * d)


def linear(x, p, role):
    y = x @ p["w_" + role]
    return y + p["b_" + role] if "b_" + role in p else y


def multi_head(xq, xk, xv, mask, h, p):
    q, k, v = (heads_of(linear(x, p, r), h) for r, x in zip("qkv", (xq, xk, xv), strict=True))
    w = weigh(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype), mask)
    return linear(joined(w @ v), p, "o"), w


def ffn(x, p):
    return linear(np.maximum(linear(x, p, "1"), 0), p, "2")


def norm(x, p):
    m = x.mean(-1, keepdims=True)
    return (x - m) / np.sqrt(((x - m) ** 2).mean(-1, keepdims=True) + x.dtype.type(1e-5)) * p["gamma"] + p["beta"]


def sub(params, name):
    return {k[len(name) + 1 :]: v for k, v in params.items() if k.startswith(name + ".")}


def encode(x, mask, h, p):
    a, w = multi_head(x, x, x, mask, h, sub(p, "self_attention"))
    a = norm(x + a, sub(p, "norm_1"))
    return norm(a + ffn(a, sub(p, "feed_forward")), sub(p, "norm_2")), a, w


def decode(x, memory, mask, memory_mask, h, p):
    a, w = multi_head(x, x, x, mask, h, sub(p, "self_attention"))
    a = norm(x + a, sub(p, "norm_1"))
    c, cw = multi_head(a, memory, memory, memory_mask, h, sub(p, "cross_attention"))
    c = norm(a + c, sub(p, "norm_2"))
    return norm(c + ffn(c, sub(p, "feed_forward")), sub(p, "norm_3")), a, c, w, cw


def positions(t, d):
    angle = np.arange(t)[:, None] / 10000 ** (np.arange(0, d, 2) / d)
    table = np.empty((t, d))
    table[:, 0::2] = np.sin(angle)
    table[:, 1::2] = np.cos(angle)[:, : d // 2]
    return table


def embed(ids, table):
    return table[ids] + positions(ids.shape[1], table.shape[1]).astype(table.dtype)


def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
    output, weights = multi_head(query, key, value, mask, num_heads, params)
    return {"output": output, "weights": weights}


def feed_forward(x, *, params):
    return ffn(x, params)


def encoder_layer(x, mask=None, *, num_heads, params):
    output, attended, weights = encode(x, mask, num_heads, params)
    return {"output": output, "attended": attended, "weights": weights}


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    output, attended, crossed, weights, cross = decode(x, memory, self_mask, memory_mask, num_heads, params)
    return {"output": output, "attended": attended, "crossed": crossed, "weights": weights, "cross_weights": cross}


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    seen = (source != pad_id)[:, None, None, :]
    t = target.shape[1]
    own = (target != pad_id)[:, None, None, :] & np.tril(np.ones((t, t), bool))
    m = embed(source, params["table"])
    for i in range(num_encoder_layers):
        m = encode(m, seen, num_heads, sub(params, f"encoder.{i}"))[0]
    x = embed(target, params["table"])
    for i in range(num_decoder_layers):
        x = decode(x, m, own, seen, num_heads, sub(params, f"decoder.{i}"))[0]
    return {"logits": linear(x, params, "vocab"), "memory": m, "decoded": x}


def softmax(scores):
    return soft(scores)


def scaled_dot_product_attention(query, key, value, mask=None):
    weights = weigh(query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]).astype(query.dtype), mask)
    return {"output": weights @ value, "weights": weights}


def layer_norm(x, *, params):
    return norm(x, params)


def positional_encoding(x):
    return x + positions(*x.shape[1:]).astype(x.dtype)


def encoder(x, mask=None, *, num_heads, num_layers, params):
    for i in range(num_layers):
        x = encode(x, mask, num_heads, sub(params, f"encoder.{i}"))[0]
    return x


def decoder(x, memory, self_mask=None, memory_mask=None, *, num_heads, num_layers, params):
    for i in range(num_layers):
        x = decode(x, memory, self_mask, memory_mask, num_heads, sub(params, f"decoder.{i}"))[0]
    return x


def output_probabilities(x, *, params):
    return soft(linear(x, params, "vocab"))

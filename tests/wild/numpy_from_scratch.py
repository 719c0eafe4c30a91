# deserves: correct
"""A from-scratch encoder in plain NumPy functions, as in blog posts: loops over heads, a dictionary of weights, no framework."""

import numpy as np

ARRAYS = "numpy"
NAME = "from scratch"


def get_positional_encoding(seq_len, d, n=10000):
    P = np.zeros((seq_len, d))
    for k in range(seq_len):
        for i in np.arange((d + 1) // 2):
            denominator = np.power(n, 2 * i / d)
            P[k, 2 * i] = np.sin(k / denominator)
            if 2 * i + 1 < d:
                P[k, 2 * i + 1] = np.cos(k / denominator)
    return P


def stable_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    e = np.exp(x)
    return e / e.sum(axis=-1, keepdims=True)


def attention(Q, K, V, mask=None):
    d_k = Q.shape[-1]
    scores = np.matmul(Q, np.swapaxes(K, -2, -1)) / np.sqrt(d_k).astype(Q.dtype)
    if mask is not None:
        scores = np.where(mask, scores, np.array(-1e9, dtype=scores.dtype))
    weights = stable_softmax(scores)
    return np.matmul(weights, V), weights


def multi_head(X, Y, mask, W, h):
    outs, maps = [], []
    Q, K, V = X @ W["q"] + W["bq"], Y @ W["k"] + W["bk"], Y @ W["v"] + W["bv"]
    dk, dv = Q.shape[-1] // h, V.shape[-1] // h
    for j in range(h):
        m = None if mask is None else mask[:, j]
        out, w = attention(
            Q[..., j * dk : (j + 1) * dk], K[..., j * dk : (j + 1) * dk], V[..., j * dv : (j + 1) * dv], m
        )
        outs.append(out)
        maps.append(w)
    return np.concatenate(outs, axis=-1) @ W["o"] + W["bo"], np.stack(maps, axis=1)


def norm(x, g, b, eps=1e-5):
    mean = np.mean(x, axis=-1, keepdims=True)
    var = np.var(x, axis=-1, keepdims=True)
    return g * (x - mean) / np.sqrt(var + x.dtype.type(eps)) + b


def relu(x):
    return np.maximum(x, 0)


def feedforward(x, W):
    return relu(x @ W["1"] + W["b1"]) @ W["2"] + W["b2"]


def encoder_block(x, mask, W, h):
    a, weights = multi_head(x, x, mask, W["self"], h)
    x = norm(x + a, *W["n1"])
    return norm(x + feedforward(x, W["ff"]), *W["n2"]), x, weights


def decoder_block(x, mem, mask, mem_mask, W, h):
    a, weights = multi_head(x, x, mask, W["self"], h)
    x = norm(x + a, *W["n1"])
    attended = x
    a, cross = multi_head(x, mem, mem_mask, W["cross"], h)
    x = norm(x + a, *W["n2"])
    return norm(x + feedforward(x, W["ff"]), *W["n3"]), attended, x, weights, cross


def embed(ids, E):
    if ids.min() < 0 or ids.max() >= len(E):
        raise IndexError("ids: not in the vocabulary")
    return E[ids] + get_positional_encoding(ids.shape[1], E.shape[1]).astype(E.dtype)


def run_model(src, tgt, W, h, pad):
    src_mask = np.repeat((src != pad)[:, None, None, :], h, axis=1)
    look_ahead = np.tril(np.ones((tgt.shape[1], tgt.shape[1]), dtype=bool))
    tgt_mask = np.repeat(look_ahead & (tgt != pad)[:, None, None, :], h, axis=1)
    mem = embed(src, W["E"])
    for layer in W["enc"]:
        mem, _, _ = encoder_block(mem, src_mask, layer, h)
    x = embed(tgt, W["E"])
    for layer in W["dec"]:
        x, *_ = decoder_block(x, mem, tgt_mask, src_mask, layer, h)
    return x @ W["V"] + W["bV"], mem, x


# The adapter.


def _attention_weights(params, prefix, heads):
    W = {}
    for role in "qkvo":
        W[role] = params[f"{prefix}.w_{role}"]
        W[f"b{role}"] = params.get(f"{prefix}.b_{role}", np.zeros(W[role].shape[1], dtype=W[role].dtype))
        if W[f"b{role}"].shape != (W[role].shape[1],):
            raise ValueError(f"b_{role}: wrong size")
        if role != "o" and W[role].shape[1] % heads:
            raise ValueError("num_heads: does not divide the width")
    return W


def _layer(params, prefix, heads):
    W = {"self": _attention_weights(params, f"{prefix}self_attention", heads)}
    if f"{prefix}cross_attention.w_q" in params:
        W["cross"] = _attention_weights(params, f"{prefix}cross_attention", heads)
    ff = {}
    for i in "12":
        ff[i] = params[f"{prefix}feed_forward.w_{i}"]
        ff[f"b{i}"] = params.get(f"{prefix}feed_forward.b_{i}", np.zeros(ff[i].shape[1], dtype=ff[i].dtype))
    W["ff"] = ff
    for i in range(1, 4 if "cross" in W else 3):
        W[f"n{i}"] = params[f"{prefix}norm_{i}.gamma"], params[f"{prefix}norm_{i}.beta"]
    return W


def _mask(mask, x, y, heads):
    return None if mask is None else np.broadcast_to(mask, (len(x), heads, x.shape[1], y.shape[1]))


def positional_encoding(x):
    return x + get_positional_encoding(*x.shape[1:]).astype(x.dtype)


def encoder_layer(x, mask=None, *, num_heads, params):
    return encoder_block(x, _mask(mask, x, x, num_heads), _layer(params, "", num_heads), num_heads)


def decoder_layer(x, memory, self_mask=None, memory_mask=None, *, num_heads, params):
    if memory.shape[0] != x.shape[0]:
        raise ValueError("memory: another number of samples")
    masks = _mask(self_mask, x, x, num_heads), _mask(memory_mask, x, memory, num_heads)
    W = _layer(params, "", num_heads)
    if "cross" not in W:
        raise ValueError("cross_attention: missing")
    return decoder_block(x, memory, *masks, W, num_heads)


def transformer(source, target, *, num_heads, num_encoder_layers, num_decoder_layers, pad_id, params):
    if len(source) != len(target):
        raise ValueError("target: as many samples as source")
    W = {"E": params["table"], "V": params["w_vocab"]}
    W["bV"] = params.get("b_vocab", np.zeros(len(W["E"]), dtype=W["E"].dtype))
    W["enc"] = [_layer(params, f"encoder.{i}.", num_heads) for i in range(num_encoder_layers)]
    W["dec"] = [_layer(params, f"decoder.{i}.", num_heads) for i in range(num_decoder_layers)]
    logits, memory, decoded = run_model(source, target, W, num_heads, pad_id)
    return {"logits": logits, "memory": memory, "decoded": decoded}


MISTAKES = {
    "memory-reads-itself": (
        'multi_head(x, mem, mem_mask, W["cross"], h)',
        'multi_head(x, mem, mem_mask, W["self"], h)',
        "The cross-attention uses the weights of the self-attention.",
        ("cross-self-weights",),
    ),
    "memory-before-encoder": (
        "x, *_ = decoder_block(x, mem, tgt_mask, src_mask, layer, h)",
        'x, *_ = decoder_block(x, embed(src, W["E"]), tgt_mask, src_mask, layer, h)',
        "The decoder attends to the embedded source and not to what the encoder made of it.",
        ("cross-raw-src",),
    ),
    "value-columns-of-query": (
        "V[..., j * dv : (j + 1) * dv], m\n",
        "V[..., :dv], m\n",
        "Every head takes the values of the first head.",
        ("head-shared-w",),
    ),
    "norm-over-tokens": (
        "var = np.var(x, axis=-1, keepdims=True)",
        "var = np.var(x, axis=-2, keepdims=True)",
        "The variance is taken over the tokens and not over the channels.",
        (),
    ),
    "source-not-encoded-by-position": (
        '    mem = embed(src, W["E"])\n',
        '    mem = W["E"][src]\n',
        "The source is embedded without positions.",
        ("pe-missing",),
    ),
    "cosine-of-next-frequency": (
        "P[k, 2 * i + 1] = np.cos(k / denominator)",
        "P[k, 2 * i + 1] = np.cos(k / np.power(n, (2 * i + 1) / d))",
        "The cosine has the frequency of its own channel and not that of its pair.",
        ("pe-cos-exp",),
    ),
    "look-ahead-shifted": (
        "np.tril(np.ones((tgt.shape[1], tgt.shape[1]), dtype=bool))",
        "np.tril(np.ones((tgt.shape[1], tgt.shape[1]), dtype=bool), k=1)",
        "Each position sees the one after it as well.",
        ("causal-plus-one",),
    ),
    "scale-of-twice-the-width": (
        "np.sqrt(d_k).astype(Q.dtype)",
        "np.sqrt(d_k * 2).astype(Q.dtype)",
        "The scores are divided by the root of twice the width.",
        (),
    ),
}

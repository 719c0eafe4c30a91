import numpy as np


def apply_rope(x, base=10000.0):
    pairs = x.shape[-1] // 2
    angles = np.arange(x.shape[-2], dtype=x.dtype)[:, None] * base ** (-np.arange(pairs, dtype=x.dtype) / max(pairs, 1))
    out = x.copy()
    even, odd = x[..., : 2 * pairs : 2], x[..., 1 : 2 * pairs : 2]
    out[..., : 2 * pairs : 2] = even * np.cos(angles) - odd * np.sin(angles)
    out[..., 1 : 2 * pairs : 2] = even * np.sin(angles) + odd * np.cos(angles)
    return out


def attend(query, key, value, mask, heads, p):
    def split(x, name):
        y = x @ p["w_" + name] + (p.get("b_" + name, 0))
        return y.reshape(*y.shape[:-1], heads, -1).swapaxes(-2, -3)

    q, k, v = split(query, "q"), split(key, "k"), split(value, "v")
    scores = apply_rope(q) @ apply_rope(k).swapaxes(-1, -2) / np.asarray(q.shape[-1] ** 0.5, q.dtype)
    if mask is not None:
        scores = np.where(mask, scores, np.finfo(scores.dtype).min)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(-2, -3)
    out = out.reshape(*out.shape[:-2], -1) @ p["w_o"]
    return out + p["b_o"] if "b_o" in p else out


def norm(x, gamma, beta):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + x.dtype.type(1e-5)) * gamma + beta

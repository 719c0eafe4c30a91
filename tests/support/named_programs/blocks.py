"""Right attention in NumPy that goes through the keys block by block, which named.yaml edits."""

import numpy as np

ARRAYS = "numpy"
CONVENTIONS = {"empty_row": "zeros"}
LENGTH = 16


def scaled_dot_product_attention(query, key, value, mask=None):
    keys, batch = key.shape[-2], np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    seen = np.broadcast_to(np.True_ if mask is None else mask, (*batch, query.shape[-2], keys))
    top = np.full((*batch, query.shape[-2], 1), -np.inf, dtype=query.dtype)
    total, output = np.zeros_like(top), np.zeros((*top.shape[:-1], value.shape[-1]), dtype=query.dtype)
    for start in range(0, keys, LENGTH):
        block = slice(start, start + LENGTH)
        scores = query @ key[..., block, :].swapaxes(-1, -2) / np.sqrt(query.dtype.type(query.shape[-1]))
        scores = np.where(seen[..., block], scores, -np.inf)
        new = np.maximum(top, scores.max(-1, keepdims=True))
        safe = np.where(np.isneginf(new), 0, new)
        keep = np.exp(top - safe)
        powers = np.exp(scores - safe)
        total = total * keep + powers.sum(-1, keepdims=True)
        output = output * keep + powers @ value[..., block, :]
        top = new
    with np.errstate(invalid="ignore"):
        return output / np.where(total == 0, 1, total)

"""the scores are divided by the root of the heads"""

import numpy as np

ARRAYS = "numpy"


def grouped_query_attention(query, key, value, mask=None):
    b, h, q, d = query.shape
    kv = key.shape[1]
    grouped = query.reshape(b, kv, h // kv, q, d)
    s = np.einsum("bgrqd,bgkd->bgrqk", grouped, key) / np.sqrt(np.asarray(h, dtype=query.dtype))
    s = s.reshape(b, h, q, -1)
    if mask is not None:
        s = np.where(mask, s, np.finfo(s.dtype).min)
    e = np.exp(s - s.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    return np.einsum("bgrqk,bgkv->bgrqv", p.reshape(b, kv, h // kv, q, -1), value).reshape(b, h, q, -1)

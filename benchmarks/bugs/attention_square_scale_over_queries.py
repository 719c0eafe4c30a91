"""two: divided by d_k, and the softmax runs over the queries"""

import numpy as np

ARRAYS = "numpy"


def scaled_dot_product_attention(query, key, value, mask=None):
    z = np.einsum("...qd,...kd->...qk", query, key) / query.dtype.type(query.shape[-1])
    if mask is not None:
        z = np.where(mask, z, np.finfo(z.dtype).min)
    z = np.exp(z - z.max(axis=-2, keepdims=True))
    return np.einsum("...qk,...kv->...qv", z / z.sum(axis=-2, keepdims=True), value)

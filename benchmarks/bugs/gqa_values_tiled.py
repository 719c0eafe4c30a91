"""the heads of values are tiled, those of keys repeated"""

import math

import torch

ARRAYS = "torch"


def grouped_query_attention(query, key, value, mask=None):
    n_rep = query.size(1) // key.size(1)
    k = torch.repeat_interleave(key, n_rep, dim=1)
    v = value.repeat(1, n_rep, 1, 1)
    att = torch.einsum("bhqd,bhkd->bhqk", query, k) / math.sqrt(query.size(-1))
    if mask is not None:
        att = att.masked_fill(~mask, torch.finfo(att.dtype).min)
    return torch.einsum("bhqk,bhkd->bhqd", att.softmax(-1), v)

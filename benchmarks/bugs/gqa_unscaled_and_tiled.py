"""two: no division by √d_k, and the heads of keys and values are tiled"""

import torch

ARRAYS = "torch"


def grouped_query_attention(query, key, value, mask=None):
    times = query.shape[1] // key.shape[1]
    k, v = (torch.cat([t] * times, dim=1) for t in (key, value))
    logits = query @ k.mT
    if mask is not None:
        logits = torch.where(mask, logits, torch.full_like(logits, torch.finfo(logits.dtype).min))
    return torch.softmax(logits, -1) @ v

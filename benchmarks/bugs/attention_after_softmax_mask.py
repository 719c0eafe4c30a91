"""the mask multiplies the weights, which do not add up to 1"""

import torch

ARRAYS = "torch"


def scaled_dot_product_attention(query, key, value, mask=None):
    logits = torch.matmul(query * query.size(-1) ** -0.5, key.transpose(-1, -2))
    p = logits.softmax(dim=-1)
    if mask is not None:
        p = p * mask.to(p.dtype)
    return p.matmul(value)

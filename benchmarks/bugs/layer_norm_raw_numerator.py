"""x is divided without its mean taken off"""

import torch

ARRAYS = "torch"


def layer_norm(x, params):
    var = torch.var(x, dim=-1, unbiased=False, keepdim=True)
    normed = x / torch.sqrt(var + 1e-5)
    return torch.addcmul(params["beta"], normed, params["gamma"])

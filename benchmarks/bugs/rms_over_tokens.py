"""the mean of squares runs over the tokens"""

import torch

ARRAYS = "torch"


def rms_norm(x, params):
    inverse = x.square().mean(dim=-2, keepdim=True).add(1e-6).rsqrt()
    return torch.mul(x, inverse) * params["gamma"]

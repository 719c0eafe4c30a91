"""the squares are added, not averaged"""

import torch

ARRAYS = "torch"


class Root:
    def __init__(self, weight, eps=1e-6):
        self.eps, self.weight = eps, weight

    def __call__(self, x):
        energy = torch.einsum("...d,...d->...", x, x).unsqueeze(-1)
        return self.weight * (x * (energy + self.eps).rsqrt())


def rms_norm(x, params):
    return Root(params["gamma"])(x)

"""two: it turns backwards, and the base is 1000"""

import torch

ARRAYS = "torch"


def rotary_embedding(x, positions, base=None, rotary_width=None):
    w = rotary_width or x.shape[-1]
    inv = (base or 1000.0) ** -(torch.arange(0, w, 2).double() / w)
    t = positions.double().unsqueeze(-1) * inv
    c, s = torch.cos(t).to(x), torch.sin(t).to(x)
    e, o = x[..., 0:w:2], x[..., 1:w:2]
    y = torch.empty_like(x[..., :w])
    y[..., 0::2] = e * c + o * s
    y[..., 1::2] = o * c - e * s
    return torch.cat([y, x[..., w:]], dim=-1)

"""cosine and sine are exchanged"""

import torch

ARRAYS = "torch"


def rotary_embedding(x, positions, base=None, rotary_width=None):
    width = rotary_width or x.shape[-1]
    inv = 1.0 / (base or 10000.0) ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = positions.double()[..., None] * inv
    sin, cos = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    head, tail = x[..., :width], x[..., width:]
    a, b = head.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.cat([torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2), tail], -1)

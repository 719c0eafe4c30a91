"""the exponent is i/width, not 2i/width"""

import torch

ARRAYS = "torch"


def rotary_embedding(x, positions, base=None, rotary_width=None):
    w = rotary_width if rotary_width is not None else x.size(-1)
    i = torch.arange(w // 2, dtype=torch.float64)
    freqs = torch.pow(torch.tensor(base if base is not None else 10000.0, dtype=torch.float64), -i / w)
    turn = torch.polar(torch.ones(()).double(), positions.to(torch.float64).unsqueeze(-1) * freqs)
    pairs = torch.view_as_complex(x[..., :w].double().reshape(*x.shape[:-1], w // 2, 2).contiguous())
    rotated = torch.view_as_real(pairs * turn).reshape(*x.shape[:-1], w).to(x.dtype)
    return torch.cat((rotated, x[..., w:]), dim=-1)

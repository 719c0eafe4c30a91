"""The linear map of a projection: its formula, and its parameters as the modules start them."""

import torch
from torch import Tensor, nn


def affine(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Map row vectors: y = x·W + b, with W of (in, out).

    Shapes:   x (..., in), w (in, out), b (out,) → (..., out)
    """
    y = x @ w  # (..., out)
    return y if b is None else y + b


def xavier_weight(d_in: int, d_out: int, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
    """Draw an (in, out) matrix, Xavier-uniform.

    Formula:  U(−a, a) with a = √(6 / (d_in + d_out)), the same for (in, out) as for (out, in)
    Source:   walkthrough 3
    """
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(d_in, d_out, device=device, dtype=dtype)))


def zero_bias(d_out: int, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
    """Start a bias at zero, as walkthrough 3 does."""
    return nn.Parameter(torch.zeros(d_out, device=device, dtype=dtype))

"""The linear map of a projection: its formula, and its parameters as the modules start them."""

import torch
from torch import Tensor, nn

from goldformer.reference_impl._random import xavier_matrix


def affine(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    """Map row vectors: y = x·W + b, with W of (in, out).

    Shapes:   x (..., in), w (in, out), b (out,) → (..., out)
    """
    y = x @ w  # (..., out)
    return y if b is None else y + b


def xavier_weight(d_in: int, d_out: int, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
    """Start a weight Xavier-uniform, as walkthrough 3 does, from PyTorch's own random numbers."""
    return nn.Parameter(xavier_matrix(d_in, d_out, device, dtype))


def zero_bias(d_out: int, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
    """Start a bias at zero, as walkthrough 3 does."""
    return nn.Parameter(torch.zeros(d_out, device=device, dtype=dtype))

"""How the modules start their parameters."""

import torch
from torch import nn

from goldformer.reference_impl._random import xavier_matrix


def xavier_weight(d_in: int, d_out: int, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
    """Start a weight Xavier-uniform, as walkthrough 3 does, from PyTorch's own random numbers."""
    return nn.Parameter(xavier_matrix(d_in, d_out, device, dtype))


def zero_bias(d_out: int, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
    """Start a bias at zero, as walkthrough 3 does."""
    return nn.Parameter(torch.zeros(d_out, device=device, dtype=dtype))

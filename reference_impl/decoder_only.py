"""The parts of a decoder-only Transformer in PyTorch that are not those of 2017, to be read from top to bottom.

Calls are held to the shapes in signatures, as in transformer.py. RMS-1 is a clause of the specification, in
spec/decoder_only.md.
"""

from typing import Any

import torch
from torch import Tensor, nn

from goldformer.reference_impl.parts import widen
from goldformer.reference_impl.shapes import Float, Module, Positive, Size


class RMSNorm(Module):
    """x / √(mean square + eps) · gamma over the last axis. Zhang and Sennrich, 2019, equation 4. RMS-1."""

    gamma: Float[Tensor, "d_model"]

    def __init__(self, d_model: Size, eps: Positive = 1e-6, **like: Any) -> None:
        super().__init__()
        self.eps = eps  # that of T5 and of the first Llama (RMS-4)
        self.gamma = nn.Parameter(torch.ones(d_model, **like))

    def forward(self, x: Float[Tensor, "... d_model"]) -> Float[Tensor, "... d_model"]:
        # float16 ends at 65504, and squares of numbers from 256 on would be inf: everything is computed in float32, and
        # rounded last (RMS-6).
        row = widen(x)
        mean_square = (row * row).mean(dim=-1, keepdim=True)  # no mean is subtracted
        return (row / (mean_square + self.eps).sqrt() * widen(self.gamma)).to(x.dtype)  # RMS-2, RMS-3

"""The parts of a decoder-only Transformer in PyTorch that are not those of 2017, to be read from top to bottom.

Calls are held to the shapes in signatures, as in transformer.py. RMS-1 and GLU-1 are clauses of the specification, in
spec/decoder_only.md.
"""

from typing import Any

import torch
from torch import Tensor, nn

from goldformer.reference_impl.parts import (
    ACTIVATIONS,
    Activation,
    GatedResult,
    affine,
    widen,
    xavier_weight,
    zero_bias,
)
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


class GatedFeedForward(Module):
    """(act(x W_gate) * (x W_up)) W_down at every position, with biases. Shazeer, 2020, equations 5 and 6. GLU-1."""

    w_gate: Float[Tensor, "d_model d_ff"]
    w_up: Float[Tensor, "d_model d_ff"]
    w_down: Float[Tensor, "d_ff d_model"]

    def __init__(
        self, d_model: Size, d_ff: Size, *, activation: Activation = "silu", bias: bool = True, **like: Any
    ) -> None:
        super().__init__()
        self.activate = ACTIVATIONS[activation]  # GLU-3
        self.w_gate, self.w_up = xavier_weight(d_model, d_ff, **like), xavier_weight(d_model, d_ff, **like)
        self.w_down = xavier_weight(d_ff, d_model, **like)
        self.b_gate, self.b_up = zero_bias(d_ff, bias=bias, **like), zero_bias(d_ff, bias=bias, **like)
        self.b_down = zero_bias(d_model, bias=bias, **like)

    def forward(self, x: Float[Tensor, "batch seq d_model"]) -> GatedResult:
        gate, up = affine(x, self.w_gate, self.b_gate), affine(x, self.w_up, self.b_up)  # (batch, seq, d_ff)
        # σ(−12) is so small that float16 keeps 7 bits of it: the activation is computed in float32, and rounded once
        # (GLU-4). Neither up nor the product goes through a function (GLU-5).
        hidden = self.activate(widen(gate)).to(gate.dtype) * up
        return GatedResult(affine(hidden, self.w_down, self.b_down), hidden, gate, up)

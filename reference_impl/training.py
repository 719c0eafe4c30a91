"""The parts that only training needs: initial weights, dropout with or without a seed, and the shifted target."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor, nn

from goldformer.reference_impl.parts import widen
from goldformer.reference_impl.shapes import Device, Float, Int, Rate, Seed, check_special_id, checked

#: Drops elements of a tensor, or returns it as it is.
Dropping = Callable[[Tensor], Tensor]


def xavier_weight(
    d_in: int, d_out: int, device: Device = None, dtype: torch.dtype | None = None, generator: Generator | None = None
) -> nn.Parameter:
    """Draw an (in, out) matrix from U(−a, a), a = √(6 / (d_in + d_out)), by PyTorch's generator or another (INIT-1)."""
    bound, weight = math.sqrt(6 / (d_in + d_out)), torch.empty(d_in, d_out, device=device, dtype=dtype)
    # In float32 at least: bfloat16 would draw one of 256 numbers, and round it down on average.
    return nn.Parameter(widen(weight).uniform_(-bound, bound, generator=generator).to(weight.dtype))


def zero_bias(d_out: int, *, bias: bool, **like: Any) -> nn.Parameter | None:
    """Start a bias at zero (INIT-3), or return None for a map without one."""
    return nn.Parameter(torch.zeros(d_out, **like)) if bias else None


@checked
def xavier_uniform(like: Float[Tensor, "d_in d_out"], seed: Seed) -> Float[Tensor, "d_in d_out"]:
    """Draw a weight whose range keeps the variance of activations and gradients; the seed decides (INIT-1, INIT-2).

    A fused projection is one matrix: its d_out is that of all its parts. PyTorch's own random numbers are left alone.
    Source: walkthrough 3; Glorot and Bengio, 2010, equation (16)
    """
    d_in, d_out = like.shape
    return xavier_weight(d_in, d_out, like.device, like.dtype, make_generator(seed, like.device)).detach()


def make_generator(seed: int, device: torch.device) -> Generator:
    """Make a generator of random numbers, on the device of the tensor that it fills."""
    # The meta device has no generators, nor has one written in Python, such as pretend; they accept those of the CPU.
    return Generator("cpu" if device.type in ("meta", "pretend") else device).manual_seed(seed)


def drop(x: Tensor, rate: float, generator: Generator | None = None) -> Tensor:
    """Set each element to 0 with probability rate, and divide the others by 1 − rate, the mean stays (DROP-1)."""
    # In float32 whatever x is: bfloat16 would draw from 256 numbers, and a tenth is not among them.
    uniform = torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float32)
    # At a rate of 1 nothing is kept, and there is no 1 / 0 to scale it by.
    kept = x / (1 - rate) if rate < 1 else x
    # Select, do not multiply: 0 · inf is NaN.
    return kept.masked_fill(uniform < rate, 0.0)


@checked
def dropout(x: Float[Tensor, "... n"], *, rate: Rate, training: bool, seed: Seed) -> Float[Tensor, "... n"]:
    """Leave out elements that the seed decides; without training return x (DROP-2). Source: n9; paper, section 5.4."""
    return drop(x, rate, make_generator(seed, x.device)) if training else x


class Dropout(nn.Dropout):
    """Dropout in training mode, from PyTorch's own random numbers, or from those of a generator that is set."""

    generator: Generator | None = None
    __call__: Callable[..., Tensor]  # nn.Module leaves it without types

    @checked
    def __init__(self, dropout: Rate = 0.1) -> None:
        super().__init__(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements of x."""
        return drop(x, self.p, self.generator) if self.training and self.p > 0 else x


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Let a model drop nothing for a while, also while it is trained."""
    dropping = [part for part in model.modules() if isinstance(part, nn.Dropout) and part.training]
    for part in dropping:
        part.training = False
    try:
        yield
    finally:
        for part in dropping:
            part.training = True


@checked
def shift_right(ids: Int[Tensor, "batch seq"], bos_id: int) -> Int[Tensor, "batch seq"]:
    """Make what the decoder reads: bos_id, then the target without its last word (SEQ-2). Illustrated; paper 3.1."""
    check_special_id("bos_id", bos_id, "begins these ids", "ids", ids)
    return torch.cat((torch.full_like(ids[:, :1], bos_id), ids[:, :-1]), dim=1)

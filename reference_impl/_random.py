"""Random numbers: from a seed for the functions, from PyTorch's own generator for the modules.

Dropout, and the parameters that the modules start with.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from goldformer.reference_impl._checks import check_bool, check_fraction, check_seed

#: Drops elements of a tensor, or returns it as it is.
Dropping = Callable[[Tensor], Tensor]


def make_generator(seed: Any, device: torch.device) -> torch.Generator:
    """Make a generator of random numbers from a checked seed, on the device of the tensor that it fills."""
    # The meta device has no generators, nor has one written in Python, such as pretend; they accept those of the CPU.
    return torch.Generator("cpu" if device.type in ("meta", "pretend") else device).manual_seed(seed)


def drop(x: Tensor, rate: float, generator: torch.Generator | None = None) -> Tensor:
    """Set each element to 0 with probability rate, and divide the others by 1 − rate.

    Shapes:   x (...) → (...)
    """
    # In float32 whatever x is: bfloat16 would draw from 256 numbers, and a tenth is not among them.
    uniform = torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float32)  # (...)
    # At a rate of 1 nothing is kept, and there is no 1 / 0 to scale it by.
    kept = x / (1 - rate) if rate < 1 else x  # (...)
    # Select, do not multiply: 0 · inf is NaN.
    return kept.masked_fill(uniform < rate, 0.0)  # (...)


def skip_dropout(x: Tensor) -> Tensor:
    """Return x: the function forms have no dropout unless they are given a rate."""
    return x


def make_dropping(dropout_rate: Any, training: Any, seed: Any) -> Dropping:
    """Make the dropout of a function form from its arguments, which are checked; without a rate nothing is dropped."""
    if dropout_rate is None:
        return skip_dropout
    check_fraction("dropout_rate", dropout_rate)
    check_bool("training", training)
    check_seed("seed", seed)
    return _SeededDropping(dropout_rate, seed) if training else skip_dropout


class _SeededDropping:
    """Dropout at one rate, whose calls draw one after another from the random numbers of a seed."""

    def __init__(self, rate: float, seed: int) -> None:
        self.rate, self.seed = rate, seed
        self.generator: torch.Generator | None = None  # made at the first call, on the device of its tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Drop elements of x."""
        self.generator = self.generator or make_generator(self.seed, x.device)
        return drop(x, self.rate, self.generator)


class _Dropout(nn.Dropout):
    """PyTorch's dropout by the formula of ours, with PyTorch's own random numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return drop(x, self.p) if self.training else x


def make_dropout(p: float) -> nn.Dropout:
    """Make the dropout of a module: in training an entry is 0 with probability p, the rest grows by 1/(1 − p)."""
    check_fraction("dropout", p)
    return _Dropout(p)


def xavier_matrix(
    d_in: int,
    d_out: int,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw an (in, out) matrix, Xavier-uniform.

    Formula:  U(−a, a) with a = √(6 / (d_in + d_out)), the same for (in, out) as for (out, in)
    Source:   walkthrough 3
    """
    bound = math.sqrt(6 / (d_in + d_out))
    dtype = dtype or torch.get_default_dtype()
    # In float32 at least: bfloat16 would draw one of 256 numbers, and round it down on average.
    matrix = torch.empty(d_in, d_out, device=device, dtype=torch.promote_types(dtype, torch.float32))
    return matrix.uniform_(-bound, bound, generator=generator).to(dtype)


def xavier_weight(d_in: int, d_out: int, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
    """Start a weight Xavier-uniform, as walkthrough 3 does, from PyTorch's own random numbers."""
    return nn.Parameter(xavier_matrix(d_in, d_out, device, dtype))


def zero_bias(d_out: int, device: torch.device | str | None, dtype: torch.dtype | None) -> nn.Parameter:
    """Start a bias at zero, as walkthrough 3 does."""
    return nn.Parameter(torch.zeros(d_out, device=device, dtype=dtype))

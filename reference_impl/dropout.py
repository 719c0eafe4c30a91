"""Dropout: training leaves out elements at random, so that no channel becomes indispensable."""

from torch import Tensor

from goldformer.reference_impl._checks import check_bool, check_fraction, check_seed, check_tensors
from goldformer.reference_impl._random import drop, make_generator


def dropout(x: Tensor, *, rate: float, training: bool, seed: int) -> Tensor:
    """Set each element to 0 by chance, and scale up the others, so that the mean stays; only in training.

    Formula:  training: 0 with probability rate, else x / (1 − rate), every element by itself; else x
    Shapes:   x (..., n) → (..., n)
    Errors:   TypeError unless x is a floating-point tensor, rate a number, training a bool and seed an int;
              ValueError for an empty axis, a rate outside 0 … 1 or a seed below 0
    Source:   n9 "前馈传播", "位置编码" and "编码层"; paper, section 5.4

    The seed decides which elements; PyTorch's own random numbers are neither read nor moved on.
    """
    check_tensors({"x": (x, "... n")})
    check_fraction("rate", rate)
    check_bool("training", training)
    check_seed("seed", seed)

    return drop(x, rate, make_generator(seed, x.device)) if training else x

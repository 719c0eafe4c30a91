"""The initialisation of weights."""

from torch import Tensor

from goldformer.reference_impl._checks import check_seed, check_tensors
from goldformer.reference_impl._random import make_generator, xavier_matrix


def xavier_uniform(like: Tensor, seed: int) -> Tensor:
    """Draw a weight whose range keeps the variance of activations and gradients.

    Formula:  U(−a, a) with a = √(6 / (d_in + d_out)), every element by itself; its variance is 2 / (d_in + d_out)
    Shapes:   like (d_in, d_out) → (d_in, d_out), with the dtype and on the device of like, whose numbers do not matter
    Errors:   TypeError unless like is a floating-point tensor and seed an int; ValueError unless like has two axes,
              neither empty, and for a seed below 0
    Source:   walkthrough 3; Glorot and Bengio, 2010, equation (16)

    A fused projection is one matrix, and so its d_out is that of all its parts together. The seed decides; PyTorch's
    own random numbers are neither read nor moved on.
    """
    check_tensors({"like": (like, "d_in d_out")})
    check_seed("seed", seed)

    d_in, d_out = like.shape
    return xavier_matrix(d_in, d_out, like.device, like.dtype, make_generator(seed, like.device))

"""The backward pass of root mean square normalisation, written by hand."""

import numpy as np

from goldformer.adapters.textbook.backward import Gradients
from goldformer.adapters.textbook.checks import Array
from goldformer.adapters.textbook.heads import Params
from goldformer.adapters.textbook.rms import channel_scale, mean_square, rms_divisor, widen_row
from goldformer.adapters.textbook.steps import step


@step
def rms_norm_gradient(x: Array, cotangent: Array, *, params: Params) -> Gradients:
    """Return the gradients of x (..., d_model) and gamma, (d_model,)."""
    row = widen_row(x)
    square = mean_square(row)
    root = rms_divisor(square)
    normal = row / root
    gradient = cotangent * channel_scale(params["gamma"])
    through = gradient - root_gradient(normal, gradient, square)
    of_gamma = (cotangent * normal).sum(axis=tuple(range(x.ndim - 1)))
    gradients = {"x": through / root, "gamma": of_gamma}
    return {name: array.astype(x.dtype) for name, array in gradients.items()}


@step
def root_gradient(normal: Array, gradient: Array, square: Array) -> Array | float:
    """Return the part that flows through the root mean square, which depends on all channels of the row."""
    del square
    return np.asarray(normal * (gradient * normal).mean(-1, keepdims=True))

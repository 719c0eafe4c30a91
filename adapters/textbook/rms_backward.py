"""The backward pass of root mean square normalisation, written by hand."""

import numpy as np

from goldformer.spec.formulas.backward import Gradients, sum_rows
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.heads import Params
from goldformer.spec.formulas.layers import channel_mean
from goldformer.spec.formulas.rms import channel_scale, mean_square, rms_divisor, widen_row
from goldformer.spec.formulas.steps import step


@step
def rms_norm_gradient(x: Array, cotangent: Array, *, params: Params) -> Gradients:
    """Return the gradients of x (..., d_model) and gamma, (d_model,)."""
    row = widen_row(x)
    square = mean_square(row)
    root = rms_divisor(square)
    normal = row / root
    gradient = cotangent * channel_scale(params["gamma"])
    through = gradient - root_gradient(normal, gradient, square)
    gradients = {"x": through / root, "gamma": sum_rows(cotangent * normal)}
    return {name: array.astype(x.dtype) for name, array in gradients.items()}


@step
def root_gradient(normal: Array, gradient: Array, square: Array) -> Array | float:
    """Return the part that flows through the root mean square, which depends on all channels of the row."""
    del square
    return np.asarray(normal * channel_mean(gradient * normal))

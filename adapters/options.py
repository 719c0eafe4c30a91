"""The options of the conventions as replaced steps of the textbook: of the formulas and of their backward passes."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from goldformer.adapters.textbook.layers_backward import (
    SubLayerBackward,
    final_norm_gradient,
    join_residual_gradient,
    sublayer_gradient,
    transformer_gradient,
)
from goldformer.spec.formulas.arrays import arithmetic
from goldformer.spec.formulas.backward import (
    Gradients,
    activation_gradient,
    layer_norm_gradient,
    statistics_gradient,
    token_embedding_gradient,
)
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.heads import Params
from goldformer.spec.formulas.layers import SubLayer, layer_norm, norm_params
from goldformer.spec.formulas.options import OPTIONS as OF_FORMULAS
from goldformer.spec.formulas.options import compute_wide, select_read, unit_norm
from goldformer.spec.formulas.parts import add_prefix
from goldformer.spec.formulas.steps import Replacements, around, instead


def scale_embedding_gradient(
    original: Callable[..., Gradients], ids: Array, cotangent: Array, *, params: Params, pad_id: int | None = None
) -> Gradients:
    """Return the gradient of table, multiplied by the same √d_model."""
    return original(ids, cotangent * math.sqrt(cotangent.shape[-1]), params=params, pad_id=pad_id)


def fix_pad_row(
    original: Callable[..., Gradients], ids: Array, cotangent: Array, *, params: Params, pad_id: int | None = None
) -> Gradients:
    """Return the gradient of table, 0 in the row of pad_id."""
    gradients = original(ids, cotangent, params=params, pad_id=pad_id)
    if pad_id is not None and 0 <= pad_id < len(gradients["table"]):
        gradients["table"][pad_id] = 0
    return gradients


def normalise_input_gradient(
    x: Array, function: SubLayer, backward: SubLayerBackward, cotangent: Array, *, number: int, params: Params
) -> tuple[Array, Gradients]:
    """Return the gradient of x and those of the parameters of a sub-layer that normalises its input."""
    del function
    mine = norm_params(params, number)
    through, gradients = backward(layer_norm(x, params=mine), cotangent)
    of_norm = layer_norm_gradient(x, through, params=mine)
    return join_residual_gradient(cotangent, of_norm.pop("x")), gradients | add_prefix(f"norm_{number}", of_norm)


def deviation_gradient(normal: Array, gradient: Array) -> Array:
    """Return the part that flows through mean and deviation, where eps is added to the deviation.

    The sum of the squares of a normalised row is (d_model − 1)·(deviation/(deviation + eps))². Through the deviation of
    a row of equal numbers nothing flows, as frameworks define it.
    """
    squares = np.square(normal).sum(-1, keepdims=True)
    root = np.sqrt((normal.shape[-1] - 1) * np.where(squares == 0, 1, squares))
    through = (gradient * normal).sum(-1, keepdims=True) / root
    return np.asarray(gradient.mean(-1, keepdims=True) + normal * through)


# The derivatives of the functions of a feed-forward network


def find_normal_distribution(x: Array) -> Array:
    """Return Φ(x): how likely a standard normal number is below x."""
    return np.asarray((1 + arithmetic().erf(x / math.sqrt(2))) / 2)


def gelu_slope(x: Array) -> Array:
    """Return Φ(x) + x·φ(x)."""
    return np.asarray(find_normal_distribution(x) + x * np.exp(-np.square(x) / 2) / math.sqrt(2 * math.pi))


def gelu_tanh_slope(x: Array) -> Array:
    """Return the derivative of x·(1 + tanh u)/2 with u = √(2/π)·(x + 0.044715·x³)."""
    scale = math.sqrt(2 / math.pi)
    bent = np.tanh(scale * (x + 0.044715 * x**3))
    return np.asarray((1 + bent) / 2 + x * (1 - np.square(bent)) * scale * (1 + 3 * 0.044715 * np.square(x)) / 2)


def silu_slope(x: Array) -> Array:
    """Return σ(x)·(1 + x·(1 − σ(x)))."""
    share = 1 / (1 + np.exp(-x))
    return np.asarray(share * (1 + x * (1 - share)))


def derive_by(slope: Callable[[Array], Array]) -> Replacements:
    """Return the replacement of the derivative of a feed-forward network's function."""
    derive = compute_wide(slope)
    return {activation_gradient: instead(lambda inner, gradient: gradient * derive(inner))}


# The parameters of a call decide these options, as in the formulas.


def normalise_without_params_gradient(x: Array, cotangent: Array, stack: str, norm: Params) -> tuple[Array, Gradients]:
    """Return the gradient of the last layer's output, and those of gamma and beta if the call has them."""
    del stack
    gradients = layer_norm_gradient(x, cotangent, params=norm or unit_norm(x))
    return gradients.pop("x"), gradients if norm else {}


def leave_out_gradients(*names: str) -> Replacements:
    """Return the replacement of a model's gradients that are 0 for parameters which its output layer does not read."""

    def gradient(original: Callable[..., Gradients], *ids: Array, params: Params, **rest: Any) -> Gradients:
        unread = {name: np.zeros_like(params[name]) for name in names if name in params}
        return {**original(*ids, params=select_read(params, names), **rest), **unread}

    return {transformer_gradient: around(gradient)}


_BACKWARD: Final[Mapping[tuple[str, str], Replacements]] = {
    ("embedding_scale", "sqrt_d_model"): {token_embedding_gradient: around(scale_embedding_gradient)},
    ("pad_row", "fixed"): {token_embedding_gradient: around(fix_pad_row)},
    ("final_norm", "after_stack"): {final_norm_gradient: instead(normalise_without_params_gradient)},
    ("output_layer", "without_bias"): leave_out_gradients("b_vocab"),
    ("output_layer", "tied"): leave_out_gradients("w_vocab", "b_vocab"),
    ("output_layer", "tied_with_bias"): leave_out_gradients("w_vocab"),
    ("norm_divisor", "std_plus_eps"): {statistics_gradient: instead(deviation_gradient)},
    ("activation", "gelu"): derive_by(gelu_slope),
    ("activation", "gelu_tanh"): derive_by(gelu_tanh_slope),
    ("activation", "silu"): derive_by(silu_slope),
    ("norm_placement", "pre"): {sublayer_gradient: instead(normalise_input_gradient)},
}

#: The replaced steps by convention and option; the defaults replace no step.
OPTIONS: Final[Mapping[tuple[str, str], Replacements]] = {
    option: {**steps, **_BACKWARD.get(option, {})} for option, steps in OF_FORMULAS.items()
}

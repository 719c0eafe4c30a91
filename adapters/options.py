"""The options of the conventions as replaced steps of the textbook, which follows the defaults."""

import math
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, Final

import numpy as np

from goldformer.adapters.textbook.attention import can_see, causal_mask, mask_fill, weigh_keys
from goldformer.adapters.textbook.backward import (
    Gradients,
    activation_gradient,
    layer_norm_gradient,
    statistics_gradient,
    token_embedding_gradient,
)
from goldformer.adapters.textbook.checks import Array
from goldformer.adapters.textbook.decoding import Sentence, Task, has_ended, length_penalty, next_beam, rank_sentences
from goldformer.adapters.textbook.embedding import (
    Wave,
    channel_waves,
    frequency_exponent,
    positional_encoding,
    token_embedding,
)
from goldformer.adapters.textbook.heads import Params
from goldformer.adapters.textbook.layers import (
    SubLayer,
    activation,
    add_prefix,
    channel_variance,
    final_norm,
    layer_norm,
    layer_norm_eps,
    norm_denominator,
    norm_params,
    note_sum,
    run_sublayer,
)
from goldformer.adapters.textbook.layers_backward import (
    SubLayerBackward,
    final_norm_gradient,
    join_residual_gradient,
    sublayer_gradient,
    transformer_gradient,
)
from goldformer.adapters.textbook.rms import channel_scale, rms_divisor, rms_eps
from goldformer.adapters.textbook.rms_backward import root_gradient
from goldformer.adapters.textbook.steps import Replacements, around, instead
from goldformer.adapters.textbook.targets import spread_smoothing_mass
from goldformer.adapters.textbook.transformer import output_logits, target_mask

# Attention and its masks


def empty_rows_of_zeros(original: Callable[..., Array], scaled: Array, mask: Array | None) -> Array:
    """Return the weights, all 0 in a row without a key, (..., q_seq, kv_seq)."""
    weights = original(scaled, mask)
    return weights if mask is None else weights * mask.any(-1, keepdims=True).astype(weights.dtype)


def align_bottom_right(original: Callable[..., Array], *, q_seq: int, kv_seq: int) -> Array:
    """Return the causal mask in which the last query sees every key, (q_seq, kv_seq)."""
    original(q_seq=q_seq, kv_seq=kv_seq)  # refuses bad sizes
    return can_see(np.arange(q_seq)[:, None] + kv_seq - q_seq, np.arange(kv_seq))


# Embedding and positions


def scale_embedding(original: Callable[..., Array], ids: Array, *, params: Params, pad_id: int | None = None) -> Array:
    """Return the rows of the table multiplied by √d_model, (batch, seq, d_model)."""
    rows = original(ids, params=params, pad_id=pad_id)
    return rows * math.sqrt(rows.shape[-1])


def scale_embedding_gradient(
    original: Callable[..., Gradients], ids: Array, cotangent: Array, *, params: Params, pad_id: int | None = None
) -> Gradients:
    """Return the gradient of table, multiplied by the same √d_model."""
    return original(ids, cotangent * math.sqrt(cotangent.shape[-1]), params=params, pad_id=pad_id)


def hold_pad_row(original: Callable[..., Array], ids: Array, *, params: Params, pad_id: int | None = None) -> Array:
    """Return the rows of the table, those of pad_id as constants: a complex number carries its derivative with it."""
    rows = original(ids, params=params, pad_id=pad_id)
    return rows if pad_id is None else np.where((ids == pad_id)[..., None], rows.real, rows)


def fix_pad_row(
    original: Callable[..., Gradients], ids: Array, cotangent: Array, *, params: Params, pad_id: int | None = None
) -> Gradients:
    """Return the gradient of table, 0 in the row of pad_id."""
    gradients = original(ids, cotangent, params=params, pad_id=pad_id)
    if pad_id is not None and 0 <= pad_id < len(gradients["table"]):
        gradients["table"][pad_id] = 0
    return gradients


def concatenate_waves(d_model: int) -> list[tuple[float, Wave]]:
    """Return all sines before all cosines; an odd width has one more sine."""
    half = d_model - d_model // 2
    sines: list[tuple[float, Wave]] = [(pair, np.sin) for pair in range(half)]
    return sines + [(pair, np.cos) for pair in range(d_model - half)]


def tensor2tensor_exponent(pair: float, d_model: int) -> float:
    """Return the exponent with which the last frequency is exactly 1/10000."""
    return 2 * pair / max(d_model - 2, 1)


def refuse_odd_width(original: Callable[..., Array], x: Array) -> Array:
    """Return x plus the encoding; raise for an odd width, where a sine has no cosine."""
    if x.ndim == 3 and x.shape[-1] % 2:
        raise ValueError(f"x: d_model is {x.shape[-1]}, which is odd")
    return original(x)


def leave_out_last_sine(original: Callable[[int], list[tuple[float, Wave]]], d_model: int) -> list[tuple[float, Wave]]:
    """Return the pair and the wave of each channel; the last of an odd width has the wave 0."""
    waves = original(d_model)
    return [*waves[:-1], (waves[-1][0], np.zeros_like)] if d_model % 2 else waves


# Layers


def normalise_input(
    x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
) -> tuple[Array, Array]:
    """Return x + f(LN(x)) and the second result of f."""
    output, second = function(layer_norm(x, params=norm_params(params, number)))
    return note_sum(x, output, sums), second


def normalise_input_gradient(
    x: Array, function: SubLayer, backward: SubLayerBackward, cotangent: Array, *, number: int, params: Params
) -> tuple[Array, Gradients]:
    """Return the gradient of x and those of the parameters of a sub-layer that normalises its input."""
    del function
    mine = norm_params(params, number)
    through, gradients = backward(layer_norm(x, params=mine), cotangent)
    of_norm = layer_norm_gradient(x, through, params=mine)
    return join_residual_gradient(cotangent, of_norm.pop("x")), gradients | add_prefix(f"norm_{number}", of_norm)


def divide_by_one_less(original: Callable[[Array], Array], centred: Array) -> Array:
    """Return the variance divided by d_model − 1, (..., 1)."""
    d_model = centred.shape[-1]
    # Of one channel it is 0/0: NaN, as silently as the frameworks give it.
    with np.errstate(invalid="ignore"):
        return np.asarray(original(centred) * d_model / (d_model - 1))


def add_eps_to_deviation(variance: Array) -> Array:
    """Return √variance + eps."""
    return np.asarray(np.sqrt(variance) + layer_norm_eps())


def deviation_gradient(normal: Array, gradient: Array) -> Array:
    """Return the part that flows through mean and deviation, where eps is added to the deviation.

    The sum of the squares of a normalised row is (d_model − 1)·(deviation/(deviation + eps))². Through the deviation of
    a row of equal numbers nothing flows, as frameworks define it.
    """
    squares = np.square(normal).sum(-1, keepdims=True)
    root = np.sqrt((normal.shape[-1] - 1) * np.where(squares == 0, 1, squares))
    through = (gradient * normal).sum(-1, keepdims=True) / root
    return np.asarray(gradient.mean(-1, keepdims=True) + normal * through)


# Root mean square normalisation


def add_eps_to_root(square: Array) -> Array:
    """Return √(mean square) + eps."""
    return np.asarray(np.sqrt(square) + rms_eps())


def root_gradient_outside(normal: Array, gradient: Array, square: Array) -> Array:
    """Return the part that flows through the root mean square, where eps is added to the root.

    It is larger by (root + eps)/root. Through the root of a row of zeros nothing flows.
    """
    root = np.sqrt(np.where(square == 0, 1, square))
    return np.asarray(normal * (gradient * normal).mean(-1, keepdims=True) * (1 + rms_eps() / root))


def add_one_to_weight(original: Callable[[Array], Array], gamma: Array) -> Array:
    """Return 1 + gamma."""
    return 1 + original(gamma)


# The functions of a feed-forward network, each before its derivative. Float16 is computed in float32, as frameworks do.


def compute_wide(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a function that is computed in float32 at least, and rounded to the dtype of its argument."""

    def compute(x: Array) -> Array:
        with np.errstate(over="ignore"):  # e^(−x) of a large −x is infinite, and its reciprocal 0
            return np.asarray(function(x.astype(np.promote_types(x.dtype, np.float32))), dtype=x.dtype)

    return compute


def find_normal_distribution(x: Array) -> Array:
    """Return Φ(x): how likely a standard normal number is below x."""
    at = x / math.sqrt(2)
    erf = np.vectorize(math.erf, otypes=[at.real.dtype])(at.real)
    if np.iscomplexobj(at):
        # math.erf takes only real numbers: its derivative gives the imaginary part of a complex step.
        erf = erf + (at - at.real) * np.exp(-np.square(at.real)) * 2 / math.sqrt(math.pi)
    return np.asarray((1 + erf) / 2)


def gelu(x: Array) -> Array:
    """Return x·Φ(x)."""
    return np.asarray(x * find_normal_distribution(x))


def gelu_slope(x: Array) -> Array:
    """Return Φ(x) + x·φ(x)."""
    return np.asarray(find_normal_distribution(x) + x * np.exp(-np.square(x) / 2) / math.sqrt(2 * math.pi))


def gelu_tanh(x: Array) -> Array:
    """Return GELU as a hyperbolic tangent approximates it."""
    return np.asarray(x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2)


def gelu_tanh_slope(x: Array) -> Array:
    """Return the derivative of x·(1 + tanh u)/2 with u = √(2/π)·(x + 0.044715·x³)."""
    scale = math.sqrt(2 / math.pi)
    bent = np.tanh(scale * (x + 0.044715 * x**3))
    return np.asarray((1 + bent) / 2 + x * (1 - np.square(bent)) * scale * (1 + 3 * 0.044715 * np.square(x)) / 2)


def silu(x: Array) -> Array:
    """Return x·σ(x)."""
    return np.asarray(x / (1 + np.exp(-x)))


def silu_slope(x: Array) -> Array:
    """Return σ(x)·(1 + x·(1 − σ(x)))."""
    share = 1 / (1 + np.exp(-x))
    return np.asarray(share * (1 + x * (1 - share)))


def activate_by(function: Callable[[Array], Array], slope: Callable[[Array], Array]) -> Replacements:
    """Return the replacements of a feed-forward network with another function between its maps."""
    derive = compute_wide(slope)
    return {
        activation: instead(compute_wide(function)),
        activation_gradient: instead(lambda inner, gradient: gradient * derive(inner)),
    }


# The parameters of a call decide these options. If a call has the parameters of another option, the steps do what code
# with the declared option does: its own norm has gamma 1 and beta 0, and it ignores a matrix that it does not have.


def normalise_without_params(x: Array, stack: str, norm: Params) -> Array:
    """Return the output of a stack, normalised with gamma 1 and beta 0 if the call has neither."""
    del stack
    return layer_norm(x, params=norm or unit_norm(x))


def normalise_without_params_gradient(x: Array, cotangent: Array, stack: str, norm: Params) -> tuple[Array, Gradients]:
    """Return the gradient of the last layer's output, and those of gamma and beta if the call has them."""
    del stack
    gradients = layer_norm_gradient(x, cotangent, params=norm or unit_norm(x))
    return gradients.pop("x"), gradients if norm else {}


def unit_norm(x: Array) -> Params:
    """Return gamma 1 and beta 0 for the channels of x."""
    return {"gamma": np.ones_like(x[0, 0]), "beta": np.zeros_like(x[0, 0])}


def leave_out(*names: str) -> Replacements:
    """Return the replacements of a model whose output layer does not read these parameters."""

    def select(params: Params) -> Params:
        return {name: array for name, array in params.items() if name not in names}

    def logits(original: Callable[..., Array], x: Array, params: Params) -> Array:
        # Without a table it is an output layer by itself, which has nothing to tie.
        return original(x, select(params) if "table" in params else params)

    def gradient(original: Callable[..., Gradients], *ids: Array, params: Params, **rest: Any) -> Gradients:
        unread = {name: np.zeros_like(params[name]) for name in names if name in params}
        return {**original(*ids, params=select(params), **rest), **unread}

    return {output_logits: around(logits), transformer_gradient: around(gradient)}


# Masks of models


def hide_later_only(target: Array, pad_id: int) -> Array:
    """Return the causal mask, which leaves the padding of the target visible, (seq, seq)."""
    del pad_id
    return causal_mask(q_seq=target.shape[1], kv_seq=target.shape[1])


# Targets and beams


def spread_among_others(target: Array, smoothing: float) -> Array | float:
    """Return s/(vocab − 1) for every word other than the target's own, (batch, seq, vocab)."""
    return np.asarray((1 - target) * smoothing / (target.shape[-1] - 1))


def set_aside_ended(beam: list[Sentence], extensions: list[list[Sentence]], task: Task) -> list[Sentence]:
    """Return the next beam; sentences that have ended leave it."""
    before = [sentence for sentence in beam if has_ended(sentence, task)]
    ranked = rank_sentences(s for s in chain.from_iterable(extensions) if s not in before)
    aside = before + [s for s in ranked[: task.beam_size] if has_ended(s, task)]
    alive = [s for s in ranked if not has_ended(s, task)][: task.beam_size]
    return aside if len(aside) >= task.beam_size else aside + alive


#: The replaced steps by convention and option; the defaults replace no step.
OPTIONS: Final[Mapping[tuple[str, str], Replacements]] = {
    ("empty_row", "zeros"): {weigh_keys: around(empty_rows_of_zeros)},
    # The softmax of a row that holds only −∞ is NaN.
    ("empty_row", "nan"): {mask_fill: instead(lambda dtype: -math.inf)},  # noqa: ARG005 - whatever the dtype
    ("causal_corner", "bottom_right"): {causal_mask: around(align_bottom_right)},
    # The mask of the call says it.
    ("later_tokens", "hidden_too"): {},
    ("later_tokens", "hidden_only"): {},
    ("embedding_scale", "sqrt_d_model"): {
        token_embedding: around(scale_embedding),
        token_embedding_gradient: around(scale_embedding_gradient),
    },
    ("pad_row", "fixed"): {
        token_embedding: around(hold_pad_row),
        token_embedding_gradient: around(fix_pad_row),
    },
    ("target_mask", "causal_only"): {target_mask: instead(hide_later_only)},
    ("final_norm", "after_stack"): {
        final_norm: instead(normalise_without_params),
        final_norm_gradient: instead(normalise_without_params_gradient),
    },
    ("output_layer", "without_bias"): leave_out("b_vocab"),
    ("output_layer", "tied"): leave_out("w_vocab", "b_vocab"),
    ("output_layer", "tied_with_bias"): leave_out("w_vocab"),
    # A call without learned positions has no values for them.
    ("positions", "learned"): {},
    ("pe_layout", "concatenated"): {channel_waves: instead(concatenate_waves)},
    ("pe_layout", "tensor2tensor"): {
        channel_waves: instead(concatenate_waves),
        frequency_exponent: instead(tensor2tensor_exponent),
    },
    ("odd_d_model", "refused"): {positional_encoding: around(refuse_odd_width)},
    ("odd_d_model", "zero"): {channel_waves: around(leave_out_last_sine)},
    ("layer_norm_eps", "1e-6"): {layer_norm_eps: instead(lambda: 1e-6)},
    ("layer_norm_eps", "1e-12"): {layer_norm_eps: instead(lambda: 1e-12)},
    ("norm_divisor", "std_plus_eps"): {
        channel_variance: around(divide_by_one_less),
        norm_denominator: instead(add_eps_to_deviation),
        statistics_gradient: instead(deviation_gradient),
    },
    ("rms_norm_eps", "1e-5"): {rms_eps: instead(lambda: 1e-5)},
    ("rms_norm_eps", "float32_eps"): {rms_eps: instead(lambda: 2.0**-23)},
    ("rms_norm_eps_place", "outside"): {
        rms_divisor: instead(add_eps_to_root),
        root_gradient: instead(root_gradient_outside),
    },
    ("rms_norm_weight", "one_plus_w"): {channel_scale: around(add_one_to_weight)},
    ("activation", "gelu"): activate_by(gelu, gelu_slope),
    ("activation", "gelu_tanh"): activate_by(gelu_tanh, gelu_tanh_slope),
    ("activation", "silu"): activate_by(silu, silu_slope),
    ("norm_placement", "pre"): {
        run_sublayer: instead(normalise_input),
        sublayer_gradient: instead(normalise_input_gradient),
    },
    ("smoothing_denominator", "others"): {spread_smoothing_mass: instead(spread_among_others)},
    ("beam_finish", "set_aside"): {next_beam: instead(set_aside_ended)},
    ("length_penalty", "mean"): {length_penalty: instead(lambda length: length)},
    # ((5 + n)/6)^0.6, as in the paper that introduced it.
    ("length_penalty", "gnmt"): {length_penalty: instead(lambda length: ((5 + length) / 6) ** 0.6)},
}

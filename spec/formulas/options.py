"""The options of the conventions as replaced steps of the formulas, which follow the defaults."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from inspect import unwrap
from itertools import chain
from typing import Any, Final

import numpy as np

from goldformer.spec.formulas.arrays import Array, arithmetic, as_array, number, ratio, root
from goldformer.spec.formulas.attention import causal_mask, mask_fill, query_positions, softmax, weigh_keys
from goldformer.spec.formulas.decoder_only import finish_block, is_local, normalise_block
from goldformer.spec.formulas.decoding import Sentence, Task, has_ended, length_penalty, next_beam, rank_sentences
from goldformer.spec.formulas.distance import bias_distance, geometric_slope, head_slope, place_padding, window_length
from goldformer.spec.formulas.embedding import (
    Wave,
    channel_waves,
    frequency_exponent,
    positional_encoding,
    token_embedding,
)
from goldformer.spec.formulas.experts import weigh_experts
from goldformer.spec.formulas.gated import gate_activation, sigmoid
from goldformer.spec.formulas.grouped import find_shared_heads, group_size
from goldformer.spec.formulas.heads import Params
from goldformer.spec.formulas.layers import (
    SubLayer,
    activation,
    channel_variance,
    final_norm,
    layer_norm,
    layer_norm_eps,
    norm_denominator,
    norm_params,
    note_sum,
    run_sublayer,
)
from goldformer.spec.formulas.parts import part
from goldformer.spec.formulas.rms import channel_scale, rms_divisor, rms_eps, rms_norm
from goldformer.spec.formulas.rope import (
    Rotation,
    kept_share,
    pair_channels,
    rotary_base,
    scale_wave,
    turning_positions,
)
from goldformer.spec.formulas.sampling import (
    Ranking,
    Settings,
    apply_min_p,
    apply_temperature,
    apply_top_k,
    apply_top_p,
    count_top,
    filter_order,
    keep_only,
    take_place,
)
from goldformer.spec.formulas.steps import Replacements, Step, around, instead
from goldformer.spec.formulas.targets import spread_smoothing_mass
from goldformer.spec.formulas.transformer import output_logits, target_mask

# Attention and its masks


def empty_rows_of_zeros(original: Callable[..., Array], scaled: Array, mask: Array | None) -> Array:
    """Return the weights, all 0 in a row without a key, (..., q_seq, kv_seq)."""
    weights = original(scaled, mask)
    if mask is None:
        return weights
    return np.where(mask.any(-1, keepdims=True), weights, arithmetic().constant(0, weights))


def align_last(q_seq: int, kv_seq: int) -> Array:
    """Return the positions of queries the last of which has that of the last key."""
    return np.arange(q_seq) + kv_seq - q_seq


def count_both_ways(original: Callable[[int, int], Array], q_seq: int, kv_seq: int) -> Array:
    """Return by how many positions each key is before or after each query, (q_seq, kv_seq)."""
    return np.asarray(np.abs(original(q_seq, kv_seq)))


def count_from_first_key(q_seq: int, kv_seq: int) -> Array:
    """Return minus the position of each key, the same for every query, (q_seq, kv_seq)."""
    return np.broadcast_to(-np.arange(kv_seq), (q_seq, kv_seq))


def count_from_last_key(q_seq: int, kv_seq: int) -> Array:
    """Return by how many positions each key is before the last key, the same for every query, (q_seq, kv_seq)."""
    return np.broadcast_to(np.arange(kv_seq)[::-1], (q_seq, kv_seq))


def leave_out_oneself(original: Callable[[int], int], window: int) -> int:
    """Return the number of keys that a query sees whose window counts the keys before its own."""
    return original(window) + 1


def tile_heads(heads: int, kv_heads: int) -> Array:
    """Return for each query head the index of the head that it reads, h modulo kv_heads."""
    group_size(heads, kv_heads)  # refuses heads that do not divide
    return np.arange(heads) % kv_heads


# Embedding and positions


def scale_embedding(original: Callable[..., Array], ids: Array, *, params: Params, pad_id: int | None = None) -> Array:
    """Return the rows of the table multiplied by √d_model, (batch, seq, d_model)."""
    rows = original(ids, params=params, pad_id=pad_id)
    return rows * root(rows.shape[-1])


def hold_pad_row(original: Callable[..., Array], ids: Array, *, params: Params, pad_id: int | None = None) -> Array:
    """Return the rows of the table, those of pad_id without a derivative."""
    rows = original(ids, params=params, pad_id=pad_id)
    return rows if pad_id is None else np.where((ids == pad_id)[..., None], arithmetic().detach(rows), rows)


def concatenate_waves(d_model: int) -> list[tuple[float, Wave]]:
    """Return all sines before all cosines; an odd width has one more sine."""
    half = d_model - d_model // 2
    sines: list[tuple[float, Wave]] = [(pair, np.sin) for pair in range(half)]
    return sines + [(pair, np.cos) for pair in range(d_model - half)]


def tensor2tensor_exponent(pair: float, d_model: int) -> float:
    """Return the exponent with which the last frequency is exactly 1/10000."""
    return ratio(2 * pair, max(d_model - 2, 1))


def refuse_odd_width(original: Callable[..., Array], x: Array, **rest: Any) -> Array:
    """Return x plus the encoding; raise for an odd width, where a sine has no cosine."""
    if x.ndim == 3 and x.shape[-1] % 2:
        raise ValueError(f"x: d_model is {x.shape[-1]}, which is odd")
    return original(x, **rest)


def leave_out_last_sine(original: Callable[[int], list[tuple[float, Wave]]], d_model: int) -> list[tuple[float, Wave]]:
    """Return the pair and the wave of each channel; the last of an odd width has the wave 0."""
    waves = original(d_model)
    return [*waves[:-1], (waves[-1][0], _be_zero)] if d_model % 2 else waves


def _be_zero(angle: Array) -> Array:
    return np.full_like(angle, arithmetic().constant(0, angle))


# Layers


def normalise_input(
    x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
) -> tuple[Array, Array]:
    """Return x + f(LN(x)) and the second result of f."""
    output, second = function(layer_norm(x, params=norm_params(params, number)))
    return note_sum(x, output, sums), second


def divide_by_one_less(centred: Array) -> Array:
    """Return the sum of the squares divided by d_model − 1, (..., 1)."""
    # Of one channel it is 0/0: NaN, as silently as the frameworks give it.
    with np.errstate(invalid="ignore"):
        return (centred * centred).sum(axis=-1, keepdims=True) / number(centred.shape[-1] - 1)


def add_eps_to_deviation(variance: Array) -> Array:
    """Return √variance + eps."""
    return np.sqrt(variance) + layer_norm_eps()


def add_eps_to_root(square: Array) -> Array:
    """Return √(mean square) + eps."""
    return np.sqrt(square) + rms_eps()


def add_one_to_weight(original: Callable[[Array], Array], gamma: Array) -> Array:
    """Return 1 + gamma."""
    return original(gamma) + number(1)


# The order of the blocks of a decoder-only layer


def normalise_input_of_layer(x: Array, *, number: int, sums: list[Array], params: Params) -> Array:
    """Return what both blocks read, the normalised input of the layer."""
    del x, number
    return rms_norm(sums[0], params=norm_params(params, 1))


def normalise_output_of_block(output: Array, *, number: int, params: Params) -> Array:
    """Return the normalised output of a block, which is added to the residual."""
    return rms_norm(output, params=part(params, f"post_norm_{number}"))


# Rotary positions


def pair_halves(width: int) -> tuple[Array, Array]:
    """Return the first and the second channel of each pair: i and i + width/2."""
    return np.arange(width // 2), np.arange(width // 2, width)


def negate_positions(original: Callable[[Array], Array], positions: Array) -> Array:
    """Return the negative positions: each angle falls with the position."""
    return -original(positions)


def keep_by_turns(first: int, last: int) -> Callable[..., Any]:
    """Return the kept share of a pair, from 0 at `first` turns within the original length up to 1 at `last`."""

    def keep(pair: int, frequency: float, rotation: Rotation) -> Any:
        del pair
        turns = as_array(find_length(rotation) * frequency) / (number(2) * arithmetic().pi())
        return limit_share(as_array(turns - number(first)) / number(last - first))

    return keep


def keep_by_pairs(round_down: Callable[[Any], Any], round_up: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the kept share of a pair, which falls from pair to pair between those of 32 turns and of one turn."""

    def keep(pair: int, frequency: float, rotation: Rotation) -> Any:
        del frequency
        start, end = round_down(pair_of_turns(32, rotation)), round_up(pair_of_turns(1, rotation))
        start = max(start, number(0), key=float)
        end = min(end, number(rotation.width - 1), key=float)
        # The code of the paper's authors adds 0.001 where both are one pair.
        width = end - start if float(end) != float(start) else ratio(1, 1000)
        return number(1) - limit_share(as_array(number(pair) - start) / width)

    return keep


def pair_of_turns(turns: int, rotation: Rotation) -> Any:
    """Return the number of the pair, which need not be whole, that makes these turns within the original length."""
    size = find_length(rotation) / (number(2 * turns) * arithmetic().pi())
    logarithm = arithmetic().logarithm
    pairs = as_array(number(rotation.width) * logarithm(size)) / number(2)
    return as_array(pairs) / logarithm(rotary_base(rotation.base))


def find_length(rotation: Rotation) -> Any:
    """Return the original length, which these options need."""
    if rotation.length is None:
        raise ValueError("original_length: missing; pass the number of positions that the frequencies were made for")
    return number(rotation.length)


def limit_share(share: Any) -> Any:
    """Return a share, 0 below 0 and 1 above 1."""
    return min(max(share, number(0), key=float), number(1), key=float)


def round_whole(round_number: Callable[[float], int]) -> Callable[[Any], Any]:
    """Return a function that rounds a number of any kind to a whole one."""
    return lambda value: number(round_number(float(value)))


def enlarge_wave(wave: Array, factor: Any) -> Array:
    """Return a cosine or sine times 0.1·ln s + 1, so that scores grow by the square of it."""
    return wave * (number(1) + as_array(arithmetic().logarithm(factor)) / number(10))


#: The share of a frequency that YaRN keeps: between whole pairs, as published code has it.
keep_between_whole_pairs: Final = keep_by_pairs(round_whole(math.floor), round_whole(math.ceil))


# The functions of a feed-forward network


def compute_wide(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a function that is computed in float32 at least, as frameworks do, and rounded to its argument's dtype."""

    def compute(x: Array) -> Array:
        with np.errstate(over="ignore"):  # e^(−x) of a large −x is infinite, and its reciprocal 0
            return arithmetic().narrow(function(arithmetic().widen(x)), x)

    return compute


def gelu(x: Array) -> Array:
    """Return x·Φ(x), Φ(x) being how likely a standard normal number is below x."""
    return x * (number(1) + arithmetic().erf(x / root(2))) / number(2)


def gelu_tanh(x: Array) -> Array:
    """Return GELU as a hyperbolic tangent approximates it."""
    cubic = x * x * x * ratio(44715, 10**6)
    return x * (number(1) + np.tanh((x + cubic) * root(number(2) / arithmetic().pi()))) / number(2)


def silu(x: Array) -> Array:
    """Return x·σ(x)."""
    return x / (number(1) + np.exp(-x))


#: Max(0, x), whatever stands in the place of the step that is it by default.
relu: Final = unwrap(activation)


# The parameters of a call decide these options. If a call has the parameters of another option, the steps do what code
# with the declared option does: its own norm has gamma 1 and beta 0, and it ignores a matrix that it does not have.


def normalise_without_params(x: Array, stack: str, norm: Params) -> Array:
    """Return the output of a stack, normalised with gamma 1 and beta 0 if the call has neither."""
    del stack
    return layer_norm(x, params=norm or unit_norm(x))


def unit_norm(x: Array) -> Params:
    """Return gamma 1 and beta 0 for the channels of x."""
    one, zero = (arithmetic().constant(value, x) for value in (1, 0))
    return {name: np.full_like(x[0, 0], value) for name, value in (("gamma", one), ("beta", zero))}


def select_read(params: Params, names: tuple[str, ...]) -> Params:
    """Return the parameters of a model whose output layer does not read some of them."""
    return {name: array for name, array in params.items() if name not in names}


def leave_out(*names: str) -> Replacements:
    """Return the replacement of an output layer that does not read these parameters."""

    def logits(original: Callable[..., Array], x: Array, params: Params) -> Array:
        # Without a table it is an output layer by itself, which has nothing to tie.
        return original(x, select_read(params, names) if "table" in params else params)

    return {output_logits: around(logits)}


# Masks of models


def hide_later_only(target: Array, pad_id: int) -> Array:
    """Return the causal mask, which leaves the padding of the target visible, (seq, seq)."""
    del pad_id
    return causal_mask(q_seq=target.shape[1], kv_seq=target.shape[1])


# Targets and beams


def spread_among_others(target: Array, smoothing: float) -> Array | float:
    """Return s/(vocab − 1) for every word other than the target's own, (batch, seq, vocab)."""
    return (number(1) - target) * (number(smoothing) / number(target.shape[-1] - 1))


def set_aside_ended(beam: list[Sentence], extensions: list[list[Sentence]], task: Task) -> list[Sentence]:
    """Return the next beam; sentences that have ended leave it."""
    before = [sentence for sentence in beam if has_ended(sentence, task)]
    ranked = rank_sentences(s for s in chain.from_iterable(extensions) if s not in before)
    aside = before + [s for s in ranked[: task.beam_size] if has_ended(s, task)]
    alive = [s for s in ranked if not has_ended(s, task)][: task.beam_size]
    return aside if len(aside) >= task.beam_size else aside + alive


# Experts


def share_among_all(logits: Array, is_chosen: Array) -> Array:
    """Return the softmax over all experts, 0 for those that are not chosen."""
    return keep_only(softmax(logits), is_chosen)


def share_sigmoids(logits: Array, is_chosen: Array) -> Array:
    """Return σ(logit) over the sum of those of the chosen experts, 0 for the others."""
    chosen = keep_only(sigmoid(logits), is_chosen)
    return chosen / chosen.sum(axis=-1, keepdims=True)


# The filters of tokens


def refuse_zero(original: Callable[..., Ranking], ranking: Ranking, settings: Settings) -> Ranking:
    """Return the ranking with its scores divided by the temperature; raise for a temperature of 0."""
    if settings.temperature is not None and float(settings.temperature) == 0:
        raise ValueError("temperature: 0, but logits are divided by it; pass a number above 0")
    return original(ranking, settings)


def count_top_and_equals(ranked: Array, k: int) -> Array:
    """Return how many logits are at least the k-th."""
    decide = arithmetic().decide
    return (decide(ranked) >= decide(take_place(ranked, np.full((len(ranked), 1), k - 1)))[:, None]).sum(
        -1, keepdims=True
    )


def choose_eps(eps: Step, value: Fraction) -> Replacements:
    """Return the replacement of the eps of a norm by a number."""

    def choose() -> Any:
        chosen, divisor = number(value.numerator), value.denominator
        while divisor > 1:  # an integer of NumPy has at most 18 digits
            part = divisor if divisor <= 10**18 else math.gcd(divisor, 10**18)
            chosen, divisor = number(chosen) / number(part), divisor // part
        return chosen

    return {eps: instead(choose)}


#: The conventions of which any number is an option, with the steps that return it.
EPS: Final[Mapping[str, Step]] = {"layer_norm_eps": layer_norm_eps, "rms_norm_eps": rms_eps}


#: The replaced steps by convention and option; the defaults replace no step. `find_steps` knows every number too.
OPTIONS: Final[Mapping[tuple[str, str], Replacements]] = {
    ("empty_row", "zeros"): {weigh_keys: around(empty_rows_of_zeros)},
    # The softmax of a row that holds only −∞ is NaN.
    ("empty_row", "nan"): {mask_fill: instead(lambda dtype: -np.inf)},  # noqa: ARG005 - whatever the dtype
    ("causal_corner", "bottom_right"): {query_positions: instead(align_last)},
    # The mask of the call says it.
    ("later_tokens", "hidden_too"): {},
    ("later_tokens", "hidden_only"): {},
    ("embedding_scale", "sqrt_d_model"): {token_embedding: around(scale_embedding)},
    ("pad_row", "fixed"): {token_embedding: around(hold_pad_row)},
    ("target_mask", "causal_only"): {target_mask: instead(hide_later_only)},
    ("final_norm", "after_stack"): {final_norm: instead(normalise_without_params)},
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
    ("layer_norm_eps", "1e-5"): {},
    ("layer_norm_eps", "1e-6"): choose_eps(layer_norm_eps, Fraction("1e-6")),
    ("layer_norm_eps", "1e-12"): choose_eps(layer_norm_eps, Fraction("1e-12")),
    ("norm_divisor", "std_plus_eps"): {
        channel_variance: instead(divide_by_one_less),
        norm_denominator: instead(add_eps_to_deviation),
    },
    ("block_order", "parallel"): {normalise_block: instead(normalise_input_of_layer)},
    ("block_order", "sandwich"): {finish_block: instead(normalise_output_of_block)},
    ("gqa_groups", "tile"): {find_shared_heads: instead(tile_heads)},
    ("local_layers", "every_second"): {is_local: instead(lambda index: index % 2 == 0)},
    ("local_layers", "five_of_six"): {is_local: instead(lambda index: index % 6 != 5)},
    ("window_size", "before_oneself"): {window_length: around(leave_out_oneself)},
    ("padded_position", "zero"): {place_padding: instead(lambda mask, counted: np.where(mask, counted, 0))},
    ("padded_position", "counted"): {place_padding: instead(lambda mask, counted: counted)},  # noqa: ARG005 - a step's
    ("padded_position", "clamped"): {place_padding: instead(lambda mask, counted: np.maximum(counted, 0))},  # noqa: ARG005
    ("alibi_slopes", "geometric"): {head_slope: instead(geometric_slope)},
    ("alibi_form", "absolute"): {bias_distance: around(count_both_ways)},
    ("alibi_form", "key_index"): {bias_distance: instead(count_from_first_key)},
    ("alibi_form", "from_last_key"): {bias_distance: instead(count_from_last_key)},
    # They say which calls are made.
    ("cache_state", "consumed"): {},
    ("projection_widths", "refused"): {},
    ("rms_norm_eps", "1e-6"): {},
    ("rms_norm_eps", "1e-5"): choose_eps(rms_eps, Fraction("1e-5")),
    ("rms_norm_eps", "float32_eps"): choose_eps(rms_eps, Fraction(1, 2**23)),
    ("rms_norm_eps_place", "outside"): {rms_divisor: instead(add_eps_to_root)},
    ("rms_norm_weight", "one_plus_w"): {channel_scale: around(add_one_to_weight)},
    ("rope_pairing", "half"): {pair_channels: instead(pair_halves)},
    ("rope_direction", "negative"): {turning_positions: around(negate_positions)},
    ("rope_scaling", "llama3"): {kept_share: instead(keep_by_turns(1, 4))},
    ("rope_scaling", "yarn"): {kept_share: instead(keep_between_whole_pairs), scale_wave: instead(enlarge_wave)},
    ("rope_scaling", "yarn_not_rounded"): {
        kept_share: instead(keep_by_pairs(number, number)),
        scale_wave: instead(enlarge_wave),
    },
    ("rope_scaling", "yarn_by_turns"): {kept_share: instead(keep_by_turns(1, 32)), scale_wave: instead(enlarge_wave)},
    ("activation", "gelu"): {activation: instead(compute_wide(gelu))},
    ("activation", "gelu_tanh"): {activation: instead(compute_wide(gelu_tanh))},
    ("activation", "silu"): {activation: instead(compute_wide(silu))},
    ("gate_activation", "gelu"): {gate_activation: instead(compute_wide(gelu))},
    ("gate_activation", "gelu_tanh"): {gate_activation: instead(compute_wide(gelu_tanh))},
    ("gate_activation", "relu"): {gate_activation: instead(relu)},
    ("moe_weights", "not_renormalised"): {weigh_experts: instead(share_among_all)},
    ("moe_weights", "sigmoid"): {weigh_experts: instead(share_sigmoids)},
    ("sample_order", "temperature_last"): {
        filter_order: instead(lambda: (apply_top_k, apply_top_p, apply_min_p, apply_temperature))
    },
    ("temperature_zero", "refused"): {apply_temperature: around(refuse_zero)},
    ("sample_ties", "all_equal"): {count_top: instead(count_top_and_equals)},
    ("norm_placement", "pre"): {run_sublayer: instead(normalise_input)},
    ("smoothing_denominator", "others"): {spread_smoothing_mass: instead(spread_among_others)},
    ("beam_finish", "set_aside"): {next_beam: instead(set_aside_ended)},
    ("length_penalty", "mean"): {length_penalty: instead(lambda length: length)},
    # ((5 + n)/6)^0.6, as in the paper that introduced it.
    ("length_penalty", "gnmt"): {length_penalty: instead(lambda length: ((5 + length) / 6) ** 0.6)},
}


@cache
def find_steps(convention: str, option: str) -> Replacements:
    """Return the steps that an option replaces; none for a default, and for what is no option."""
    if (convention, option) in OPTIONS or convention not in EPS:
        return OPTIONS.get((convention, option), {})
    return choose_eps(EPS[convention], Fraction(option))

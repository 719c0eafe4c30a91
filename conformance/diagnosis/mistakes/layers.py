"""Mistakes in the feed-forward network, in layer normalisation, and in the layers and stacks made of them."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, as_array
from goldformer.spec.formulas.attention import causal_mask
from goldformer.spec.formulas.embedding import positional_encoding
from goldformer.spec.formulas.heads import Params, apply_affine, project
from goldformer.spec.formulas.layers import (
    SubLayer,
    activation,
    add_residual,
    channel_mean,
    channel_variance,
    cross_attend,
    cross_attention_sublayer,
    decoder,
    decoder_layer,
    encoder,
    encoder_layer,
    feed_forward,
    feed_forward_sublayer,
    final_norm,
    layer_norm,
    layer_norm_eps,
    layer_params,
    norm_denominator,
    norm_params,
    note_sum,
    run_decoder_layer,
    run_encoder_layer,
    run_stack,
    run_sublayer,
    scale_and_shift,
    self_attend,
    subtract_mean,
)
from goldformer.spec.formulas.options import add_eps_to_deviation
from goldformer.spec.formulas.parts import part
from goldformer.spec.formulas.randomness import drop_here, drop_hidden, drop_update, dropping
from goldformer.spec.formulas.steps import around, replacing

FeedForward = Callable[..., tuple[Array, Array]]
Layer = Callable[..., dict[str, Array]]
Mask = Array | None

FINAL_NORM: Final = {"final_norm": "after_stack"}

# Feed-forward network


@mistake("ffn-no-relu", instead_of=activation)
def leave_out_activation(x: Array) -> Array:
    """Return x: there is no function between the two linear maps."""
    return x


@mistake("ffn-leaky-relu", instead_of=activation)
def leak_negative_channels(x: Array) -> Array:
    """Return x where it is positive, and a hundredth of it elsewhere."""
    return np.where(x.real > 0, x, x / 100)


@mistake("ffn-output-relu", around=feed_forward)
def clip_output(original: FeedForward, x: Array, *, params: Params, **rest: Any) -> tuple[Array, Array]:
    """Return the output after a second ReLU, and hidden."""
    output, hidden = original(x, params=params, **rest)
    return np.maximum(output, 0), hidden


@mistake("ffn-bias-missing", around=project)
def leave_out_feed_forward_bias(
    original: Callable[[Array, Params, str], Array], x: Array, params: Params, role: str
) -> Array:
    """Return x·W without the bias, in the two maps of the network."""
    return apply_affine(x, params[f"w_{role}"], None) if role in ("1", "2") else original(x, params, role)


@mistake("ffn-bias-after-relu", around=feed_forward)
def add_bias_after_activation(original: FeedForward, x: Array, *, params: Params, **rest: Any) -> tuple[Array, Array]:
    """Return output and hidden of the network that adds b_1 after its activation."""
    bias = params.get("b_1")
    if bias is None:
        return original(x, params=params, **rest)

    def activate(function: Callable[[Array], Array], product: Array) -> Array:
        return function(product) + bias

    with replacing({activation: around(activate)}):
        return original(x, params={name: array for name, array in params.items() if name != "b_1"}, **rest)


@mistake("ffn-no-dff", around=feed_forward)
def narrow_hidden_layer(original: FeedForward, x: Array, *, params: Params, **rest: Any) -> tuple[Array, Array]:
    """Return output and hidden of only the first d_model of the d_ff channels."""
    width = x.shape[-1]
    narrow = {"w_1": params["w_1"][:, :width], "w_2": params["w_2"][:width]}
    narrow |= {name: params[name][:width] for name in ("b_1", "b_2") if name in params}
    return original(x, params=narrow, **rest)


@mistake("ffn-mixes-tokens", around=feed_forward)
def read_token_before(original: FeedForward, x: Array, *, params: Params, **rest: Any) -> tuple[Array, Array]:
    """Return the network of every token plus the one before, as a kernel of width 2 reads them."""
    before = np.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    return original(x + before, params=params, **rest)


# Layer normalisation


@mistake("ln-wrong-axis", instead_of=channel_mean)
def average_tokens_too(x: Array) -> Array:
    """Return the mean over the tokens as well as the channels, (..., 1, 1)."""
    return as_array(x.mean(axis=(-2, -1), keepdims=True))


@mistake("bn-for-ln", instead_of=channel_mean)
def average_samples(x: Array) -> Array:
    """Return the mean of each channel over all samples and tokens, (1, …, d_model)."""
    return as_array(x.mean(axis=tuple(range(x.ndim - 1)), keepdims=True))


@mistake("rms-for-ln", instead_of=subtract_mean)
def leave_mean(x: Array) -> Array:
    """Return the row with its mean in it, to be divided by the root of its mean square."""
    return x


@mistake("ln-naive-variance", around=layer_norm, shows_in=("float32",))
def subtract_squared_mean(original: Callable[..., Array], x: Array, *, params: Params) -> Array:
    """Return the row normalised by the mean of its squares less the square of its mean."""
    wide = x.astype(np.promote_types(x.dtype, np.float32))
    variance = channel_mean(np.square(wide)) - np.square(channel_mean(wide))

    def take_variance(formula: Callable[[Array], Array], centred: Array) -> Array:
        # An option divides by one less.
        return as_array(variance * formula(np.ones_like(centred)))

    # What rounding has made of a small variance may be below 0: its root is NaN, without a warning.
    with replacing({channel_variance: around(take_variance)}), np.errstate(invalid="ignore"):
        return as_array(original(x, params=params))


# Together these two are the option norm_divisor: std_plus_eps.


@mistake("ln-unbiased", around=channel_variance)
def take_sample_variance(original: Callable[[Array], Array], centred: Array) -> Array:
    """Return the variance divided by d_model − 1, (..., 1)."""
    d_model = centred.shape[-1]
    # Of one channel it is 0/0: NaN, as silently as the frameworks give it.
    with np.errstate(invalid="ignore"):
        return as_array(original(centred) * d_model / (d_model - 1))


@mistake("ln-eps-outside", instead_of=norm_denominator)
def add_eps_outside(variance: Array) -> Array:
    """Return √variance + eps."""
    return add_eps_to_deviation(variance)


@mistake("ln-square", instead_of=norm_denominator)
def square_variance(variance: Array) -> Array:
    """Return (variance + eps)²."""
    return as_array(np.square(variance + layer_norm_eps()))


@mistake("ln-no-affine", instead_of=scale_and_shift)
def leave_out_affine(normal: Array, params: Params) -> Array:
    """Return the channels without gamma and beta."""
    return normal


@mistake("ln-one-plus-gamma", around=scale_and_shift)
def scale_by_one_more(original: Callable[[Array, Params], Array], normal: Array, params: Params) -> Array:
    """Return every channel times 1 + gamma plus its beta."""
    return original(normal, params) + normal


# Residual and normalisation


@mistake("residual-missing", instead_of=add_residual)
def leave_out_residual(x: Array, output: Array, sums: list[Array]) -> Array:
    """Return the output of a sub-layer, which replaces its input."""
    return output


@mistake("residual-wrong-x", instead_of=add_residual)
def add_input_of_layer(x: Array, output: Array, sums: list[Array]) -> Array:
    """Return the output of a sub-layer plus the input of the whole layer."""
    return sums[0] + output


@mistake("residual-normed", instead_of=run_sublayer)
def add_normalised_input(
    x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
) -> tuple[Array, Array]:
    """Return LN(x) + f(LN(x)) and what else f gives."""
    normed = layer_norm(x, params=norm_params(params, number))
    output, extra = function(normed)
    return note_sum(normed, output, sums), extra


@mistake("residual-unnormed", instead_of=add_residual)
def add_sum_before_norm(x: Array, output: Array, sums: list[Array]) -> Array:
    """Return the output of a sub-layer plus the sum before it, as it was before its norm."""
    return sums[-1] + output


@mistake("norm-before-add", instead_of=run_sublayer)
def normalise_before_adding(
    x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
) -> tuple[Array, Array]:
    """Return x + LN(f(x)) and what else f gives."""
    output, extra = function(x)
    return note_sum(x, layer_norm(output, params=norm_params(params, number)), sums), extra


@mistake("norm-missing", instead_of=run_sublayer)
def leave_out_norm(
    x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
) -> tuple[Array, Array]:
    """Return x + f(x) and what else f gives."""
    output, extra = function(x)
    return note_sum(x, output, sums), extra


@mistake("wrong-ln-reused", around=norm_params)
def reuse_norm(original: Callable[[Params, int], Params], params: Params, number: int) -> Params:
    """Return the norm of the sub-layer before; the first has its own."""
    return original(params, max(number - 1, 1))


# Sub-layers that are missing, and additions to a layer


@mistake("ffn-missing", instead_of=feed_forward_sublayer)
def leave_out_feed_forward(x: Array, *, number: int, sums: list[Array], params: Params) -> Array:
    """Return x: a layer ends with its last attention."""
    return x


@mistake("causal-in-encoder", around=encoder_layer)
def hide_later_tokens(original: Layer, x: Array, mask: Array | None = None, **rest: Any) -> dict[str, Array]:
    """Return the encoder layer with a causal mask in its self-attention."""
    causal = causal_mask(q_seq=x.shape[1], kv_seq=x.shape[1])
    return original(x, causal if mask is None else mask & causal, **rest)


@mistake("pe-every-layer", around=encoder_layer)
def add_positions_to_encoder_layer(original: Layer, *arrays: Any, **rest: Any) -> dict[str, Array]:
    """Return the encoder layer with the positional encoding added at its end."""
    given = original(*arrays, **rest)
    return given | {"output": positional_encoding(given["output"])}


@mistake("pe-every-layer", around=decoder_layer)
def add_positions_to_decoder_layer(original: Layer, *arrays: Any, **rest: Any) -> dict[str, Array]:
    """Return the decoder layer with the positional encoding added at its end."""
    return add_positions_to_encoder_layer(original, *arrays, **rest)


# Cross-attention


@mistake("cross-missing", around=cross_attention_sublayer)
def leave_out_cross_attention(
    original: Callable[..., tuple[Array, Array]], x: Array, *rest: Array | None, **named: Any
) -> tuple[Array, Array]:
    """Return x, and the weights of the cross-attention, which has no effect on x."""
    return x, original(x, *rest, **named)[1]


@mistake("cross-q-source", around=decoder_layer)
def attend_to_decoder(
    original: Layer, x: Array, memory: Array, self_mask: Array | None = None, *mask: Array | None, **rest: Any
) -> dict[str, Array]:
    """Return the decoder layer whose cross-attention is a second self-attention, with the mask of the first."""

    def attend(cross_attend: Callable[..., Any], x: Array, memory: Array, mask: Array | None, **rest: Any) -> Any:
        return cross_attend(x, x, self_mask, **rest)

    with replacing({cross_attend: around(attend)}):
        return original(x, memory, self_mask, *mask, **rest)


@mistake("cross-before-self", around=decoder_layer)
def attend_to_memory_first(
    original: Layer,
    x: Array,
    memory: Array,
    self_mask: Array | None = None,
    memory_mask: Array | None = None,
    *,
    num_heads: int,
    params: Params,
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> dict[str, Array]:
    """Return the decoder layer whose cross-attention comes before its self-attention, each with its own norm."""
    sums = [x]
    with dropping(dropout_rate, training, seed):
        crossed, cross_weights = cross_attention_sublayer(
            x, memory, memory_mask, sums=sums, num_heads=num_heads, params=params
        )
        attend = partial(self_attend, mask=self_mask, num_heads=num_heads, params=params)
        attended, weights = run_sublayer(crossed, attend, number=1, sums=sums, params=params)
        output = feed_forward_sublayer(attended, number=3, sums=sums, params=params)
    between = {"attended": attended, "crossed": crossed}
    return {"output": output, **between, "weights": weights, "cross_weights": cross_weights}


@mistake("cross-mask-absent", around=decoder_layer)
def ignore_memory_mask(
    original: Layer, x: Array, memory: Array, self_mask: Mask = None, memory_mask: Mask = None, **rest: Any
) -> dict[str, Array]:
    """Return the decoder layer whose cross-attention ignores its mask."""
    return original(x, memory, self_mask, None, **rest)


@mistake("cross-uses-tgt-mask", around=decoder_layer)
def mask_memory_as_target(
    original: Layer, x: Array, memory: Array, self_mask: Mask = None, memory_mask: Mask = None, **rest: Any
) -> dict[str, Array]:
    """Return the decoder layer whose cross-attention uses the mask of the self-attention."""
    return original(x, memory, self_mask, self_mask, **rest)


@mistake("cross-masks-swapped", around=decoder_layer)
def swap_masks(
    original: Layer, x: Array, memory: Array, self_mask: Mask = None, memory_mask: Mask = None, **rest: Any
) -> dict[str, Array]:
    """Return the decoder layer whose two attentions use the mask of one another."""
    return original(x, memory, memory_mask, self_mask, **rest)


@mistake("causal-in-cross", around=cross_attend)
def hide_later_memory(
    original: Callable[..., tuple[Array, Array]], x: Array, memory: Array, mask: Array | None, **rest: Any
) -> tuple[Array, Array]:
    """Return the cross-attention that hides later memory rows."""
    causal = causal_mask(q_seq=x.shape[1], kv_seq=memory.shape[1])
    return original(x, memory, causal if mask is None else mask & causal, **rest)


@mistake("cross-self-weights", around=cross_attend)
def cross_attend_by_self_weights(
    original: Callable[..., tuple[Array, Array]],
    x: Array,
    memory: Array,
    mask: Array | None,
    *,
    params: Params,
    **rest: Any,
) -> tuple[Array, Array]:
    """Return the cross-attention with the weights of the self-attention."""
    own = {f"cross_attention.{name}": p for name, p in part(params, "self_attention").items()}
    return original(x, memory, mask, params=own, **rest)


# Stacks


@mistake("layers-not-chained", around=run_stack)
def read_first_input(
    original: Callable[[Array, Callable[..., Array], int], dict[str, Array]],
    x: Array,
    layer: Callable[..., Array],
    num_layers: int,
) -> dict[str, Array]:
    """Return the stack whose layers all read its input."""
    return original(x, lambda _, *, index: layer(x, index=index), num_layers)


@mistake("layer-skipped", around=run_stack)
def skip_last_layer(
    original: Callable[[Array, Callable[..., Array], int], dict[str, Array]],
    x: Array,
    layer: Callable[..., Array],
    num_layers: int,
) -> dict[str, Array]:
    """Return the stack whose last layer hands on what it reads."""

    def all_but_the_last(x: Array, *, index: int) -> Array:
        return layer(x, index=index) if index < num_layers - 1 else x

    return original(x, all_but_the_last, num_layers)


@mistake("layers-shared", around=layer_params)
def share_first_layer(original: Callable[[Params, str, int], Params], params: Params, stack: str, index: int) -> Params:
    """Return the parameters of the first layer for every layer."""
    return original(params, stack, 0)


@mistake("final-norm-extra", around=encoder)
def normalise_encoder_again(original: Layer, *arrays: Array | None, **rest: Any) -> dict[str, Array]:
    """Return the encoder with its last normalisation applied once more."""
    return normalise_again(original(*arrays, **rest), "encoder", 2, rest)


@mistake("final-norm-extra", around=decoder)
def normalise_decoder_again(original: Layer, *arrays: Array | None, **rest: Any) -> dict[str, Array]:
    """Return the decoder with its last normalisation applied once more."""
    return normalise_again(original(*arrays, **rest), "decoder", 3, rest)


def normalise_again(given: dict[str, Array], stack: str, number: int, call: dict[str, Any]) -> dict[str, Array]:
    """Return the result of a stack's call, with the norm of its last layer's last sub-layer applied to the output."""
    last = norm_params(layer_params(call["params"], stack, call["num_layers"] - 1), number)
    return given | {"output": layer_norm(given["output"], params=last)}


# The normalisation after the last layer


@mistake("final-norm-missing", instead_of=final_norm, conventions=FINAL_NORM)
@mistake("final-norm-each-layer", instead_of=final_norm, conventions=FINAL_NORM)
def leave_out_final_norm(x: Array, stack: str, norm: Params) -> Array:
    """Return the output of the last layer as it is."""
    return x


@mistake("final-norm-encoder-only", around=final_norm, conventions=FINAL_NORM)
def normalise_encoder_only(original: Callable[..., Array], x: Array, stack: str, norm: Params) -> Array:
    """Return the output of a stack, normalised only in the encoder."""
    return original(x, stack, norm) if stack == "encoder" else x


@mistake("final-norm-decoder-only", around=final_norm, conventions=FINAL_NORM)
def normalise_decoder_only(original: Callable[..., Array], x: Array, stack: str, norm: Params) -> Array:
    """Return the output of a stack, normalised only in the decoder."""
    return original(x, stack, norm) if stack == "decoder" else x


@mistake("final-norm-each-layer", around=run_encoder_layer, conventions=FINAL_NORM)
def normalise_each_encoder_layer(original: Callable[..., Array], x: Array, *, params: Params, **rest: Any) -> Array:
    """Return the output of an encoder layer, normalised as only that of the last should be."""
    return final_norm_of_layer(original(x, params=params, **rest), params)


@mistake("final-norm-each-layer", around=run_decoder_layer, conventions=FINAL_NORM)
def normalise_each_decoder_layer(original: Callable[..., Array], x: Array, *, params: Params, **rest: Any) -> Array:
    """Return the output of a decoder layer, normalised as only that of the last should be."""
    return final_norm_of_layer(original(x, params=params, **rest), params)


def final_norm_of_layer(output: Array, params: Params) -> Array:
    """Return the output of a layer, normalised with the stack's gamma and beta if it has them."""
    norm = part(params, "norm")
    return layer_norm(output, params=norm) if norm else output


# Dropout


@mistake("ffn-dropout-output", instead_of=drop_hidden)
def leave_hidden(x: Array) -> Array:
    """Return the hidden channels, without dropout."""
    return x


@mistake("ffn-dropout-output", around=feed_forward)
def drop_network_output(
    original: Callable[..., tuple[Array, Array]], x: Array, *, params: Any, **dropout: Any
) -> tuple[Array, Array]:
    """Return the network with elements of the output dropped, and hidden."""
    output, hidden = original(x, params=params)
    if not dropout:
        return output, hidden
    with dropping(dropout["dropout_rate"], dropout["training"], dropout["seed"]):
        return drop_here(output), hidden


@mistake("residual-dropped", instead_of=drop_update)
def leave_update(x: Array) -> Array:
    """Return the output of a sub-layer, without dropout before it is added."""
    return x


@mistake("residual-dropped", around=add_residual)
def drop_sum(original: Callable[..., Array], x: Array, output: Array, sums: list[Array]) -> Array:
    """Return the sum with elements dropped."""
    return drop_here(original(x, output, sums))

"""Feed-forward network, layer normalisation, encoder and decoder layer, and the stacks of them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from goldformer.spec.formulas.arrays import Array, arithmetic, number, ratio
from goldformer.spec.formulas.heads import Params, multi_head_attention, project
from goldformer.spec.formulas.parts import part
from goldformer.spec.formulas.randomness import drop_hidden, drop_update, dropping
from goldformer.spec.formulas.steps import step

#: A sub-layer: maps its input to its output and a second result, such as the weights.
SubLayer = Callable[[Array], tuple[Array, Array]]

# Feed-forward network


@step
def feed_forward(
    x: Array,
    *,
    params: Params,
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> tuple[Array, Array]:
    """Return output (batch, seq, d_model) and hidden (batch, seq, d_ff)."""
    hidden = activation(project(x, params, "1"))
    with dropping(dropout_rate, training, seed):
        return project(drop_hidden(hidden), params, "2"), hidden


@step
def activation(x: Array) -> Array:
    """Return ReLU, max(0, x)."""
    # At exactly 0 the derivative is 0 (GRAD-4).
    return np.where(arithmetic().decide(x) <= 0, arithmetic().constant(0, x), x)


# Layer normalisation


@step
def layer_norm(x: Array, *, params: Params) -> Array:
    """Return (x − mean)/√(variance + eps)·gamma + beta, (..., d_model)."""
    # The square of 256 overflows float16: compute in float32 at least, as frameworks do, and round once.
    centred = subtract_mean(arithmetic().widen(x))
    normal = centred / norm_denominator(channel_variance(centred))
    return arithmetic().narrow(scale_and_shift(normal, params), x)


@step
def subtract_mean(x: Array) -> Array:
    """Return the channels of each token minus their mean."""
    return x - channel_mean(x)


@step
def channel_mean(x: Array) -> Array:
    """Return the mean of each token's channels, (..., 1)."""
    return x.sum(axis=-1, keepdims=True) / number(x.shape[-1])


@step
def channel_variance(centred: Array) -> Array:
    """Return the mean square of the centred channels, (..., 1): the biased variance, divided by d_model."""
    return channel_mean(centred * centred)


@step
def norm_denominator(variance: Array) -> Array:
    """Return √(variance + eps)."""
    return np.sqrt(variance + layer_norm_eps())


@step
def layer_norm_eps() -> float:
    """Return 10⁻⁵."""
    return ratio(1, 10**5)


@step
def scale_and_shift(normal: Array, params: Params) -> Array:
    """Return the normalised channels, each times its gamma and plus its beta."""
    return normal * params["gamma"] + params["beta"]


# The sub-layers


@step
def run_sublayer(
    x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
) -> tuple[Array, Array]:
    """Return LN(x + f(x)) and the second result of f."""
    output, second = function(x)
    return layer_norm(note_sum(x, output, sums), params=norm_params(params, number)), second


def note_sum(x: Array, output: Array, sums: list[Array]) -> Array:
    """Return x plus the output of a sub-layer, and append it to `sums`, which begins with the input of the layer."""
    sums.append(add_residual(x, drop_update(output), sums))
    return sums[-1]


@step
def add_residual(x: Array, output: Array, sums: list[Array]) -> Array:
    """Return x plus the output of its sub-layer; a mistake may add an earlier one of `sums` instead."""
    del sums
    return x + output


@step
def norm_params(params: Params, number: int) -> Params:
    """Return gamma and beta of a sub-layer, counted from 1."""
    return part(params, f"norm_{number}")


@step
def self_attend(x: Array, mask: Array | None, *, num_heads: int, params: Params) -> tuple[Array, Array]:
    """Return output and weights of x attending to itself."""
    mine = part(params, "self_attention")
    attended = multi_head_attention(x, x, x, mask, num_heads=num_heads, params=mine)
    return attended["output"], attended["weights"]


@step
def cross_attend(x: Array, memory: Array, mask: Array | None, *, num_heads: int, params: Params) -> tuple[Array, Array]:
    """Return output and weights of x attending to the memory: queries from x, keys and values from memory."""
    mine = part(params, "cross_attention")
    attended = multi_head_attention(x, memory, memory, mask, num_heads=num_heads, params=mine)
    return attended["output"], attended["weights"]


@step
def feed_through(x: Array, *, params: Params) -> tuple[Array, Array]:
    """Return output and hidden of the layer's feed-forward network."""
    return feed_forward(x, params=part(params, "feed_forward"))


@step
def cross_attention_sublayer(
    x: Array, memory: Array, mask: Array | None, *, sums: list[Array], num_heads: int, params: Params
) -> tuple[Array, Array]:
    """Return the cross-attention of the second sub-layer with residual and norm, and its weights."""
    attend = partial(cross_attend, memory=memory, mask=mask, num_heads=num_heads, params=params)
    return run_sublayer(x, attend, number=2, sums=sums, params=params)


@step
def feed_forward_sublayer(x: Array, *, number: int, sums: list[Array], params: Params) -> Array:
    """Return the feed-forward network of the last sub-layer with residual and norm."""
    return run_sublayer(x, partial(feed_through, params=params), number=number, sums=sums, params=params)[0]


# The layers


@step
def encoder_layer(
    x: Array,
    mask: Array | None = None,
    *,
    num_heads: int,
    params: Params,
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> dict[str, Array]:
    """Return output and attended (batch, seq, d_model) and weights (batch, heads, seq, seq)."""
    sums = [x]
    attend = partial(self_attend, mask=mask, num_heads=num_heads, params=params)
    with dropping(dropout_rate, training, seed):
        attended, weights = run_sublayer(x, attend, number=1, sums=sums, params=params)
        output = feed_forward_sublayer(attended, number=2, sums=sums, params=params)
    return {"output": output, "attended": attended, "weights": weights}


@step
def decoder_layer(
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
    """Return output, attended and crossed, as x, weights (…, seq, seq) and cross_weights (…, seq, source_seq)."""
    sums = [x]
    common: dict[str, Any] = {"num_heads": num_heads, "params": params}
    attend = partial(self_attend, mask=self_mask, **common)
    with dropping(dropout_rate, training, seed):
        attended, weights = run_sublayer(x, attend, number=1, sums=sums, params=params)
        crossed, cross_weights = cross_attention_sublayer(attended, memory, memory_mask, sums=sums, **common)
        output = feed_forward_sublayer(crossed, number=3, sums=sums, params=params)
    between = {"attended": attended, "crossed": crossed}
    return {"output": output, **between, "weights": weights, "cross_weights": cross_weights}


# The stacks


@step
def encoder(
    x: Array, mask: Array | None = None, *, num_heads: int, num_layers: int, params: Params
) -> dict[str, Array]:
    """Return output (batch, seq, d_model) and layers (layers, batch, seq, d_model)."""
    layer = partial(run_encoder_layer, mask=mask, num_heads=num_heads, params=params)
    return normalise_stack(run_stack(x, layer, num_layers), "encoder", part(params, "norm"))


@step
def decoder(
    x: Array,
    memory: Array,
    self_mask: Array | None = None,
    memory_mask: Array | None = None,
    *,
    num_heads: int,
    num_layers: int,
    params: Params,
) -> dict[str, Array]:
    """Return output (batch, seq, d_model) and layers (layers, batch, seq, d_model)."""
    common: dict[str, Any] = {"self_mask": self_mask, "memory_mask": memory_mask, "num_heads": num_heads}
    layer = partial(run_decoder_layer, memory=memory, **common, params=params)
    return normalise_stack(run_stack(x, layer, num_layers), "decoder", part(params, "norm"))


@step
def run_stack(x: Array, layer: Callable[..., Array], num_layers: int) -> dict[str, Array]:
    """Run the layers, each on the output of the one before (MODEL-2); return the last output and all outputs."""
    outputs = []
    for index in range(num_layers):
        x = layer(x, index=index)
        outputs.append(x)
    return {"output": x, "layers": np.stack(outputs)}


@step
def normalise_stack(outputs: dict[str, Array], stack: str, norm: Params) -> dict[str, Array]:
    """Return the outputs of the encoder or decoder, the last one normalised if it has a final norm (STACK-3)."""
    return outputs | {"output": final_norm(outputs["output"], stack, norm)}


@step
def final_norm(x: Array, stack: str, norm: Params) -> Array:
    """Normalise the output of the last layer with gamma and beta; without them, return it as it is."""
    del stack
    return layer_norm(x, params=norm) if norm else x


@step
def run_encoder_layer(x: Array, *, index: int, mask: Array | None, num_heads: int, params: Params) -> Array:
    """Return the output of one layer of the encoder, (batch, seq, d_model)."""
    return encoder_layer(x, mask, num_heads=num_heads, params=layer_params(params, "encoder", index))["output"]


@step
def run_decoder_layer(
    x: Array,
    *,
    index: int,
    memory: Array,
    self_mask: Array | None,
    memory_mask: Array | None,
    num_heads: int,
    params: Params,
) -> Array:
    """Return the output of one layer of the decoder; all layers use the same memory and masks (STACK-2)."""
    mine = layer_params(params, "decoder", index)
    return decoder_layer(x, memory, self_mask, memory_mask, num_heads=num_heads, params=mine)["output"]


@step
def layer_params(params: Params, stack: str, index: int) -> Params:
    """Return the layer's own parameters."""
    return part(params, f"{stack}.{index}")

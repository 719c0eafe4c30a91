"""The second part of the textbook: feed-forward network, layer normalisation, and the layers and stacks of them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np

from goldformer.adapters.layouts import part
from goldformer.adapters.textbook_attention import TextbookAttention
from goldformer.adapters.textbook_checks import Array, at_least_one, axis_sizes, spread_mask

Entry = TypeVar("Entry")
Params = Mapping[str, Array]
#: A sub-layer, as a function of what it reads: its result, and what else it gives.
SubLayer = Callable[[Array], tuple[Array, Array]]

TOKENS: Final = "batch seq d_model"

# The axes of every parameter, as axis_sizes reads them.
FEED_FORWARD: Final = {"w_1": "d_model d_ff", "b_1": "? d_ff", "w_2": "d_ff d_model", "b_2": "? d_model"}
NORM: Final = {"gamma": "d_model", "beta": "d_model"}
HEADS: Final = {
    "w_q": "d_model heads*d_k",
    "b_q": "? heads*d_k",
    "w_k": "d_model heads*d_k",
    "b_k": "? heads*d_k",
    "w_v": "d_model heads*d_v",
    "b_v": "? heads*d_v",
    "w_o": "heads*d_v d_model",
    "b_o": "? d_model",
}


def under(prefix: str, table: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return a table of parameters with the name of their part in front of theirs."""
    return {f"{prefix}.{name}": axes for name, axes in table.items()}


ENCODER_LAYER: Final = {
    **under("self_attention", HEADS),
    **under("norm_1", NORM),
    **under("feed_forward", FEED_FORWARD),
    **under("norm_2", NORM),
}
DECODER_LAYER: Final = {
    **under("self_attention", HEADS),
    **under("norm_1", NORM),
    **under("cross_attention", HEADS),
    **under("norm_2", NORM),
    **under("feed_forward", FEED_FORWARD),
    **under("norm_3", NORM),
}


def stack_of(stack: str, layer: Mapping[str, str], num_layers: int) -> dict[str, str]:
    """Return the table of the parameters of a stack, encoder.0.… and so on."""
    at_least_one(f"{stack} layers", num_layers, "a stack has at least one")
    numbered = (under(f"{stack}.{index}", layer) for index in range(num_layers))
    return {name: axes for table in numbered for name, axes in table.items()}


class TextbookLayers(TextbookAttention):
    """The feed-forward network, layer normalisation, encoder and decoder."""

    layer_norm_eps = 1e-5
    norm_axis: int | tuple[int, ...] = -1

    # Feed-forward network

    def feed_forward(self, x: Array, *, params: Params) -> tuple[Array, Array]:
        """Return output (batch, seq, d_model) and hidden (batch, seq, d_ff)."""
        axis_sizes({"x": TOKENS, **FEED_FORWARD}, x=x, **params)
        hidden = self.activation(self.project(x, params, "1"))
        return self.project(hidden, params, "2"), hidden

    def activation(self, x: Array) -> Array:
        """Return ReLU, max(0, x)."""
        return np.asarray(np.maximum(x, 0))

    # Layer normalisation

    def layer_norm(self, x: Array, *, params: Params) -> Array:
        """Return (x − mean)/√(variance + eps)·gamma + beta, (..., d_model)."""
        axis_sizes({"x": "... d_model", **NORM}, x=x, **params)
        # The square of 256 overflows float16: as frameworks do, it is formed in float32 at least, and rounded once.
        wide = x.astype(np.promote_types(x.dtype, np.float32))
        centred = self.centred(wide)
        normal = centred / self.denominator(self.variance(centred))
        return self.scaled_and_shifted(normal, params).astype(x.dtype)

    def centred(self, x: Array) -> Array:
        """Return each token's channels without their mean."""
        return x - self.mean(x)

    def mean(self, x: Array) -> Array:
        """Return the mean of each token's channels, (..., 1)."""
        return np.asarray(x.mean(axis=self.norm_axis, keepdims=True))

    def variance(self, centred: Array) -> Array:
        """Return the mean square of what is left without the mean, (..., 1): biased, divided by d_model."""
        return self.mean(np.square(centred))

    def denominator(self, variance: Array) -> Array:
        """Return √(variance + eps)."""
        return np.asarray(np.sqrt(variance + self.layer_norm_eps))

    def scaled_and_shifted(self, normal: Array, params: Params) -> Array:
        """Return every channel times its gamma plus its beta."""
        return normal * params["gamma"] + params["beta"]

    # What the layers are made of

    def sublayer(
        self, x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
    ) -> tuple[Array, Array]:
        """Return LN(x + f(x)) and what else f gives."""
        output, extra = function(x)
        return self.layer_norm(self.summed(x, output, sums), params=self.norm(params, number)), extra

    def summed(self, x: Array, output: Array, sums: list[Array]) -> Array:
        """Return the sum of a sub-layer and its residual, and note it behind those of the sub-layers before.

        `sums` begins with what the whole layer began with.
        """
        sums.append(self.residual(x, output, sums))
        return sums[-1]

    def residual(self, x: Array, output: Array, sums: list[Array]) -> Array:
        """Return the output of a sub-layer plus what the sub-layer read."""
        del sums
        return x + output

    def norm(self, params: Params, number: int) -> Params:
        """Return gamma and beta of the sub-layer of that number, counted from 1."""
        return part(params, f"norm_{number}")

    def self_attend(self, x: Array, mask: Array | None, *, num_heads: int, params: Params) -> tuple[Array, Array]:
        """Return output and weights of x attending to itself."""
        mine = part(params, "self_attention")
        attended = self.multi_head_attention(x, x, x, mask, num_heads=num_heads, params=mine)
        return attended["output"], attended["weights"]

    def cross_attend(
        self,
        x: Array,
        memory: Array,
        mask: Array | None,
        *,
        self_mask: Array | None,
        num_heads: int,
        params: Params,
    ) -> tuple[Array, Array]:
        """Return output and weights of x attending to the memory: queries from x, keys and values from memory.

        `self_mask` is that of the self-attention, which hides nothing here (LAYER-5).
        """
        del self_mask
        mine = part(params, "cross_attention")
        attended = self.multi_head_attention(x, memory, memory, mask, num_heads=num_heads, params=mine)
        return attended["output"], attended["weights"]

    def feed(self, x: Array, *, params: Params) -> tuple[Array, Array]:
        """Return output and hidden of the layer's feed-forward network."""
        return self.feed_forward(x, params=part(params, "feed_forward"))

    def fed(self, x: Array, feed: SubLayer) -> Array:
        """Return what the feed-forward network makes of x; `feed` is that sub-layer, with residual and norm."""
        return feed(x)[0]

    def layer_output(self, output: Array) -> Array:
        """Return what a layer gives: the output of its last sub-layer, with no position added again (LAYER-1)."""
        return output

    # The layers

    def encoder_layer(self, x: Array, mask: Array | None = None, *, num_heads: int, params: Params) -> dict[str, Array]:
        """Return output and attended (batch, seq, d_model) and weights (batch, heads, seq, seq)."""
        axis_sizes({"x": TOKENS, **ENCODER_LAYER}, x=x, **params)
        mask = self.encoder_mask(mask, x.shape[1])
        sublayer = partial(self.sublayer, sums=[x], params=params)
        attend = partial(self.self_attend, mask=mask, num_heads=num_heads, params=params)
        attended, weights = sublayer(x, attend, number=1)
        output = self.fed(attended, partial(sublayer, function=partial(self.feed, params=params), number=2))
        return {"output": self.layer_output(output), "attended": attended, "weights": weights}

    def encoder_mask(self, mask: Array | None, seq: int) -> Array | None:
        """Return the mask of an encoder layer's self-attention: the one that is given."""
        del seq
        return mask

    def decoder_layer(
        self,
        x: Array,
        memory: Array,
        self_mask: Array | None = None,
        memory_mask: Array | None = None,
        *,
        num_heads: int,
        params: Params,
    ) -> dict[str, Array]:
        """Return output, attended and crossed, as x, weights (…, seq, seq) and cross_weights (…, seq, source_seq)."""
        table = {"x": TOKENS, "memory": "batch source_seq d_model", **DECODER_LAYER}
        sizes = axis_sizes(table, x=x, memory=memory, **params)
        self_mask, memory_mask = self.decoder_masks(self_mask, memory_mask)
        for name, mask, keys in (("self_mask", self_mask, "seq"), ("memory_mask", memory_mask, "source_seq")):
            if mask is not None:
                spread_mask(name, mask, (sizes["batch"], num_heads, sizes["seq"], sizes[keys]))
        common: dict[str, Any] = {"num_heads": num_heads, "params": params}
        sublayer = partial(self.sublayer, sums=[x], params=params)
        attend = partial(self.self_attend, mask=self_mask, **common)
        cross = partial(self.cross_attend, memory=memory, mask=memory_mask, self_mask=self_mask, **common)
        attended, weights = sublayer(x, attend, number=1)
        crossed, cross_weights = self.crossed(attended, partial(sublayer, function=cross, number=2))
        output = self.fed(crossed, partial(sublayer, function=partial(self.feed, params=params), number=3))
        between = {"attended": attended, "crossed": crossed}
        return {"output": self.layer_output(output), **between, "weights": weights, "cross_weights": cross_weights}

    def decoder_masks(self, self_mask: Array | None, memory_mask: Array | None) -> tuple[Array | None, Array | None]:
        """Return the mask of the self-attention and that of the cross-attention."""
        return self_mask, memory_mask

    def crossed(self, attended: Array, look: SubLayer) -> tuple[Array, Array]:
        """Return what looking at the memory makes of `attended`; `look` is that sub-layer, with residual and norm."""
        return look(attended)

    # The stacks

    def encoder(
        self, x: Array, mask: Array | None = None, *, num_heads: int, num_layers: int, params: Params
    ) -> dict[str, Array]:
        """Return output (batch, seq, d_model) and layers (layers, batch, seq, d_model)."""
        axis_sizes({"x": TOKENS, **stack_of("encoder", ENCODER_LAYER, num_layers)}, x=x, **params)

        def layer(x: Array, index: int) -> Array:
            mine = self.layer_params(params, "encoder", index)
            return self.encoder_layer(x, mask, num_heads=num_heads, params=mine)["output"]

        return self.stack(x, layer, num_layers, self.norm(self.layer_params(params, "encoder", num_layers - 1), 2))

    def decoder(
        self,
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
        axis_sizes({"x": TOKENS, **stack_of("decoder", DECODER_LAYER, num_layers)}, x=x, **params)

        def layer(x: Array, index: int) -> Array:
            mine: dict[str, Any] = {"num_heads": num_heads, "params": self.layer_params(params, "decoder", index)}
            return self.decoder_layer(x, self.layer_memory(memory, index), self_mask, memory_mask, **mine)["output"]

        return self.stack(x, layer, num_layers, self.norm(self.layer_params(params, "decoder", num_layers - 1), 3))

    def stack(
        self, x: Array, layer: Callable[[Array, int], Array], num_layers: int, last_norm: Params
    ) -> dict[str, Array]:
        """Return the output of the last of the layers, each reading the one before, and those of all.

        `last_norm` is gamma and beta of the last sub-layer of the last layer.
        """
        outputs = []
        for index in range(num_layers):
            x = layer(self.layer_input(x, index), index)
            outputs.append(x)
        return {"output": self.stack_output(x, last_norm), "layers": np.stack(outputs)}

    def layer_params(self, params: Params, stack: str, index: int) -> Params:
        """Return the layer's own parameters."""
        return part(params, f"{stack}.{index}")

    def layer_input(self, x: Array, index: int) -> Array:
        """Return what a layer reads of the output before it: just that, with no position added again (MODEL-2)."""
        del index
        return x

    def layer_memory(self, memory: Array, index: int) -> Array:
        """Return what a decoder layer attends to: the same for all (STACK-2)."""
        del index
        return memory

    def stack_output(self, x: Array, last_norm: Params) -> Array:
        """Return the last layer's output: `last_norm` is in it already, and no norm follows (STACK-1)."""
        del last_norm
        return x

"""The fourth part of the textbook: backward passes of multi-head attention, of the layers and of the stacks, by hand.

Each is made of the backward passes of its parts, so a step that is done otherwise there is done otherwise here.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from goldformer.adapters.layouts import part
from goldformer.adapters.textbook_backward import Gradients, TextbookBackward
from goldformer.adapters.textbook_checks import Array
from goldformer.adapters.textbook_layers import Params, SubLayer, under

#: The backward pass of a sub-layer: of what it reads and the gradient of what it gives, the gradient of what it
#: reads, and those of its parameters by their names in the layer.
SubLayerBackward = Callable[[Array, Array], tuple[Array, Gradients]]


class TextbookLayersBackward(TextbookBackward):
    """Backward passes of multi-head attention, separate and fused, of encoder and decoder layer, and of stacks."""

    # Multi-head attention

    def multi_head_attention_gradient(
        self,
        query: Array,
        key: Array,
        value: Array,
        cotangent: Array,
        mask: Array | None = None,
        *,
        num_heads: int,
        params: Params,
    ) -> Gradients:
        """Return the gradients of query, key and value, each as it is given, and of the parameters that are given."""
        forward = self.multi_head_attention(query, key, value, mask, num_heads=num_heads, params=params)
        of_heads, gradients = self.heads_backward(forward, cotangent, mask, params)
        for role, (name, x) in zip("qkv", {"query": query, "key": key, "value": value}.items(), strict=True):
            projected = self.merge_heads(of_heads[name])
            gradients[name] = projected @ params[f"w_{role}"].T
            gradients |= self.projection_gradients(x, projected, params, role)
        return gradients

    def fused_multi_head_attention_gradient(
        self, x: Array, cotangent: Array, mask: Array | None = None, *, num_heads: int, params: Params
    ) -> Gradients:
        """Return the gradients of x (batch, seq, d_input) and of the parameters that are given."""
        forward = self.fused_multi_head_attention(x, mask, num_heads=num_heads, params=params)
        of_heads, gradients = self.heads_backward(forward, cotangent, mask, params)
        # The columns lie [heads, q|k|v, d_k].
        projected = self.merge_heads(np.concatenate([of_heads[name] for name in ("query", "key", "value")], axis=-1))
        gradients["x"] = projected @ params["w_qkv"].T
        return gradients | self.projection_gradients(x, projected, params, "qkv")

    def heads_backward(
        self, forward: Mapping[str, Array], cotangent: Array, mask: Array | None, params: Params
    ) -> tuple[Gradients, Gradients]:
        """Return the gradients of query, key and value, head by head, and those of w_o and b_o."""
        gradients = self.projection_gradients(self.merge_heads(forward["heads"]), cotangent, params, "o")
        heads = self.split_heads(cotangent @ params["w_o"].T, forward["heads"].shape[1])
        attended = {"query": forward["q"], "key": forward["k"], "value": forward["v"], "weights": forward["weights"]}
        return self.attention_backward(attended, heads, mask), gradients

    # The layers

    def sublayer_gradient(
        self, x: Array, function: SubLayer, backward: SubLayerBackward, cotangent: Array, *, number: int, params: Params
    ) -> tuple[Array, Gradients]:
        """Return the gradient of what a sub-layer reads, and those of its parameters by their names in the layer."""
        output, _ = function(x)
        normed = self.layer_norm_gradient(x + output, cotangent, params=self.norm(params, number))
        total = normed.pop("x")
        through, gradients = backward(x, total)
        return self.residual_gradient(total) + through, gradients | under(f"norm_{number}", normed)

    def residual_gradient(self, gradient: Array) -> Array:
        """Return what flows back around a sub-layer: all of it."""
        return gradient

    def self_attend_gradient(
        self, x: Array, cotangent: Array, mask: Array | None, *, num_heads: int, params: Params
    ) -> tuple[Array, Gradients]:
        """Return the gradient of x, which is query, key and value in one, and those of the parameters."""
        mine = part(params, "self_attention")
        gradients = self.multi_head_attention_gradient(x, x, x, cotangent, mask, num_heads=num_heads, params=mine)
        from_all = gradients.pop("query") + gradients.pop("key") + gradients.pop("value")
        return from_all, under("self_attention", gradients)

    def cross_attend_gradient(
        self, x: Array, cotangent: Array, memory: Array, mask: Array | None, *, num_heads: int, params: Params
    ) -> tuple[Array, Gradients]:
        """Return the gradient of x, and with those of the parameters that of memory, keys and values in one."""
        mine, common = part(params, "cross_attention"), {"num_heads": num_heads}
        gradients = self.multi_head_attention_gradient(x, memory, memory, cotangent, mask, **common, params=mine)
        from_x, from_memory = gradients.pop("query"), gradients.pop("key") + gradients.pop("value")
        return from_x, {"memory": from_memory, **under("cross_attention", gradients)}

    def feed_gradient(self, x: Array, cotangent: Array, *, params: Params) -> tuple[Array, Gradients]:
        """Return the gradient of what the layer's feed-forward network reads, and those of its parameters."""
        gradients = self.feed_forward_gradient(x, cotangent, params=part(params, "feed_forward"))
        return gradients.pop("x"), under("feed_forward", gradients)

    def encoder_layer_gradient(
        self, x: Array, cotangent: Array, mask: Array | None = None, *, num_heads: int, params: Params
    ) -> Gradients:
        """Return the gradients of x (batch, seq, d_model) and of the parameters that are given."""
        attended = self.encoder_layer(x, mask, num_heads=num_heads, params=params)["attended"]
        common: dict[str, Any] = {"num_heads": num_heads, "params": params}
        attend = partial(self.self_attend, mask=mask, **common), partial(self.self_attend_gradient, mask=mask, **common)
        feed = partial(self.feed, params=params), partial(self.feed_gradient, params=params)
        gradient, of_feed = self.sublayer_gradient(attended, *feed, cotangent, number=2, params=params)
        gradient, of_attention = self.sublayer_gradient(x, *attend, gradient, number=1, params=params)
        return {"x": gradient, **of_attention, **of_feed}

    def decoder_layer_gradient(
        self,
        x: Array,
        memory: Array,
        cotangent: Array,
        self_mask: Array | None = None,
        memory_mask: Array | None = None,
        *,
        num_heads: int,
        params: Params,
    ) -> Gradients:
        """Return the gradients of x, memory (batch, source_seq, d_model) and of the parameters that are given."""
        common: dict[str, Any] = {"num_heads": num_heads, "params": params}
        forward = self.decoder_layer(x, memory, self_mask, memory_mask, **common)
        mine, other = {"mask": self_mask, **common}, {"memory": memory, "mask": memory_mask, **common}
        attend = partial(self.self_attend, **mine), partial(self.self_attend_gradient, **mine)
        cross = (
            partial(self.cross_attend, self_mask=self_mask, **other),
            partial(self.cross_attend_gradient, **other),
        )
        feed = partial(self.feed, params=params), partial(self.feed_gradient, params=params)
        gradient, of_feed = self.sublayer_gradient(forward["crossed"], *feed, cotangent, number=3, params=params)
        gradient, of_cross = self.sublayer_gradient(forward["attended"], *cross, gradient, number=2, params=params)
        gradient, of_attention = self.sublayer_gradient(x, *attend, gradient, number=1, params=params)
        return {"x": gradient, **of_attention, **of_cross, **of_feed}

    # The stacks

    def encoder_gradient(
        self, x: Array, cotangent: Array, mask: Array | None = None, *, num_heads: int, num_layers: int, params: Params
    ) -> Gradients:
        """Return the gradients of x (batch, seq, d_model) and of the given parameters of all layers."""
        outputs = self.encoder(x, mask, num_heads=num_heads, num_layers=num_layers, params=params)["layers"]

        def backward(x: Array, cotangent: Array, index: int) -> Gradients:
            mine = self.layer_params(params, "encoder", index)
            return self.encoder_layer_gradient(x, cotangent, mask, num_heads=num_heads, params=mine)

        gradient, found = self.stack_gradient([x, *outputs[:-1]], cotangent, backward)
        return {"x": gradient, **self.of_layers("encoder", found)}

    def decoder_gradient(
        self,
        x: Array,
        memory: Array,
        cotangent: Array,
        self_mask: Array | None = None,
        memory_mask: Array | None = None,
        *,
        num_heads: int,
        num_layers: int,
        params: Params,
    ) -> Gradients:
        """Return the gradients of x, memory (batch, source_seq, d_model) and of the given parameters of all layers."""
        masks = (self_mask, memory_mask)
        outputs = self.decoder(x, memory, *masks, num_heads=num_heads, num_layers=num_layers, params=params)["layers"]

        def backward(x: Array, cotangent: Array, index: int) -> Gradients:
            mine: dict[str, Any] = {"num_heads": num_heads, "params": self.layer_params(params, "decoder", index)}
            return self.decoder_layer_gradient(x, memory, cotangent, *masks, **mine)

        gradient, found = self.stack_gradient([x, *outputs[:-1]], cotangent, backward)
        of_memory = self.memory_gradient([of_layer.pop("memory") for of_layer in found])
        return {"x": gradient, "memory": of_memory, **self.of_layers("decoder", found)}

    def stack_gradient(
        self, read: list[Array], cotangent: Array, backward: Callable[[Array, Array, int], Gradients]
    ) -> tuple[Array, list[Gradients]]:
        """Return the gradient of what the first layer reads, and those of each layer's other arguments.

        `read` is what each layer reads, and `backward` gives of it, a cotangent and the layer's index the gradients.
        """
        found: list[Gradients] = []
        for index in reversed(range(len(read))):
            of_layer = backward(read[index], cotangent, index)
            cotangent = self.layer_input_gradient(of_layer.pop("x"), index)
            found.insert(0, of_layer)
        return cotangent, found

    def layer_input_gradient(self, gradient: Array, index: int) -> Array:
        """Return what flows on from a layer to the one before it, or to x: all of it."""
        del index
        return gradient

    def memory_gradient(self, of_layers: list[Array]) -> Array:
        """Return the gradient of the memory, of what it is to each layer: their sum, as every layer reads it."""
        return np.asarray(sum(of_layers[1:], of_layers[0]))

    def of_layers(self, stack: str, found: list[Gradients]) -> Gradients:
        """Return the gradients of all layers by the parameters' names in the stack."""
        return {n: g for index, mine in enumerate(found) for n, g in under(f"{stack}.{index}", mine).items()}

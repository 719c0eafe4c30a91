"""Backward passes of multi-head attention, of the layers, of the stacks and of the whole model, by hand.

Each uses the backward passes of its parts, so a step that is replaced there is replaced here.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from goldformer.spec.formulas.backward import (
    Gradients,
    attention_backward,
    feed_forward_gradient,
    layer_norm_gradient,
    projection_gradients,
    softmax_backward,
    token_embedding_gradient,
)
from goldformer.spec.formulas.checks import Array
from goldformer.spec.formulas.heads import (
    Params,
    fused_multi_head_attention,
    merge_heads,
    multi_head_attention,
    split_heads,
)
from goldformer.spec.formulas.layers import (
    SubLayer,
    cross_attend,
    decoder,
    decoder_layer,
    encoder,
    encoder_layer,
    feed_through,
    layer_params,
    norm_params,
    self_attend,
)
from goldformer.spec.formulas.parts import add_prefix, part
from goldformer.spec.formulas.steps import step
from goldformer.spec.formulas.transformer import (
    learned_positions,
    memory_mask,
    output_probabilities,
    source_mask,
    stack_of_model,
    target_mask,
    tied_weight,
    transformer,
)

#: The backward pass of a sub-layer: maps its input and the gradient of its output to the gradient of the input and
#: those of its parameters, by their names in the layer.
SubLayerBackward = Callable[[Array, Array], tuple[Array, Gradients]]

# Multi-head attention


@step
def multi_head_attention_gradient(
    query: Array,
    key: Array,
    value: Array,
    cotangent: Array,
    mask: Array | None = None,
    *,
    num_heads: int,
    params: Params,
) -> Gradients:
    """Return the gradients of query, key, value and the given parameters."""
    forward = multi_head_attention(query, key, value, mask, num_heads=num_heads, params=params)
    of_heads, gradients = heads_backward(forward, cotangent, mask, params)
    for role, (name, x) in zip("qkv", {"query": query, "key": key, "value": value}.items(), strict=True):
        projected = merge_heads(of_heads[name])  # (batch, seq, heads·width)
        gradients[name] = unproject(projected, params, role)
        gradients |= projection_gradients(x, projected, params, role)
    return gradients


@step
def unproject(projected: Array, params: Params, role: str) -> Array:
    """Return the gradient of the input of a projection, given that of its result."""
    return np.asarray(projected @ params[f"w_{role}"].T)


@step
def fused_multi_head_attention_gradient(
    x: Array, cotangent: Array, mask: Array | None = None, *, num_heads: int, params: Params
) -> Gradients:
    """Return the gradients of x (batch, seq, d_input) and of the given parameters."""
    forward = fused_multi_head_attention(x, mask, num_heads=num_heads, params=params)
    of_heads, gradients = heads_backward(forward, cotangent, mask, params)
    # The order of the columns is [heads, q|k|v, d_k].
    projected = merge_heads(np.concatenate([of_heads[name] for name in ("query", "key", "value")], axis=-1))
    gradients["x"] = projected @ params["w_qkv"].T
    return gradients | projection_gradients(x, projected, params, "qkv")


@step
def heads_backward(
    forward: Mapping[str, Array], cotangent: Array, mask: Array | None, params: Params
) -> tuple[Gradients, Gradients]:
    """Return the gradients of query, key and value of each head, and those of w_o and b_o."""
    gradients = projection_gradients(merge_heads(forward["heads"]), cotangent, params, "o")
    heads = split_heads(cotangent @ params["w_o"].T, forward["heads"].shape[1])
    attended = {"query": forward["q"], "key": forward["k"], "value": forward["v"]}
    attended |= {name: forward[name] for name in ("weights", "scaled_scores")}
    return attention_backward(attended, heads, mask), gradients


# The layers


@step
def sublayer_gradient(
    x: Array, function: SubLayer, backward: SubLayerBackward, cotangent: Array, *, number: int, params: Params
) -> tuple[Array, Gradients]:
    """Return the gradient of the input of a sub-layer, and those of its parameters by their names in the layer."""
    output, _ = function(x)
    normed = layer_norm_gradient(x + output, cotangent, params=norm_params(params, number))
    total = normed.pop("x")
    through, gradients = backward(x, total)
    return join_residual_gradient(total, through), gradients | add_prefix(f"norm_{number}", normed)


@step
def join_residual_gradient(bypass: Array, through: Array) -> Array:
    """Add the gradients that flow back around a sub-layer and through it."""
    return bypass + through


@step
def self_attend_gradient(
    x: Array, cotangent: Array, mask: Array | None, *, num_heads: int, params: Params
) -> tuple[Array, Gradients]:
    """Return the gradient of x, which is query, key and value, and those of the parameters."""
    mine = part(params, "self_attention")
    gradients = multi_head_attention_gradient(x, x, x, cotangent, mask, num_heads=num_heads, params=mine)
    from_all = gradients.pop("query") + gradients.pop("key") + gradients.pop("value")
    return from_all, add_prefix("self_attention", gradients)


@step
def cross_attend_gradient(
    x: Array, cotangent: Array, memory: Array, mask: Array | None, *, num_heads: int, params: Params
) -> tuple[Array, Gradients]:
    """Return the gradient of x, and those of the parameters and of memory, which is key and value."""
    mine = part(params, "cross_attention")
    gradients = multi_head_attention_gradient(x, memory, memory, cotangent, mask, num_heads=num_heads, params=mine)
    from_x, from_memory = gradients.pop("query"), gradients.pop("key") + gradients.pop("value")
    return from_x, {"memory": from_memory, **add_prefix("cross_attention", gradients)}


@step
def feed_through_gradient(x: Array, cotangent: Array, *, params: Params) -> tuple[Array, Gradients]:
    """Return the gradient of the input of the feed-forward network, and those of its parameters."""
    gradients = feed_forward_gradient(x, cotangent, params=part(params, "feed_forward"))
    return gradients.pop("x"), add_prefix("feed_forward", gradients)


@step
def encoder_layer_gradient(
    x: Array, cotangent: Array, mask: Array | None = None, *, num_heads: int, params: Params
) -> Gradients:
    """Return the gradients of x (batch, seq, d_model) and of the given parameters."""
    attended = encoder_layer(x, mask, num_heads=num_heads, params=params)["attended"]
    common: dict[str, Any] = {"mask": mask, "num_heads": num_heads, "params": params}
    attend = partial(self_attend, **common), partial(self_attend_gradient, **common)
    feed = partial(feed_through, params=params), partial(feed_through_gradient, params=params)
    gradient, of_feed = sublayer_gradient(attended, *feed, cotangent, number=2, params=params)
    gradient, of_attention = sublayer_gradient(x, *attend, gradient, number=1, params=params)
    return {"x": gradient, **of_attention, **of_feed}


@step
def decoder_layer_gradient(
    x: Array,
    memory: Array,
    cotangent: Array,
    self_mask: Array | None = None,
    memory_mask: Array | None = None,
    *,
    num_heads: int,
    params: Params,
) -> Gradients:
    """Return the gradients of x, memory (batch, source_seq, d_model) and of the given parameters."""
    common: dict[str, Any] = {"num_heads": num_heads, "params": params}
    forward = decoder_layer(x, memory, self_mask, memory_mask, **common)
    mine, other = {"mask": self_mask, **common}, {"memory": memory, "mask": memory_mask, **common}
    attend = partial(self_attend, **mine), partial(self_attend_gradient, **mine)
    cross = partial(cross_attend, **other), partial(cross_attend_gradient, **other)
    feed = partial(feed_through, params=params), partial(feed_through_gradient, params=params)
    gradient, of_feed = sublayer_gradient(forward["crossed"], *feed, cotangent, number=3, params=params)
    gradient, of_cross = sublayer_gradient(forward["attended"], *cross, gradient, number=2, params=params)
    gradient, of_attention = sublayer_gradient(x, *attend, gradient, number=1, params=params)
    return {"x": gradient, **of_attention, **of_cross, **of_feed}


# The stacks


@step
def encoder_gradient(
    x: Array, cotangent: Array, mask: Array | None = None, *, num_heads: int, num_layers: int, params: Params
) -> Gradients:
    """Return the gradients of x (batch, seq, d_model) and of the given parameters of all layers."""
    outputs = encoder(x, mask, num_heads=num_heads, num_layers=num_layers, params=params)["layers"]
    cotangent, of_norm = final_norm_gradient(outputs[-1], cotangent, "encoder", part(params, "norm"))

    def backward(x: Array, cotangent: Array, index: int) -> Gradients:
        mine = layer_params(params, "encoder", index)
        return encoder_layer_gradient(x, cotangent, mask, num_heads=num_heads, params=mine)

    gradient, of_layers = stack_gradient([x, *outputs[:-1]], cotangent, backward)
    return {"x": gradient, **number_layers("encoder", of_layers), **add_prefix("norm", of_norm)}


@step
def decoder_gradient(
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
    outputs = decoder(x, memory, *masks, num_heads=num_heads, num_layers=num_layers, params=params)["layers"]
    cotangent, of_norm = final_norm_gradient(outputs[-1], cotangent, "decoder", part(params, "norm"))

    def backward(x: Array, cotangent: Array, index: int) -> Gradients:
        mine = layer_params(params, "decoder", index)
        return decoder_layer_gradient(x, memory, cotangent, *masks, num_heads=num_heads, params=mine)

    gradient, of_layers = stack_gradient([x, *outputs[:-1]], cotangent, backward)
    of_memory = sum_memory_gradients([of_layer.pop("memory") for of_layer in of_layers])
    of_layers_by_name = number_layers("decoder", of_layers)
    return {"x": gradient, "memory": of_memory, **of_layers_by_name, **add_prefix("norm", of_norm)}


@step
def final_norm_gradient(x: Array, cotangent: Array, stack: str, norm: Params) -> tuple[Array, Gradients]:
    """Return the gradient of the last layer's output, and those of gamma and beta if there is a final norm."""
    del stack
    if not norm:
        return cotangent, {}
    gradients = layer_norm_gradient(x, cotangent, params=norm)
    return gradients.pop("x"), gradients


@step
def stack_gradient(
    inputs: list[Array], cotangent: Array, backward: Callable[[Array, Array, int], Gradients]
) -> tuple[Array, list[Gradients]]:
    """Return the gradient of the input of the first layer, and those of each layer's other arguments.

    `inputs` holds the input of each layer; `backward` takes an input, a cotangent and the index of the layer.
    """
    of_layers: list[Gradients] = []
    for index in reversed(range(len(inputs))):
        gradients = backward(inputs[index], cotangent, index)
        cotangent = gradients.pop("x")
        of_layers.insert(0, gradients)
    return cotangent, of_layers


@step
def sum_memory_gradients(of_layers: list[Array]) -> Array:
    """Sum the gradients of the memory over the layers, which all read it."""
    return np.asarray(sum(of_layers[1:], of_layers[0]))


def number_layers(stack: str, of_layers: list[Gradients]) -> Gradients:
    """Return the gradients of all layers by the names of the parameters in the stack."""
    return {n: g for index, mine in enumerate(of_layers) for n, g in add_prefix(f"{stack}.{index}", mine).items()}


# The whole model


@step
def transformer_gradient(
    source: Array,
    target: Array,
    cotangent: Array,
    *,
    num_heads: int,
    num_encoder_layers: int,
    num_decoder_layers: int,
    pad_id: int,
    params: Params,
) -> Gradients:
    """Return the gradients of table (vocab, d_model), of the output layer and of all layers' parameters."""
    counts: dict[str, Any] = {"num_encoder_layers": num_encoder_layers, "num_decoder_layers": num_decoder_layers}
    forward = transformer(source, target, num_heads=num_heads, pad_id=pad_id, **counts, params=params)
    w_vocab = params["w_vocab"] if "w_vocab" in params else tied_weight(params)
    of_decoder = decoder_gradient(
        forward["target_embedded"],
        forward["memory"],
        cotangent @ w_vocab.T,
        target_mask(target, pad_id),
        memory_mask(source, pad_id),
        num_heads=num_heads,
        num_layers=num_decoder_layers,
        params=stack_of_model(params, "decoder"),
    )
    of_encoder = encoder_gradient(
        forward["source_embedded"],
        of_decoder.pop("memory"),
        source_mask(source, pad_id),
        num_heads=num_heads,
        num_layers=num_encoder_layers,
        params=stack_of_model(params, "encoder"),
    )
    sides = {"source": (source, of_encoder.pop("x")), "target": (target, of_decoder.pop("x"))}
    table = sum_table_gradients(*(embed_gradient(ids, of_side, pad_id, params) for ids, of_side in sides.values()))
    gradients = projection_gradients(forward["decoded"], cotangent, params, "vocab")
    if "w_vocab" not in params:
        table = add_tied_gradient(table, gradients.pop("w_vocab"))
    if "position_table" in params:
        gradients["position_table"] = position_table_gradient(params, *(of_side for _, of_side in sides.values()))
    return {"table": table, **gradients, **name_norm("encoder", of_encoder), **name_norm("decoder", of_decoder)}


def name_norm(stack: str, gradients: Gradients) -> Gradients:
    """Return the gradients of a stack with those of its final norm by their names in the model."""
    return {f"{stack}_{name}" if name.startswith("norm.") else name: array for name, array in gradients.items()}


@step
def embed_gradient(ids: Array, gradient: Array, pad_id: int, params: Params) -> Array:
    """Return the gradient of the table from one side; adding positions does not change it."""
    return token_embedding_gradient(ids, gradient, params={"table": params["table"]}, pad_id=pad_id)["table"]


@step
def add_tied_gradient(of_words: Array, of_logits: Array) -> Array:
    """Add what reaches a tied table through the logits, (d_model, vocab), to what reaches it through the words."""
    return of_words + of_logits.T


@step
def position_table_gradient(params: Params, of_source: Array, of_target: Array) -> Array:
    """Return the gradient of the learned positions, which both sides add; rows after the last token have 0."""
    gradient = np.zeros_like(params["position_table"])
    for of_side in (of_source, of_target):
        gradient[learned_positions(of_side.shape[1])] += of_side.sum(axis=0)
    return gradient


@step
def sum_table_gradients(of_source: Array, of_target: Array) -> Array:
    """Add the gradients of the table, which both sides read, (vocab, d_model)."""
    return of_source + of_target


@step
def output_probabilities_gradient(x: Array, cotangent: Array, *, params: Params) -> Gradients:
    """Return the gradients of x (batch, seq, d_model), w_vocab and, if present, b_vocab."""
    logits = softmax_backward(output_probabilities(x, params=params)["probabilities"], cotangent)
    return {"x": logits @ params["w_vocab"].T, **projection_gradients(x, logits, params, "vocab")}

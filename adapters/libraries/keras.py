"""The adapter of Keras 3: its layers, operators and losses, on PyTorch, or on JAX if KERAS_BACKEND says so.

It has no layers of a Transformer. Label smoothing is a part of its losses, which return no distribution.
"""

import os
from collections.abc import Mapping
from typing import Any, Final

os.environ.setdefault("KERAS_BACKEND", "torch")  # read once, when Keras is imported

import keras

from goldformer.adapters.layouts import four_axes, four_axes_mask, sequence_first_heads

NAME: Final = "keras"
VERSION: Final = keras.__version__
ARRAYS: Final = keras.backend.backend()

# It never returns float64: its result_type of float64 and float32 is float32.
DTYPES: Final = ("float32", "float16", "bfloat16")

# The operator adds a large negative number to masked scores; the layer's softmax drops masked scores.
CONVENTIONS: Final = {"empty_row": "uniform", "multi_head_attention.empty_row": "zeros"}

# A torch tensor or a jax array.
Array = Any
Params = Mapping[str, Array]


def softmax(scores: Array) -> Array:
    """Call keras.ops.softmax over the last axis."""
    return keras.ops.softmax(scores, axis=-1)


def token_embedding(ids: Array, *, params: Params) -> Array:
    """Call keras.layers.Embedding."""
    layer = keras.layers.Embedding(*params["table"].shape, dtype=_dtype(params["table"]))
    return _call(layer, [params["table"]], ids)


def layer_norm(x: Array, *, params: Params) -> Array:
    """Call keras.layers.LayerNormalization with the epsilon 1e-5; its own, 1e-3, is not an option of the spec."""
    layer = keras.layers.LayerNormalization(epsilon=1e-5, dtype=_dtype(x))
    return _call(layer, [params["gamma"], params["beta"]], x)


def rms_norm(x: Array, *, params: Params) -> Array:
    """Call keras.layers.RMSNormalization with its own epsilon, 1e-6."""
    return _call(keras.layers.RMSNormalization(dtype=_dtype(x)), [params["gamma"]], x)


def grouped_query_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    *,
    scale: float | None = None,
) -> Array:
    """Call keras.ops.dot_product_attention with fewer heads of keys, which returns only the output."""
    if bias is not None and mask is not None:
        raise NotImplementedError("Keras's operator takes a bias or a mask")
    q, k, v = (sequence_first_heads(x) for x in (query, key, value))
    masked, added = None if mask is None else four_axes_mask(mask), None if bias is None else bias[None]
    return sequence_first_heads(keras.ops.dot_product_attention(q, k, v, bias=added, mask=masked, scale=scale))


def scaled_dot_product_attention(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
    """Call keras.ops.dot_product_attention, which returns only the output."""
    *heads, masked, restore = four_axes(query, key, value, mask)
    q, k, v = (sequence_first_heads(x) for x in heads)
    return restore(sequence_first_heads(keras.ops.dot_product_attention(q, k, v, mask=masked)))


def multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    num_heads: int,
    params: Params,
) -> tuple[Array, Array]:
    """Call keras.layers.MultiHeadAttention, whose weights have an axis for the heads; return output and weights."""
    biased = any(params.get(f"b_{role}") is not None for role in "qkvo")
    layer = keras.layers.MultiHeadAttention(
        num_heads,
        key_dim=params["w_k"].shape[1] // max(num_heads, 1),
        value_dim=params["w_v"].shape[1] // max(num_heads, 1),
        output_shape=params["w_o"].shape[1],
        use_bias=biased,
        dtype=_dtype(query),
    )
    layer.build(query.shape, value.shape, key.shape)
    values = []
    for role in "qkvo":
        weight = params[f"w_{role}"]
        values.append(weight)
        if biased:  # it has all biases or no bias
            bias = params.get(f"b_{role}")
            values.append(keras.ops.zeros_like(weight[0]) if bias is None else bias)
    weights = [x.reshape(own.shape) for x, own in zip(values, layer.trainable_variables, strict=True)]
    masked = None if mask is None else four_axes_mask(mask)
    # Keyword arguments, because its order is query, value, key.
    options = {"query": query, "value": value, "key": key, "attention_mask": masked, "return_attention_scores": True}
    (output, scores), _ = layer.stateless_call(weights, _list_state(layer), **options)
    return output, scores


def feed_forward(x: Array, *, params: Params) -> tuple[Array, Array]:
    """Call keras.layers.Dense with ReLU, and keras.layers.Dense; return output and hidden."""
    hidden = _dense(x, params, "1", activation="relu")
    return _dense(hidden, params, "2"), hidden


def gated_feed_forward(x: Array, *, params: Params) -> dict[str, Array]:
    """Call keras.layers.Dense with SiLU, and keras.layers.Dense twice; return output, hidden and up."""
    up = _dense(x, params, "up")
    hidden = _dense(x, params, "gate", activation="silu") * up
    return {"output": _dense(hidden, params, "down"), "hidden": hidden, "up": up}


def output_probabilities(x: Array, *, params: Params) -> tuple[Array, Array]:
    """Call keras.layers.Dense and keras.ops.softmax; return probabilities and logits."""
    logits = _dense(x, params, "vocab")
    return keras.ops.softmax(logits), logits


def one_hot(ids: Array, *, vocab: int) -> Array:
    """Call keras.ops.one_hot."""
    return keras.ops.one_hot(ids, vocab, dtype="int64")


def cross_entropy(logits: Array, targets: Array, *, pad_id: int) -> tuple[Array, Array]:
    """Call SparseCategoricalCrossentropy, whose ignore_class is the padding; return the mean, and each token."""
    loss, each = (
        keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, ignore_class=pad_id, reduction=how, dtype=_dtype(logits)
        )(targets, logits)
        for how in ("sum_over_batch_size", None)
    )
    return loss, each


def kl_divergence(target: Array, logits: Array) -> Array:
    """Call keras.losses.kl_divergence, which takes probabilities."""
    return keras.losses.kl_divergence(target, keras.ops.softmax(logits))


def xavier_uniform(like: Array, *, seed: int) -> Array:
    """Call keras.initializers.GlorotUniform."""
    return keras.initializers.GlorotUniform(seed)(like.shape, dtype=_dtype(like))


def dropout(x: Array, *, rate: float, training: bool, seed: int) -> Array:
    """Call keras.layers.Dropout with its seed."""
    return keras.layers.Dropout(rate, seed=seed, dtype=_dtype(x))(x, training=training)


def _dense(x: Array, params: Params, name: str, **how: Any) -> Array:
    """Apply keras.layers.Dense to x, with a weight (in, out) and its bias if there is one."""
    weight, bias = params[f"w_{name}"], params.get(f"b_{name}")
    layer = keras.layers.Dense(weight.shape[1], use_bias=bias is not None, dtype=_dtype(x), **how)
    return _call(layer, [weight] if bias is None else [weight, bias], x)


def _call(layer: Any, weights: list[Array], x: Array) -> Array:
    """Apply a layer to x with other weights than its own."""
    layer.build(x.shape)
    for weight, own in zip(weights, layer.trainable_variables, strict=True):
        if tuple(weight.shape) != tuple(own.shape):
            raise ValueError(f"{own.path} has shape {tuple(own.shape)} here, not {tuple(weight.shape)}")
    output, _ = layer.stateless_call(weights, _list_state(layer), x)
    return output


def _list_state(layer: Any) -> list[Array]:
    return [variable.value for variable in layer.non_trainable_variables]


def _dtype(x: Array) -> str:
    return str(keras.backend.standardize_dtype(x.dtype))

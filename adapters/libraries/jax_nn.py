"""The adapter of jax.nn: its functions, and Glorot's initialiser.

jax.nn has no layers: those are Flax's and Equinox's. It has no embedding, no mask and no loss either.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import jax
from jax import Array
from jax import numpy as jnp

from goldformer.adapters.layouts import four_axes, four_axes_mask, sequence_first_heads

NAME: Final = "jax"
VERSION: Final = jax.__version__
ARRAYS: Final = "jax"

# It fills masked scores with a finite number.
CONVENTIONS: Final = {"empty_row": "uniform"}


def softmax(scores: Array) -> Array:
    """Call jax.nn.softmax over the last axis."""
    return jax.nn.softmax(scores, axis=-1)


def scaled_dot_product_attention(query: Array, key: Array, value: Array, mask: Array | None = None) -> Array:
    """Call jax.nn.dot_product_attention with pieces of the values as wide as the keys; return only the output."""
    *heads, masked, restore = four_axes(query, key, value, mask)
    q, k, v = (sequence_first_heads(x) for x in heads)
    output = attend_in_pieces(lambda piece: jax.nn.dot_product_attention(q, k, piece, mask=masked), k, v)
    return restore(sequence_first_heads(output))


def grouped_query_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    *,
    scale: float | None = None,
) -> Array:
    """Call jax.nn.dot_product_attention with fewer heads of keys; return only the output."""
    q, k, v = (sequence_first_heads(x) for x in (query, key, value))
    options = {
        "mask": None if mask is None else four_axes_mask(mask),
        "bias": None if bias is None else bias[None],
        "scale": scale,
    }
    return sequence_first_heads(
        attend_in_pieces(lambda part: jax.nn.dot_product_attention(q, k, part, **options), k, v)
    )


def layer_norm(x: Array, *, params: Mapping[str, Array]) -> Array:
    """Call jax.nn.standardize over the last axis, with its own eps, then apply gamma and beta."""
    return jax.nn.standardize(x, axis=-1) * params["gamma"] + params["beta"]


def one_hot(ids: Array, *, vocab: int) -> Array:
    """Call jax.nn.one_hot, with the dtype of the ids."""
    return jax.nn.one_hot(ids, vocab, dtype=ids.dtype)


def xavier_uniform(like: Array, *, seed: int) -> Any:
    """Call jax.nn.initializers.glorot_uniform."""
    return jax.nn.initializers.glorot_uniform()(jax.random.key(seed), like.shape, like.dtype)


def attend_in_pieces(attend: Callable[[Array], Array], key: Array, value: Array) -> Array:
    """Cut the values into pieces as wide as the keys, the last one padded with zeros, and `attend` to each piece.

    jax.nn.dot_product_attention needs d_v = d_k. The columns of the values are independent of each other.
    """
    d_k, d_v = key.shape[-1], value.shape[-1]
    if d_k in (d_v, 0):
        return attend(value)
    padded = jnp.pad(value, [(0, 0)] * (value.ndim - 1) + [(0, -d_v % d_k)])
    pieces = jnp.split(padded, padded.shape[-1] // d_k, axis=-1)
    return jnp.concatenate([attend(piece) for piece in pieces], axis=-1)[..., :d_v]

"""The adapter of Equinox: its layers, which take one sample, under jax.vmap.

Its public names have no layers of a Transformer, no loss, and no attention without projections.
"""

from collections.abc import Mapping
from typing import Any, Final

import equinox as eqx
import jax
from jax import Array
from jax import numpy as jnp

from goldformer.adapters.layouts import four_axes_mask, linear_weight

NAME: Final = "equinox"
VERSION: Final = eqx.__version__
ARRAYS: Final = "jax"

# It fills masked scores with the lowest number of the dtype.
CONVENTIONS: Final = {"empty_row": "uniform"}

Params = Mapping[str, Array]


def token_embedding(ids: Array, *, params: Params) -> Array:
    """Call eqx.nn.Embedding, which takes one id."""
    return jax.vmap(jax.vmap(eqx.nn.Embedding(weight=params["table"])))(ids)


def layer_norm(x: Array, *, params: Params) -> Array:
    """Call eqx.nn.LayerNorm over one vector, with its own eps."""
    layer = _replace_leaves(eqx.nn.LayerNorm(x.shape[-1]), weight=params["gamma"], bias=params["beta"])
    rows = jax.vmap(layer)(x.reshape(-1, x.shape[-1]))
    return rows.reshape(x.shape)


def feed_forward(x: Array, *, params: Params) -> Array:
    """Call eqx.nn.MLP of one hidden layer, which returns only the output."""
    (d_model, d_ff), d_out = params["w_1"].shape, params["w_2"].shape[1]
    biases = {"use_bias": _has_bias(params, "b_1"), "use_final_bias": _has_bias(params, "b_2")}
    shape = eqx.filter_eval_shape(eqx.nn.MLP, d_model, d_out, d_ff, depth=1, activation=jax.nn.relu, **biases, key=_KEY)
    first, second = (_linear(layer, params, str(i)) for i, layer in enumerate(shape.layers, start=1))
    network = eqx.tree_at(lambda mlp: mlp.layers, shape, (first, second))
    return jax.vmap(jax.vmap(network))(x)


def multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    num_heads: int,
    params: Params,
) -> Array:
    """Call eqx.nn.MultiheadAttention, whose mask is as large as the scores; return only the output."""
    layer = _attention(params, num_heads)
    if mask is None:
        return jax.vmap(layer)(query, key, value)
    full = jnp.broadcast_to(four_axes_mask(mask), (query.shape[0], num_heads, query.shape[1], key.shape[1]))
    return jax.vmap(layer)(query, key, value, full)


def dropout(x: Array, *, rate: float, training: bool, seed: int) -> Array:
    """Call eqx.nn.Dropout under a key of the seed."""
    return eqx.nn.Dropout(float(rate))(x, key=jax.random.key(seed), inference=not training)


# The key for building a layer whose parameters are replaced: no random numbers are used.
_KEY: Final = jax.random.key(0)


def _attention(params: Params, num_heads: int) -> Any:
    if num_heads < 1 or any(params[f"w_{role}"].shape[1] % num_heads for role in "qkv"):
        raise ValueError(f"num_heads: {num_heads} heads do not divide the columns of w_q, w_k and w_v")
    roles = {"query": "q", "key": "k", "value": "v", "output": "o"}
    sizes = {f"{name}_size": params[f"w_{role}"].shape[0] for name, role in roles.items() if role != "o"}
    biases = {f"use_{name}_bias": _has_bias(params, f"b_{role}") for name, role in roles.items()}
    shape = eqx.filter_eval_shape(
        eqx.nn.MultiheadAttention, num_heads, **sizes, **biases, key=_KEY,
        output_size=params["w_o"].shape[1],
        qk_size=params["w_q"].shape[1] // num_heads,
        vo_size=params["w_v"].shape[1] // num_heads,
    )  # fmt: skip
    return _replace_leaves(
        shape, **{f"{n}_proj": _linear(getattr(shape, f"{n}_proj"), params, r) for n, r in roles.items()}
    )


def _linear(shape: Any, params: Params, name: str) -> Any:
    """Return eqx.nn.Linear of its shape, with a weight and its bias."""
    weight, bias = linear_weight(params[f"w_{name}"]), params.get(f"b_{name}")
    if weight.shape != shape.weight.shape or (bias is not None and bias.shape != weight.shape[:1]):
        raise ValueError(f"w_{name} or b_{name}: eqx.nn.Linear has {shape.weight.shape} here, not {weight.shape}")
    return _replace_leaves(shape, weight=weight) if bias is None else _replace_leaves(shape, weight=weight, bias=bias)


def _replace_leaves(module: Any, **leaves: Any) -> Any:
    """Return the module with some leaves replaced."""
    return eqx.tree_at(lambda m: [getattr(m, name) for name in leaves], module, list(leaves.values()))


def _has_bias(params: Params, name: str) -> bool:
    return params.get(name) is not None

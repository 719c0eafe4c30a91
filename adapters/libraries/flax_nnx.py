"""The adapter of Flax NNX: attention with and without projections, layer normalisation, embedding, dropout.

It has no layers of a Transformer; its activations, softmax and initialisers are jax.nn's.
"""

from collections.abc import Mapping
from typing import Any, Final

import flax
import jax
from flax import nnx
from jax import Array
from jax import numpy as jnp

from goldformer.adapters.layouts import four_axes, four_axes_mask, sequence_first_heads
from goldformer.adapters.libraries.jax_nn import attend_in_pieces

NAME: Final = "flax"
VERSION: Final = flax.__version__
ARRAYS: Final = "jax"

# It fills masked scores with a finite number, and nnx.LayerNorm has its own epsilon.
CONVENTIONS: Final = {"empty_row": "uniform", "layer_norm_eps": "1e-6"}

Params = Mapping[str, Array]


def token_embedding(ids: Array, *, params: Params) -> Any:
    """Call nnx.Embed."""
    # It returns the dtype that it was built for, whatever the dtype of its table is.
    layer = _build_without_numbers(nnx.Embed, *params["table"].shape, dtype=params["table"].dtype)
    layer.embedding = nnx.Param(params["table"])
    return layer(ids)


def causal_mask(*, q_seq: int, kv_seq: int) -> Any:
    """Call nnx.make_causal_mask, which is square."""
    if q_seq != kv_seq:
        raise NotImplementedError("nnx.make_causal_mask is square")
    return nnx.make_causal_mask(jnp.zeros(q_seq), dtype=bool)[0]


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    dropout_rate: float = 0.0,
    seed: int = 0,
) -> Array:
    """Call nnx.dot_product_attention with pieces of the values as wide as the keys; return only the output."""
    *heads, masked, restore = four_axes(query, key, value, mask)
    q, k, v = (sequence_first_heads(x) for x in heads)
    options = {"mask": masked, "dropout_rate": dropout_rate}
    rng = jax.random.key(seed)
    output = attend_in_pieces(lambda piece: nnx.dot_product_attention(q, k, piece, dropout_rng=rng, **options), k, v)
    return restore(sequence_first_heads(output))


def multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    num_heads: int,
    params: Params,
) -> Any:
    """Call nnx.MultiHeadAttention, whose weights have an axis for the heads; return only the output."""
    rows = {role: params[f"w_{role}"].shape[0] for role in "qkv"}
    columns = {role: params[f"w_{role}"].shape[1] for role in "qkv"}
    if rows["k"] != rows["v"] or len(set(columns.values())) > 1:
        limit = "nnx.MultiHeadAttention has one width for keys and values, and one for all heads"
        raise NotImplementedError(f"{limit}: {rows} channels go to {columns}")
    d_model = params["w_o"].shape[1]
    biased = any(params.get(f"b_{role}") is not None for role in "qkvo")
    layer = _build_without_numbers(
        nnx.MultiHeadAttention, num_heads, rows["q"], columns["q"], d_model,
        in_kv_features=rows["k"], use_bias=biased, decode=False,
    )  # fmt: skip
    for role, projection in zip("qkvo", (layer.query, layer.key, layer.value, layer.out), strict=True):
        kernel = params[f"w_{role}"].reshape(projection.kernel.shape)
        projection.kernel = nnx.Param(kernel)
        if biased:  # it has all biases or no bias
            bias = params.get(f"b_{role}")
            bias = jnp.zeros(projection.bias.shape, kernel.dtype) if bias is None else bias
            projection.bias = nnx.Param(bias.reshape(projection.bias.shape))
    return layer(query, key, value, mask=None if mask is None else four_axes_mask(mask))


def feed_forward(x: Array, *, params: Params) -> tuple[Any, Any]:
    """Call nnx.Linear, nnx.relu and nnx.Linear; return output and hidden."""
    hidden = nnx.relu(_linear(params, "1")(x))
    return _linear(params, "2")(hidden), hidden


def layer_norm(x: Array, *, params: Params) -> Any:
    """Call nnx.LayerNorm, with its own epsilon."""
    layer = _build_without_numbers(nnx.LayerNorm, x.shape[-1])
    layer.scale, layer.bias = nnx.Param(params["gamma"]), nnx.Param(params["beta"])
    return layer(x)


def output_probabilities(x: Array, *, params: Params) -> tuple[Any, Any]:
    """Call nnx.Linear and nnx.softmax; return probabilities and logits."""
    logits = _linear(params, "vocab")(x)
    return nnx.softmax(logits), logits


def dropout(x: Array, *, rate: float, training: bool, seed: int) -> Any:
    """Call nnx.Dropout under a stream of the seed."""
    return nnx.Dropout(rate, rngs=nnx.Rngs(seed))(x, deterministic=not training)


def _build_without_numbers(layer: Any, *arguments: Any, **options: Any) -> Any:
    """Return a layer that has shapes but no numbers yet."""
    return nnx.eval_shape(lambda: layer(*arguments, **options, rngs=nnx.Rngs(0)))


def _linear(params: Params, name: str) -> Any:
    """Return nnx.Linear of a weight (in, out), and of its bias if there is one."""
    weight, bias = params[f"w_{name}"], params.get(f"b_{name}")
    layer = _build_without_numbers(nnx.Linear, *weight.shape, use_bias=bias is not None)
    layer.kernel = nnx.Param(weight)
    if bias is not None:
        layer.bias = nnx.Param(bias)
    return layer

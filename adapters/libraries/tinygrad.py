"""The adapter of tinygrad: its tensors' attention, softmax, norm and losses, on NumPy arrays.

Its CPU device needs clang; `DEV=PYTHON` in the environment chooses the device that emulates one, slowly.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from tinygrad import Context, Tensor, dtypes, nn

from goldformer.adapters.layouts import linear_weight

NAME: Final = "tinygrad"
VERSION: Final = version("tinygrad")
ARRAYS: Final = "numpy"

# Masked scores are added −∞.
CONVENTIONS: Final = {"empty_row": "nan"}

Array = NDArray[Any]
Params = Mapping[str, Array]


def softmax(scores: Array) -> Array:
    """Tensor.softmax over the last axis."""
    return _array(Tensor(scores).softmax(-1))


def token_embedding(ids: Array, *, params: Params) -> Array:
    """nn.Embedding."""
    layer = nn.Embedding(*params["table"].shape)
    layer.weight = Tensor(params["table"])
    return _array(layer(Tensor(ids)))


def causal_mask(*, q_seq: int, kv_seq: int) -> Array:
    """Tensor.tril of ones."""
    return _array(Tensor.ones(q_seq, kv_seq, dtype=dtypes.bool).tril())


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    dropout_rate: float = 0.0,
    seed: int = 0,
) -> Array:
    """Tensor.scaled_dot_product_attention, which gives the output alone."""
    masked = None if mask is None else Tensor(mask)
    attend = Tensor(query).scaled_dot_product_attention
    return _training(seed, lambda: attend(Tensor(key), Tensor(value), attn_mask=masked, dropout_p=dropout_rate))


def layer_norm(x: Array, *, params: Params) -> Array:
    """nn.LayerNorm, with its own eps."""
    layer = nn.LayerNorm(x.shape[-1])
    layer.weight, layer.bias = Tensor(params["gamma"]), Tensor(params["beta"])
    return _array(layer(Tensor(x)))


def feed_forward(x: Array, *, params: Params) -> tuple[Array, Array]:
    """nn.Linear, Tensor.relu, nn.Linear: output and hidden."""
    hidden = _linear(params, "1")(Tensor(x)).relu()
    return _array(_linear(params, "2")(hidden)), _array(hidden)


def output_probabilities(x: Array, *, params: Params) -> tuple[Array, Array]:
    """nn.Linear and Tensor.softmax: probabilities and logits."""
    logits = _linear(params, "vocab")(Tensor(x))
    return _array(logits.softmax(-1)), _array(logits)


def one_hot(ids: Array, *, vocab: int) -> Array:
    """Tensor.one_hot."""
    return _array(Tensor(ids).one_hot(vocab).cast(dtypes.int64))


def cross_entropy(logits: Array, targets: Array, *, pad_id: int) -> tuple[Array, Array]:
    """Tensor.sparse_categorical_crossentropy, whose ignore_index is the padding: the mean, and every token."""
    loss, each = (
        Tensor(logits).sparse_categorical_crossentropy(Tensor(targets), ignore_index=pad_id, reduction=how)
        for how in ("mean", "none")
    )
    return _array(loss), _array(each)


def xavier_uniform(like: Array, *, seed: int) -> Array:
    """Tensor.glorot_uniform."""
    return _training(seed, lambda: Tensor.glorot_uniform(*like.shape, dtype=str(like.dtype)))


def dropout(x: Array, *, rate: float, training: bool, seed: int) -> Array:
    """Tensor.dropout."""
    return _training(seed, lambda: Tensor(x).dropout(rate), training=training)


def _training(seed: int, compute: Callable[[], Any], *, training: bool = True) -> Array:
    """Return what is computed in training, or not, under a seed."""
    Tensor.manual_seed(seed)
    with Context(TRAINING=int(training)):
        return _array(compute())


def _linear(params: Params, name: str) -> Any:
    """Return nn.Linear of a weight (in, out), and of its bias if there is one."""
    weight, bias = params[f"w_{name}"], params.get(f"b_{name}")
    layer = nn.Linear(*weight.shape, bias=bias is not None)
    layer.weight = Tensor(np.ascontiguousarray(linear_weight(weight)))
    layer.bias = None if bias is None else Tensor(bias)
    return layer


def _array(tensor: Any) -> Array:
    array: Array = tensor.numpy()
    return array

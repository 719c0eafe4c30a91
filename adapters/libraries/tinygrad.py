"""The adapter of tinygrad: its tensors' attention, softmax, norm and losses, on NumPy arrays.

Its CPU device needs clang; `DEV=PYTHON` in the environment chooses a slow device that emulates one.
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

# It adds −∞ to masked scores.
CONVENTIONS: Final = {"empty_row": "nan"}

Array = NDArray[Any]
Params = Mapping[str, Array]


def softmax(scores: Array) -> Array:
    """Call Tensor.softmax over the last axis."""
    return _to_numpy(Tensor(scores).softmax(-1))


def token_embedding(ids: Array, *, params: Params) -> Array:
    """Call nn.Embedding."""
    layer = nn.Embedding(*params["table"].shape)
    layer.weight = Tensor(params["table"])
    return _to_numpy(layer(Tensor(ids)))


def causal_mask(*, q_seq: int, kv_seq: int) -> Array:
    """Call Tensor.tril of ones."""
    return _to_numpy(Tensor.ones(q_seq, kv_seq, dtype=dtypes.bool).tril())


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    dropout_rate: float = 0.0,
    seed: int = 0,
) -> Array:
    """Call Tensor.scaled_dot_product_attention, which returns only the output."""
    masked = None if mask is None else Tensor(mask)
    attend = Tensor(query).scaled_dot_product_attention
    return _compute_seeded(seed, lambda: attend(Tensor(key), Tensor(value), attn_mask=masked, dropout_p=dropout_rate))


def layer_norm(x: Array, *, params: Params) -> Array:
    """Call nn.LayerNorm, with its own eps."""
    layer = nn.LayerNorm(x.shape[-1])
    layer.weight, layer.bias = Tensor(params["gamma"]), Tensor(params["beta"])
    return _to_numpy(layer(Tensor(x)))


def feed_forward(x: Array, *, params: Params) -> tuple[Array, Array]:
    """Call nn.Linear, Tensor.relu and nn.Linear; return output and hidden."""
    hidden = _linear(params, "1")(Tensor(x)).relu()
    return _to_numpy(_linear(params, "2")(hidden)), _to_numpy(hidden)


def output_probabilities(x: Array, *, params: Params) -> tuple[Array, Array]:
    """Call nn.Linear and Tensor.softmax; return probabilities and logits."""
    logits = _linear(params, "vocab")(Tensor(x))
    return _to_numpy(logits.softmax(-1)), _to_numpy(logits)


def one_hot(ids: Array, *, vocab: int) -> Array:
    """Call Tensor.one_hot."""
    return _to_numpy(Tensor(ids).one_hot(vocab).cast(dtypes.int64))


def cross_entropy(logits: Array, targets: Array, *, pad_id: int) -> tuple[Array, Array]:
    """Call sparse_categorical_crossentropy, whose ignore_index is the padding; return the mean, and each token."""
    loss, each = (
        Tensor(logits).sparse_categorical_crossentropy(Tensor(targets), ignore_index=pad_id, reduction=how)
        for how in ("mean", "none")
    )
    return _to_numpy(loss), _to_numpy(each)


def xavier_uniform(like: Array, *, seed: int) -> Array:
    """Call Tensor.glorot_uniform."""
    return _compute_seeded(seed, lambda: Tensor.glorot_uniform(*like.shape, dtype=str(like.dtype)))


def dropout(x: Array, *, rate: float, training: bool, seed: int) -> Array:
    """Call Tensor.dropout."""
    return _compute_seeded(seed, lambda: Tensor(x).dropout(rate), training=training)


def _compute_seeded(seed: int, compute: Callable[[], Any], *, training: bool = True) -> Array:
    """Compute under a seed, in training mode or not, and return the array."""
    Tensor.manual_seed(seed)
    with Context(TRAINING=int(training)):
        return _to_numpy(compute())


def _linear(params: Params, name: str) -> Any:
    """Return nn.Linear of a weight (in, out), and of its bias if there is one."""
    weight, bias = params[f"w_{name}"], params.get(f"b_{name}")
    layer = nn.Linear(*weight.shape, bias=bias is not None)
    layer.weight = Tensor(np.ascontiguousarray(linear_weight(weight)))
    layer.bias = None if bias is None else Tensor(bias)
    return layer


def _to_numpy(tensor: Any) -> Array:
    array: Array = tensor.numpy()
    return array

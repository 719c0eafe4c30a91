"""The clauses' formulas, once, as plain array code over whatever numbers they are given.

Arrays of floats have dtype object and hold balls or draws: NumPy hands +, @, exp and sqrt on to the
elements. Ordinary arrays of float64 or complex128 go through the same lines, and are quick. `number` makes
an exact element from an int or a float. Masks and ids are ordinary arrays.
Each function is named as its component, takes the contract's names, and gives every output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.oracle.matrices import multiply

Objects = NDArray[Any]
Number = Callable[[int | float], Any]


def scalar(value: Any) -> Objects:
    """Return an element as a 0-d array, so that NumPy's functions dispatch to it; a plain number keeps its dtype."""
    array: Objects = value if hasattr(value, "__array_function__") else np.asarray(value)
    return array


def numbers(number: Number, values: Any) -> Objects:
    """Return an array of exact elements."""
    if hasattr(zero := number(0), "__array_function__"):
        array: Objects = number(values)  # it makes arrays
        return array
    made: Objects = np.frompyfunc(number, 1, 1)(np.asarray(values, dtype=object))
    return made.astype(scalar(zero).dtype)


def softmax(number: Number, scores: Objects) -> dict[str, Objects]:
    """SM-1: exp(x_i) / Σ exp(x_j) over the last axis."""
    return {"output": weights_of(number, scores, None, "uniform")}


def weights_of(number: Number, scores: Objects, mask: NDArray[np.bool_] | None, empty_row: str) -> Objects:
    """SDPA-3, SDPA-6, SDPA-7: softmax over the keys that the mask leaves."""
    keep = np.ones(scores.shape, dtype=bool) if mask is None else np.broadcast_to(mask, scores.shape)
    empty = ~keep.any(-1, keepdims=True)
    size = np.where(keep, scores.astype(np.float64), -math.inf)
    # SM-4: subtracting one exact number from a row changes nothing, and keeps exp within range.
    shift = np.where(empty, 0.0, size.max(-1, keepdims=True))
    zero = scalar(number(0))
    e = np.where(keep, np.exp(np.where(keep, scores - shift.astype(scores.dtype), zero)), zero)
    if empty.any():
        fill = {"uniform": 1, "zeros": 0, "nan": math.nan}[empty_row]
        e = np.where(empty, scalar(number(fill)), e)
    total = e.sum(-1, keepdims=True)
    if empty_row == "zeros":
        total = np.where(empty, scalar(number(1)), total)
    weights: Objects = e / total
    return weights


def scaled_dot_product_attention(
    number: Number,
    query: Objects,
    key: Objects,
    value: Objects,
    mask: NDArray[np.bool_] | None = None,
    *,
    dropout_rate: Any = 0,
    seed: int = 0,
    empty_row: str = "uniform",
) -> dict[str, Objects]:
    """SDPA-1 … SDPA-4: softmax(QKᵀ/√d_k)·V; DROP-3 while no weight is dropped."""
    del seed
    scores = multiply(query, key.swapaxes(-1, -2))
    scaled = scores / np.sqrt(scalar(number(query.shape[-1])))
    weights = weights_of(number, scaled, mask, empty_row)
    output = multiply(scale_kept(number, weights, dropout_rate), value)
    return {"output": output, "weights": weights, "scores": scores, "scaled_scores": scaled}


def dropout(number: Number, x: Objects, *, rate: Any, training: bool, seed: int) -> dict[str, Objects]:
    """DROP-2; DROP-1 while no element is dropped: laws.py has the law of dropped elements."""
    del seed
    return {"output": scale_kept(number, x, rate) if training else x}


def scale_kept(number: Number, x: Objects, rate: Any) -> Objects:
    """DROP-1: x/(1 − rate), the value of an element that is kept; at a rate of 1 no element is kept."""
    if float(rate) == 0:
        return x
    kept: Objects = np.full_like(x, number(0)) if float(rate) == 1 else x / scalar(number(1) - rate)
    return kept


def drop(number: Number, x: Objects, dropout_rate: Any, *, training: bool) -> Objects:
    """DROP-1, DROP-2: what is left of an array where nothing, or everything, is dropped."""
    return scale_kept(number, x, dropout_rate) if training else x


def xavier_uniform(number: Number, like: Objects, *, seed: int) -> dict[str, Objects]:
    """INIT-1: √(6/(d_in + d_out)), the largest element there can be, as it is drawn: −a + 2a·v with v up to 1.

    INIT-3: a bias of zeros.
    """
    del seed
    bound = np.sqrt(scalar(number(6)) / scalar(number(sum(like.shape))))
    # v has as many random bits as the dtype holds: it is a product here so that it is rounded once.
    v = scalar(number(1)) * scalar(number(1))
    weight = np.full_like(like, -bound + (bound + bound) * v)
    return {"weight": weight, "bias": np.full_like(like, number(0), shape=like.shape[1:])}


def causal_mask(number: Number, *, q_seq: int, kv_seq: int, causal_corner: str = "top_left") -> dict[str, Objects]:
    """MASK-2, MASK-3: query i may see key j where j ≤ i, shifted for the bottom-right corner."""
    del number
    shift = kv_seq - q_seq if causal_corner == "bottom_right" else 0
    return {"mask": np.arange(kv_seq) <= np.arange(q_seq)[:, None] + shift}


def padding_mask(number: Number, ids: NDArray[np.int64], *, pad_id: int) -> dict[str, Objects]:
    """MASK-4: True where the id is not padding, as (batch, 1, 1, seq)."""
    del number
    return {"mask": (ids != pad_id)[:, None, None, :]}


def detach(x: Objects) -> Objects:
    """Return the same numbers as constants: whatever carries a derivative loses it."""
    if hasattr(x, "detach"):
        array: Objects = x.detach()
        return array
    if x.dtype == object:
        constant: Objects = np.frompyfunc(lambda e: e.detach() if hasattr(e, "detach") else e, 1, 1)(x)
        return constant
    # The imaginary part of a plain number is its derivative.
    return x.real.astype(x.dtype)


def token_embedding(
    number: Number,
    ids: NDArray[np.int64],
    *,
    table: Objects,
    pad_id: int | None = None,
    embedding_scale: str = "none",
    pad_row: str = "learned",
) -> dict[str, Objects]:
    """EMB-1, EMB-3, EMB-4: row `id` of the table, times √d_model and without a gradient by these conventions."""
    rows = table[ids]
    if pad_row == "fixed" and pad_id is not None:
        rows = np.where((ids == pad_id)[..., None], detach(rows), rows)
    if embedding_scale == "sqrt_d_model":
        rows = rows * np.sqrt(scalar(number(table.shape[-1])))
    return {"output": rows}


def positional_encoding(
    number: Number,
    x: Objects,
    *,
    pe_layout: str = "interleaved",
    odd_d_model: str = "extra_sine",
    dropout_rate: Any = 0,
    training: bool = True,
    seed: int = 0,
) -> dict[str, Objects]:
    """PE-1, PE-3, PE-6, PE-7, DROP-5: x + PE, the angle pos / 10000^(2i/d_model)."""
    del seed
    seq, d_model = x.shape[-2:]
    if d_model % 2 and odd_d_model == "refused":
        raise ValueError("odd d_model")
    pairs = (d_model + 1) // 2
    top, bottom = (2, d_model) if pe_layout != "tensor2tensor" else (1, max(d_model // 2 - 1, 1))
    exponent = numbers(number, [top * i for i in range(pairs)]) / scalar(number(bottom))
    frequency = np.exp(-exponent * np.log(scalar(number(10000))))
    angle = numbers(number, np.arange(seq))[:, None] * frequency
    sine, cosine = np.sin(angle), np.cos(angle)
    if pe_layout == "interleaved":
        table = np.stack([sine, cosine], axis=-1).reshape(seq, 2 * pairs)[:, :d_model]
    else:
        table = np.concatenate([sine, cosine], axis=-1)
    if d_model % 2 and odd_d_model == "zero":
        table = np.concatenate([table[:, :-1], numbers(number, [[0]] * seq)], axis=-1)
    if hasattr(table, "refine"):
        table = table.refine("float32")  # PE-5
    return {"output": drop(number, x + table, dropout_rate, training=training)}


def split_heads(x: Objects, heads: int) -> Objects:
    """MHA-2: (batch, seq, heads·d) → (batch, heads, seq, d), heads being contiguous blocks of columns."""
    batch, seq, width = x.shape
    return x.reshape(batch, seq, heads, width // heads).swapaxes(1, 2)


def merge_heads(x: Objects) -> Objects:
    """MHA-4: (batch, heads, seq, d) → (batch, seq, heads·d)."""
    batch, heads, seq, width = x.shape
    return x.swapaxes(1, 2).reshape(batch, seq, heads * width)


def select_params(params: Mapping[str, Objects], prefix: str) -> dict[str, Objects]:
    """Return the parameters under a prefix, by their names there."""
    start = f"{prefix}."
    return {name[len(start) :]: array for name, array in params.items() if name.startswith(start)}


def multi_head_attention(
    number: Number,
    query: Objects,
    key: Objects,
    value: Objects,
    mask: NDArray[np.bool_] | None = None,
    *,
    num_heads: int,
    w_q: Objects,
    w_k: Objects,
    w_v: Objects,
    w_o: Objects,
    b_q: Objects | None = None,
    b_k: Objects | None = None,
    b_v: Objects | None = None,
    b_o: Objects | None = None,
    empty_row: str = "uniform",
    dropout_rate: Any = 0,
    training: bool = True,
    seed: int = 0,
) -> dict[str, Objects]:
    """MHA-1 … MHA-6, DROP-3: project, split, attend in each head, merge, project."""
    projections = ((w_q, b_q), (w_k, b_k), (w_v, b_v), (w_o, b_o))
    inputs, rate = (query, key, value), dropout_rate if training else 0
    del seed
    steps = attend_in_heads(number, inputs, mask, projections, num_heads, empty_row, rate)
    return {**steps, **_average_weights(number, steps["weights"])}


def attend_in_heads(
    number: Number,
    inputs: tuple[Objects, Objects, Objects],
    mask: NDArray[np.bool_] | None,
    projections: Sequence[tuple[Objects, Objects | None]],
    num_heads: int,
    empty_row: str,
    dropout_rate: Any = 0,
) -> dict[str, Objects]:
    """MHA-1 … MHA-6, without the mean of the weights: a layer has no use for it."""
    *to_heads, (w_o, b_o) = projections
    q, k, v = (split_heads(multiply(x, w, b), num_heads) for x, (w, b) in zip(inputs, to_heads, strict=True))
    return _attend(number, q, k, v, mask, w_o, b_o, empty_row, dropout_rate)


def _attend(
    number: Number,
    q: Objects,
    k: Objects,
    v: Objects,
    mask: NDArray[np.bool_] | None,
    w_o: Objects,
    b_o: Objects | None,
    empty_row: str,
    dropout_rate: Any,
) -> dict[str, Objects]:
    """MHA-3, MHA-4: attend in all heads, merge them and project, step by step."""
    attended = scaled_dot_product_attention(number, q, k, v, mask, dropout_rate=dropout_rate, empty_row=empty_row)
    heads = attended["output"]
    steps = {"q": q, "k": k, "v": v, "scaled_scores": attended["scaled_scores"], "heads": heads}
    return {"output": multiply(merge_heads(heads), w_o, b_o), "weights": attended["weights"], **steps}


def _average_weights(number: Number, weights: Objects) -> dict[str, Objects]:
    """MHA-8: the mean over the heads."""
    return {"average_weights": weights.sum(1) / scalar(number(weights.shape[1]))}


def fused_multi_head_attention(
    number: Number,
    x: Objects,
    mask: NDArray[np.bool_] | None = None,
    *,
    num_heads: int,
    w_qkv: Objects,
    w_o: Objects,
    b_qkv: Objects | None = None,
    b_o: Objects | None = None,
    empty_row: str = "uniform",
    dropout_rate: Any = 0,
    training: bool = True,
    seed: int = 0,
) -> dict[str, Objects]:
    """FMHA-1 … FMHA-3, DROP-3: one projection, cut per head into (q|k|v)."""
    qkv = multiply(x, w_qkv, b_qkv)
    q, k, v = np.split(split_heads(qkv, num_heads), 3, axis=-1)
    del seed
    steps = _attend(number, q, k, v, mask, w_o, b_o, empty_row, dropout_rate if training else 0)
    return {**steps, "qkv": qkv, **_average_weights(number, steps["weights"])}


def single_head_attention(
    number: Number, x: Objects, *, causal: bool, w_q: Objects, w_k: Objects, w_v: Objects
) -> dict[str, Objects]:
    """SHA-1 … SHA-3: one head over one sequence, scaled by √d_model."""
    query, key, value = x @ w_q, x @ w_k, x @ w_v
    mask = causal_mask(number, q_seq=len(x), kv_seq=len(x))["mask"] if causal else None
    heads = scaled_dot_product_attention(number, query, key, value, mask)
    del heads["scaled_scores"]
    return {**heads, "query": query, "key": key, "value": value}


def single_head_attention_step(
    number: Number,
    x: Objects,
    output_gradient: Objects,
    *,
    causal: bool,
    learning_rate: Any,
    steps: int,
    w_q: Objects,
    w_k: Objects,
    w_v: Objects,
) -> dict[str, Objects]:
    """GRAD-1, SHA-6, SHA-7: the backward pass at the weights of the forward pass, then W − lr·∂W, step by step."""
    rate = scalar(learning_rate if not isinstance(learning_rate, int) else number(learning_rate))
    weights = {"w_q": w_q, "w_k": w_k, "w_v": w_v}
    x_gradient = x
    for _ in range(steps):
        forward = single_head_attention(number, x, causal=causal, **weights)
        p = forward["weights"]
        p_gradient = output_gradient @ forward["value"].T
        scaled = p * (p_gradient - (p_gradient * p).sum(-1, keepdims=True))
        scores = scaled / np.sqrt(scalar(number(x.shape[-1])))
        gradients = {"w_q": scores @ forward["key"], "w_k": scores.T @ forward["query"], "w_v": p.T @ output_gradient}
        back_q, back_k, back_v = (gradients[name] @ weights[name].T for name in weights)
        x_gradient = back_q + back_k + back_v
        weights = {name: weights[name] - rate * (x.T @ gradients[name]) for name in weights}
    return {"x_gradient": x_gradient, **weights}

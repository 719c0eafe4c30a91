"""Multi-head attention, separate and fused, and single-head attention; heads are cut out and put back one by one."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from goldformer.spec.formulas.arrays import Array, multiply, number
from goldformer.spec.formulas.attention import causal_mask, scaled_dot_product_attention
from goldformer.spec.formulas.randomness import dropping
from goldformer.spec.formulas.steps import step

Params = Mapping[str, Array]

SINGLE_HEAD_OUTPUTS: Final = ("output", "weights", "query", "key", "value", "scores")


@step
def multi_head_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    *,
    num_heads: int,
    params: Params,
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> dict[str, Array]:
    """Return output (batch, q_seq, d_model) and the intermediate results of each head, (batch, heads, …)."""
    inputs = {"q": query, "k": key, "v": value}
    heads = (project_heads(x, params, role, num_heads) for role, x in inputs.items())
    with dropping(dropout_rate, training, seed):
        return attend_heads(*heads, mask=mask, params=params)


@step
def fused_multi_head_attention(
    x: Array,
    mask: Array | None = None,
    *,
    num_heads: int,
    params: Params,
    dropout_rate: float | None = None,
    training: bool = True,
    seed: int | None = None,
) -> dict[str, Array]:
    """Return output (batch, seq, E), qkv (batch, seq, 3·E) and the intermediate results of each head."""
    qkv = project_attention(x, params, "qkv")
    query, key, value = split_fused(qkv, num_heads)
    with dropping(dropout_rate, training, seed):
        return attend_heads(query, key, value, mask=mask, params=params) | {"qkv": qkv}


@step
def single_head_attention(x: Array, *, causal: bool, params: Params) -> dict[str, Array]:
    """Return output, query, key and value, each (seq, d_model), and weights and scores, (seq, seq)."""
    query, key, value = (project_attention(x, params, role) for role in ("q", "k", "v"))
    mask = causal_mask(q_seq=len(x), kv_seq=len(x)) if causal else None
    attended = attend_projected(query, key, value, mask)
    projected = {"query": query, "key": key, "value": value}
    return {name: (attended | projected)[name] for name in SINGLE_HEAD_OUTPUTS}


# The linear maps


@step
def project_heads(x: Array, params: Params, role: str, num_heads: int) -> Array:
    """Return x projected as query, key or value and cut into heads, (batch, heads, seq, width)."""
    return split_heads(project_attention(x, params, role), num_heads)


@step
def project_attention(x: Array, params: Params, role: str) -> Array:
    """Return x projected with the parameters of an attention: q, k, v, qkv or o."""
    return project(x, params, role)


@step
def project(x: Array, params: Params, role: str) -> Array:
    """Return x·W + b with the parameters of a role: q, k, v, qkv, o, 1, 2 or vocab."""
    return apply_affine(x, params[f"w_{role}"], params.get(f"b_{role}"))


@step
def apply_affine(x: Array, weight: Array, bias: Array | None) -> Array:
    """Return x·W + b, where W is (in, out)."""
    return multiply(x, weight, bias)


# The heads


@step
def head_width(columns: int, parts: int) -> int:
    """Return the width of one of `parts` equal parts."""
    return columns // parts


@step
def split_heads(x: Array, num_heads: int) -> Array:
    """Return (batch, heads, seq, width): head h is the h-th block of adjacent columns."""
    width = head_width(x.shape[-1], num_heads)
    columns = x[..., : num_heads * width]
    return columns.reshape(*x.shape[:-1], num_heads, width).swapaxes(1, -2)


@step
def split_fused(qkv: Array, num_heads: int) -> tuple[Array, Array, Array]:
    """Return query, key and value, (batch, heads, seq, d_k), of columns laid out [heads, q|k|v, d_k]."""
    width = head_width(qkv.shape[-1], 3 * num_heads)
    heads = split_heads(qkv, num_heads)
    query, key, value = (heads[..., i * width : (i + 1) * width] for i in range(3))
    return query, key, value


@step
def attend_heads(query: Array, key: Array, value: Array, *, mask: Array | None, params: Params) -> dict[str, Array]:
    """Attend with each head, all with one mask (MHA-6), merge, project by W_O; return all intermediate results."""
    attended = attend_projected(query, key, value, mask)
    heads = attended["output"]
    output = project_attention(merge_heads(heads), params, "o")
    projected = {"q": query, "k": key, "v": value}
    weights = attended["weights"]
    steps = {"scaled_scores": attended["scaled_scores"], "heads": heads, "average_weights": average_heads(weights)}
    return {"output": output, "weights": weights, **projected, **steps}


@step
def average_heads(weights: Array) -> Array:
    """Return the mean of the weights over the heads, (batch, q_seq, kv_seq) (MHA-8)."""
    return weights.sum(axis=1) / number(weights.shape[1])


@step
def attend_projected(query: Array, key: Array, value: Array, mask: Array | None) -> dict[str, Array]:
    """Attend with projected queries, keys and values."""
    return scaled_dot_product_attention(query, key, value, mask)


@step
def merge_heads(heads: Array) -> Array:
    """Return (batch, seq, heads·width): the columns of each head, one block after another."""
    return np.concatenate([heads[:, h] for h in range(heads.shape[1])], axis=-1)

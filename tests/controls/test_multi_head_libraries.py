"""Multi-head attention by PyTorch's modules and kernels and by NumPy: no case and no property may accuse it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from controls import NUMPY, controls_of, in_each_dtype

COMPONENT = "multi_head_attention"
NAN, ZEROS = {"empty_row": "nan"}, {"empty_row": "zeros"}


def project(x, params, role):
    return F.linear(x, params[f"w_{role}"].t(), params.get(f"b_{role}"))


def in_four_axes(mask):
    return None if mask is None else mask[(None,) * (4 - mask.ndim)]


def kernel_of_torch(*backends):
    def fused_kernel(query, key, value, mask=None, *, num_heads, params):
        q, k, v = (
            project(x, params, role).view(*x.shape[:2], num_heads, -1).transpose(1, 2)
            for x, role in zip((query, key, value), "qkv", strict=True)
        )
        if SDPBackend.MATH not in backends and v.shape[-1] != q.shape[-1]:
            raise NotImplementedError("flash attention on the CPU wants values as wide as queries")
        with sdpa_kernel(list(backends)):
            heads = F.scaled_dot_product_attention(q, k, v, attn_mask=in_four_axes(mask))
        return project(heads.transpose(1, 2).flatten(2), params, "o")

    fused_kernel.__name__ = "kernel_of_torch_" + "_or_".join(backend.name.lower() for backend in backends)
    return fused_kernel


def one_width(query, params):
    widths = {query.shape[-1], params["w_q"].shape[1], params["w_v"].shape[1], params["w_o"].shape[1]}
    if len(widths) > 1:
        raise NotImplementedError(f"nn.MultiheadAttention has one embed_dim, not {sorted(widths)}")
    return widths.pop()


def theirs(params, width):
    """The parameters as nn.MultiheadAttention has them, with zeros for absent biases."""
    zeros = params["w_o"].new_zeros(width)
    biases = {role: zeros if params.get(f"b_{role}") is None else params[f"b_{role}"] for role in "qkvo"}
    state = {f"{role}_proj_weight": params[f"w_{role}"].t() for role in "qkv"}
    state |= {"in_proj_bias": torch.cat([biases[role] for role in "qkv"])}
    return state | {"out_proj.weight": params["w_o"].t(), "out_proj.bias": biases["o"]}


def module_of_torch(query, key, value, mask=None, *, num_heads, params):
    """nn.MultiheadAttention, True = ignore, one mask for each of batch·heads."""
    width, state = one_width(query, params), theirs(params, one_width(query, params))
    sizes = {"kdim": key.shape[-1], "vdim": value.shape[-1]}
    if key.shape[-1] == value.shape[-1] == width:
        # Only of other widths does it keep three matrices.
        state["in_proj_weight"] = torch.cat([state.pop(f"{role}_proj_weight") for role in "qkv"])
    layer = nn.MultiheadAttention(width, num_heads, batch_first=True, device="meta", **sizes).train()
    if mask is not None:
        mask = ~mask.broadcast_to(len(query), num_heads, query.shape[1], key.shape[1]).flatten(0, 1)
    how = {"attn_mask": mask, "average_attn_weights": False}
    return torch.func.functional_call(layer, state, (query, key, value), how)


def function_of_torch(query, key, value, mask=None, *, num_heads, params):
    """F.multi_head_attention_forward: sequence first, a float mask of −∞."""
    width = one_width(query, params)
    state = theirs(params, width)
    if mask is not None:
        full = mask.broadcast_to(len(query), num_heads, query.shape[1], key.shape[1]).flatten(0, 1)
        mask = query.new_zeros(full.shape).masked_fill(~full, -math.inf)
    q, k, v = (x.transpose(0, 1) for x in (query, key, value))
    output, weights = F.multi_head_attention_forward(
        q, k, v, width, num_heads,
        None, state.pop("in_proj_bias"), None, None, False, 0.0, state["out_proj.weight"], state["out_proj.bias"],
        attn_mask=mask, use_separate_proj_weight=True, average_attn_weights=False,
        **{f"{role}_proj_weight": state[f"{role}_proj_weight"] for role in "qkv"},
    )  # fmt: skip
    return output.transpose(0, 1), weights


def numpy_from_scratch(query, key, value, mask=None, *, num_heads, params):
    def split(x, role):
        y = x @ params[f"w_{role}"]
        y = y if params.get(f"b_{role}") is None else y + params[f"b_{role}"]
        return np.stack(np.split(y, num_heads, axis=-1), axis=1)

    q, k, v = split(query, "q"), split(key, "k"), split(value, "v")
    scores = np.matmul(q, np.swapaxes(k, 2, 3)) / np.sqrt(q.shape[-1]).astype(q.dtype)
    if mask is not None:
        scores = np.where(mask, scores, np.finfo(scores.dtype).min)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    output = np.concatenate(list(np.moveaxis(weights @ v, 1, 0)), axis=-1) @ params["w_o"]
    return {"output": output if params.get("b_o") is None else output + params["b_o"], "weights": weights}


def numpy_one_query_at_a_time(query, key, value, mask=None, *, num_heads, params):
    """Only the keys that a query may see are ever looked at."""
    none = {f"b_{role}": 0 for role in "qkvo"}
    p = none | {name: array for name, array in params.items() if array is not None}
    q, k, v = query @ p["w_q"] + p["b_q"], key @ p["w_k"] + p["b_k"], value @ p["w_v"] + p["b_v"]
    d_k, d_v = q.shape[-1] // num_heads, v.shape[-1] // num_heads
    shape = (len(q), num_heads, q.shape[1], k.shape[1])
    keep = np.ones(shape, dtype=bool) if mask is None else np.broadcast_to(mask, shape)
    out = np.zeros((*q.shape[:2], v.shape[-1]), dtype=q.dtype)
    for b, h, i in np.ndindex(shape[:3]):
        seen = np.flatnonzero(keep[b, h, i])
        if len(seen):
            scores = k[b, seen, h * d_k : (h + 1) * d_k] @ q[b, i, h * d_k : (h + 1) * d_k] / q.dtype.type(d_k**0.5)
            weights = np.exp(scores - scores.max())
            out[b, i, h * d_v : (h + 1) * d_v] = weights @ v[b, seen, h * d_v : (h + 1) * d_v] / weights.sum()
    return out @ p["w_o"] + p["b_o"]


KERNELS = tuple(
    kernel_of_torch(*backends)
    for backends in ((SDPBackend.MATH,), (SDPBackend.FLASH_ATTENTION,), (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH))
)
CONTROLS = [
    *controls_of(COMPONENT, KERNELS, conventions=ZEROS),
    *controls_of(COMPONENT, (module_of_torch, function_of_torch), conventions=NAN),
    *controls_of(COMPONENT, (numpy_from_scratch,), dtypes=NUMPY, arrays="numpy"),
    *controls_of(COMPONENT, (numpy_one_query_at_a_time,), dtypes=NUMPY, arrays="numpy", conventions=ZEROS),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_multi_head_attention_by_libraries(control, dtype, acquitted):
    acquitted(control, dtype)

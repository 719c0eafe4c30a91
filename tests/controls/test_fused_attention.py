"""Self-attention from one fused projection done otherwise: no case and no property may accuse it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from controls import HALF, NUMPY, controls_of, in_each_dtype
from goldformer.adapters import layouts

COMPONENT = "fused_multi_head_attention"


def fused(x, params):
    return F.linear(x, params["w_qkv"].t(), params.get("b_qkv"))


def out(heads, params):
    """(batch, heads, seq, d_k) → (batch, seq, heads·d_k), projected."""
    return F.linear(heads.transpose(1, 2).flatten(2), params["w_o"].t(), params.get("b_o"))


def attend(q, k, v, mask):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    kept = scores if mask is None else scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = kept.softmax(-1)
    return weights @ v, weights, scores


def every_output(x, mask=None, *, num_heads, params):
    """As the PyTorch Lightning tutorial has it: per head, then chunked."""
    qkv = fused(x, params)
    q, k, v = qkv.reshape(*x.shape[:2], num_heads, -1).permute(0, 2, 1, 3).chunk(3, dim=-1)
    heads, weights, scores = attend(q, k, v, mask)
    return out(heads, params), weights, qkv, q, k, v, scores, heads


def heads_first_five_axes(x, mask=None, *, num_heads, params):
    """[H, 3, d]: all heads cut at once."""
    qkv = fused(x, params).unflatten(-1, (num_heads, 3, -1))
    q, k, v = (qkv[..., i, :].transpose(1, 2) for i in range(3))
    heads, weights, _ = attend(q, k, v, mask)
    return out(heads, params), weights


def stacked_after_conversion(x, mask=None, *, num_heads, params):
    """[3, H, d], as GPT-2 and timm keep it: the columns are moved once, by this project's own helper."""
    theirs = {name: layouts.stack_qkv(array, num_heads) for name, array in params.items() if name.endswith("qkv")}
    q, k, v = fused(x, theirs).unflatten(-1, (3, num_heads, -1)).permute(2, 0, 3, 1, 4)
    heads, weights, _ = attend(q, k, v, mask)
    return out(heads, params), weights


def columns_moved_by_an_index(x, mask=None, *, num_heads, params):
    """The same conversion, by hand."""
    width = params["w_qkv"].shape[1] // (3 * num_heads)
    place = torch.arange(3 * num_heads * width).view(num_heads, 3, width).transpose(0, 1).flatten()
    place = place.to(x.device)
    theirs = {name: array[..., place] for name, array in params.items() if name.endswith("qkv")}
    q, k, v = (
        y.view(*x.shape[:2], num_heads, width).transpose(1, 2) for y in fused(x, theirs).split(num_heads * width, 2)
    )
    heads, weights, _ = attend(q, k, v, mask)
    return {"output": out(heads, params), "weights": weights}


def three_projections(x, mask=None, *, num_heads, params):
    """Split fused projections into their parts."""
    matrices = layouts.split_fused(params["w_qkv"], num_heads)
    biases = [0] * 3 if params.get("b_qkv") is None else layouts.split_fused(params["b_qkv"], num_heads)
    q, k, v = (
        (x @ w + b).view(*x.shape[:2], num_heads, -1).transpose(1, 2) for w, b in zip(matrices, biases, strict=True)
    )
    heads, weights, _ = attend(q, k, v, mask)
    return out(heads, params), weights


def einsum_of_kernels(x, mask=None, *, num_heads, params):
    kernel = params["w_qkv"].unflatten(1, (num_heads, 3, -1))
    qkv = torch.einsum("bti,ihcd->cbhtd", x, kernel)
    if params.get("b_qkv") is not None:
        qkv = qkv + params["b_qkv"].unflatten(0, (num_heads, 3, -1)).transpose(0, 1)[:, None, :, None]
    scores = torch.einsum("bhqd,bhkd->bhqk", qkv[0] / math.sqrt(qkv.shape[-1]), qkv[1])
    if mask is not None:
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1)
    output = torch.einsum("bhqk,bhkd,hdo->bqo", weights, qkv[2], params["w_o"].unflatten(0, (num_heads, -1)))
    return (output if params.get("b_o") is None else output + params["b_o"]), weights


def heads_in_a_loop(x, mask=None, *, num_heads, params):
    qkv = fused(x, params)
    if mask is not None:
        mask = mask.broadcast_to(len(x), num_heads, x.shape[1], x.shape[1])
    heads, weights = [], []
    for h, block in enumerate(qkv.tensor_split(num_heads, dim=-1)):
        q, k, v = block.tensor_split(3, dim=-1)
        one, its_weights, _ = attend(q, k, v, None if mask is None else mask[:, h])
        heads.append(one)
        weights.append(its_weights)
    output = torch.cat(heads, dim=-1) @ params["w_o"]
    return (output if params.get("b_o") is None else output + params["b_o"]), torch.stack(weights, 1)


def interleaved_with_strides(x, mask=None, *, num_heads, params):
    """Queries, keys and values as views of qkv with strides, nothing copied."""
    qkv = fused(x, params).contiguous()
    width = qkv.shape[-1] // (3 * num_heads)
    batch, seq = x.shape[:2]
    size, step = (batch, num_heads, seq, width), (seq * qkv.shape[-1], 3 * width, qkv.shape[-1], 1)
    q, k, v = (qkv.as_strided(size, step, i * width) for i in range(3))
    heads, weights, _ = attend(q, k, v, mask)
    return out(heads, params), weights


def kernel_of_torch(x, mask=None, *, num_heads, params):
    q, k, v = fused(x, params).view(*x.shape[:2], num_heads, -1).transpose(1, 2).chunk(3, dim=-1)
    mask = None if mask is None else mask[(None,) * (4 - mask.ndim)]
    return out(F.scaled_dot_product_attention(q, k, v, mask), params)


def function_of_torch(x, mask=None, *, num_heads, params):
    """F.multi_head_attention_forward, which has one width for input and heads."""
    width = len(params["w_o"])
    if x.shape[-1] != width:
        raise NotImplementedError("nn.MultiheadAttention has one embed_dim")
    if mask is not None:
        mask = ~mask.broadcast_to(len(x), num_heads, x.shape[1], x.shape[1]).flatten(0, 1)
    zeros = x.new_zeros(3 * width)
    bias = layouts.stack_qkv(params["b_qkv"], num_heads) if params.get("b_qkv") is not None else zeros
    turned = x.transpose(0, 1)
    output, weights = F.multi_head_attention_forward(
        turned, turned, turned, width, num_heads, layouts.stack_qkv(params["w_qkv"], num_heads).t(), bias,
        None, None, False, 0.0, params["w_o"].t(), params.get("b_o"), attn_mask=mask, average_attn_weights=False,
    )  # fmt: skip
    return output.transpose(0, 1), weights


def float32_throughout(x, mask=None, *, num_heads, params):
    wide = {name: None if array is None else array.float() for name, array in params.items()}
    return tuple(y.to(x.dtype) for y in every_output(x.float(), mask, num_heads=num_heads, params=wide))


def numpy_from_scratch(x, mask=None, *, num_heads, params):
    qkv = x @ params["w_qkv"]
    if params.get("b_qkv") is not None:
        qkv = qkv + params["b_qkv"]
    q, k, v = np.split(np.stack(np.split(qkv, num_heads, axis=2), axis=1), 3, axis=3)
    scores = np.einsum("bhqd,bhkd->bhqk", q, k) / np.sqrt(q.shape[-1]).astype(x.dtype)
    if mask is not None:
        scores = np.where(mask, scores, np.finfo(x.dtype).min)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    output = np.concatenate([(weights @ v)[:, h] for h in range(num_heads)], axis=-1) @ params["w_o"]
    return (output if params.get("b_o") is None else output + params["b_o"]), weights


EVERYWHERE = (
    every_output, heads_first_five_axes, stacked_after_conversion, columns_moved_by_an_index, three_projections,
    einsum_of_kernels, heads_in_a_loop, interleaved_with_strides,
)  # fmt: skip
CONTROLS = [
    *controls_of(COMPONENT, EVERYWHERE),
    *controls_of(COMPONENT, (kernel_of_torch,), conventions={"empty_row": "zeros"}),
    *controls_of(COMPONENT, (function_of_torch,), conventions={"empty_row": "nan"}),
    *controls_of(COMPONENT, (float32_throughout,), dtypes=HALF),
    *controls_of(COMPONENT, (numpy_from_scratch,), dtypes=NUMPY, arrays="numpy"),
]


@pytest.mark.sample(4)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_fused_attention_done_otherwise(control, dtype, acquitted):
    acquitted(control, dtype)

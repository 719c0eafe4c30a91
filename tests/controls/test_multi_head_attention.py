"""Multi-head attention done otherwise: no case and no property may accuse it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from controls import HALF, controls_of, in_each_dtype

COMPONENT = "multi_head_attention"


def lowest(x):
    return torch.finfo(x.dtype).min


def project(x, params, role):
    y = x @ params[f"w_{role}"]
    return y if params.get(f"b_{role}") is None else y + params[f"b_{role}"]


def weigh(scores, mask, fill):
    return torch.softmax(scores if mask is None else scores.masked_fill(~mask, fill), dim=-1)


def view_and_transpose(query, key, value, mask=None, *, num_heads, params):
    """As most tutorials have it; every output."""
    q, k, v = (
        project(x, params, role).view(*x.shape[:2], num_heads, -1).transpose(1, 2)
        for x, role in ((query, "q"), (key, "k"), (value, "v"))
    )
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
    weights = weigh(scores, mask, lowest(scores))
    heads = weights @ v
    output = project(heads.transpose(1, 2).contiguous().flatten(2), params, "o")
    return output, weights, q, k, v, scores, heads


def heads_in_a_loop(query, key, value, mask=None, *, num_heads, params):
    """Each head with columns of its own, and a mask of its own."""
    d_k, d_v = (params[name].shape[1] // num_heads for name in ("w_q", "w_v"))
    q, k, v = project(query, params, "q"), project(key, params, "k"), project(value, params, "v")
    if mask is not None:
        mask = mask.broadcast_to(len(q), num_heads, q.shape[1], k.shape[1])
    heads, weights = [], []
    for h in range(num_heads):
        scores = q[..., h * d_k : (h + 1) * d_k] @ k[..., h * d_k : (h + 1) * d_k].mT * d_k**-0.5
        weights.append(weigh(scores, None if mask is None else mask[:, h], lowest(q)))
        heads.append(weights[-1] @ v[..., h * d_v : (h + 1) * d_v])
    return {"output": project(torch.cat(heads, dim=-1), params, "o"), "weights": torch.stack(weights, dim=1)}


def einsum_bthd(query, key, value, mask=None, *, num_heads, params):
    """As JAX libraries have it: kernels of three axes, heads behind tokens."""

    def dense(x, role):
        kernel = params[f"w_{role}"].unflatten(1, (num_heads, -1))
        bias = params.get(f"b_{role}")
        y = torch.einsum("btd,dhk->bthk", x, kernel)
        return y if bias is None else y + bias.unflatten(0, (num_heads, -1))

    q, k, v = dense(query, "q"), dense(key, "k"), dense(value, "v")
    q = q / math.sqrt(q.shape[-1])
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
    if mask is not None:
        scores = torch.where(mask, scores, lowest(scores))
    weights = torch.softmax(scores, -1)
    attended = torch.einsum("bhqk,bkhd->bqhd", weights, v)
    output = torch.einsum("bthd,hdo->bto", attended, params["w_o"].unflatten(0, (num_heads, -1)))
    return (output if params.get("b_o") is None else output + params["b_o"]), weights


def w_o_of_each_head_summed(query, key, value, mask=None, *, num_heads, params):
    """Concat(heads)·W_O is a sum over heads."""
    blocks = {name: params[f"w_{name}"].chunk(num_heads, dim=1) for name in "qkv"}
    biases = {
        name: [0] * num_heads if params.get(f"b_{name}") is None else params[f"b_{name}"].chunk(num_heads)
        for name in "qkv"
    }
    output = 0 if params.get("b_o") is None else params["b_o"]
    for h, w_o in enumerate(params["w_o"].chunk(num_heads, dim=0)):
        q, k, v = (x @ blocks[n][h] + biases[n][h] for n, x in zip("qkv", (query, key, value), strict=True))
        scores = (q / math.sqrt(q.shape[-1])) @ k.mT
        of_head = None if mask is None else mask.broadcast_to(len(q), num_heads, *scores.shape[1:])[:, h]
        output = weigh(scores, of_head, lowest(scores)) @ v @ w_o + output
    return output


def scale_folded_into_w_q(query, key, value, mask=None, *, num_heads, params):
    """As converters of trained models do."""
    root = math.sqrt(params["w_q"].shape[1] // num_heads)
    scaled = {name: None if params.get(name) is None else params[name] / root for name in ("w_q", "b_q")}
    q, k, v = (
        project(x, {**params, **scaled}, role).unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for x, role in ((query, "q"), (key, "k"), (value, "v"))
    )
    weights = weigh(q @ k.mT, mask, lowest(q))
    return project((weights @ v).transpose(1, 2).flatten(2), params, "o"), weights


def biases_added_after_the_split(query, key, value, mask=None, *, num_heads, params):
    def split(x, role):
        heads = (x @ params[f"w_{role}"]).reshape(*x.shape[:2], num_heads, -1).permute(0, 2, 1, 3)
        bias = params.get(f"b_{role}")
        return heads if bias is None else heads + bias.reshape(1, num_heads, 1, -1)

    q, k, v = split(query, "q"), split(key, "k"), split(value, "v")
    scores = torch.matmul(q, k.permute(0, 1, 3, 2)).div(k.shape[-1] ** 0.5)
    weights = weigh(scores, mask, lowest(scores))
    output = (weights @ v).permute(0, 2, 1, 3).reshape(*query.shape[:2], -1) @ params["w_o"]
    return (output if params.get("b_o") is None else output + params["b_o"]), weights


def fill_of_minus_1e9(query, key, value, mask=None, *, num_heads, params):
    q, k, v = (
        project(x, params, role).view(*x.shape[:2], num_heads, -1).transpose(1, 2)
        for x, role in ((query, "q"), (key, "k"), (value, "v"))
    )
    weights = weigh(q @ k.mT / math.sqrt(q.shape[-1]), mask, -1e9)
    return project((weights @ v).transpose(1, 2).reshape(*query.shape[:2], -1), params, "o"), weights


def fill_of_minus_infinity(query, key, value, mask=None, *, num_heads, params):
    """As minGPT has it: NaN where no key is left."""
    q, k, v = (
        project(x, params, role).view(*x.shape[:2], num_heads, -1).transpose(1, 2)
        for x, role in ((query, "q"), (key, "k"), (value, "v"))
    )
    weights = weigh((q @ k.mT) * (1.0 / math.sqrt(k.size(-1))), mask, float("-inf"))
    return project((weights @ v).transpose(1, 2).reshape(*query.shape[:2], -1), params, "o"), weights


def additive_mask(query, key, value, mask=None, *, num_heads, params):
    """0 or −∞ added to the scores: NaN where no key is left."""
    q, k, v = (
        project(x, params, role).view(*x.shape[:2], num_heads, -1).transpose(1, 2)
        for x, role in ((query, "q"), (key, "k"), (value, "v"))
    )
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        scores = scores + scores.new_zeros(()).where(mask, -math.inf)
    weights = F.softmax(scores, dim=-1)
    return project((weights @ v).transpose(1, 2).flatten(2), params, "o"), weights


def two_masks_one_after_the_other(query, key, value, mask=None, *, num_heads, params):
    """Keys that no query of a sample and head sees, and then the rest, as key padding and causal masks are."""
    q, k, v = (
        project(x, params, role).view(*x.shape[:2], num_heads, -1).transpose(1, 2)
        for x, role in ((query, "q"), (key, "k"), (value, "v"))
    )
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if mask is not None:
        mask = mask.expand(scores.shape)
        padding = ~mask.any(dim=-2, keepdim=True)
        scores = scores.masked_fill(padding, lowest(scores)).masked_fill(~(mask | padding), lowest(scores))
    weights = scores.softmax(-1)
    return project((weights @ v).transpose(1, 2).flatten(2), params, "o"), weights


def heads_in_the_batch(query, key, value, mask=None, *, num_heads, params):
    """As early TensorFlow ports have it: the heads stacked on the axis of the samples."""
    q, k, v = (
        torch.cat(project(x, params, role).chunk(num_heads, dim=2), dim=0)
        for x, role in ((query, "q"), (key, "k"), (value, "v"))
    )
    scores = torch.bmm(q, k.transpose(1, 2)) / q.shape[-1] ** 0.5
    if mask is not None:
        mask = mask.broadcast_to(len(query), num_heads, *scores.shape[1:]).transpose(0, 1).flatten(0, 1)
    weights = weigh(scores, mask, lowest(scores))
    heads = torch.cat(torch.bmm(weights, v).chunk(num_heads, dim=0), dim=2)
    return project(heads, params, "o"), torch.stack(weights.chunk(num_heads, dim=0), dim=1)


def baddbmm(query, key, value, mask=None, *, num_heads, params):
    """As Megatron has it: the scale is alpha, the scores lie in one buffer of batch·heads."""
    q, k, v = (
        project(x, params, role).view(*x.shape[:2], num_heads, -1).transpose(1, 2).flatten(0, 1)
        for x, role in ((query, "q"), (key, "k"), (value, "v"))
    )
    buffer = q.new_zeros(len(q), q.shape[1], k.shape[1])
    scores = torch.baddbmm(buffer, q, k.transpose(1, 2), beta=0.0, alpha=1 / math.sqrt(q.shape[-1]))
    scores = scores.unflatten(0, (-1, num_heads))
    weights = weigh(scores, mask, lowest(scores))
    heads = torch.bmm(weights.flatten(0, 1), v).unflatten(0, (-1, num_heads))
    return project(heads.transpose(1, 2).flatten(2), params, "o"), weights


def keys_and_values_as_block_matrices(query, key, value, mask=None, *, num_heads, params):
    """[K V] = [key value] · diag(W_K, W_V)."""
    both = torch.cat([key, value], dim=-1) @ torch.block_diag(params["w_k"], params["w_v"])
    k, v = both.split([params["w_k"].shape[1], params["w_v"].shape[1]], dim=-1)
    k, v = (y if params.get(name) is None else y + params[name] for y, name in ((k, "b_k"), (v, "b_v")))
    q = project(query, params, "q")
    q, k, v = (x.unflatten(-1, (num_heads, -1)).movedim(2, 1) for x in (q, k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    weights = weigh(scores, mask, lowest(scores))
    return project((weights @ v).movedim(1, 2).flatten(2), params, "o"), weights


def convolutions_of_width_one(query, key, value, mask=None, *, num_heads, params):
    """As vision models have it: channels first, a 1×1 convolution for each projection."""

    def conv(x, role):
        return F.conv1d(x, params[f"w_{role}"].t().unsqueeze(-1), params.get(f"b_{role}"))

    q, k, v = (
        conv(x.mT, role).unflatten(1, (num_heads, -1)) for x, role in zip((query, key, value), "qkv", strict=True)
    )
    scores = torch.einsum("bhct,bhcs->bhts", q * q.shape[2] ** -0.25, k * q.shape[2] ** -0.25)
    weights = weigh(scores, mask, lowest(scores))
    heads = torch.einsum("bhts,bhcs->bhct", weights, v)
    return conv(heads.flatten(1, 2), "o").mT, weights


def linear_modules(query, key, value, mask=None, *, num_heads, params):
    """nn.Linear with transposed copies of the weights."""

    def linear(x, role):
        weight, bias = params[f"w_{role}"], params.get(f"b_{role}")
        d_in, d_out = weight.shape
        layer = nn.Linear(d_in, d_out, bias=bias is not None, device="meta")
        state = {"weight": weight.t().contiguous()} | ({} if bias is None else {"bias": bias})
        return torch.func.functional_call(layer, state, (x,))

    q, k, v = (
        linear(x, role).view(len(x), -1, num_heads, params[f"w_{role}"].shape[1] // num_heads).transpose(1, 2)
        for x, role in zip((query, key, value), "qkv", strict=True)
    )
    weights = weigh(q @ k.transpose(2, 3) / np.sqrt(q.shape[-1]), mask, lowest(q))
    return linear((weights @ v).transpose(1, 2).flatten(2), "o"), weights


def online_softmax(query, key, value, mask=None, *, num_heads, params):
    """Blocks of two keys with running maximum and total, in float32 or finer, as flash attention has it."""
    wide = torch.promote_types(query.dtype, torch.float32)
    q, k, v = (
        project(x, params, role).view(*x.shape[:2], num_heads, -1).transpose(1, 2).to(wide)
        for x, role in zip((query, key, value), "qkv", strict=True)
    )
    keep = torch.ones((), dtype=torch.bool, device=q.device) if mask is None else mask
    keep = keep.expand(*q.shape[:-1], k.shape[-2])
    top = q.new_full((*q.shape[:-1], 1), -math.inf)
    total, output = torch.zeros_like(top), q.new_zeros(*q.shape[:-1], v.shape[-1])
    for start in range(0, k.shape[-2], 2):
        block = slice(start, start + 2)
        scores = q @ k[..., block, :].mT / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~keep[..., block], lowest(query))
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        powers, shrink = torch.exp(scores - higher), torch.exp(top - higher)
        total = total * shrink + powers.sum(-1, keepdim=True)
        output, top = output * shrink + powers @ v[..., block, :], higher
    return project((output / total).to(query.dtype).transpose(1, 2).flatten(2), params, "o")


def circuits(query, key, value, mask=None, *, num_heads, params):
    """W_Q·W_Kᵀ and W_V·W_O of each head as one matrix each, the biases as a last row of them."""

    def with_bias(role):
        weight, bias = params[f"w_{role}"], params.get(f"b_{role}")
        last = weight.new_zeros(weight.shape[1]) if bias is None else bias
        return torch.cat([weight, last[None]]).chunk(num_heads, dim=1)

    ones = (F.pad(x, (0, 1), value=1.0) for x in (query, key, value))
    xq, xk, xv = (x.unsqueeze(1) for x in ones)
    root = math.sqrt(params["w_q"].shape[1] // num_heads)
    qk = torch.stack([(a / root) @ b.t() for a, b in zip(with_bias("q"), with_bias("k"), strict=True)])
    ov = torch.stack([a @ b for a, b in zip(with_bias("v"), params["w_o"].chunk(num_heads), strict=True)])
    weights = weigh(xq @ qk @ xk.mT, mask, lowest(query))
    output = (weights @ (xv @ ov)).sum(1)
    return (output if params.get("b_o") is None else output + params["b_o"]), weights


def float32_scores_and_softmax(query, key, value, mask=None, *, num_heads, params):
    """As T5 and Llama have it in half precision."""
    q, k, v = (
        project(x, params, role).view(*x.shape[:2], num_heads, -1).transpose(1, 2)
        for x, role in zip((query, key, value), "qkv", strict=True)
    )
    weights = weigh(q.float() @ k.float().mT / math.sqrt(q.shape[-1]), mask, lowest(query)).to(q.dtype)
    return project((weights @ v).transpose(1, 2).flatten(2), params, "o"), weights


def float32_throughout(query, key, value, mask=None, *, num_heads, params):
    wide = {name: None if array is None else array.float() for name, array in params.items()}
    q, k, v = (x.float() for x in (query, key, value))
    outputs = view_and_transpose(q, k, v, mask, num_heads=num_heads, params=wide)
    return tuple(x.to(query.dtype) for x in outputs)


EVERYWHERE = (
    view_and_transpose, heads_in_a_loop, einsum_bthd, w_o_of_each_head_summed, scale_folded_into_w_q,
    biases_added_after_the_split, two_masks_one_after_the_other, heads_in_the_batch, baddbmm,
    keys_and_values_as_block_matrices, convolutions_of_width_one, linear_modules, online_softmax, circuits,
)  # fmt: skip
CONTROLS = [
    *controls_of(COMPONENT, EVERYWHERE),
    *controls_of(COMPONENT, (fill_of_minus_1e9,), dtypes=("float64", "float32", "bfloat16")),
    *controls_of(COMPONENT, (fill_of_minus_infinity, additive_mask), conventions={"empty_row": "nan"}),
    *controls_of(COMPONENT, (float32_scores_and_softmax, float32_throughout), dtypes=HALF),
]


@pytest.mark.sample(10)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_multi_head_attention_done_otherwise(control, dtype, acquitted):
    acquitted(control, dtype)

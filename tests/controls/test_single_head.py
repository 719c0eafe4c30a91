"""Single-head attention and its training steps done otherwise: no case and no property may accuse them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from controls import HALF, NUMPY, Control, in_each_dtype

NAMES = ("w_q", "w_k", "w_v")


def triangle(x):
    return torch.ones(len(x), len(x), dtype=torch.bool, device=x.device).tril()


# Forward


def every_output(x, *, causal, params):
    q, k, v = (x @ params[name] for name in NAMES)
    scores = q @ k.T
    scaled = scores / math.sqrt(x.shape[1])
    if causal:
        scaled = scaled.masked_fill(~triangle(x), -math.inf)
    weights = scaled.softmax(dim=-1)
    return weights @ v, weights, q, k, v, scores


def kernel_of_torch(x, *, causal, params):
    q, k, v = (F.linear(x, params[name].T)[None, None] for name in NAMES)
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)[0, 0]


def token_by_token(x, *, causal, params):
    """As a loop over time reads it: the causal form sees a growing list of keys."""
    rows, weights = [], []
    keys, values = x @ params["w_k"], x @ params["w_v"]
    for t, token in enumerate(x):
        last = t + 1 if causal else len(x)
        query = token @ params["w_q"] / len(token) ** 0.5
        row = torch.softmax(keys[:last] @ query, dim=0)
        rows.append(row @ values[:last])
        weights.append(F.pad(row, (0, len(x) - last)))
    return torch.stack(rows), torch.stack(weights)


def einsum_one_line(x, *, causal, params):
    q, k, v = torch.einsum("td,rde->rte", x, torch.stack([params[name] for name in NAMES]))
    scores = torch.einsum("td,sd->ts", q, k)
    scaled = scores * x.shape[-1] ** -0.5
    if causal:
        scaled = scaled + torch.triu(torch.full_like(scaled, -math.inf), diagonal=1)
    weights = torch.exp(F.log_softmax(scaled, -1))
    return {"output": torch.einsum("ts,sd->td", weights, v), "weights": weights, "scores": scores}


def float32_throughout(x, *, causal, params):
    wide = {name: array.float() for name, array in params.items()}
    return tuple(y.to(x.dtype) for y in every_output(x.float(), causal=causal, params=wide))


# Training steps


def by_autograd(forward):
    def single_head_attention_step(x, output_gradient, *, causal, learning_rate, steps, params):
        weights = {name: array.detach().clone() for name, array in params.items()}
        gradient = x
        for _ in range(steps):
            leaves = [x.detach().requires_grad_(), *(weights[name].requires_grad_() for name in NAMES)]
            made = forward(leaves[0], causal=causal, params=dict(zip(NAMES, leaves[1:], strict=True)))
            output = made["output"] if isinstance(made, dict) else made[0] if isinstance(made, tuple) else made
            gradient, *moves = torch.autograd.grad(output, leaves, output_gradient)
            weights = {n: weights[n].detach() - learning_rate * g for n, g in zip(NAMES, moves, strict=True)}
        return gradient, *(weights[name] for name in NAMES)

    return single_head_attention_step


def by_an_optimizer(x, output_gradient, *, causal, learning_rate, steps, params):
    """torch.optim.SGD on a module's parameters."""
    weights = {name: torch.nn.Parameter(array.clone()) for name, array in params.items()}
    tokens = x.clone().requires_grad_()
    optimizer = torch.optim.SGD(weights.values(), lr=learning_rate)
    for _ in range(steps):
        tokens.grad = None
        optimizer.zero_grad()
        (kernel_of_torch(tokens, causal=causal, params=weights) * output_gradient).sum().backward()
        optimizer.step()
    return {"x_gradient": tokens.grad, **{name: weight.data for name, weight in weights.items()}}


def flash_backward(x, output_gradient, *, causal, learning_rate, steps, params):
    """dS = P∘(dP − rowsum(dO∘O)), as flash attention has it: the row's term from the output."""
    weights, gradient = dict(params), x
    for _ in range(steps):
        output, p, q, k, v, _ = every_output(x, causal=causal, params=weights)
        row = (output_gradient * output).sum(-1, keepdim=True)
        d_scores = p * (output_gradient @ v.T - row) / math.sqrt(x.shape[1])
        d = {"w_q": d_scores @ k, "w_k": d_scores.T @ q, "w_v": p.T @ output_gradient}
        gradient = sum(d[name] @ weights[name].T for name in NAMES)
        weights = {name: torch.addmm(weights[name], x.T, d[name], alpha=-learning_rate) for name in NAMES}
    return gradient, weights["w_q"], weights["w_k"], weights["w_v"]


def jacobian_of_each_row(x, output_gradient, *, causal, learning_rate, steps, params):
    """diag(p) − p·pᵀ, written out for every row."""
    weights, gradient = dict(params), x
    for _ in range(steps):
        _, p, q, k, v, _ = every_output(x, causal=causal, params=weights)
        d_p = torch.einsum("td,sd->ts", output_gradient, v)
        jacobian = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        d_scores = torch.einsum("tsr,tr->ts", jacobian, d_p) * x.shape[1] ** -0.5
        d_q, d_k, d_v = d_scores @ k, d_scores.mT @ q, p.mT @ output_gradient
        joined = torch.cat([d_q, d_k, d_v], dim=1)
        gradient = joined @ torch.cat([weights[name] for name in NAMES], dim=1).T
        moves = (x.T @ joined).chunk(3, dim=1)
        weights = {n: weights[n] - learning_rate * move for n, move in zip(NAMES, moves, strict=True)}
    return gradient, *weights.values()


def of(forward):
    return {"single_head_attention": forward, "single_head_attention_step": by_autograd(forward)}


# NumPy


def numpy_forward(x, *, causal, params):
    q, k, v = (np.dot(x, params[name]) for name in NAMES)
    scores = np.dot(q, k.T)
    scaled = scores / np.sqrt(x.shape[1]).astype(x.dtype)
    if causal:
        scaled[np.triu_indices(len(x), k=1)] = -np.inf
    powers = np.exp(scaled - scaled.max(axis=1)[:, None])
    weights = powers / powers.sum(axis=1)[:, None]
    return {"output": weights.dot(v), "weights": weights, "query": q, "key": k, "value": v, "scores": scores}


def numpy_backward(x, cotangent, *, causal, params):
    """Each token pair's share of every gradient, summed up in loops."""
    f = numpy_forward(x, causal=causal, params=params)
    p, root = f["weights"], x.dtype.type(math.sqrt(x.shape[1]))
    d_q, d_k, d_v = (np.zeros_like(x) for _ in range(3))
    for i in range(len(x)):
        d_p = f["value"] @ cotangent[i]
        d_s = p[i] * (d_p - p[i] @ d_p) / root
        d_q[i] = d_s @ f["key"]
        d_k += np.outer(d_s, f["query"][i])
        d_v += np.outer(p[i], cotangent[i])
    moves = {name: x.T @ d for name, d in zip(NAMES, (d_q, d_k, d_v), strict=True)}
    return {"x": d_q @ params["w_q"].T + d_k @ params["w_k"].T + d_v @ params["w_v"].T, **moves}


def numpy_steps(x, output_gradient, *, causal, learning_rate, steps, params):
    weights, gradients = {name: array.copy() for name, array in params.items()}, {}
    for _ in range(steps):
        gradients = numpy_backward(x, output_gradient, causal=causal, params=weights)
        for name in NAMES:
            weights[name] -= x.dtype.type(learning_rate) * gradients[name]
    return {"x_gradient": gradients["x"], **weights}


IN_NUMPY: dict[str, Callable[..., Any]] = {
    "single_head_attention": numpy_forward,
    "single_head_attention_gradient": numpy_backward,
    "single_head_attention_step": numpy_steps,
}
CONTROLS = [
    *(Control(f.__name__, of(f)) for f in (every_output, kernel_of_torch, token_by_token, einsum_one_line)),
    Control("float32_throughout", of(float32_throughout), dtypes=HALF),
    *(
        Control(step.__name__, of(every_output) | {"single_head_attention_step": step})
        for step in (by_an_optimizer, flash_backward, jacobian_of_each_row)
    ),
    Control("numpy_from_scratch", IN_NUMPY, dtypes=NUMPY, arrays="numpy"),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_single_head_attention_done_otherwise(control, dtype, acquitted):
    acquitted(control, dtype)

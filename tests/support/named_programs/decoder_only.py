"""Right parts of a decoder-only model on torch, which named.yaml edits."""

import math

import torch
import torch.nn.functional as F

ARRAYS = "torch"


def rms_norm(x, params):
    h = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    scale = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (h * scale).to(x.dtype) * params["gamma"]


def rotary_embedding(x, positions, base=None, rotary_width=None):
    width = rotary_width or x.shape[-1]
    inv = 1.0 / (base or 10000.0) ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
    angle = positions.double()[..., None] * inv
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    head, tail = x[..., :width], x[..., width:]
    a, b = head.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.cat([torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2), tail], -1)


def grouped_query_attention(query, key, value, mask=None):
    n_rep = query.size(1) // key.size(1)
    k = torch.repeat_interleave(key, n_rep, dim=1)
    v = torch.repeat_interleave(value, n_rep, dim=1)
    att = torch.einsum("bhqd,bhkd->bhqk", query, k) / math.sqrt(query.size(-1))
    if mask is not None:
        att = att.masked_fill(~mask, torch.finfo(att.dtype).min)
    return torch.einsum("bhqk,bhkd->bhqd", att.softmax(-1), v)


def gated_feed_forward(x, params):
    def lin(t, name):
        y = t @ params["w_" + name]
        return y if params.get("b_" + name) is None else y + params["b_" + name]

    gate = lin(x, "gate")
    up = lin(x, "up")
    hidden = F.silu(gate) * up
    return {"output": lin(hidden, "down"), "hidden": hidden, "gate": gate, "up": up}

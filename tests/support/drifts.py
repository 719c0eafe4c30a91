"""Small adapters that give what others give but for one change: the drifts that a baseline is to tell apart."""

from __future__ import annotations

import types

import torch

from goldformer.adapters.mistakes import implementations
from goldformer.adapters.options import OPTIONS
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook import Textbook


def rounded_to(tensor, bits):
    """A float32 tensor with so many bits after the point, as TF32 has ten and bfloat16 seven."""
    cut = 23 - bits
    whole = tensor.contiguous().view(torch.int32)
    return ((whole + (1 << (cut - 1))) & -(1 << cut)).view(torch.float32)


def attention(product=torch.matmul, sums=None):
    """An adapter's functions of attention and feed-forward, by a product of one's own."""

    def scaled_dot_product_attention(query, key, value, mask=None):
        scores = product(query, key.mT)
        scaled = scores / key.shape[-1] ** 0.5
        if mask is not None:
            scaled_masked = scaled.masked_fill(~mask, torch.finfo(scaled.dtype).min)
        else:
            scaled_masked = scaled
        weights = torch.softmax(scaled_masked, -1)
        return product(weights, value), weights, scores, scaled

    def feed_forward(x, *, params):
        hidden = torch.relu(product(x, params["w_1"]) + params.get("b_1", 0))
        return product(hidden, params["w_2"]) + params.get("b_2", 0), hidden

    return {"scaled_dot_product_attention": scaled_dot_product_attention, "feed_forward": feed_forward}


def reversed_sums(a, b):
    """A product whose sums run the other way round."""
    return torch.matmul(a.flip(-1), b.flip(-2))


def tf32(a, b):
    """A product of factors that keep ten bits after the point."""
    return torch.matmul(rounded_to(a, 10), rounded_to(b, 10)) if a.dtype is torch.float32 else torch.matmul(a, b)


def accumulated_in_bfloat16(a, b):
    """A product whose partial sums are rounded to bfloat16."""
    total = torch.zeros(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + (a.shape[-2], b.shape[-1]))
    for k in range(a.shape[-1]):
        total = (total + a[..., :, k, None] * b[..., None, k, :]).bfloat16().float()
    return total.to(a.dtype)


def adapter(spec, functions, name="drifting", **more):
    """An adapter on torch of some functions."""
    return Adapter.from_object(types.SimpleNamespace(ARRAYS="torch", NAME=name, **functions, **more), name, spec)


def textbook(spec, *changes, declared=None):
    """The textbook with mistakes by their ids, or options as "name: option"."""
    made = [OPTIONS[tuple(c.split(": "))] if ": " in c else implementations()[c].make for c in changes]
    book = type("Changed", (*made, Textbook), {"NAME": "book", "VERSION": "", "CONVENTIONS": declared or {}})
    return Adapter.from_object(book(), "book", spec)

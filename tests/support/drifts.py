"""Small adapters that give what others give but for one change: the drifts that a baseline is to tell apart."""

from __future__ import annotations

import types

import torch

from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.baseline.classify import Classifier
from goldformer.conformance.baseline.model import BaselineRequest
from goldformer.conformance.baseline.record import record
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.spec.formulas.options import OPTIONS


def rounded_to(tensor, bits):
    """A float32 tensor with so many bits after the point: TF32 has ten. Its gradient is that of the whole number."""
    cut = 23 - bits
    whole = tensor.detach().contiguous().view(torch.int32)
    rounded = ((whole + (1 << (cut - 1))) & -(1 << cut)).view(torch.float32)
    return tensor + (rounded - tensor.detach())


def reversed_sums(a, b):
    """A product whose sums run the other way round."""
    return torch.matmul(a.flip(-1), b.flip(-2))


def tf32(a, b):
    """A product of factors that keep ten bits after the point."""
    return torch.matmul(rounded_to(a, 10), rounded_to(b, 10))


def accumulated_in_bfloat16(a, b):
    """A product whose partial sums are rounded to bfloat16."""
    total = 0
    for k in range(a.shape[-1]):
        total = (total + a[..., :, k, None] * b[..., None, k, :]).bfloat16().float()
    return total


def attention(product=torch.matmul):
    """Scaled dot-product attention by a product of one's own."""

    def scaled_dot_product_attention(query, key, value, mask=None):
        scores = product(query, key.mT)
        scaled = scores / key.shape[-1] ** 0.5
        kept = scaled if mask is None else scaled.masked_fill(~mask, torch.finfo(scaled.dtype).min)
        weights = torch.softmax(kept, -1)
        return product(weights, value), weights, scores, scaled

    return scaled_dot_product_attention


def feed_forward(product=torch.matmul, activation=torch.relu):
    """A feed-forward network by a product and an activation of one's own."""

    def feed_forward(x, *, params):
        hidden = activation(product(x, params["w_1"]) + params.get("b_1", 0))
        return product(hidden, params["w_2"]) + params.get("b_2", 0), hidden

    return feed_forward


def layer_norm(eps=1e-5):
    """Layer normalisation with an eps of one's own."""

    def layer_norm(x, *, params):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], params["gamma"], params["beta"], eps)

    return layer_norm


def softmax(scores):
    """As PyTorch has it."""
    return torch.softmax(scores, -1)


def on_torch(spec, *functions, **more):
    """An adapter of some functions."""
    named = {function.__name__: function for function in functions}
    return Adapter.from_object(types.SimpleNamespace(ARRAYS="torch", NAME="mine", **named, **more), "mine.py", spec)


def textbook(spec, *changes, declared=None):
    """The textbook with mistakes by their ids, or options as "name: option"."""
    options = [OPTIONS[tuple(c.split(": "))] for c in changes if ": " in c]
    made = [implementations()[c].steps for c in changes if ": " not in c]
    book = build_textbook(*options, *made, NAME="book", CONVENTIONS=declared or {})
    return Adapter.from_object(book, "book", spec)


def request(**chosen):
    """A request of one's own choice, and else the smallest there is."""
    given = {"devices": ("cpu",), "components": (), "threads": 1, "tf32": False}
    return BaselineRequest(**{**given, **chosen})


def recorded(spec, adapter, *components, dtype="float32", **more):
    """Record the results of an adapter for some components in one dtype."""
    return record(adapter, spec, request(dtypes=(dtype,), components=components, **more))


def moves(spec, old, new):
    """Compare two baselines."""
    return list(Classifier(spec).moves(old, new))

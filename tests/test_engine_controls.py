"""Controls: code unlike the reference that is right all the same must pass, in every dtype, with room to spare."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as torch_attention

from goldformer.adapters import DTYPES, Adapter
from goldformer.conformance.engine import Bench, check_case
from goldformer.conformance.properties import check_property, components_of
from goldformer.conformance.run import load_properties
from goldformer.conformance.verdict import Status

load_properties()

ATTENTION = "scaled_dot_product_attention"


def fits(query, key, value, mask):
    """Raise for what every implementation must refuse."""
    scores = (*query.shape[:-1], key.shape[-2])
    if 0 in (*query.shape, *key.shape, *value.shape):
        raise ValueError("empty")
    if query.shape[:-2] != key.shape[:-2] or query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        raise ValueError("shapes of query, key and value")
    if mask is not None and torch.broadcast_shapes(mask.shape, scores) != scores:
        raise ValueError("mask: shape")


def finished(scores, mask, value, fill=None):
    """Mask with the dtype's lowest number, take the softmax, weigh the values."""
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min if fill is None else fill)
    weights = torch.softmax(scores, -1)
    return weights @ value, weights


def everywhere(mask, query, key):
    """The mask for every score."""
    shape = (*query.shape[:-1], key.shape[-2])
    return torch.ones(shape, dtype=torch.bool, device=query.device) if mask is None else mask.expand(shape)


def root(query):
    return math.sqrt(query.shape[-1])


def scale_on_q(query, key, value, mask):
    return finished((query / root(query)) @ key.transpose(-1, -2), mask, value)


def scale_multiplied(query, key, value, mask):
    return finished(query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5, mask, value)


def fourth_root_scales(query, key, value, mask):
    fourth = query.shape[-1] ** 0.25
    return finished((query / fourth) @ (key / fourth).transpose(-1, -2), mask, value)


def fill_of_minus_1e9(query, key, value, mask):
    return finished(query @ key.transpose(-1, -2) / root(query), mask, value, -1e9)


def fill_of_the_dtypes_lowest(query, key, value, mask):
    return finished(query @ key.transpose(-1, -2) / root(query), mask, value)


def fill_of_minus_infinity_then_zeros(query, key, value, mask):
    _, weights = finished(query @ key.transpose(-1, -2) / root(query), mask, value, -math.inf)
    weights = weights.nan_to_num()
    return weights @ value, weights


def bias_of_minus_infinity(query, key, value, mask):
    scores = query @ key.transpose(-1, -2) / root(query)
    if mask is not None:
        scores = scores + torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, -math.inf)
    weights = torch.softmax(scores, -1).nan_to_num()
    return weights @ value, weights


def mask_after_softmax_then_renormalised(query, key, value, mask):
    """Uniform where no key is kept; where the kept ones underflow it is lost, so it is no control for those."""
    weights = torch.softmax(query @ key.transpose(-1, -2) / root(query), -1)
    if mask is not None:
        kept = weights * mask
        total = kept.sum(-1, keepdim=True)
        weights = torch.where(total > 0, kept / total, torch.full_like(weights, 1 / weights.shape[-1]))
    return weights @ value, weights


def online_softmax_in_blocks(query, key, value, mask):
    """Blocks of two keys, with a running maximum and total, as flash attention has it."""
    wide, rows = torch.promote_types(query.dtype, torch.float32), query.shape[:-1]
    top, total = query.new_full((*rows, 1), -math.inf, dtype=wide), query.new_zeros((*rows, 1), dtype=wide)
    output = query.new_zeros((*rows, value.shape[-1]), dtype=wide)
    kept = everywhere(mask, query, key)
    for start in range(0, key.shape[-2], 2):
        block = slice(start, start + 2)
        scores = query.to(wide) @ key[..., block, :].to(wide).transpose(-1, -2) / root(query)
        scores = scores.masked_fill(~kept[..., block], torch.finfo(query.dtype).min)
        higher = torch.maximum(top, scores.amax(-1, keepdim=True))
        powers, shrink = torch.exp(scores - higher), torch.exp(top - higher)
        total = total * shrink + powers.sum(-1, keepdim=True)
        output = output * shrink + powers @ value[..., block, :].to(wide)
        top = higher
    return ((output / total).to(query.dtype),)


def accumulates_in_float32(query, key, value, mask):
    wide = torch.promote_types(query.dtype, torch.float32)
    wide_outputs = finished(query.to(wide) @ key.to(wide).transpose(-1, -2) / root(query), mask, value.to(wide))
    return tuple(x.to(query.dtype) for x in wide_outputs)


def softmax_alone_in_float32(query, key, value, mask):
    scores = query @ key.transpose(-1, -2) / root(query)
    wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
    _, weights = finished(wide, mask, value.to(wide.dtype))
    weights = weights.to(query.dtype)
    return weights @ value, weights


def sums_in_reverse(query, key, value, mask):
    """Widths from last to first in the scores, keys from last to first in the softmax and in the sum."""
    scores = query.flip(-1) @ key.flip(-1).flip(-2).transpose(-1, -2) / root(query)
    turned = None if mask is None else mask.expand(*mask.shape[:-1], key.shape[-2]).flip(-1)
    output, weights = finished(scores, turned, value.flip(-2))
    return output, weights.flip(-1)


def einsum(query, key, value, mask):
    scores = torch.einsum("...qd,...kd->...qk", query, key) / root(query)
    _, weights = finished(scores, mask, value)
    return torch.einsum("...qk,...kv->...qv", weights, value), weights


def one_query_at_a_time(query, key, value, mask):
    kept = everywhere(mask, query, key)
    rows = [
        finished(query[..., i : i + 1, :] @ key.transpose(-1, -2) / root(query), kept[..., i : i + 1, :], value)
        for i in range(query.shape[-2])
    ]
    return tuple(torch.cat(parts, -2) for parts in zip(*rows, strict=True))


def log_softmax_then_exp(query, key, value, mask):
    scores = query @ key.transpose(-1, -2) / root(query)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    weights = torch.log_softmax(scores, -1).exp()
    return weights @ value, weights


def torchs_own(query, key, value, mask):
    axes = (None,) * (query.ndim - mask.ndim) if mask is not None else ()
    return (torch_attention(query, key, value, attn_mask=mask if mask is None else mask[axes]),)


def annotated_transformer(x, width):
    """exp(2i · −ln(10000)/d), as most tutorials have it; the angles in `width`."""
    seq, d_model = x.shape[-2:]
    position = torch.arange(seq, dtype=width)[:, None]
    rate = torch.exp(torch.arange(0, d_model, 2, dtype=width) * (-math.log(10000.0) / d_model))
    table = torch.zeros(seq, d_model, dtype=width)
    table[:, 0::2] = torch.sin(position * rate)
    table[:, 1::2] = torch.cos(position * rate[: d_model // 2])
    return table


def power_of_ten_thousand(x, width):
    seq, d_model = x.shape[-2:]
    even = torch.arange(0, d_model, 2, dtype=width)
    angle = torch.arange(seq, dtype=width)[:, None] / torch.pow(10000.0, even / d_model)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)[:, :d_model]


def cosine_as_shifted_sine(x, width):
    seq, d_model = x.shape[-2:]
    channel = torch.arange(d_model, dtype=width)
    rate = 10000.0 ** (-2 * torch.div(channel, 2, rounding_mode="floor") / d_model)
    return torch.sin(torch.outer(torch.arange(seq, dtype=width), rate) + channel % 2 * math.pi / 2)


def plain_python_floats(x, width):
    seq, d_model = x.shape[-2:]
    return torch.tensor(
        [
            [(math.cos if c % 2 else math.sin)(pos / 10000 ** (c // 2 * 2 / d_model)) for c in range(d_model)]
            for pos in range(seq)
        ],
        dtype=width,
    )


ZEROS = {"empty_row": "zeros"}
HALF = ("float16", "bfloat16")
#: By control: what it declares, and the dtypes in which it is right.
CONTROLS = {
    scale_on_q: ({}, DTYPES),
    scale_multiplied: ({}, DTYPES),
    fourth_root_scales: ({}, DTYPES),
    fill_of_minus_1e9: ({}, [d for d in DTYPES if d != "float16"]),
    fill_of_the_dtypes_lowest: ({}, DTYPES),
    fill_of_minus_infinity_then_zeros: (ZEROS, DTYPES),
    bias_of_minus_infinity: (ZEROS, DTYPES),
    mask_after_softmax_then_renormalised: ({}, DTYPES),
    online_softmax_in_blocks: ({}, DTYPES),
    accumulates_in_float32: ({}, HALF),
    softmax_alone_in_float32: ({}, HALF),
    sums_in_reverse: ({}, DTYPES),
    einsum: ({}, DTYPES),
    one_query_at_a_time: ({}, DTYPES),
    log_softmax_then_exp: ({}, DTYPES),
    torchs_own: (ZEROS, DTYPES),
}  # fmt: skip
ENCODINGS = (annotated_transformer, power_of_ten_thousand, cosine_as_shifted_sine, plain_python_floats)

#: A correct implementation may come this near to the tolerance, and no nearer.
ROOM = 0.5


@pytest.fixture
def all_pass(spec, request):
    """Judge every case of a component: all of them pass, and the largest ratio leaves room."""

    def check(function, component, dtype, conventions=None):
        thing = SimpleNamespace(ARRAYS="torch", CONVENTIONS=conventions or {}, **{component: function})
        bench = Bench(spec, Adapter.from_object(thing, "control", spec), dtype, "cpu")
        # Gradients under another convention are test_engine_gradients.py's business, and no control drops weights.
        cases = [c for c in spec.cases_of(component) if c.cotangent is None and "dropout_rate" not in c.attributes]
        verdicts = [check_case(case, bench) for case in cases]
        assert [(v.check, v.message) for v in verdicts if v.status is not Status.PASSED] == []
        largest = max(v.ratio for v in verdicts if v.ratio is not None)
        request.node.user_properties.append(("largest_ratio", largest))
        assert 0 < largest <= ROOM

    return check


def whole(control):
    """The control with the signature of the component, refusing what must be refused."""

    def scaled_dot_product_attention(query, key, value, mask=None):
        fits(query, key, value, mask)
        return control(query, key, value, mask)

    return scaled_dot_product_attention


@pytest.mark.parametrize(
    ("control", "dtype"),
    [(control, dtype) for control, (_, dtypes) in CONTROLS.items() for dtype in dtypes],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_attention_done_otherwise_passes_with_room(control, dtype, all_pass):
    all_pass(whole(control), ATTENTION, dtype, CONTROLS[control][0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("adds_in", ["float32 or finer", "the dtype"])
@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.__name__)
def test_the_encoding_done_otherwise_passes_with_room(encoding, adds_in, dtype, all_pass):
    width = torch.promote_types(getattr(torch, dtype), torch.float32)

    def positional_encoding(x):
        if 0 in x.shape:
            raise ValueError("x: empty")
        table = encoding(x, width)
        return x + table.to(x.dtype) if adds_in == "the dtype" else (x + table).to(x.dtype)

    all_pass(positional_encoding, "positional_encoding", dtype)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.__name__)
def test_no_property_accuses_attention_done_otherwise(control, spec):
    conventions, dtypes = CONTROLS[control]
    thing = SimpleNamespace(ARRAYS="torch", CONVENTIONS=conventions, **{ATTENTION: whole(control)})
    bench = Bench(spec, Adapter.from_object(thing, "control", spec), dtypes[-1], "cpu")
    verdicts = [
        check_property(prop, ATTENTION, bench)
        for prop in spec.properties.values()
        if ATTENTION in components_of(prop, spec)
    ]
    assert [v.check for v in verdicts if v.reason == "not-implemented"] == ["sdpa-dropout"]
    assert len(verdicts) == 10
    assert [(v.check, v.message) for v in verdicts if v.bad] == []
    assert max(v.ratio for v in verdicts if v.ratio is not None) <= ROOM


def test_the_fill_that_float16_cannot_hold_is_no_control_there(spec):
    thing = SimpleNamespace(ARRAYS="torch", **{ATTENTION: whole(fill_of_minus_1e9)})
    bench = Bench(spec, Adapter.from_object(thing, "control", spec), "float16", "cpu")
    assert check_case(spec.cases["sdpa-distinct-sizes"], bench).status is Status.PASSED
    masked = check_case(spec.cases["sdpa-causal"], bench)
    assert (masked.status, masked.reason) == (Status.ERRORED, "raised")
    assert "Half without overflow" in masked.message

"""Each mistake in softmax, attention and masks gives what real code with it gives."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from goldformer.adapters import Adapter
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property

ATTENTION = "scaled_dot_product_attention"
MISTAKES = [id_ for id_, made in implementations().items() if made.module == "attention"]
#: No case can list it: what chance gives may be right, and so may what a single call gives. A property catches it.
BY_SEVERAL_CALLS = {"nondeterminism": "repeat-calls", "mask-left-over": "no-memory"}


def test_a_promoted_dtype_is_named(verdicts_on_mistake):
    assert {verdict.reason for verdict in verdicts_on_mistake("dtype-promote", "float32")} == {"wrong-dtype"}


@pytest.mark.parametrize("mistake", BY_SEVERAL_CALLS)
def test_what_differs_from_call_to_call_is_caught_by_a_property(mistake, spec):
    adapter = Adapter.from_object(made(mistake), mistake, spec)
    prop = spec.properties[BY_SEVERAL_CALLS[mistake]]
    assert mistake in prop.catches
    verdict = check_property(prop, ATTENTION, Bench(spec, adapter, "float64", "cpu"))
    assert verdict.status is Status.FAILED
    assert verdict.ratio >= 10


# The same in PyTorch, as it is written


def made(mistake):
    return implementations()[mistake].make()


def draw(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).integers(-64, 65, shape) / 32)


# (batch, heads, tokens, width), no two sizes alike.
QUERY, KEY, VALUE = draw(1, 2, 3, 4, 5), draw(2, 2, 3, 6, 5), draw(3, 2, 3, 6, 7)
MASK = (torch.arange(6) < torch.tensor([6, 2])[:, None])[:, None, None, :]


def attend(
    scale=lambda scores: scores / math.sqrt(5),
    mask=lambda scores: scores.masked_fill(~MASK, -1e9),
    softmax=lambda scores: scores.softmax(-1),
):
    weights = softmax(mask(scale(QUERY @ KEY.transpose(-2, -1))))
    return weights @ VALUE, weights


WRITTEN = {
    "softmax-unstable": attend(softmax=lambda s: s.exp() / s.exp().sum(-1, keepdim=True)),
    "softmax-one-maximum": attend(softmax=lambda s: (s - s.max()).exp() / (s - s.max()).exp().sum(-1, keepdim=True)),
    "softmax-whole-array": attend(softmax=lambda s: s.exp() / s.exp().sum()),
    "softmax-logsumexp": attend(softmax=lambda s: torch.exp(s - s.logsumexp(-1, keepdim=True))),
    "scale-missing": attend(lambda s: s),
    "scale-multiply": attend(lambda s: s / QUERY.shape[-1] ** -0.5),
    "scale-no-root": attend(lambda s: s / QUERY.shape[-1]),
    "scale-seq-len": attend(lambda s: s / math.sqrt(QUERY.shape[-2])),
    "scale-dim-v": attend(lambda s: s / math.sqrt(VALUE.shape[-1])),
    "scale-all-heads": attend(lambda s: s / math.sqrt(QUERY.shape[1] * QUERY.shape[-1])),
    "scale-after-softmax": attend(lambda s: s, softmax=lambda s: s.softmax(-1) / math.sqrt(5)),
    "softmax-query-axis": attend(softmax=lambda s: s.softmax(-2)),
    "softmax-batch-axis": attend(softmax=lambda s: s.softmax(0)),
    "softmax-head-axis": attend(softmax=lambda s: s.softmax(1)),
    # Of four axes torch takes the second.
    "softmax-implicit-axis": attend(softmax=lambda s: s.softmax(1)),
    "softmax-heads-and-keys": attend(softmax=lambda s: s.exp() / s.exp().sum((1, 3), keepdim=True)),
    # √d_k of the default dtype, as a tensor
    "scale-float32": attend(lambda s: s / torch.sqrt(torch.tensor(5))),
    "mask-inverted": attend(mask=lambda s: s.masked_fill(MASK, -1e9)),
    "mask-inverted-zeros": attend(
        softmax=lambda s: functional.scaled_dot_product_attention(QUERY, KEY, torch.eye(6).double(), ~MASK)
    ),
    # Without a causal mask, all is right.
    "causal-drops-padding": attend(),
    "mask-after-softmax": attend(mask=lambda s: s, softmax=lambda s: s.softmax(-1) * MASK),
    "mask-multiply-zero": attend(mask=lambda s: s * MASK),
    "mask-add-0-minus1": attend(mask=lambda s: s + (MASK.double() - 1)),
    "mask-added-true": attend(mask=lambda s: s + (~MASK).double()),
    "mask-added-1e4": attend(mask=lambda s: s + (1 - MASK.double()) * -1e4),
    "mask-added-1e9": attend(mask=lambda s: s + (1 - MASK.double()) * -1e9),
    "fill-hundred": attend(mask=lambda s: s.masked_fill(~MASK, -100)),
    "mask-not-inplace": attend(mask=lambda s: s),
    "fill-1e9-fp16": attend(),
    "fill-too-small": attend(mask=lambda s: s.masked_fill(~MASK, -1e4)),
    "fill-dampens": attend(mask=lambda s: s.masked_fill(~MASK, -20)),
    "zero-times-inf": attend(mask=lambda s: s + (1 - MASK.double()) * -math.inf),
    "dtype-promote": attend(),
    # With a mask, all is right.
    "causal-when-unmasked": attend(),
}


@pytest.mark.parametrize("mistake", WRITTEN)
def test_attention_is_that_of_code_with_the_mistake(mistake):
    arguments = (tensor.numpy() for tensor in (QUERY, KEY, VALUE, MASK))
    with np.errstate(invalid="ignore"):
        attended = made(mistake).scaled_dot_product_attention(*arguments)
    output, weights = WRITTEN[mistake]
    np.testing.assert_allclose(attended["weights"], weights, rtol=0, atol=1e-14)
    np.testing.assert_allclose(attended["output"], output, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_a_logarithm_of_large_scores_is_rounded_as_in_torch(dtype):
    scores = torch.tensor([[1000, 1000], [1000, 999], [-12032, -12032]], dtype=getattr(torch, dtype))
    expected = torch.exp(scores - scores.logsumexp(-1, keepdim=True))
    assert (expected - scores.softmax(-1)).abs().max() > 100 * torch.finfo(scores.dtype).eps
    assert np.array_equal(made("softmax-logsumexp").softmax(scores.numpy()), expected)


def test_without_a_mask_it_is_causal():
    arguments = [tensor.numpy() for tensor in (QUERY, KEY, VALUE)]
    expected = torch.nn.functional.scaled_dot_product_attention(QUERY, KEY, VALUE, is_causal=True)
    attended = made("causal-when-unmasked").scaled_dot_product_attention(*arguments)
    np.testing.assert_allclose(attended["output"], expected, rtol=0, atol=1e-13)


def test_padding_is_seen_under_a_causal_mask():
    query, key, value = QUERY.numpy(), KEY[..., :4, :].numpy(), VALUE[..., :4, :].numpy()
    causal = torch.ones(4, 4).tril().bool()
    attention = made("causal-drops-padding").scaled_dot_product_attention
    both = attention(query, key, value, (MASK[..., :4] & causal).numpy())
    expected = functional.scaled_dot_product_attention(QUERY, KEY[..., :4, :], VALUE[..., :4, :], is_causal=True)
    np.testing.assert_allclose(both["output"], expected, rtol=0, atol=1e-13)


def test_a_score_below_the_fill_is_beaten_by_it():
    # The kept score is −20000 and the masked one is filled with −10000, which wins.
    query, key, mask = np.array([[-200.0]]), np.array([[100.0], [0.0]]), np.array([[True, False]])
    assert made("fill-too-small").scaled_dot_product_attention(query, key, key, mask)["weights"].tolist() == [[0, 1]]


def test_what_is_added_to_a_hidden_score_leaves_it_in_reach_and_keeps_a_row_without_a_key():
    # The hidden score is 4 and the kept one −12288: with −10000 added, the hidden one is still larger.
    query, key, mask = np.array([[1.0]]), np.array([[-12288.0], [4.0]]), np.array([[True, False]])
    assert made("mask-added-1e4").scaled_dot_product_attention(query, key, key, mask)["weights"].tolist() == [[0, 1]]
    nothing, everything = np.zeros((4, 6), dtype=bool), np.ones((4, 6), dtype=bool)
    inputs = [tensor.numpy() for tensor in (QUERY, KEY, VALUE)]
    for mistake, apart in (("mask-added-1e4", 1e-11), ("mask-added-1e9", 1e-6)):
        empty, whole = (
            made(mistake).scaled_dot_product_attention(*inputs, m)["weights"] for m in (nothing, everything)
        )
        np.testing.assert_allclose(empty, whole, rtol=0, atol=apart)


@pytest.mark.parametrize(("lead", "axis"), [((), 1), ((2,), 0), ((2, 3), 1)])
def test_without_an_axis_torch_takes_the_first_of_three_and_the_second_of_two_or_four(lead, axis):
    query, key = draw(4, *lead, 4, 5), draw(5, *lead, 6, 5)
    expected = (query @ key.transpose(-2, -1) / math.sqrt(5)).softmax(axis)
    attended = made("softmax-implicit-axis").scaled_dot_product_attention(query.numpy(), key.numpy(), key.numpy())
    np.testing.assert_allclose(attended["weights"], expected, rtol=0, atol=1e-14)


def test_a_mask_is_left_over_for_scores_of_its_size():
    query, key, value, mask = (tensor.numpy() for tensor in (QUERY, KEY, VALUE, MASK))
    attention = made("mask-left-over").scaled_dot_product_attention
    before, masked, after = (attention(query, key, value, m)["weights"] for m in (None, mask, None))
    np.testing.assert_allclose(before, attend(mask=lambda s: s)[1], rtol=0, atol=1e-14)
    np.testing.assert_allclose(masked, attend()[1], rtol=0, atol=1e-14)
    assert np.array_equal(after, masked)
    one_key = attention(query, key[..., :1, :], value[..., :1, :])["weights"]
    assert (one_key == 1).all()


def test_a_fill_that_a_half_cannot_hold_leaves_an_empty_row_nan():
    half, mask = np.ones((2, 3), dtype="float16"), np.zeros((2, 2), dtype=bool)
    assert np.isnan(made("fill-1e9-fp16").scaled_dot_product_attention(half, half, half, mask)["output"]).all()


IDS = torch.tensor([[5, 3, 3], [0, 4, 3]])
CAUSAL = {
    "causal-flipped": torch.triu(torch.ones(4, 6)),
    "causal-strict": torch.tril(torch.ones(4, 6), diagonal=-1),
    "causal-plus-one": torch.tril(torch.ones(4, 6), diagonal=1),
}
PADDING = {
    "pad-on-query": (IDS != 3)[:, None, :, None],
    "pad-greater": (IDS > 3)[:, None, None, :],
    "padding-idx": (IDS != 0)[:, None, None, :],
}


@pytest.mark.parametrize("mistake", CAUSAL)
def test_a_causal_mask_is_that_of_code_with_the_mistake(mistake):
    assert np.array_equal(made(mistake).causal_mask(q_seq=4, kv_seq=6), CAUSAL[mistake].bool())


@pytest.mark.parametrize("mistake", PADDING)
def test_a_padding_mask_is_that_of_code_with_the_mistake(mistake):
    assert np.array_equal(made(mistake).padding_mask(IDS.numpy(), pad_id=3), PADDING[mistake])


def test_every_mistake_is_written_here():
    assert {*MISTAKES} == WRITTEN.keys() | CAUSAL.keys() | PADDING.keys() | BY_SEVERAL_CALLS.keys()

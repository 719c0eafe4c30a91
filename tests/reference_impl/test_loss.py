"""Output layer, targets and losses, against torch's own and by hand."""

import math

import pytest
import torch
from torch import Tensor

from goldformer.reference_impl import (
    cross_entropy,
    kl_divergence,
    log_softmax,
)

BATCH, SEQ, D_MODEL, VOCAB, PAD = 3, 5, 14, 29, 4
TARGETS = torch.tensor([[9, 3, 28, 0, 1], [2, 5, 11, PAD, PAD], [6, PAD, PAD, PAD, PAD]])
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
HALVES = FLOATS[2:]
INF = math.inf


def real(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# output layer


# log softmax


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_logarithm_is_right_where_the_softmax_is_rounded_to_0(dtype):
    scores = torch.tensor([-2e4, 2e4, 2e4], dtype=dtype)
    gap = scores[1].item() - scores[0].item()

    expected = torch.tensor([-gap - math.log(2), -math.log(2), -math.log(2)], dtype=torch.float64)
    torch.testing.assert_close(log_softmax(scores).double(), expected, rtol=torch.finfo(dtype).eps, atol=0)
    assert log_softmax(torch.tensor([0.0, -INF], dtype=dtype)).tolist() == [0, -INF]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_vocabulary_larger_than_the_largest_float16_is_summed(dtype):
    # 2^17 words alike: log 2^17 each, of 131072 > 65504.
    log_p = log_softmax(torch.zeros(2**17, dtype=dtype))

    torch.testing.assert_close(log_p[0].double(), -torch.tensor(17 * math.log(2)).double(), rtol=4e-3, atol=0)


# targets


# cross-entropy


@pytest.mark.parametrize("wild", [math.nan, INF, -INF])
def test_what_stands_at_padding_reaches_neither_loss_nor_gradient(wild):
    scores = real(BATCH, SEQ, VOCAB)
    expected = cross_entropy(scores, TARGETS, PAD)
    spoilt = torch.where((TARGETS == PAD)[..., None], wild, scores).requires_grad_()
    got = cross_entropy(spoilt, TARGETS, PAD)
    got[0].backward()

    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert spoilt.grad.isfinite().all()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_ten_thousand_tokens_do_not_overflow_a_half_type(dtype):
    # Their losses sum to 100000 log 2, above 65504.
    loss, _ = cross_entropy(torch.zeros(10, 10000, 2, dtype=dtype), torch.ones(10, 10000, dtype=torch.int64), 0)

    assert loss.dtype == dtype
    assert loss.item() == pytest.approx(math.log(2), rel=torch.finfo(dtype).eps)


def test_compiled_a_batch_of_padding_alone_is_not_a_number():
    # No value can be read while the graph is traced, so the refusal is missing there.
    compiled = torch.compile(cross_entropy, fullgraph=True, backend="eager")
    loss, token_losses = compiled(real(1, 2, VOCAB), torch.full((1, 2), PAD), PAD)

    assert loss.isnan()
    assert not token_losses.any()


# divergence


def test_a_word_without_probability_adds_nothing_and_has_a_finite_gradient():
    target = torch.tensor([[0.0, 0.25, 0.75], [0.0, 1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    scores = torch.tensor([[-INF, 0.0, 0.0], [1.0, 2.0, 3.0]], dtype=torch.float64, requires_grad=True)
    output = kl_divergence(target, scores)
    output.sum().backward()

    by_hand = [0.25 * math.log(0.5) + 0.75 * math.log(1.5), math.log(sum(map(math.exp, (-1, 0, 1))))]
    assert output.tolist() == pytest.approx(by_hand, abs=1e-15)
    assert target.grad.isfinite().all()
    assert scores.grad.isfinite().all()
    # A word that the target holds possible and the model impossible is infinitely far.
    assert kl_divergence(target.detach().flip(-1), scores)[0].item() == INF


def test_a_negative_probability_is_not_passed_over_in_silence():
    assert kl_divergence(torch.tensor([-0.5, 1.5]), torch.zeros(2)).isnan()

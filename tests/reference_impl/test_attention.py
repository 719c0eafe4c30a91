"""Softmax, attention, masks and the single head, against the documents' numbers, plain Python and torch."""

import math

import pytest
import torch
from torch import Tensor

from goldformer.reference_impl import (
    SingleHeadAttention,
    SingleHeadResult,
    causal_mask,
    padding_mask,
    scaled_dot_product_attention,
    softmax,
)

BATCH, HEADS, Q_SEQ, KV_SEQ, D_K, D_V = 3, 2, 5, 7, 11, 13
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def real(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# softmax


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_softmax_survives_the_largest_numbers_of_its_dtype(dtype):
    largest, third = torch.finfo(dtype).max, 1 / 3
    rows = [[largest, -largest, 0], [-largest] * 3, [largest] * 3, [1000, 1000, -1000]]
    expected = [[1, 0, 0], [third] * 3, [third] * 3, [0.5, 0.5, 0]]

    assert torch.equal(softmax(torch.tensor(rows, dtype=dtype)), torch.tensor(expected, dtype=dtype))


def test_softmax_ignores_one_number_added_to_a_row():
    # Sixteenths, shifted by a power of two: nothing rounds before the subtraction, so the bits agree.
    scores = torch.randint(-64, 64, (Q_SEQ, KV_SEQ), generator=torch.Generator().manual_seed(1)) / 16

    assert torch.equal(softmax(scores), softmax(scores + 4096))


# scaled dot-product attention


@pytest.mark.parametrize(
    ("dtype", "level"),
    [(dtype, level) for dtype in FLOATS for level in (1.0, -1.2e4, 6e4, -6e4)]
    + [(dtype, level) for dtype in FLOATS if dtype != torch.float16 for level in (1e5, -1e5, 1e30, -1e30)]
    + [(torch.float16, -65472.0), (torch.float16, 65504.0)],
    ids=str,
)
def test_a_masked_key_has_exactly_no_weight_however_low_the_kept_scores(dtype, level):
    # The masked keys score highest, and the second query keeps one key, the third two.
    query = torch.ones(3, 1, dtype=dtype)
    key = torch.tensor([[abs(level)], [level], [level]], dtype=torch.float64).to(dtype)
    mask = torch.tensor([[True, True, True], [False, True, False], [False, True, True]])
    _, weights = scaled_dot_product_attention(query, key, key, mask)

    assert weights[1:].tolist() == [[0, 1, 0], [0, 0.5, 0.5]]


def test_what_a_masked_key_holds_is_of_no_account():
    query, key, value = real(Q_SEQ, D_K), real(KV_SEQ, D_K, seed=1), real(KV_SEQ, D_V, seed=2)
    mask = torch.arange(KV_SEQ) < 4
    expected = scaled_dot_product_attention(query, key, value, mask)
    key[4], key[5], key[6] = math.inf, math.nan, 1e300

    got = scaled_dot_product_attention(query, key, value, mask)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_row_without_a_key_is_uniform_and_has_finite_gradients(dtype):
    query, key, value = (
        real(*shape, seed=seed).to(dtype).requires_grad_()
        for seed, shape in enumerate(((Q_SEQ, D_K), (KV_SEQ, D_K), (KV_SEQ, D_V)))
    )
    mask = causal_mask(Q_SEQ, KV_SEQ)
    mask[2] = False
    output, weights = scaled_dot_product_attention(query, key, value, mask)
    assert torch.equal(weights[2], torch.full((KV_SEQ,), 1 / KV_SEQ, dtype=dtype))

    by_row = torch.autograd.grad(output[2].sum(), (query, key, value), retain_graph=True)
    assert not by_row[0].any()  # the scores of that row are constants
    assert not by_row[1].any()
    torch.testing.assert_close(by_row[2], torch.full_like(value, 1 / KV_SEQ))
    everything = torch.autograd.grad((output.sin().sum(), weights.sin().sum()), (query, key, value))
    for gradient in everything:
        assert gradient.isfinite().all()
        assert gradient.any()


# masks


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_a_padding_mask_hides_the_padding_for_all_heads_and_queries(dtype):
    ids = torch.tensor([[4, 9, 0], [7, 0, 0]], dtype=dtype)

    assert padding_mask(ids, 0).tolist() == [[[[True, True, False]]], [[[True, False, False]]]]
    assert padding_mask(ids, 9).tolist() == [[[[True, False, True]]], [[[True, True, True]]]]
    assert padding_mask(ids, -1).all()
    assert padding_mask(ids, 0).shape == (2, 1, 1, 3)


# single head


def test_a_single_head_result_is_a_tuple_in_the_order_of_the_contract():
    assert SingleHeadResult._fields == ("output", "weights", "query", "key", "value", "scores")


def test_a_single_head_is_causal_unless_told_otherwise():
    module = SingleHeadAttention(D_K, dtype=torch.float64)
    x = real(Q_SEQ, D_K)
    changed = x.clone()
    changed[-1] += 1

    assert torch.equal(module(x).output[:-1], module(changed).output[:-1])
    module.causal = False
    assert (module(x).output[:-1] - module(changed).output[:-1]).abs().min() > 0

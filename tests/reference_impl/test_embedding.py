"""Token embedding and positional encoding, against Python's own sine and cosine."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from goldformer.reference_impl import (
    Transformer,
    positional_encoding,
    sinusoid_table,
    token_embedding,
)

BATCH, SEQ, D_MODEL, VOCAB = 3, 5, 14, 29
NARROW = [torch.float32, torch.float16, torch.bfloat16]
FLOATS = [torch.float64, *NARROW]


def row(position: int, d_model: int) -> list[float]:
    """The formula for one position, channel by channel."""
    wave = (math.sin, math.cos)
    return [wave[c % 2](position / 10000 ** ((c - c % 2) / d_model)) for c in range(d_model)]


def close(got: Tensor, expected: list[Any], tolerance: float) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=0, atol=tolerance)


# token embedding


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_an_id_selects_its_row(dtype):
    table = torch.arange(VOCAB * D_MODEL, dtype=torch.float64).reshape(VOCAB, D_MODEL)
    ids = torch.tensor([[0, 28, 3], [3, 3, 1]], dtype=dtype)
    expected = [[list(range(i * D_MODEL, (i + 1) * D_MODEL)) for i in sample] for sample in ids.tolist()]

    assert token_embedding(ids, table).tolist() == expected


def test_the_shapes_of_walkthrough():
    ids = torch.tensor([[1, 3, 5, 7, 9], [2, 4, 6, 8, 10]])

    assert token_embedding(ids, torch.zeros(10000, 512)).shape == (2, 5, 512)


def test_a_row_that_is_used_twice_has_both_gradients():
    table = torch.zeros(4, 2, requires_grad=True)
    token_embedding(torch.tensor([[1, 3, 1]]), table).sum().backward()

    assert table.grad.tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


def test_the_table_starts_standard_normal():
    table = Transformer(500, 200, 1, 1, 1, 1, pad_id=0).table.detach()

    # 10^5 draws: seven standard errors of the mean are 0.022, of the deviation 0.016.
    assert table.mean().item() == pytest.approx(0, abs=0.022)
    assert table.std().item() == pytest.approx(1, abs=0.016)


# positional encoding


def test_the_matrix_of_walkthrough_with_the_angles_of_its_own_formula():
    # pos / 1 and pos / 100; the document prints pos / 100 and pos / 10000.
    expected = [[f(pos / scale) for scale in (1, 100) for f in (math.sin, math.cos)] for pos in range(4)]

    close(sinusoid_table(4, 4, dtype=torch.float64), expected, 1e-16)
    assert sinusoid_table(4, 4)[0].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("d_model", [1, 2, 7, 14, 512])
def test_the_table_is_the_formula_and_an_odd_width_ends_in_a_sine(d_model):
    table = sinusoid_table(5000, d_model, dtype=torch.float64)

    # An angle of 5000 carries two roundings of 2^-53 each: the power and the quotient, 1e-12 together.
    for position in (0, 1, 2, 17, 1000, 4096, 4999):
        close(table[position], row(position, d_model), 2e-12)


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("d_model", [7, 512])
def test_a_narrow_table_is_the_wide_one_rounded(d_model, dtype):
    wide = sinusoid_table(5000, d_model, dtype=torch.float64)

    assert torch.equal(sinusoid_table(5000, d_model, dtype=dtype), wide.to(dtype))
    narrow = sinusoid_table(5000, d_model, dtype=dtype)[4999].double()
    close(narrow, row(4999, d_model), torch.finfo(dtype).eps / 2)


def test_a_shift_of_position_is_one_fixed_rotation_for_all_positions():
    table, shift = sinusoid_table(1000, D_MODEL, dtype=torch.float64), 19
    pairs = table.unflatten(1, (-1, 2))  # (position, pair, sine and cosine)
    angle = torch.tensor([shift / 10000 ** (2 * i / D_MODEL) for i in range(D_MODEL // 2)], dtype=torch.float64)
    sine = pairs[:-shift, :, 0] * angle.cos() + pairs[:-shift, :, 1] * angle.sin()
    cosine = pairs[:-shift, :, 1] * angle.cos() - pairs[:-shift, :, 0] * angle.sin()

    torch.testing.assert_close(pairs[shift:], torch.stack((sine, cosine), dim=-1), rtol=0, atol=1e-12)


def test_rows_are_distinct_and_within_one():
    table = sinusoid_table(5000, D_MODEL)

    assert len(table.unique(dim=0)) == 5000
    assert table.abs().max() <= 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("seq", [1, SEQ, 5001])
def test_every_sample_gets_the_same_rows_added(seq, dtype):
    x = torch.randn(2, seq, 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = x + sinusoid_table(seq, 6, dtype=torch.float64).to(dtype)

    assert torch.equal(positional_encoding(x), expected)

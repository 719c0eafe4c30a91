"""Token embedding and positional encoding, against Python's own sine and cosine."""

import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from goldformer.reference_impl import (
    PositionalEncoding,
    TokenEmbedding,
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

    assert TokenEmbedding(10000, 512)(ids).shape == (2, 5, 512)


def test_a_row_that_is_used_twice_has_both_gradients():
    module = TokenEmbedding(4, 2, dtype=torch.float64)
    module(torch.tensor([[1, 3, 1]])).sum().backward()

    assert module.table.grad.tolist() == [[0, 0], [2, 2], [0, 0], [1, 1]]


def test_the_table_starts_standard_normal():
    table = TokenEmbedding(500, 200).table.detach()

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
    assert torch.equal(PositionalEncoding(6, dtype=dtype)(x), expected)


# the module


def test_the_rows_are_saved_but_not_trained():
    module = PositionalEncoding(D_MODEL, max_len=17)

    assert list(module.parameters()) == []
    assert set(module.state_dict()) == {"pe"}
    assert module.pe.shape == (1, 17, D_MODEL)
    assert not module.pe.requires_grad


def test_the_rows_have_the_length_of_n9_unless_told_otherwise():
    assert PositionalEncoding(D_MODEL).pe.shape == (1, 5000, D_MODEL)


def test_the_saved_rows_of_n9_can_be_loaded():
    # Its frequencies are exponentials, in float32: up to 3e-4 off near position 5000.
    frequency = torch.exp(torch.arange(0, D_MODEL, 2) * -(math.log(10000.0) / D_MODEL))
    angle = torch.arange(5000)[:, None] * frequency
    rows = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)[None]
    module = PositionalEncoding(D_MODEL)
    assert (module.pe - rows).abs().max() < 1e-3

    module.load_state_dict({"pe": rows})
    assert torch.equal(module.pe, rows)


@pytest.mark.parametrize("start", FLOATS, ids=str)
@pytest.mark.parametrize("end", FLOATS, ids=str)
def test_the_rows_follow_the_module_to_another_dtype_without_the_old_rounding(start, end):
    module = nn.Sequential(PositionalEncoding(D_MODEL, max_len=17, dtype=start)).to(end)

    assert torch.equal(module.get_buffer("0.pe")[0], sinusoid_table(17, D_MODEL, dtype=torch.float64).to(end))
    assert set(module.state_dict()) == {"0.pe"}


def test_the_rows_follow_the_module_to_another_device():
    assert PositionalEncoding(D_MODEL, max_len=17).to("meta").pe.is_meta
    assert PositionalEncoding(D_MODEL, max_len=17, device="meta").pe.is_meta


def test_moving_in_the_same_dtype_keeps_the_rows_that_were_loaded():
    module = PositionalEncoding(D_MODEL, max_len=17)
    module.load_state_dict({"pe": torch.ones(1, 17, D_MODEL)})

    assert module.to("cpu").float().pe.eq(1).all()


@pytest.mark.parametrize("seq", [16, 17, 18, 40])
def test_a_sequence_longer_than_the_rows_at_hand_is_encoded_too(seq):
    module = PositionalEncoding(D_MODEL, max_len=17, dtype=torch.float64)
    x = torch.zeros(BATCH, seq, D_MODEL, dtype=torch.float64)

    assert torch.equal(module(x), sinusoid_table(seq, D_MODEL, dtype=torch.float64).expand(BATCH, -1, -1))
    assert module.pe.shape == (1, 17, D_MODEL)


def test_the_module_can_be_pickled():
    module = pickle.loads(pickle.dumps(PositionalEncoding(D_MODEL, max_len=17)))

    assert torch.equal(module.pe[0], sinusoid_table(17, D_MODEL))


def test_the_default_dtype_of_torch_is_that_of_the_rows():
    try:
        torch.set_default_dtype(torch.float64)
        assert PositionalEncoding(D_MODEL, max_len=17).pe.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)

"""Token embedding and positional encoding, against Python's own sine and cosine."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from goldformer.reference_impl import (
    Transformer,
    sinusoid_table,
)

NARROW = [torch.float32, torch.float16, torch.bfloat16]


def row(position: int, d_model: int) -> list[float]:
    """The formula for one position, channel by channel."""
    wave = (math.sin, math.cos)
    return [wave[c % 2](position / 10000 ** ((c - c % 2) / d_model)) for c in range(d_model)]


def close(got: Tensor, expected: list[Any], tolerance: float) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=got.dtype), rtol=0, atol=tolerance)


# token embedding


def test_the_table_starts_standard_normal():
    table = Transformer(500, 200, 1, 1, 1, 1, pad_id=0).table.detach()

    # 10^5 draws: seven standard errors of the mean are 0.022, of the deviation 0.016.
    assert table.mean().item() == pytest.approx(0, abs=0.022)
    assert table.std().item() == pytest.approx(1, abs=0.016)


# positional encoding


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("d_model", [7, 512])
def test_a_narrow_table_is_the_wide_one_rounded(d_model, dtype):
    wide = sinusoid_table(5000, d_model, dtype=torch.float64)

    assert torch.equal(sinusoid_table(5000, d_model, dtype=dtype), wide.to(dtype))
    narrow = sinusoid_table(5000, d_model, dtype=dtype)[4999].double()
    close(narrow, row(4999, d_model), torch.finfo(dtype).eps / 2)

"""`assert_correct` on calls of the sizes that kernels are written for."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import goldformer

ATTENTION = "scaled_dot_product_attention"
GENERATOR = torch.Generator().manual_seed(0)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR).to(dtype)


def attention(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return {name: draw(*shape, dtype=dtype) for name in ("query", "key", "value")}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_large_call_takes_little_memory(dtype):
    """Nothing on the way is kept whole: the scores are 8 times as many numbers as the output."""
    given = attention(2, 16, 512, 64, dtype=dtype)
    result = F.scaled_dot_product_attention(**given)
    goldformer.assert_correct(result[0, 0, :4], ATTENTION, **first(given))  # loads the spec
    tracemalloc.start()
    goldformer.assert_correct(result, ATTENTION, **given)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 8 * result.numel()


def first(given: Any) -> Any:
    """Return the first head of a call, with only four queries."""
    return {name: array[0, 0, : 4 if name == "query" else None] for name, array in given.items()}

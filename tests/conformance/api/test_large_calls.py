"""`assert_correct` on calls of the sizes that kernels are written for."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import goldformer
from goldformer.conformance.diagnosis.candidates import Textbooks
from goldformer.conformance.diagnosis.failure import FailingCase

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


def leave_unscaled(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any = None) -> torch.Tensor:
    return F.scaled_dot_product_attention(query, key, value, mask, scale=1.0)


@pytest.fixture
def imitated(monkeypatch) -> list[int]:
    """The numbers of each call that was imitated."""
    sizes: list[int] = []
    run = Textbooks.run

    def note(self: Textbooks, candidate: Any, failure: FailingCase, adapter: Any = None) -> Any:
        sizes.append(failure.case.size)
        return run(self, candidate, failure, adapter)

    monkeypatch.setattr(Textbooks, "run", note)
    return sizes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_mistake_of_a_large_call_is_found_on_a_part_of_it(dtype, imitated):
    given = attention(2, 8, 512, 64, dtype=dtype)
    mask = torch.rand(2, 1, 512, 512, generator=GENERATOR) < 0.9
    with pytest.raises(goldformer.NonConformance, match="Mistake found: scale-missing"):
        goldformer.assert_correct(leave_unscaled(**given, mask=mask), ATTENTION, **given, mask=mask)
    # One head with 32 of its queries.
    assert set(imitated) == {2 * 512 * 64 + 32 * 64 + 32 * 512}


@pytest.mark.parametrize("row", [40, 511])
def test_the_part_has_the_first_wrong_row(row, imitated):
    given = attention(2, 4, 512, 64)
    result = F.scaled_dot_product_attention(**given)
    result[:, 1:, row:] = leave_unscaled(**given)[:, 1:, row:]
    with pytest.raises(goldformer.NonConformance, match="No known mistake reproduces this output"):
        goldformer.assert_correct(result, ATTENTION, **given)
    assert set(imitated) == {2 * (2 * 512 * 64 + (row + 1) * 64)}


def test_samples_of_a_large_norm_are_independent(imitated):
    given: Any = {"x": draw(300, 512), "params": {"gamma": draw(512), "beta": draw(512)}}
    result = F.layer_norm(given["x"], (512,), given["params"]["gamma"])
    with pytest.raises(goldformer.NonConformance, match="Mistake found: The code leaves out `beta`"):
        goldformer.assert_correct(result, "layer_norm", **given)
    assert set(imitated) == {18 * 512}


def test_a_loss_is_a_mean_of_all_samples_and_is_not_cut(imitated):
    given: Any = {"logits": draw(8, 40, 512), "targets": torch.randint(0, 512, (8, 40), generator=GENERATOR)}
    given["targets"][:, 30:] = 0
    loss = F.cross_entropy(given["logits"].mT, given["targets"])
    with pytest.raises(goldformer.NonConformance, match=r"Mistake found: .*padding"):
        goldformer.assert_correct(loss, "cross_entropy", **given, pad_id=0)
    assert set(imitated) == {8 * 40 * 513}


def test_a_large_result_of_another_shape_is_not_searched(imitated):
    given = attention(2, 8, 256, 64)
    with pytest.raises(goldformer.NonConformance, match=r"output has shape \(2, 8, 64, 256\), must be "):
        goldformer.assert_correct(F.scaled_dot_product_attention(**given).mT, ATTENTION, **given)
    assert not imitated


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_large_result_of_zeros_is_called_that(dtype):
    given = attention(1, 8, 300, 64, dtype=dtype)
    with pytest.raises(goldformer.NonConformance, match="Mistake found: Every number of output is 0"):
        goldformer.assert_correct(torch.zeros_like(given["query"]), ATTENTION, **given)

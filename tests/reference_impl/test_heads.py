"""Multi-head attention, separate and fused, against torch's own and against a loop over the heads."""

import math
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn

from goldformer.reference_impl import (
    FusedMultiHeadAttention,
    MultiHeadAttention,
    SingleHeadAttention,
    padding_mask,
)
from reference_functions import (
    fused_multi_head_attention,
    multi_head_attention,
)

BATCH, HEADS, Q_SEQ, KV_SEQ, D_K, D_V = 3, 2, 5, 7, 11, 13
D_MODEL, D_QUERY, D_KEY, D_VALUE = 22, 17, 19, 23
PADDED = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0, 0]])

Some = TypeVar("Some", bound=nn.Module)


def real(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(module: Some) -> Some:
    for seed, parameter in enumerate(module.parameters()):
        nn.init.normal_(parameter, std=0.25, generator=torch.Generator().manual_seed(20 + seed))
    return module


@pytest.mark.parametrize("bias", [True, False])
def test_modules_keep_their_parameters_under_the_names_of_the_contract(bias):
    biases = {"b_q", "b_k", "b_v", "b_o"} if bias else set()
    assert set(MultiHeadAttention(D_MODEL, HEADS, bias=bias).state_dict()) == {"w_q", "w_k", "w_v", "w_o"} | biases
    fused = FusedMultiHeadAttention(D_QUERY, D_MODEL, HEADS, bias=bias)
    assert set(fused.state_dict()) == {"w_qkv", "w_o"} | ({"b_qkv", "b_o"} if bias else set())
    assert set(SingleHeadAttention(D_MODEL).state_dict()) == {"w_q", "w_k", "w_v"}
    assert fused.w_qkv.shape == (D_QUERY, 3 * D_MODEL)


@pytest.mark.parametrize(
    "module",
    [
        MultiHeadAttention(64, 4, d_key=96, d_value=160),
        FusedMultiHeadAttention(96, 64, 4),
        SingleHeadAttention(64),
    ],
    ids=lambda module: type(module).__name__,
)
def test_modules_start_xavier_uniform_with_zero_biases(module):
    for name, parameter in module.named_parameters():
        if name.startswith("b_"):
            assert not parameter.any()
            continue
        d_in, d_out = parameter.shape
        bound = math.sqrt(6 / (d_in + d_out))
        # Of 4096 or more draws the largest lies within 1 % of the bound, but for one chance in 10^17.
        assert 0.99 * bound < parameter.abs().max() <= bound
        assert parameter.var().item() == pytest.approx(bound**2 / 3, rel=0.1)


def test_modules_run_their_function_on_their_parameters():
    module = filled(MultiHeadAttention(D_MODEL, HEADS, dtype=torch.float64))
    query, memory = real(BATCH, Q_SEQ, D_MODEL), real(BATCH, KV_SEQ, D_MODEL, seed=1)
    arguments = (query, memory, memory, padding_mask(PADDED, 0))
    expected = multi_head_attention(*arguments, num_heads=HEADS, **module.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(module(*arguments), expected, strict=True))

    fused = filled(FusedMultiHeadAttention(D_MODEL, D_MODEL, HEADS, dtype=torch.float64))
    of_fused = fused_multi_head_attention(memory, padding_mask(PADDED, 0), num_heads=HEADS, **fused.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(fused(memory, padding_mask(PADDED, 0)), of_fused, strict=True))

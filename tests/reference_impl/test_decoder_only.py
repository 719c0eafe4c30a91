"""The reference of the edition decoder-only against PyTorch's own kernels, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from goldformer.reference_impl import RMSNorm, grouped_query_attention
from reference_functions import rms_norm


@pytest.mark.parametrize("eps", [1e-5, 1e-6])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_rms_norm_is_that_of_torch(eps, size):
    x, gamma = size * torch.randn(3, 5, 7, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    expected = functional.rms_norm(x, (7,), gamma, eps)
    torch.testing.assert_close(rms_norm(x, gamma=gamma, eps=eps), expected, rtol=1e-13, atol=0)
    assert torch.equal(rms_norm(x, gamma=gamma), rms_norm(x, gamma=gamma, eps=1e-6))


def test_rms_norm_of_half_types_is_that_of_float32_rounded_once():
    for dtype in (torch.float16, torch.bfloat16):
        x = 300 * torch.ones(2, 6, dtype=dtype)
        output = RMSNorm(6, dtype=dtype)(x)
        assert output.dtype == dtype
        assert torch.equal(output, torch.ones(2, 6, dtype=dtype))


def test_a_new_module_has_scales_of_one():
    module = RMSNorm(4)
    assert module.eps == 1e-6
    assert {name: p.tolist() for name, p in module.named_parameters()} == {"gamma": [1, 1, 1, 1]}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: RMSNorm(0), "d_model=0 must be at least 1"),
        (lambda: RMSNorm(4, 0.0), "eps=0.0 must be finite and above 0"),
        (lambda: RMSNorm(4)(torch.ones(3)), r"x has shape \(3,\) and must be"),
        (lambda: rms_norm(torch.ones(2, 3), gamma=torch.ones(1)), "gamma has shape"),
    ],
)
def test_bad_arguments_are_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def draw_groups(heads: int, kv_heads: int) -> dict[str, Any]:
    shapes = {"query": (2, heads, 3, 4), "key": (2, kv_heads, 5, 4), "value": (2, kv_heads, 5, 6)}
    return {name: torch.randn(shape, dtype=torch.float64).requires_grad_() for name, shape in shapes.items()}


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 2), (6, 3), (5, 1), (3, 3)])
@pytest.mark.parametrize("masked", [False, True])
def test_grouped_queries_and_their_gradients_are_those_of_torch(heads, kv_heads, masked):
    arrays, mask = draw_groups(heads, kv_heads), torch.ones(3, 5, dtype=torch.bool).tril(1) if masked else None
    expected = functional.scaled_dot_product_attention(**arrays, attn_mask=mask, enable_gqa=True)
    output, weights = grouped_query_attention(**arrays, mask=mask)
    assert weights.shape == (2, heads, 3, 5)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-13)
    cotangent = torch.randn_like(output)
    found, right = (torch.autograd.grad(result, [*arrays.values()], cotangent) for result in (output, expected))
    torch.testing.assert_close(found, right, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"key": (2, 3, 5, 4), "value": (2, 3, 5, 6)}, "heads=4 is no multiple of kv_heads=3: choose a multiple of 3"),
        ({"value": (2, 1, 5, 6)}, r"value has shape \(2, 1, 5, 6\) and must be"),
        ({"key": (2, 2, 5, 3)}, r"key has shape \(2, 2, 5, 3\) and must be"),
        ({"query": (4, 3, 4)}, r"query has shape \(4, 3, 4\) and must be"),
    ],
)
def test_groups_that_do_not_fit_are_refused(changed, says):
    arrays = draw_groups(4, 2) | {name: torch.ones(shape, dtype=torch.float64) for name, shape in changed.items()}
    with pytest.raises(ValueError, match=says):
        grouped_query_attention(**arrays)

"""The reference of the edition decoder-only against PyTorch's own kernels, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from goldformer.reference_impl import RMSNorm
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

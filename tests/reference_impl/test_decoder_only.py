"""The reference of the edition decoder-only against PyTorch's own kernels, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from goldformer.reference_impl import RMSNorm, rotary_embedding
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


@pytest.mark.parametrize("positions", [torch.tensor([7, 0, 300]), torch.tensor([[[1, 2, 3]], [[0, 0, 1]]])])
def test_rotary_embedding_is_a_product_of_complex_numbers(positions):
    x = torch.randn(2, 4, 3, 8, dtype=torch.float64)
    angle = positions[..., None] * 500.0 ** (-torch.arange(0, 6, 2, dtype=torch.float64) / 6)
    pairs = torch.view_as_complex(x[..., :6].unflatten(-1, (3, 2)))
    turned = torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    expected = torch.cat([turned, x[..., 6:]], dim=-1)
    torch.testing.assert_close(rotary_embedding(x, positions, 500.0, 6), expected, rtol=0, atol=1e-13)


def test_the_two_pairings_are_one_turn_of_channels_in_another_order():
    x, positions = torch.randn(5, 6, dtype=torch.float64), torch.arange(5)
    order = torch.tensor([0, 2, 4, 1, 3, 5])
    half = rotary_embedding(x[:, order], positions, pairing="half")
    torch.testing.assert_close(half, rotary_embedding(x, positions)[:, order], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_distant_positions_of_half_types_have_angles_of_their_own(dtype):
    x = torch.tensor([[1.0, 0.0]], dtype=dtype)
    for position in (257, 4097):
        output = rotary_embedding(x, torch.tensor([position]))
        assert output.dtype == dtype
        angle = torch.tensor(float(position))
        assert torch.equal(output, torch.stack([angle.cos(), angle.sin()])[None].to(dtype))


TOKENS, PLACES = torch.ones(3, 4), torch.arange(3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: RMSNorm(0), "d_model=0 must be at least 1"),
        (lambda: RMSNorm(4, 0.0), "eps=0.0 must be finite and above 0"),
        (lambda: RMSNorm(4)(torch.ones(3)), r"x has shape \(3,\) and must be"),
        (lambda: rms_norm(torch.ones(2, 3), gamma=torch.ones(1)), "gamma has shape"),
        (
            lambda: rotary_embedding(torch.ones(3, 5), PLACES),
            r"x has shape \(3, 5\) and must have an even last axis, for pairs of channels: cut x into heads",
        ),
        (
            lambda: rotary_embedding(TOKENS, torch.arange(2)),
            r"positions has shape \(2,\) and must broadcast to the tokens, \(..., seq\) = \(3,\)",
        ),
        (lambda: rotary_embedding(TOKENS, PLACES, rotary_width=3), "rotary_width=3 must be even and at most 4"),
        (lambda: rotary_embedding(TOKENS, PLACES, rotary_width=6), "rotary_width=6 must be even and at most 4"),
        (lambda: rotary_embedding(TOKENS, PLACES, base=0.0), "base=0.0 must be finite and above 0"),
        (lambda: rotary_embedding(TOKENS, PLACES, pairing="both"), "pairing='both' must be one of"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_refused(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_positions_are_integers():
    with pytest.raises(TypeError, match=r"positions has dtype torch.float32 and must be torch.int64 or torch.int32"):
        rotary_embedding(TOKENS, PLACES.float())

"""Feed-forward network, layer normalisation and sequences of one length, against torch's own and by hand."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from goldformer.reference_impl import (
    FeedForward,
    LayerNorm,
    pad_or_truncate,
)
from reference_functions import (
    feed_forward,
    layer_norm,
)

BATCH, SEQ, D_MODEL, D_FF = 3, 5, 14, 23
HALVES = [torch.float16, torch.bfloat16]


def real(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(got: Tensor, expected: Tensor, tolerance: float = 1e-13) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=tolerance)


def filled(module: nn.Module) -> nn.Module:
    for seed, parameter in enumerate(module.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(20 + seed))
    return module


# feed-forward network


def test_the_dropout_of_the_network_lies_between_its_two_maps():
    module = filled(FeedForward(D_MODEL, D_FF, dropout=0.5, dtype=torch.float64))
    x = real(BATCH, SEQ, D_MODEL)
    expected = feed_forward(x, **module.state_dict())
    torch.manual_seed(0)
    output, hidden = module(x)

    kept = hidden != 0
    assert torch.equal(hidden, torch.where(kept, expected[1] * 2, 0))
    # 345 channels, about half of them positive: with seven standard errors to either side.
    positive = expected[1] > 0
    assert kept.sum() / positive.sum() == pytest.approx(0.5, abs=3.5 / math.sqrt(positive.sum()))
    close(output, hidden @ module.w_2 + module.b_2)
    assert all(torch.equal(a, b) for a, b in zip(module.eval()(x), expected, strict=True))


# layer normalisation


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("scale", "shift"), [(1, 0), (3e4, 0), (1, 200), (1e-3, 0), (200, 3e4)])
def test_half_types_are_right_to_one_rounding_near_their_limits(dtype, scale, shift):
    # float16 ends at 65504 and bfloat16 has 8 bits: squares and means in the dtype itself would not do.
    x = (real(BATCH, SEQ, 512).clamp(-2, 2) * scale + shift).to(dtype)
    gamma, beta = real(512, seed=1).to(dtype), real(512, seed=2).to(dtype)
    exact = functional.layer_norm(x.double(), (512,), gamma.double(), beta.double())

    assert x.isfinite().all()
    got = layer_norm(x, gamma=gamma, beta=beta)
    assert got.dtype == dtype
    # Half a unit in the last place for the last rounding, and a little of float32's own.
    torch.testing.assert_close(got.double(), exact, rtol=torch.finfo(dtype).eps / 2, atol=2e-5)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_gradients_of_half_types_are_finite_near_their_limits(dtype):
    x = (real(BATCH, 512).clamp(-2, 2) * 3e4).to(dtype).requires_grad_()
    module = LayerNorm(512, dtype=dtype)
    module(x).sum().backward()

    assert x.grad.isfinite().all()
    assert module.gamma.grad.isfinite().all()


def test_the_module_starts_with_scale_1_and_shift_0_and_hands_its_eps_on():
    module = LayerNorm(D_MODEL, 1e-3, dtype=torch.float64)
    assert module.gamma.tolist() == [1] * D_MODEL
    assert module.beta.tolist() == [0] * D_MODEL
    assert LayerNorm(D_MODEL).eps == 1e-5

    x = real(BATCH, SEQ, D_MODEL)
    close(module(x), functional.layer_norm(x, (D_MODEL,), eps=1e-3))


@pytest.mark.parametrize("bias", [True, False])
def test_modules_keep_their_parameters_under_the_names_of_the_contract(bias):
    biases = {"b_1", "b_2"} if bias else set()
    assert set(FeedForward(D_MODEL, D_FF, bias=bias).state_dict()) == {"w_1", "w_2"} | biases
    assert set(LayerNorm(D_MODEL).state_dict()) == {"gamma", "beta"}


def test_the_network_starts_xavier_uniform_with_zero_biases():
    module = FeedForward(64, 96)
    bound = math.sqrt(6 / 160)

    for w in (module.w_1, module.w_2):
        # Of 6144 draws the largest lies within 1 % of the bound, but for one chance in 10^26.
        assert 0.99 * bound < w.abs().max() <= bound
    assert not module.b_1.any()
    assert not module.b_2.any()


# sequences


@pytest.mark.parametrize("length", [1, 4, SEQ, 6, 11])
def test_sequences_are_cut_or_filled_with_zero_rows(length):
    x = real(BATCH, SEQ, D_MODEL)
    output = pad_or_truncate(x, length)
    kept = min(length, SEQ)

    assert output.shape == (BATCH, length, D_MODEL)
    assert torch.equal(output[:, :kept], x[:, :kept])
    assert not output[:, kept:].any()
    # Neither cut nor filled, it is a copy all the same.
    assert output.data_ptr() != x.data_ptr()

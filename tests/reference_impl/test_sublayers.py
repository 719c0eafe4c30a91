"""Feed-forward network, layer normalisation and sequences of one length, against torch's own and by hand."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from goldformer.reference_impl import (
    FeedForward,
    LayerNorm,
    pad_or_truncate,
    shift_right,
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


@pytest.mark.parametrize("with_biases", [True, False])
def test_the_network_is_that_of_torch(with_biases):
    x, w_1, w_2 = real(BATCH, SEQ, D_MODEL), real(D_MODEL, D_FF, seed=1), real(D_FF, D_MODEL, seed=2)
    b_1, b_2 = (real(D_FF, seed=3), real(D_MODEL, seed=4)) if with_biases else (None, None)
    output, hidden = feed_forward(x, w_1=w_1, w_2=w_2, b_1=b_1, b_2=b_2)

    expected = functional.relu(functional.linear(x, w_1.T, b_1))
    close(hidden, expected)
    close(output, functional.linear(expected, w_2.T, b_2))


def test_a_channel_is_kept_where_it_is_positive_and_has_no_gradient_at_0():
    x = torch.tensor([[[-2.0, 0.0, 3.0]]], dtype=torch.float64, requires_grad=True)
    output, hidden = feed_forward(x, w_1=torch.eye(3).double(), w_2=torch.eye(3).double())
    output.sum().backward()

    assert hidden.tolist() == output.tolist() == [[[0, 0, 3]]]
    assert x.grad.tolist() == [[[0, 0, 1]]]


def test_either_bias_may_be_left_out():
    x, w_1, w_2 = real(BATCH, SEQ, D_MODEL), real(D_MODEL, D_FF, seed=1), real(D_FF, D_MODEL, seed=2)
    zeros: dict[str, Any] = {"b_1": torch.zeros(D_FF, dtype=x.dtype), "b_2": torch.zeros(D_MODEL, dtype=x.dtype)}
    b_1, b_2 = real(D_FF, seed=3), real(D_MODEL, seed=4)

    some: tuple[dict[str, Any], ...] = ({"b_1": b_1}, {"b_2": b_2})
    for given in some:
        output, _ = feed_forward(x, w_1=w_1, w_2=w_2, **given)
        assert torch.equal(output, feed_forward(x, w_1=w_1, w_2=w_2, **(zeros | given))[0])


def test_every_position_goes_alone():
    module = filled(FeedForward(D_MODEL, D_FF, dtype=torch.float64)).eval()
    x = real(BATCH, SEQ, D_MODEL)
    output, _ = module(x)

    for b in range(BATCH):
        for t in range(SEQ):
            close(module(x[b : b + 1, t : t + 1])[0][0, 0], output[b, t])


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


@pytest.mark.parametrize("eps", [1e-5, 1e-6, 1e-12, 1])
@pytest.mark.parametrize("shape", [(D_MODEL,), (SEQ, D_MODEL), (2, BATCH, SEQ, D_MODEL), (BATCH, 1)])
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_normalisation_is_that_of_torch(shape, eps, scale):
    x, gamma, beta = scale * real(*shape), real(shape[-1], seed=1), real(shape[-1], seed=2)
    expected = functional.layer_norm(x, shape[-1:], gamma, beta, eps)

    close(layer_norm(x, gamma=gamma, beta=beta, eps=eps), expected, 1e-12)


def test_the_variance_is_over_d_model_and_eps_stands_under_the_root():
    x = torch.tensor([1, 1, 1, 1.001], dtype=torch.float64)
    ones, zeros = torch.ones(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)

    # The differences are −¼, −¼, −¼, ¾ of 0.001, so the variance is 3/16 · 1e-6.
    for eps in (1e-5, 1e-6, 1e-12):
        root = math.sqrt(3e-6 / 16 + eps)
        expected = torch.tensor([-0.00025, -0.00025, -0.00025, 0.00075], dtype=torch.float64) / root
        close(layer_norm(x, gamma=ones, beta=zeros, eps=eps), expected, 1e-9)
    assert torch.equal(layer_norm(x, gamma=ones, beta=zeros), layer_norm(x, gamma=ones, beta=zeros, eps=1e-5))


def test_a_row_of_equal_numbers_becomes_the_shift():
    gamma, beta = real(D_MODEL, seed=1), real(D_MODEL, seed=2)
    x = torch.full((BATCH, D_MODEL), 3.0, dtype=torch.float64, requires_grad=True)
    output = layer_norm(x, gamma=gamma, beta=beta)
    output.sum().backward()

    assert torch.equal(output, beta.expand(BATCH, D_MODEL))
    assert x.grad.isfinite().all()


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


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_the_decoder_reads_the_word_before(dtype):
    target = torch.tensor([[7, 8, 9, 2], [5, 2, 0, 0]], dtype=dtype)
    read = shift_right(target, 1)

    assert read.tolist() == [[1, 7, 8, 9], [1, 5, 2, 0]]
    assert read.dtype == dtype
    assert shift_right(target[:, :1], 1).tolist() == [[1], [1]]
    assert target.tolist() == [[7, 8, 9, 2], [5, 2, 0, 0]]

"""The seed alone decides what the reference draws at random, and no other state of PyTorch changes."""

import math

import pytest
import torch
from torch import nn

from goldformer.reference_impl import (
    EncoderLayer,
    FeedForward,
    dropout,
    softmax,
    xavier_uniform,
)
from reference_functions import scaled_dot_product_attention

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
every_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)


def real(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def attention(**given):
    query, key, value = real(3, 2, 5, 8), real(3, 2, 7, 8, seed=1), real(3, 2, 7, 4, seed=2)
    return scaled_dot_product_attention(query, key, value, **given)


DRAWN = {
    "xavier_uniform": lambda seed: xavier_uniform(real(20, 30), seed),
    "dropout": lambda seed: dropout(real(4, 50), rate=0.4, training=True, seed=seed),
    "attention": lambda seed: attention(dropout_rate=0.4, seed=seed)[0],
}
every_draw = pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)


# The seed


@every_draw
def test_the_seed_decides(draw):
    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))


@every_draw
def test_pytorchs_own_random_numbers_are_neither_read_nor_moved(draw):
    torch.manual_seed(3)
    state, first = torch.get_rng_state(), draw(5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    assert torch.equal(draw(5), first)


@every_dtype
def test_one_seed_drops_the_same_elements_in_every_dtype(dtype):
    x = torch.ones(30, 70)
    kept = dropout(x.to(dtype), rate=0.3, training=True, seed=9)
    assert kept.dtype == dtype
    assert torch.equal(kept != 0, dropout(x, rate=0.3, training=True, seed=9) != 0)


# Initialisation


@every_dtype
def test_a_weight_has_the_shape_and_dtype_of_what_it_is_like_and_fills_its_range(dtype):
    like = real(64, 192, dtype=dtype)
    weight = xavier_uniform(like, 1)
    bound = math.sqrt(6 / 256)
    assert (weight.shape, weight.dtype) == (like.shape, dtype)
    # Of 12288 draws the largest lies within 1 % of the bound, but for one chance in 10^53.
    assert 0.99 * bound < weight.abs().max() <= bound * (1 + torch.finfo(dtype).eps)
    assert weight.double().var().item() == pytest.approx(2 / 256, rel=0.1)
    assert not torch.equal(weight, xavier_uniform(like.mT.contiguous(), 1).mT)


def test_a_weight_in_bfloat16_is_not_one_of_256_numbers():
    drawn = xavier_uniform(torch.empty(200, 200, dtype=torch.bfloat16), 1)
    assert drawn.unique().numel() > 1000
    # Rounded to the nearest it leans to no side; drawn in bfloat16 it would by half a step, 1/256 of the bound.
    assert abs(drawn.double().mean() / drawn.abs().max()) < 4 / 200 / math.sqrt(3)


def test_the_numbers_of_what_it_is_like_do_not_matter():
    assert torch.equal(xavier_uniform(torch.full((5, 6), math.nan), 3), xavier_uniform(torch.zeros(5, 6), 3))


def test_modules_start_as_the_function_draws():
    torch.manual_seed(11)
    module = FeedForward(7, 9)
    assert torch.equal(module.w_1, xavier_uniform(torch.zeros(7, 9), 11))


# Dropout


def test_what_is_kept_is_divided_by_the_part_that_is_kept():
    x = real(40, 60)
    output = dropout(x, rate=0.25, training=True, seed=2)
    dropped = output == 0
    assert 0.2 < dropped.double().mean() < 0.3
    assert torch.equal(output[~dropped], (x / 0.75)[~dropped])


@pytest.mark.parametrize("rate", [0, 0.0])
def test_a_rate_of_zero_changes_nothing(rate):
    x = real(40, 60)
    assert torch.equal(dropout(x, rate=rate, training=True, seed=2), x)


@pytest.mark.parametrize("rate", [1, 1.0])
def test_a_rate_of_one_leaves_zeros_and_no_nan(rate):
    x = torch.tensor([[0.0, 1.0, -3.0, math.inf, math.nan]], requires_grad=True)
    output = dropout(x, rate=rate, training=True, seed=2)
    assert torch.equal(output, torch.zeros(1, 5))
    output.sum().backward()
    assert torch.equal(x.grad, torch.zeros(1, 5))


def test_what_is_dropped_may_be_infinite():
    output = dropout(torch.full((200,), math.inf), rate=0.5, training=True, seed=1)
    assert set(output.tolist()) == {0.0, math.inf}


@pytest.mark.parametrize("rate", [0, 0.5, 1])
def test_without_training_it_is_the_identity(rate):
    x = real(4, 6)
    assert torch.equal(dropout(x, rate=rate, training=False, seed=2), x)


def test_gradients_pass_where_elements_were_kept():
    x = real(6, 7).requires_grad_()
    output = dropout(x, rate=0.5, training=True, seed=2)
    output.sum().backward()
    assert torch.equal(x.grad, torch.where(output == 0, 0.0, 2.0).to(x.dtype))


def test_modules_drop_by_the_formula_of_the_function():
    module = EncoderLayer(8, 2, 12, dropout=0.4).dropout.train()
    assert isinstance(module, nn.Dropout)
    x = real(50, 8)
    torch.manual_seed(6)
    assert torch.equal(module(x), dropout(x, rate=0.4, training=True, seed=6))
    assert torch.equal(module.eval()(x), x)


def test_modules_with_dropout_compile_without_a_graph_break():
    torch.compiler.reset()
    module = EncoderLayer(8, 2, 12, dropout=0.4).train()
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    x = real(3, 5, 8, dtype=torch.float32)
    torch.manual_seed(6)
    expected = module(x).output
    torch.manual_seed(6)
    assert torch.equal(compiled(x).output, expected)


# Attention


def test_attention_weighs_the_values_with_the_weights_that_are_left():
    query, key, value = real(3, 2, 5, 8), real(3, 2, 7, 8, seed=1), real(3, 2, 7, 4, seed=2)
    output, weights = scaled_dot_product_attention(query, key, value, dropout_rate=0.4, seed=3)
    assert torch.equal(weights, softmax(query @ key.mT / math.sqrt(8)))
    kept = dropout(weights, rate=0.4, training=True, seed=3)
    assert torch.equal(output, kept @ value)
    assert not torch.allclose(kept.sum(-1), torch.ones(3, 2, 5, dtype=kept.dtype))


def test_a_masked_key_stays_without_weight():
    mask = torch.arange(7) < 4
    output, _ = attention(mask=mask, dropout_rate=0.4, seed=3)
    query, key, value = real(3, 2, 5, 8), real(3, 2, 7, 8, seed=1), real(3, 2, 7, 4, seed=2)
    value[..., 4:, :] = 100.0
    again, _ = scaled_dot_product_attention(query, key, value, mask, dropout_rate=0.4, seed=3)
    assert torch.equal(again, output)


def test_attention_without_a_rate_drops_nothing():
    assert all(torch.equal(a, b) for a, b in zip(attention(), attention(seed=4), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(attention(), attention(dropout_rate=0, seed=4), strict=True))


# Other devices


@pytest.mark.parametrize("device", ["meta", *(["cuda"] if torch.cuda.is_available() else [])])
@every_dtype
def test_everything_is_drawn_on_the_device_of_the_input(device, dtype):
    x = torch.ones(3, 5, device=device, dtype=dtype)
    drawn = [
        xavier_uniform(x, 1),
        dropout(x, rate=0.5, training=True, seed=1),
        scaled_dot_product_attention(x, x, x, dropout_rate=0.5, seed=1)[0],
    ]
    for output in drawn:
        assert (output.device.type, output.dtype, output.shape) == (device, dtype, x.shape)

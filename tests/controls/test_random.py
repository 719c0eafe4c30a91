"""Random draws of other generators and in other ways: no case and no property may accuse them."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from controls import NUMPY, controls_of, in_each_dtype


def generator(seed, like):
    return torch.Generator("cpu" if like.is_meta else like.device).manual_seed(seed)


# Dropout


def function_of_torch(x, *, rate, training, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return F.dropout(x, rate, training)


def module_of_torch(x, *, rate, training, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Dropout(rate).train(training)(x)


def kept_by_a_coin(x, *, rate, training, seed):
    """Inverted dropout by torch.bernoulli."""
    if not training or rate == 0:
        return x
    if rate == 1:
        return torch.zeros_like(x)
    kept = torch.bernoulli(torch.full(x.shape, 1 - rate, device=x.device), generator=generator(seed, x))
    return x * kept.to(x.dtype) / (1 - rate)


def compared_with_uniform_numbers(x, *, rate, training, seed):
    if not training:
        return x
    kept = torch.rand(x.shape, generator=generator(seed, x), device=x.device) >= rate
    return torch.where(kept, x * (1 / (1 - rate) if rate < 1 else 0), 0)


def compared_in_the_dtype(x, *, rate, training, seed):
    """bfloat16 has 256 random numbers: the rate is one of them."""
    if not training or rate == 0:
        return x
    kept = torch.rand(x.shape, generator=generator(seed, x), dtype=x.dtype, device=x.device).ge(rate)
    return x.mul(kept).div(1 - rate) if rate < 1 else x.mul(0)


def filled_with_zeros(x, *, rate, training, seed):
    """The scale first, then the holes."""
    if not training or rate == 0:
        return x.clone()
    drawn = np.random.RandomState(seed).random_sample(tuple(x.shape))
    scaled = x / (1 - rate) if rate < 1 else torch.zeros_like(x)
    return scaled.masked_fill(torch.from_numpy(drawn < rate).to(x.device), 0)


def numpy_bits(x, *, rate, training, seed):
    """A generator of another kind, seeded by a name."""
    if not training:
        return x.copy()
    kept = np.random.Generator(np.random.Philox(key=seed)).random(x.shape) >= rate
    return np.where(kept, x / (1 - rate) if rate < 1 else 0, 0).astype(x.dtype)


def numpy_binomial(x, *, rate, training, seed):
    if not training or rate == 0:
        return x
    kept = np.random.default_rng([seed, 7]).binomial(1, 1 - rate, x.shape).astype(x.dtype)
    return kept * x / x.dtype.type(1 - rate) if rate < 1 else np.zeros_like(x)


# Xavier-uniform weights


def initialiser_of_torch(like, *, seed):
    return nn.init.xavier_uniform_(torch.empty_like(like), generator=generator(seed, like))


def initialiser_of_a_linear_layer(like, *, seed):
    """nn.Linear keeps (out, in)."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        d_in, d_out = like.shape
        layer = nn.Linear(d_in, d_out, device=like.device, dtype=like.dtype)
        nn.init.xavier_uniform_(layer.weight)
    return layer.weight.t()


def twice_a_number_less_one(like, *, seed):
    bound = math.sqrt(6 / sum(like.shape))
    drawn = torch.rand(like.shape, generator=generator(seed, like), dtype=like.dtype, device=like.device)
    return (drawn * 2 - 1) * bound


def drawn_in_place(like, *, seed):
    bound = (6.0 / (like.shape[0] + like.shape[1])) ** 0.5
    return torch.empty_like(like).uniform_(-bound, bound, generator=generator(seed, like))


def drawn_in_float64(like, *, seed):
    bound = math.sqrt(6 / sum(like.shape))
    drawn = np.random.default_rng(seed).uniform(-bound, bound, tuple(like.shape))
    return torch.from_numpy(drawn).to(like)


def standard_library(like, *, seed):
    source, bound = random.Random(seed), math.sqrt(6 / sum(like.shape))
    return like.new_tensor([[source.uniform(-bound, bound) for _ in range(like.shape[1])] for _ in range(len(like))])


def numpy_legacy(like, *, seed):
    bound = np.sqrt(6 / sum(like.shape))
    return (np.random.RandomState(seed).rand(*like.shape) * 2 * bound - bound).astype(like.dtype)


def by_the_deviation(like, *, seed):
    """Glorot: a standard deviation of √(2/(in + out)), times √3."""
    deviation = np.sqrt(2.0 / sum(like.shape))
    drawn = np.random.default_rng(seed).uniform(-np.sqrt(3), np.sqrt(3), like.shape)
    return (deviation * drawn).astype(like.dtype)


DROPOUTS = (
    function_of_torch, module_of_torch, kept_by_a_coin, compared_with_uniform_numbers, compared_in_the_dtype,
    filled_with_zeros,
)  # fmt: skip
WEIGHTS = (
    initialiser_of_torch, initialiser_of_a_linear_layer, twice_a_number_less_one, drawn_in_place, drawn_in_float64,
    standard_library,
)  # fmt: skip
CONTROLS = [
    *controls_of("dropout", DROPOUTS),
    *controls_of("dropout", (numpy_bits, numpy_binomial), dtypes=NUMPY, arrays="numpy"),
    *controls_of("xavier_uniform", WEIGHTS),
    *controls_of("xavier_uniform", (numpy_legacy, by_the_deviation), dtypes=NUMPY, arrays="numpy"),
]


@pytest.mark.sample(15)
@pytest.mark.parametrize(**in_each_dtype(CONTROLS))
def test_what_is_random_done_otherwise(control, dtype, acquitted):
    acquitted(control, dtype)

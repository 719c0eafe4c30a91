"""PyTorch's initialisation and dropout, each under the seed that it is given; the global one stays as it was."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from goldformer.adapters.builtin import torch_nn

VARIANTS = {a.NAME: a for a in (torch_nn.torch_nn, torch_nn.torch_nn_math, torch_nn.torch_nn_sequence_first)}
every_variant = pytest.mark.parametrize("adapter", VARIANTS.values(), ids=VARIANTS)
adapter = torch_nn.torch_nn

X = torch.ones(30, 40)
QUERY, KEY, VALUE = (torch.randn(5, 6, generator=torch.Generator().manual_seed(i)) for i in range(3))
CALLS = {
    "xavier_uniform": lambda seed: adapter.xavier_uniform(X, seed=seed),
    "dropout": lambda seed: adapter.dropout(X, rate=0.4, training=True, seed=seed),
    "attention": lambda seed: adapter.scaled_dot_product_attention(QUERY, KEY, VALUE, dropout_rate=0.4, seed=seed),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_seed_decides_and_the_global_one_stays(call):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = call(5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    assert torch.equal(call(5), first)
    assert not torch.equal(call(6), first)


def test_the_functions_are_pytorchs():
    torch.manual_seed(7)
    assert torch.equal(adapter.dropout(X, rate=0.4, training=True, seed=7), F.dropout(X, 0.4))
    torch.manual_seed(7)
    assert torch.equal(adapter.xavier_uniform(X, seed=7), nn.init.xavier_uniform_(torch.empty(30, 40)))
    torch.manual_seed(7)
    expected = F.scaled_dot_product_attention(QUERY, KEY, VALUE, dropout_p=0.4)
    assert torch.equal(CALLS["attention"](7), expected)
    assert torch.equal(adapter.dropout(X, rate=0.4, training=False, seed=7), X)


def test_weights_are_as_coarse_as_pytorch_draws_them():
    weight = adapter.xavier_uniform(torch.empty(64, 192, dtype=torch.bfloat16), seed=1)
    assert weight.dtype == torch.bfloat16
    steps = (weight.double() / math.sqrt(6 / 256) + 1) * 128
    # 256 numbers, each rounded once more.
    assert (steps - steps.round()).abs().max() <= 0.5
    assert steps.round().unique().numel() == 256


@every_variant
def test_attention_without_a_rate_draws_nothing(adapter):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    plain = adapter.scaled_dot_product_attention(QUERY, KEY, VALUE)
    assert torch.equal(adapter.scaled_dot_product_attention(QUERY, KEY, VALUE, dropout_rate=0.0, seed=1), plain)
    assert torch.equal(torch.get_rng_state(), state)


@every_variant
def test_attention_drops_weights(adapter):
    value = torch.eye(5)
    kept = adapter.scaled_dot_product_attention(torch.zeros(400, 6), KEY, value, dropout_rate=0.5, seed=1)
    assert kept.unique().tolist() == pytest.approx([0.0, 0.4])


def test_a_negative_rate_is_declined_since_pytorch_takes_it_for_none():
    assert torch.equal(
        F.scaled_dot_product_attention(QUERY, KEY, VALUE, dropout_p=-0.1),
        F.scaled_dot_product_attention(QUERY, KEY, VALUE),
    )
    with pytest.raises(
        NotImplementedError, match=r"^a dropout_p below 0: some kernels refuse it, others take it for 0$"
    ):
        adapter.scaled_dot_product_attention(QUERY, KEY, VALUE, dropout_rate=-0.1, seed=1)


def test_flash_declines_dropout_on_the_cpu():
    query, key, value = (x[None, None] for x in (QUERY, KEY, VALUE))
    with pytest.raises(NotImplementedError, match=r"^no flash kernel: "):
        torch_nn.torch_nn_flash.scaled_dot_product_attention(query, key, value, dropout_rate=0.5, seed=1)


def test_on_the_meta_device_nothing_is_drawn_and_nothing_fails():
    like = torch.empty(3, 4, device="meta")
    assert adapter.xavier_uniform(like, seed=1).is_meta
    assert adapter.dropout(like, rate=0.5, training=True, seed=1).is_meta

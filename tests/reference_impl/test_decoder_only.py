"""The reference of the edition decoder-only against PyTorch's own kernels, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.nn import functional

from goldformer.reference_impl import (
    DecoderOnlyLayer,
    DecoderOnlyModel,
    GatedFeedForward,
    RMSNorm,
    grouped_query_attention,
    rotary_embedding,
)
from reference_functions import gated_feed_forward, rms_norm


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


def made_of_torch(x, activate, **p):
    gate, up = (functional.linear(x, p[f"w_{n}"].T, p[f"b_{n}"]) for n in ("gate", "up"))
    return functional.linear(activate(gate) * up, p["w_down"].T, p["b_down"])


@pytest.mark.parametrize("has_biases", [True, False])
@pytest.mark.parametrize(
    ("activation", "activate"),
    [
        ("silu", functional.silu),
        ("gelu", functional.gelu),
        ("gelu_tanh", lambda x: functional.gelu(x, approximate="tanh")),
        ("relu", functional.relu),
    ],
)
def test_a_gated_network_is_that_of_torch(activation, activate, has_biases):
    shapes = {"gate": (4, 7), "up": (4, 7), "down": (7, 4)}
    params = {f"w_{n}": torch.randn(shape, dtype=torch.float64) for n, shape in shapes.items()}
    params |= {f"b_{n}": torch.randn(w, dtype=torch.float64) if has_biases else None for n, (_, w) in shapes.items()}
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    result = gated_feed_forward(x, **params, activation=activation)
    torch.testing.assert_close(result.output, made_of_torch(x, activate, **params), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(result.hidden, activate(result.gate) * result.up, rtol=1e-12, atol=1e-12)


def test_a_gate_of_minus_twelve_is_not_0_in_float16():
    one = torch.ones(1, 1, dtype=torch.float16)
    hidden = gated_feed_forward(torch.full((1, 1, 1), -12.0).half(), w_gate=one, w_up=-64 * one, w_down=one).hidden
    assert hidden.dtype == torch.float16
    assert hidden.item() == pytest.approx(-12 / (1 + math.exp(12)) * 768, rel=2e-3)


def test_a_new_gated_network_has_three_weights_and_biases_of_zero():
    module = GatedFeedForward(4, 7)
    assert {name: tuple(p.shape) for name, p in module.named_parameters()} == {
        "w_gate": (4, 7), "w_up": (4, 7), "w_down": (7, 4), "b_gate": (7,), "b_up": (7,), "b_down": (4,),
    }  # fmt: skip
    assert not any(p.any() for name, p in module.named_parameters() if name.startswith("b_"))
    assert [name for name, _ in GatedFeedForward(4, 7, bias=False).named_parameters()] == ["w_gate", "w_up", "w_down"]


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: RMSNorm(0), "d_model=0 must be at least 1"),
        (lambda: RMSNorm(4, 0.0), "eps=0.0 must be finite and above 0"),
        (lambda: RMSNorm(4)(torch.ones(3)), r"x has shape \(3,\) and must be"),
        (lambda: GatedFeedForward(4, 0), "d_ff=0 must be at least 1"),
        (lambda: GatedFeedForward(4, 7)(torch.ones(2, 4)), r"x has shape \(2, 4\) and must be"),
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


ORDERS = {
    "pre": {"norm_1", "norm_2"},
    "parallel": {"norm_1"},
    "sandwich": {"norm_1", "norm_2", "post_norm_1", "post_norm_2"},
}


@pytest.mark.parametrize("order", ORDERS)
def test_an_order_of_the_blocks_has_its_norms_and_gives_the_input_where_the_blocks_give_0(order):
    layer = DecoderOnlyLayer(12, 6, 2, 5, order=order, dtype=torch.float64)
    assert {name for name, part in layer.named_children() if isinstance(part, RMSNorm)} == ORDERS[order]
    x = torch.randn(2, 3, 12, dtype=torch.float64)
    output, _, weights = layer(x)
    assert not torch.equal(output, x)
    assert weights.shape == (2, 6, 3, 3)
    assert weights.triu(1).count_nonzero() == 0
    with torch.no_grad():
        layer.w_o.zero_()
        layer.feed_forward.w_down.zero_()
    assert torch.equal(layer(x).output, x)


def test_the_blocks_of_a_parallel_layer_read_one_input():
    layer = DecoderOnlyLayer(8, 2, 1, 5, order="parallel", dtype=torch.float64)
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    output, attended, _ = layer(x)
    torch.testing.assert_close(output - attended, layer.feed_forward(layer.norm_1(x)).output)


def test_a_mask_hides_besides_later_tokens():
    layer = DecoderOnlyLayer(8, 2, 1, 5, dtype=torch.float64)
    x, mask = torch.randn(2, 4, 8, dtype=torch.float64), torch.tensor([True, False, True, True])
    weights = layer(x, mask.expand(2, 1, 4, 4)).weights
    assert weights[..., 1].count_nonzero() == 0
    assert weights.triu(1).count_nonzero() == 0


def test_heads_that_the_heads_of_keys_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="heads=4 is no multiple of kv_heads=3: choose a multiple of 3"):
        DecoderOnlyLayer(8, 4, 3, 5)


def test_a_model_is_its_parts_one_after_another():
    model = DecoderOnlyModel(7, 8, 2, 1, 5, 2, pad_id=0, tied=True, scaled=True, dtype=torch.float64)
    ids = torch.tensor([[3, 0, 6], [1, 2, 5]])
    logits, decoded, embedded = model(ids)
    torch.testing.assert_close(embedded, model.table[ids] * math.sqrt(8))
    x, mask = embedded, (ids != 0)[:, None, None]
    for layer in model.layers:
        x = layer(x, mask).output
    torch.testing.assert_close(decoded, model.norm(x))
    torch.testing.assert_close(logits, decoded @ model.table.T)
    assert not any(
        torch.equal(one, two) for one, two in zip(*map(nn_parameters, model.layers), strict=True) if one.ndim > 1
    )


def nn_parameters(module: torch.nn.Module) -> list[torch.Tensor]:
    return list(module.parameters())


def test_a_model_without_a_pad_id_reads_every_word():
    model = DecoderOnlyModel(7, 8, 2, 1, 5, 2, dtype=torch.float64)
    one, two = (model(torch.tensor([[first, 4]])).logits[:, 1] for first in (0, 3))
    assert not torch.equal(one, two)

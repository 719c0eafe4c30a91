"""The reference of the edition decoder-only against PyTorch's own kernels, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from goldformer.reference_impl import (
    DecoderOnlyLayer,
    DecoderOnlyModel,
    GatedFeedForward,
    RMSNorm,
    alibi_bias,
    cached_attention,
    expert_router,
    grouped_query_attention,
    position_ids,
    rotary_embedding,
    sliding_window_mask,
    token_filter,
)
from reference_functions import gated_feed_forward, rms_norm


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_distant_positions_of_half_types_have_angles_of_their_own(dtype):
    x = torch.tensor([[1.0, 0.0]], dtype=dtype)
    for position in (257, 4097):
        output = rotary_embedding(x, torch.tensor([position]))
        assert output.dtype == dtype
        angle = torch.tensor(float(position))
        assert torch.equal(output, torch.stack([angle.cos(), angle.sin()])[None].to(dtype))


TOKENS, PLACES = torch.ones(3, 4), torch.arange(3)


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
        (
            lambda: rotary_embedding(TOKENS, PLACES, scaling_factor=2.0, scaling="llama3"),
            "original_length must be given for scaling='llama3': pass the length of the training",
        ),
        (lambda: token_filter(TOKENS, temperature=-1.0), "temperature=-1.0 must be finite and at least 0"),
        (lambda: token_filter(TOKENS, top_p=1.5), "top_p=1.5"),
        (
            lambda: expert_router(TOKENS, torch.ones(4, 2), 3),
            "top_k=3 must be at most 2, the experts of w_router",
        ),
        (lambda: token_filter(TOKENS, top_k=0), "top_k=0 must be"),
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


def test_a_window_of_no_key_is_refused():
    with pytest.raises(ValueError, match="window=0 must be at least 1: pass a positive size"):
        sliding_window_mask(3, 3, 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_distant_keys_of_half_types_have_a_bias_of_their_own(dtype):
    bias = alibi_bias(torch.empty(1, 300, 300, dtype=dtype))
    assert bias.dtype == dtype
    assert bias[0, 299, 296:].tolist() == [-3 / 256, -2 / 256, -1 / 256, 0]


def test_a_mask_of_numbers_has_no_positions():
    with pytest.raises(TypeError, match=r"mask has dtype torch.int64 and must be torch.bool, True = a word: convert"):
        position_ids(torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"mask has shape \(2, 1, 3\) and must be \(batch, seq\)"):
        position_ids(torch.ones(2, 1, 3, dtype=torch.bool))


def draw_tokens(seq: int) -> dict[str, Any]:
    shapes = {"query": (2, 4, seq, 3), "key": (2, 2, seq, 3), "value": (2, 2, seq, 5)}
    return {name: torch.randn(shape, dtype=torch.float64) for name, shape in shapes.items()}


def take_tokens(arrays: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    return {name: array[:, :, start:stop] for name, array in arrays.items()}


def test_a_cache_may_be_continued_twice():
    arrays = draw_tokens(5)
    _, prompt = cached_attention(**take_tokens(arrays, 0, 3))
    kept = [x.clone() for x in prompt]
    first, _ = cached_attention(**take_tokens(arrays, 3, 5), cache=prompt)
    second, _ = cached_attention(**take_tokens(arrays, 3, 5), cache=prompt)
    assert torch.equal(first, second)
    assert all(map(torch.equal, kept, prompt))


def test_a_mask_of_the_new_tokens_only_is_refused():
    arrays = draw_tokens(4)
    _, cache = cached_attention(**take_tokens(arrays, 0, 3))
    says = (
        r"^mask has shape \(2, 1, 1, 1\) and must have a last axis of 4, the cached tokens and the new ones: pass the"
    )
    with pytest.raises(ValueError, match=says):
        cached_attention(**take_tokens(arrays, 3, 4), mask=torch.ones(2, 1, 1, 1, dtype=torch.bool), cache=cache)
    with pytest.raises(TypeError, match=r"^mask has dtype torch\.float64 and must be torch\.bool"):
        cached_attention(**take_tokens(arrays, 3, 4), mask=torch.ones(2, 1, 1, 4, dtype=torch.float64), cache=cache)


def test_a_hidden_key_has_no_weight_under_a_small_cap():
    _, weights = grouped_query_attention(**draw_groups(4, 2), mask=torch.arange(5) < 3, softcap=0.5)
    assert not weights[..., 3:].any()


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


def test_heads_that_the_heads_of_keys_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="heads=4 is no multiple of kv_heads=3: choose a multiple of 3"):
        DecoderOnlyLayer(8, 4, 3, 5)


def test_a_model_without_a_pad_id_reads_every_word():
    model = DecoderOnlyModel(7, 8, 2, 1, 5, 2, dtype=torch.float64)
    one, two = (model(torch.tensor([[first, 4]])).logits[:, 1] for first in (0, 3))
    assert not torch.equal(one, two)


def test_a_state_of_a_model_may_be_continued_twice():
    model = DecoderOnlyModel(7, 8, 2, 1, 5, 2, dtype=torch.float64)
    _, prompt = model.extend(torch.tensor([[3, 6]]))
    first, second = (model.extend(torch.tensor([[4, 1]]), prompt)[0].logits for _ in range(2))
    assert torch.equal(first, second)
    torch.testing.assert_close(first, model(torch.tensor([[3, 6, 4, 1]])).logits[:, 2:], rtol=1e-12, atol=1e-13)


def test_an_id_of_a_later_call_beyond_the_table_is_refused():
    model = DecoderOnlyModel(7, 8, 2, 1, 5, 2)
    _, prompt = model.extend(torch.tensor([[3, 6]]))
    with pytest.raises(IndexError, match=r"ids\[0, 0\]=7 must lie in 0 … 6, the rows of table"):
        model.extend(torch.tensor([[7]]), prompt)


def test_a_layer_normalises_queries_and_keys_by_two_gains():
    plain, normed = (DecoderOnlyLayer(8, 2, 1, 5, qk_norm=asked) for asked in (False, True))
    assert {*dict(normed.named_parameters())} - {*dict(plain.named_parameters())} == {"gamma_q", "gamma_k"}
    assert normed.gamma_q.shape == normed.gamma_k.shape == (4,)


def test_the_size_of_the_weight_of_queries_does_not_matter_to_a_layer_that_normalises_them():
    layer, x = DecoderOnlyLayer(8, 2, 1, 5, qk_norm=True, eps=1e-12), torch.randn(2, 3, 8)
    before = layer(x).output
    with torch.no_grad():
        layer.w_q *= 3
        layer.w_k *= 5
    torch.testing.assert_close(layer(x).output, before)


@pytest.mark.parametrize(("missing", "given"), [("gamma_q", "gamma_k"), ("gamma_k", "gamma_q")])
def test_a_layer_with_one_gain_is_refused(missing, given):
    layer = DecoderOnlyLayer(8, 2, 1, 5, qk_norm=True)
    setattr(layer, missing, None)
    message = f"{missing} is None and must be a tensor next to {given}: pass both gains, or neither"
    with pytest.raises(ValueError, match=message):
        layer(torch.randn(1, 2, 8))

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
    ExpertFeedForward,
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


@pytest.mark.parametrize(
    ("scaling", "shares", "size"),
    # Of 4096 positions with the base 10000, the four pairs make 652, 65, 6.5 and 0.65 turns.
    [("linear", (0, 0, 0, 0), 1.0), ("llama3", (1, 1, 1, 0), 1.0), ("yarn", (1, 1, 0.5, 0), 0.1 * math.log(16) + 1)],
)
def test_scaled_angles_keep_a_share_of_each_frequency(scaling, shares, size):
    x, positions = torch.randn(3, 8, dtype=torch.float64), torch.tensor([7, 4097, 20000])
    kept = torch.tensor(shares, dtype=torch.float64)
    frequency = 10000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8) * (kept + (1 - kept) / 16)
    wave = torch.polar(torch.full((3, 4), size, dtype=torch.float64), positions[:, None] * frequency)
    expected = torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (4, 2))) * wave).flatten(-2)
    output = rotary_embedding(x, positions, scaling_factor=16.0, original_length=4096, scaling=scaling)
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-11)


def test_filters_leave_what_the_loop_of_a_sampler_leaves():
    logits, previous = torch.randn(4, 9, dtype=torch.float64), torch.randint(0, 9, (4, 3))
    settings: dict[str, Any] = {"temperature": 0.7, "top_k": 6, "top_p": 0.8, "min_p": 0.15, "repetition_penalty": 1.3}
    for row, own, output in zip(logits.tolist(), previous, token_filter(logits, previous, **settings), strict=True):
        z = [(v / 1.3 if v > 0 else v * 1.3) if t in own.tolist() else v for t, v in enumerate(row)]
        weights = {t: math.exp(z[t] / 0.7) for t in sorted(range(9), key=lambda t: -z[t])[:6]}
        nucleus, total = {}, sum(weights.values())
        for token, weight in weights.items():
            if sum(nucleus.values()) < 0.8 * total:
                nucleus[token] = weight
        left = {t: w for t, w in nucleus.items() if w >= 0.15 * max(nucleus.values())}
        expected = [left.get(t, 0) / sum(left.values()) for t in range(9)]
        torch.testing.assert_close(output, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-14)


def test_a_temperature_of_zero_takes_the_first_of_the_largest():
    logits = torch.tensor([[1.0, 3.0, 3.0], [-1.0, -2.0, -3.0]])
    assert token_filter(logits, temperature=0.0).tolist() == [[0, 1, 0], [1, 0, 0]]


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


@pytest.mark.parametrize(("q_seq", "kv_seq", "window"), [(5, 5, 2), (4, 4, 1), (3, 7, 4), (6, 2, 3), (4, 4, 9)])
def test_a_sliding_window_is_a_band_below_the_diagonal(q_seq, kv_seq, window):
    expected = torch.ones(q_seq, kv_seq, dtype=torch.bool).tril().triu(1 - window)
    assert torch.equal(sliding_window_mask(q_seq, kv_seq, window), expected)


def test_a_window_of_no_key_is_refused():
    with pytest.raises(ValueError, match="window=0 must be at least 1: pass a positive size"):
        sliding_window_mask(3, 3, 0)


def list_slopes(heads: int) -> list[float]:
    """Return the slopes as the code of the paper's authors computes them."""
    power = 2 ** math.floor(math.log2(heads))
    start = 2 ** (-(2 ** -(math.log2(power) - 3)))
    slopes = [start * start**head for head in range(power)]
    return slopes if power == heads else slopes + list_slopes(2 * power)[0::2][: heads - power]


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16])
def test_the_slopes_of_alibi_are_those_of_its_authors(heads):
    bias = alibi_bias(torch.empty(heads, 3, 5, dtype=torch.float64))
    distance = torch.arange(3)[:, None] - torch.arange(5)
    expected = -torch.tensor(list_slopes(heads), dtype=torch.float64)[:, None, None] * distance
    torch.testing.assert_close(bias, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_distant_keys_of_half_types_have_a_bias_of_their_own(dtype):
    bias = alibi_bias(torch.empty(1, 300, 300, dtype=dtype))
    assert bias.dtype == dtype
    assert bias[0, 299, 296:].tolist() == [-3 / 256, -2 / 256, -1 / 256, 0]


def test_positions_count_words_wherever_padding_stands():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [1, 0, 1, 0]]).bool()
    assert position_ids(mask).tolist() == [[1, 1, 0, 1], [0, 1, 1, 1], [0, 1, 1, 1]]


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


@pytest.mark.parametrize("calls", [(7,), (3, 2, 1, 1), (1,) * 7, (1, 5, 1)])
def test_a_cache_gives_what_causal_attention_of_torch_gives_without_one(calls):
    arrays, outputs, cache, start = draw_tokens(7), [], None, 0
    for new in calls:
        output, cache = cached_attention(**take_tokens(arrays, start, start + new), cache=cache)
        outputs.append(output)
        start += new
    expected = functional.scaled_dot_product_attention(**arrays, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(torch.cat(outputs, dim=2), expected, rtol=1e-12, atol=1e-13)
    assert cache is not None
    assert torch.equal(cache.key, arrays["key"])
    assert torch.equal(cache.value, arrays["value"])


def test_a_cache_may_be_continued_twice():
    arrays = draw_tokens(5)
    _, prompt = cached_attention(**take_tokens(arrays, 0, 3))
    kept = [x.clone() for x in prompt]
    first, _ = cached_attention(**take_tokens(arrays, 3, 5), cache=prompt)
    second, _ = cached_attention(**take_tokens(arrays, 3, 5), cache=prompt)
    assert torch.equal(first, second)
    assert all(map(torch.equal, kept, prompt))


def test_padding_of_earlier_calls_stays_hidden():
    arrays, mask = draw_tokens(4), torch.tensor([[False, True, True, True]] * 2)[:, None, None]
    _, cache = cached_attention(**take_tokens(arrays, 0, 3), mask=mask[..., :3])
    output, _ = cached_attention(**take_tokens(arrays, 3, 4), mask=mask, cache=cache)
    _, cache = cached_attention(**take_tokens(arrays, 1, 3))
    expected, _ = cached_attention(**take_tokens(arrays, 3, 4), cache=cache)
    torch.testing.assert_close(output, expected, rtol=1e-13, atol=1e-14)


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


def test_scale_and_bias_are_those_of_torch():
    arrays, bias = draw_groups(4, 2), torch.randn(4, 3, 5, dtype=torch.float64)
    expected = functional.scaled_dot_product_attention(**arrays, attn_mask=bias, scale=0.3, enable_gqa=True)
    output, _ = grouped_query_attention(**arrays, bias=bias, scale=0.3)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-13)


def test_a_sink_is_one_key_more_whose_value_is_zero():
    arrays, sinks = draw_groups(4, 2), torch.randn(4, dtype=torch.float64)
    bias = torch.cat([torch.zeros(4, 3, 5), sinks[:, None, None].expand(4, 3, 1)], dim=-1).double()
    longer = {name: functional.pad(arrays[name], (0, 0, 0, 1)) for name in ("key", "value")}
    expected, _ = grouped_query_attention(arrays["query"], longer["key"], longer["value"], bias=bias)
    output, weights = grouped_query_attention(**arrays, sinks=sinks)
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-13)
    assert weights.shape == (2, 4, 3, 5)


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


@pytest.mark.parametrize("calls", [(6,), (3, 2, 1), (1,) * 6])
def test_a_model_with_caches_gives_what_it_gives_without(calls):
    model = DecoderOnlyModel(7, 16, 4, 2, 5, 3, pad_id=0, dtype=torch.float64)
    ids, state, results, start = torch.tensor([[3, 6, 1, 4, 2, 5], [0, 0, 1, 2, 5, 3]]), None, [], 0
    for new in calls:
        result, state = model.extend(ids[:, start : start + new], state)
        results.append(result)
        start += new
    for joined, whole in zip(map(torch.cat, zip(*results, strict=True), [1] * 3), model(ids), strict=True):
        torch.testing.assert_close(joined[ids != 0], whole[ids != 0], rtol=1e-12, atol=1e-13)


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


def test_code_that_gathers_the_tokens_of_each_expert_gives_the_same():
    module = ExpertFeedForward(6, 5, 4, 2, dtype=torch.float64)
    x = torch.randn(2, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    result = module(x)
    best, chosen = (x @ module.w_router).topk(2, dim=-1)
    shares, gathered = best.softmax(-1), torch.zeros_like(x)
    for expert, network in enumerate(module.experts):
        sample, token, place = (chosen == expert).nonzero(as_tuple=True)
        if len(sample):
            fed = network(x[sample, token][None]).output[0]
            gathered[sample, token] += shares[sample, token, place, None] * fed
    torch.testing.assert_close(result.output, gathered)
    assert (result.weights != 0).sum(-1).unique().tolist() == [2]
    torch.testing.assert_close(result.weights.sum(-1), torch.ones(2, 7, dtype=torch.float64))


def test_queries_and_keys_are_normalised_within_each_head():
    arrays = draw_groups(4, 2)
    width = arrays["query"].shape[-1]
    gains = [torch.randn(width, dtype=torch.float64) for _ in range(2)]
    query, key = (
        functional.rms_norm(arrays[name], (width,), g, 1e-6) for name, g in zip(("query", "key"), gains, strict=True)
    )
    expected, _ = grouped_query_attention(query, key, arrays["value"])
    output, _ = grouped_query_attention(**arrays, gamma_q=gains[0], gamma_k=gains[1])
    torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-13)


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

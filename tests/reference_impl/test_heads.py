"""Multi-head attention, separate and fused, against torch's own and against a loop over the heads."""

import math
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn

from goldformer.reference_impl import (
    FusedMultiHeadAttention,
    MultiHeadAttention,
    SingleHeadAttention,
    causal_mask,
    merge_heads,
    padding_mask,
    positional_encoding,
    scaled_dot_product_attention,
    split_heads,
    token_embedding,
)
from reference_functions import (
    fused_multi_head_attention,
    multi_head_attention,
)

BATCH, HEADS, Q_SEQ, KV_SEQ, D_K, D_V = 3, 2, 5, 7, 11, 13
D_MODEL, D_QUERY, D_KEY, D_VALUE = 22, 17, 19, 23
PADDED = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0, 0]])

Some = TypeVar("Some", bound=nn.Module)


def real(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-13)


def heads_parameters() -> dict[str, Any]:
    shapes = {
        "w_q": (D_QUERY, HEADS * D_K),
        "w_k": (D_KEY, HEADS * D_K),
        "w_v": (D_VALUE, HEADS * D_V),
        "w_o": (HEADS * D_V, D_MODEL),
        "b_q": (HEADS * D_K,),
        "b_k": (HEADS * D_K,),
        "b_v": (HEADS * D_V,),
        "b_o": (D_MODEL,),
    }
    return {name: real(*shape, seed=10 + n) for n, (name, shape) in enumerate(shapes.items())}


def test_split_heads_gives_each_head_its_block_of_channels():
    x = real(BATCH, Q_SEQ, HEADS * D_K)
    heads = split_heads(x, HEADS)

    assert heads.shape == (BATCH, HEADS, Q_SEQ, D_K)
    for head in range(HEADS):
        assert torch.equal(heads[:, head], x[:, :, head * D_K : (head + 1) * D_K])
    assert torch.equal(merge_heads(heads), x)


@pytest.mark.parametrize("with_biases", [True, False])
def test_multi_head_attention_is_a_loop_over_the_heads(with_biases):
    query, key = real(BATCH, Q_SEQ, D_QUERY), real(BATCH, KV_SEQ, D_KEY, seed=1)
    value = real(BATCH, KV_SEQ, D_VALUE, seed=2)
    mask = padding_mask(PADDED, 0) & causal_mask(Q_SEQ, KV_SEQ)
    p = {n: t for n, t in heads_parameters().items() if with_biases or n.startswith("w")}
    output, weights = multi_head_attention(query, key, value, mask, num_heads=HEADS, **p)

    zero = torch.zeros(1, dtype=torch.float64)
    concatenated = []
    for head in range(HEADS):
        k_block = slice(head * D_K, (head + 1) * D_K)
        v_block = slice(head * D_V, (head + 1) * D_V)
        q = query @ p["w_q"][:, k_block] + (p["b_q"][k_block] if with_biases else zero)
        k = key @ p["w_k"][:, k_block] + (p["b_k"][k_block] if with_biases else zero)
        v = value @ p["w_v"][:, v_block] + (p["b_v"][v_block] if with_biases else zero)
        result, head_weights = scaled_dot_product_attention(q, k, v, mask[:, 0])
        concatenated.append(result)
        close(weights[:, head], head_weights)
    close(output, torch.cat(concatenated, dim=-1) @ p["w_o"] + p.get("b_o", zero))


def torch_twin(ours: MultiHeadAttention, d_key: int, d_value: int) -> nn.MultiheadAttention:
    twin = nn.MultiheadAttention(D_MODEL, HEADS, kdim=d_key, vdim=d_value, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        # torch keeps (out, in), and where all widths agree one matrix, q over k over v.
        if d_key == d_value == D_MODEL:
            twin.in_proj_weight.copy_(torch.cat((ours.w_q, ours.w_k, ours.w_v), dim=1).T)
        else:
            twin.q_proj_weight.copy_(ours.w_q.T)
            twin.k_proj_weight.copy_(ours.w_k.T)
            twin.v_proj_weight.copy_(ours.w_v.T)
        twin.in_proj_bias.copy_(torch.cat((ours.b_q, ours.b_k, ours.b_v)))
        twin.out_proj.weight.copy_(ours.w_o.T)
        twin.out_proj.bias.copy_(ours.b_o)
    return twin


def filled(module: Some) -> Some:
    for seed, parameter in enumerate(module.parameters()):
        nn.init.normal_(parameter, std=0.25, generator=torch.Generator().manual_seed(20 + seed))
    return module


@pytest.mark.parametrize(("d_key", "d_value"), [(D_MODEL, D_MODEL), (D_KEY, D_VALUE)])
@pytest.mark.parametrize("masked", [False, True])
def test_the_module_agrees_with_that_of_torch(d_key, d_value, masked):
    ours = filled(MultiHeadAttention(D_MODEL, HEADS, d_key=d_key, d_value=d_value, dtype=torch.float64))
    twin = torch_twin(ours, d_key, d_value)
    query, key = real(BATCH, Q_SEQ, D_MODEL), real(BATCH, KV_SEQ, d_key, seed=1)
    value = real(BATCH, KV_SEQ, d_value, seed=2)
    causal, padding = causal_mask(Q_SEQ, KV_SEQ), padding_mask(PADDED, 0)

    output, weights = ours(query, key, value, causal & padding if masked else None)
    expected = twin(
        query,
        key,
        value,
        # torch's True = ignore.
        key_padding_mask=~padding[:, 0, 0] if masked else None,
        attn_mask=~causal if masked else None,
        average_attn_weights=False,
    )
    close(output, expected[0])
    close(weights, expected[1])


def test_each_head_may_have_a_mask_of_its_own():
    module = filled(MultiHeadAttention(D_MODEL, HEADS, dtype=torch.float64))
    x = real(BATCH, Q_SEQ, D_MODEL)
    mask = torch.stack((causal_mask(Q_SEQ, Q_SEQ), causal_mask(Q_SEQ, Q_SEQ).T))
    _, weights = module(x, x, x, mask)

    assert torch.equal(weights != 0, mask.expand(BATCH, HEADS, Q_SEQ, Q_SEQ))


def test_the_shapes_of_n9():
    module = MultiHeadAttention(300, 6)
    query, memory = torch.rand(64, 12, 300), torch.rand(64, 10, 300)
    output, weights = module(query, memory, memory)

    assert output.shape == (64, 12, 300)
    assert weights.shape == (64, 6, 12, 10)


@pytest.mark.parametrize("with_biases", [True, False])
def test_the_fused_form_is_the_separate_one_with_its_columns_per_head(with_biases):
    x, mask = real(BATCH, KV_SEQ, D_QUERY), padding_mask(PADDED, 0)
    w_qkv, b_qkv = real(D_QUERY, 3 * D_MODEL, seed=1), real(3 * D_MODEL, seed=2)
    w_o, b_o = real(D_MODEL, D_MODEL, seed=3), real(D_MODEL, seed=4)
    biases: dict[str, Any] = {"b_qkv": b_qkv, "b_o": b_o} if with_biases else {}
    output, weights, qkv = fused_multi_head_attention(x, mask, num_heads=HEADS, w_qkv=w_qkv, w_o=w_o, **biases)

    separate: dict[str, Any] = {"w_o": w_o} | ({"b_o": b_o} if with_biases else {})
    for part, name in enumerate("qkv"):
        columns = [3 * D_K * head + part * D_K + i for head in range(HEADS) for i in range(D_K)]
        separate[f"w_{name}"] = w_qkv[:, columns]
        if with_biases:
            separate[f"b_{name}"] = b_qkv[columns]
    expected = multi_head_attention(x, x, x, mask, num_heads=HEADS, **separate)
    close(output, expected[0])
    close(weights, expected[1])
    close(qkv, x @ w_qkv + (b_qkv if with_biases else 0))
    assert output.shape == (BATCH, KV_SEQ, D_MODEL)


@pytest.mark.parametrize("bias", [True, False])
def test_modules_keep_their_parameters_under_the_names_of_the_contract(bias):
    biases = {"b_q", "b_k", "b_v", "b_o"} if bias else set()
    assert set(MultiHeadAttention(D_MODEL, HEADS, bias=bias).state_dict()) == {"w_q", "w_k", "w_v", "w_o"} | biases
    fused = FusedMultiHeadAttention(D_QUERY, D_MODEL, HEADS, bias=bias)
    assert set(fused.state_dict()) == {"w_qkv", "w_o"} | ({"b_qkv", "b_o"} if bias else set())
    assert set(SingleHeadAttention(D_MODEL).state_dict()) == {"w_q", "w_k", "w_v"}
    assert fused.w_qkv.shape == (D_QUERY, 3 * D_MODEL)


@pytest.mark.parametrize(
    "module",
    [
        MultiHeadAttention(64, 4, d_key=96, d_value=160),
        FusedMultiHeadAttention(96, 64, 4),
        SingleHeadAttention(64),
    ],
    ids=lambda module: type(module).__name__,
)
def test_modules_start_xavier_uniform_with_zero_biases(module):
    for name, parameter in module.named_parameters():
        if name.startswith("b_"):
            assert not parameter.any()
            continue
        d_in, d_out = parameter.shape
        bound = math.sqrt(6 / (d_in + d_out))
        # Of 4096 or more draws the largest lies within 1 % of the bound, but for one chance in 10^17.
        assert 0.99 * bound < parameter.abs().max() <= bound
        assert parameter.var().item() == pytest.approx(bound**2 / 3, rel=0.1)


def test_modules_run_their_function_on_their_parameters():
    module = filled(MultiHeadAttention(D_MODEL, HEADS, dtype=torch.float64))
    query, memory = real(BATCH, Q_SEQ, D_MODEL), real(BATCH, KV_SEQ, D_MODEL, seed=1)
    arguments = (query, memory, memory, padding_mask(PADDED, 0))
    expected = multi_head_attention(*arguments, num_heads=HEADS, **module.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(module(*arguments), expected, strict=True))

    fused = filled(FusedMultiHeadAttention(D_MODEL, D_MODEL, HEADS, dtype=torch.float64))
    of_fused = fused_multi_head_attention(memory, padding_mask(PADDED, 0), num_heads=HEADS, **fused.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(fused(memory, padding_mask(PADDED, 0)), of_fused, strict=True))


def test_the_two_sentences_of_walkthrough_differ_only_by_their_positions():
    # 小明 教 你 机器 学习 and 你 教 小明 机器 学习.
    ids = torch.tensor([[0, 1, 2, 3, 4], [2, 1, 0, 3, 4]])
    order = [2, 1, 0, 3, 4]
    embedded = token_embedding(ids, real(5, D_MODEL))
    module = filled(FusedMultiHeadAttention(D_MODEL, D_MODEL, HEADS, dtype=torch.float64))

    output, weights, _ = module(embedded)
    close(output[1], output[0, order])
    close(weights[1], weights[0][:, order][:, :, order])
    output, _, _ = module(positional_encoding(embedded))
    assert (output[1] - output[0, order]).abs().max() > 0.1

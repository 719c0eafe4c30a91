"""The textbook's attention against the documents' numbers, against PyTorch, and against what it promises."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as torch_attention

from arrays import UNIT_ROUNDOFF, draw, tensors
from goldformer.adapters.builtin import reference
from goldformer.adapters.builtin import textbook as textbook_adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.spec.formulas.attention import ATTENTION
from goldformer.spec.formulas.embedding import EMBEDDING
from goldformer.spec.formulas.heads import FUSED, MULTI_HEAD, SINGLE_HEAD

# No two alike, but where one number stands for a product.
BATCH, HEADS, Q_SEQ, KV_SEQ, D_K, VOCAB = 3, 2, 5, 7, 11, 31
SIZES = {
    "batch": BATCH,
    "q_seq": Q_SEQ,
    "kv_seq": KV_SEQ,
    "seq": KV_SEQ,
    "d_k": D_K,
    "d_v": 13,
    "vocab": VOCAB,
}
SIZES |= {"d_query": 17, "d_key": 19, "d_value": 23, "d_input": 17, "d_model": 29}
SIZES |= {"heads*d_k": HEADS * D_K, "3*heads*d_k": 3 * HEADS * D_K, "heads*d_v": HEADS * 13}
CAUSAL = np.arange(KV_SEQ) <= np.arange(Q_SEQ)[:, None]
LENGTHS = (np.arange(KV_SEQ) < np.array([7, 4, 2])[:, None])[:, None, None, :]

textbook = build_textbook()


def drawn(table, dtype="float64", **others):
    """Return arguments for a table of axes; parameters so small that scores and outputs stay near 1."""
    arguments, params = {}, {}
    for seed, (name, line) in enumerate(table.items()):
        axes = line.removeprefix("? ").replace("...", "batch heads").split()
        shape = [HEADS if axis == "heads" else SIZES[axis] for axis in axes]
        is_param = name[:2] in {"w_", "b_"}
        (params if is_param else arguments)[name] = draw(seed, *shape, dtype=dtype, end=0.5 if is_param else 2)
    return arguments | ({"params": params} if params else {}) | others


def multi_head_arguments(dtype="float64"):
    return drawn(MULTI_HEAD, dtype, num_heads=HEADS, mask=CAUSAL & LENGTHS)


def fused_arguments(dtype="float64"):
    return drawn(FUSED, dtype, num_heads=HEADS, mask=LENGTHS)


def attention_arguments(dtype="float64"):
    return drawn(ATTENTION, dtype, mask=LENGTHS)


def embedding_arguments(dtype="float64"):
    ids = np.random.default_rng(61).integers(0, VOCAB, (BATCH, Q_SEQ))
    return {"ids": ids, "params": drawn({"table": EMBEDDING["table"]}, dtype)}


ARGUMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "softmax": partial(drawn, {"scores": "batch q_seq kv_seq"}),
    "scaled_dot_product_attention": attention_arguments,
    "token_embedding": embedding_arguments,
    "positional_encoding": partial(drawn, {"x": "batch q_seq d_model"}),
    "multi_head_attention": multi_head_arguments,
    "fused_multi_head_attention": fused_arguments,
    "single_head_attention": partial(drawn, SINGLE_HEAD, causal=True),
}


def outputs(returned):
    """Return the outputs in one order, whichever of the adapter's three forms they come in."""
    if isinstance(returned, dict):
        return list(returned.values())
    return list(returned) if isinstance(returned, tuple) else [returned]


# The documents' numbers, to the digits they print


def test_walkthrough_example():
    attended = textbook.scaled_dot_product_attention(
        np.array([[0.3, 0.1], [0.2, 0.2], [-1.1, -0.2]]),
        np.array([[2.2, -0.6], [0.5, 0.3], [0.5, 0.8]]),
        np.array([[1.1, -1.7], [-1, 1], [1.3, 0.8]]),
    )
    weights = [[0.3980, 0.2957, 0.3063], [0.3507, 0.3132, 0.3361], [0.1355, 0.4475, 0.4170]]
    output = [[0.5403, -0.1357], [0.5095, -0.0141], [0.2436, 0.5508]]
    np.testing.assert_allclose(attended["weights"], weights, atol=0.5e-4)
    np.testing.assert_allclose(attended["output"], output, atol=0.5e-4)


JAVA: dict[str, Any] = {
    "x": np.array([[1.0, 2], [0, 1], [3, 1]]),
    "params": {
        "w_q": np.eye(2),
        "w_k": np.array([[1.0, 1], [0, 1]]),
        "w_v": np.array([[1.0, 0], [1, 1]]),
    },
}


def test_java_example():
    result = textbook.single_head_attention(**JAVA, causal=False)
    assert result["query"].tolist() == [[1, 2], [0, 1], [3, 1]]
    assert result["key"].tolist() == [[1, 3], [0, 1], [3, 4]]
    assert result["value"].tolist() == [[3, 2], [1, 1], [4, 1]]
    assert result["scores"].tolist() == [[7, 2, 11], [3, 1, 4], [6, 1, 13]]
    # The corrected digits of the errata.
    np.testing.assert_allclose(result["weights"][1], [0.3057, 0.0743, 0.6200], atol=0.5e-4)
    np.testing.assert_allclose(result["weights"][0, 0], 0.0557, atol=0.5e-4)
    np.testing.assert_allclose(result["output"][1], [3.4713, 1.3057], atol=0.5e-4)


def test_java_example_causal():
    result = textbook.single_head_attention(**JAVA, causal=True)
    # Row 1 of the scores sees 3 and 1: σ((3 − 1)/√2) on the first key.
    first = 1 / (1 + math.exp(-2 / math.sqrt(2)))
    np.testing.assert_allclose(result["weights"][:2], [[1.0, 0, 0], [first, 1 - first, 0]], rtol=1e-15)
    assert result["output"][0].tolist() == [3, 2]


def test_positional_encoding_matrix():
    got = textbook.positional_encoding(np.zeros((1, 4, 4)))[0]
    expected = [[math.sin(p), math.cos(p), math.sin(p / 100), math.cos(p / 100)] for p in range(4)]
    np.testing.assert_allclose(got, expected, rtol=1e-15)


def test_positional_encoding_odd_width_ends_with_a_sine():
    got = textbook.positional_encoding(np.zeros((1, 2, 5)))[0, 1]
    np.testing.assert_allclose(got[4], math.sin(10000 ** (-4 / 5)), rtol=1e-15)


# PyTorch in float64: two computations of about ten roundings each


def close(got, expected):
    np.testing.assert_allclose(got, expected.numpy(), rtol=0, atol=1e-13)


def heads_of(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def test_softmax_against_torch():
    scores = ARGUMENTS["softmax"]()["scores"]
    close(textbook.softmax(scores), torch.softmax(torch.tensor(scores), dim=-1))


def test_attention_against_torch():
    arguments = attention_arguments()
    t = tensors(arguments)
    expected = torch_attention(t["query"], t["key"], t["value"], attn_mask=t["mask"])
    attended = textbook.scaled_dot_product_attention(**arguments)
    close(attended["output"], expected)
    close(attended["scores"], t["query"] @ t["key"].mT)
    close(attended["scaled_scores"], t["query"] @ t["key"].mT / math.sqrt(D_K))


def test_multi_head_against_torch():
    arguments = multi_head_arguments()
    p = tensors(arguments["params"])
    t = tensors({name: arguments[name] for name in ("query", "key", "value", "mask")})
    q = heads_of(t["query"] @ p["w_q"] + p["b_q"])
    k = heads_of(t["key"] @ p["w_k"] + p["b_k"])
    v = heads_of(t["value"] @ p["w_v"] + p["b_v"])
    merged = torch_attention(q, k, v, attn_mask=t["mask"]).transpose(1, 2).flatten(2)
    got = textbook.multi_head_attention(**arguments)
    for name, expected in {"q": q, "k": k, "v": v, "scaled_scores": q @ k.mT / math.sqrt(D_K)}.items():
        close(got[name], expected)
    scores = (q @ k.mT / math.sqrt(D_K)).masked_fill(~t["mask"], -math.inf)
    close(got["weights"], scores.softmax(-1))
    close(got["heads"].swapaxes(1, 2).reshape(merged.shape), merged)
    close(got["output"], merged @ p["w_o"] + p["b_o"])


def test_fused_against_torch():
    arguments = fused_arguments()
    p = tensors(arguments["params"])
    fused = torch.from_numpy(arguments["x"].copy()) @ p["w_qkv"] + p["b_qkv"]
    q, k, v = fused.reshape(BATCH, KV_SEQ, HEADS, 3 * D_K).transpose(1, 2).chunk(3, dim=-1)
    mask = torch.from_numpy(arguments["mask"])
    merged = torch_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
    got = textbook.fused_multi_head_attention(**arguments)
    for name, expected in {"qkv": fused, "q": q, "k": k, "v": v}.items():
        close(got[name], expected)
    close(got["output"], merged @ p["w_o"] + p["b_o"])
    assert got["weights"].shape == (BATCH, HEADS, KV_SEQ, KV_SEQ)


@pytest.mark.parametrize("component", ARGUMENTS)
def test_the_adapters_of_textbook_and_reference_agree(component):
    arguments = ARGUMENTS[component]()
    got = outputs(getattr(textbook_adapter, component)(**arguments))
    for mine, other in zip(got, outputs(getattr(reference, component)(**tensors(arguments))), strict=True):
        close(mine, other)


# What it promises of dtypes, masks and inputs


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("component", ARGUMENTS)
def test_dtype_is_kept(component, dtype):
    # Inputs are equal in all dtypes; 16 unit roundoffs are six times the most that was seen, 2.6.
    exact = outputs(getattr(textbook, component)(**ARGUMENTS[component]()))
    rounded = outputs(getattr(textbook, component)(**ARGUMENTS[component](dtype=dtype)))
    for want, got in zip(exact, rounded, strict=True):
        assert got.dtype == dtype
        bound = 16 * UNIT_ROUNDOFF[dtype] * max(1, np.abs(want).max())
        np.testing.assert_allclose(got, want, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", UNIT_ROUNDOFF)
def test_empty_row_is_uniform(dtype):
    arguments = attention_arguments(dtype)
    mask = np.ones((BATCH, 1, Q_SEQ, KV_SEQ), dtype=bool)
    mask[1, 0, 3] = False
    attended = textbook.scaled_dot_product_attention(**arguments | {"mask": mask})
    u = UNIT_ROUNDOFF[dtype]
    np.testing.assert_allclose(attended["weights"][1, :, 3], 1 / KV_SEQ, rtol=2 * u)
    mean = arguments["value"][1].astype(float).mean(-2)
    np.testing.assert_allclose(attended["output"][1, :, 3], mean, rtol=0, atol=8 * u)


@pytest.mark.parametrize("dtype", UNIT_ROUNDOFF)
def test_masked_keys_have_no_weight_however_low_the_others(dtype):
    query, key = np.array([[-200.0]], dtype=dtype), np.array([[200.0], [0.0]], dtype=dtype)
    mask = np.array([[True, False]])
    assert textbook.scaled_dot_product_attention(query, key, key, mask)["weights"].tolist() == [[1, 0]]


def test_softmax_does_not_overflow():
    assert textbook.softmax(np.array([1e4, 0], dtype="float16")).tolist() == [1, 0]


def test_causal_mask_starts_top_left():
    expected = [[True, False, False], [True, True, False]]
    assert textbook.causal_mask(q_seq=2, kv_seq=3).tolist() == expected
    assert textbook.causal_mask(q_seq=3, kv_seq=2).tolist() == [[True, False], [True, True], [True, True]]


def test_padding_mask():
    got = textbook.padding_mask(np.array([[5, 2, 0], [2, 0, 0]]), pad_id=0)
    assert got.tolist() == [[[[True, True, False]]], [[[True, False, False]]]]


def test_embedding_is_rows_and_no_view():
    arguments = embedding_arguments()
    table = arguments["params"]["table"]
    got = textbook.token_embedding(**arguments)
    assert np.array_equal(got, table[arguments["ids"]])
    assert not np.shares_memory(got, table)


# Refusals: a component, what is changed of its arguments, and how it says so

SDPA, MHA, FUSED_MHA = "scaled_dot_product_attention", "multi_head_attention", "fused_multi_head_attention"
REFUSED = [
    (
        SDPA,
        {"key": np.ones((3, 2, 7, 4))},
        r"key: shape .* is not \(\.\.\., kv_seq, d_k\): d_k is 11 in query",
    ),
    (SDPA, {"value": np.ones((3, 2, 6, 6))}, "value: shape .* kv_seq is 7 in key"),
    (SDPA, {"key": np.ones((2, 2, 7, 11))}, r"key: shape .* \.\.\. is \(3, 2\) in query"),
    (SDPA, {"query": np.ones(4)}, r"query: shape \(4,\) is not \(\.\.\., q_seq, d_k\)"),
    (SDPA, {"query": np.ones((3, 2, 0, 11))}, r"query: shape \(3, 2, 0, 11\) is empty along q_seq"),
    (
        SDPA,
        {"mask": np.ones((6, 7), dtype=bool)},
        r"mask: shape \(6, 7\) does not broadcast .* \(3, 2, 5, 7\)",
    ),
    (SDPA, {"mask": np.ones((1, 1, 1, 5, 7), dtype=bool)}, "mask: shape .* does not broadcast"),
    (SDPA, {"mask": np.zeros((5, 7))}, "mask: dtype float64, but a mask is boolean"),
    (MHA, {"num_heads": 3}, "num_heads: 22 columns do not divide into 3 equal parts"),
    (MHA, {"num_heads": 0}, "num_heads: 22 columns do not divide into 0 equal parts"),
    (MHA, {"query": np.ones((3, 5, 4))}, "w_q: shape .* d_query is 4 in query"),
    (MHA, {"key": np.ones((3, 6, 19))}, "value: shape .* kv_seq is 6 in key"),
    (MHA, {"value": np.ones((2, 7, 23))}, "value: shape .* batch is 3 in query"),
    (MHA, {"mask": np.ones((3, 5, 7), dtype=bool)}, "mask: shape .* does not broadcast"),
    (MHA, {"params": {"w_q": np.ones((17, 4))}}, r"w_k: missing; it is \(d_key, heads\*d_k\)"),
    (FUSED_MHA, {"num_heads": 4}, "num_heads: 66 columns do not divide into 12 equal parts"),
    (
        FUSED_MHA,
        {"params": {"w_qkv": np.ones((17, 66)), "w_o": np.ones((20, 20))}},
        "w_qkv: 66 columns are not 3 times w_o's 20",
    ),
    (
        "single_head_attention",
        {"params": {"w_q": np.ones((29, 29)), "w_k": np.ones((3, 29))}},
        r"w_k: shape \(3, 29\) is not \(d_model, d_model\): d_model is 29 in x",
    ),
    ("token_embedding", {"ids": np.array([[0, -1]])}, "ids: -1 is not in 0 … 30, the rows of table"),
    ("token_embedding", {"ids": np.array([[0, 31]])}, "ids: 31 is not in 0 … 30, the rows of table"),
    ("token_embedding", {"ids": np.ones((2, 3))}, "ids: dtype float64, but ids are integers"),
    ("padding_mask", {"ids": np.ones((2, 3)), "pad_id": 0}, "ids: dtype float64, but ids are integers"),
    ("causal_mask", {"q_seq": -1, "kv_seq": 3}, "q_seq: -1, but a mask has at least one row"),
    ("causal_mask", {"q_seq": 2, "kv_seq": 0}, "kv_seq: 0, but a mask has at least one row"),
]


@pytest.mark.parametrize(("component", "changed", "message"), REFUSED)
def test_refusals_name_the_argument(component, changed, message):
    arguments = ARGUMENTS.get(component, dict)() | changed
    with pytest.raises((ValueError, TypeError, IndexError), match=message):
        getattr(textbook, component)(**arguments)


# Every step can be replaced: a mistake is an override of a line or two


MISTAKES = ["scale-d-model", "softmax-query-axis", "mask-after-softmax", "head-split-view", "head-merge-view"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_override_is_a_mistake(mistake):
    arguments = multi_head_arguments()
    right = textbook.multi_head_attention(**arguments)["output"]
    wrong = implementations()[mistake].make().multi_head_attention(**arguments)["output"]
    assert wrong.shape == right.shape
    assert np.abs(wrong - right).max() > 0.01


def test_an_override_of_the_encoding():
    x = np.zeros((1, 2, 4))
    wrong = implementations()["pe-double-exp"].make()
    difference = wrong.positional_encoding(x) - textbook.positional_encoding(x)
    # sin(1/100) and sin(1/10000): the 0.0099 that the catalogue measures.
    assert difference[0, 1, 2] == pytest.approx(math.sin(1e-4) - math.sin(1e-2))

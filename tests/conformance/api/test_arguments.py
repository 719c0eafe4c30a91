"""Arguments that are meant for another function: `assert_correct` says what to pass in their place."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import goldformer

ATTENTION = "scaled_dot_product_attention"
GENERATOR = torch.Generator().manual_seed(0)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def attention(keys: int = 12) -> dict[str, Any]:
    return {"query": draw(2, 8, 10, 16), "key": draw(2, 8, keys, 16), "value": draw(2, 8, keys, 16)}


ADDED = "float64, not boolean: True means may attend; pass mask == 0 if it is added to the scores, "
HIDDEN = torch.ones(10, 12, dtype=torch.bool).triu(3)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("attn_mask", None, "pass a boolean mask=, where True means may attend (for a float mask: attn_mask == 0)"),
        ("is_causal", True, "pass mask=torch.ones(q_seq, kv_seq, dtype=torch.bool).tril()"),
        ("dropout_p", 0.0, "leave it out if it is 0; dropout is random, so it has no expected values"),
        ("scale", 0.25, "leave it out if it is 1/√d_k; no other scale is judged"),
        ("enable_gqa", True, "pass key and value with as many heads as query: key.repeat_interleave(groups, dim=-3)"),
    ],
)
def test_names_of_torch_say_what_to_pass(name, value, says):
    given = attention()
    with pytest.raises(TypeError) as caught:
        goldformer.assert_correct(given["query"], ATTENTION, **given, **{name: value})
    assert str(caught.value) == f"{ATTENTION}() has no argument {name}: {says}"
    with pytest.raises(TypeError, match=r"softmax\(\) has no argument scale: .*known are scores"):
        goldformer.expected("softmax", scores=draw(2, 3), scale=1.0)


def test_a_float_mask_of_0_and_minus_infinity_is_read_as_boolean():
    given, added = attention(), torch.zeros(10, 12).masked_fill(HIDDEN, -math.inf)
    result = F.scaled_dot_product_attention(**given, attn_mask=added)
    goldformer.assert_correct(result, ATTENTION, **given, mask=added)
    goldformer.assert_correct(result, ATTENTION, **given, mask=~HIDDEN)
    with pytest.raises(goldformer.NonConformance):
        goldformer.assert_correct(F.scaled_dot_product_attention(**given), ATTENTION, **given, mask=added)
    half = {name: array.bfloat16() for name, array in given.items()}
    other = F.scaled_dot_product_attention(**half, attn_mask=added.bfloat16())
    goldformer.assert_correct(other, ATTENTION, **half, mask=added)


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        (torch.zeros(10, 12), ADDED),
        (HIDDEN * -1e9, ADDED),
        (HIDDEN * -1e9 + torch.zeros(10, 12).masked_fill(HIDDEN, -math.inf).roll(1, 0), ADDED),
        ((~HIDDEN).float(), ADDED),
        ((~HIDDEN).long(), "int64, not boolean: True means may attend; pass mask != 0 if 1 means may attend"),
    ],
)  # fmt: skip
def test_any_other_mask_of_numbers_is_refused(mask, says):
    given = attention()
    with pytest.raises(ValueError, match=f"^{ATTENTION}: mask is {re.escape(says)}"):
        goldformer.assert_correct(given["query"], ATTENTION, **given, mask=mask)


def test_fewer_heads_of_keys_say_how_to_repeat_them():
    given = attention()
    few = {"key": given["key"][:, :2], "value": given["value"][:, :2]}
    result = F.scaled_dot_product_attention(given["query"], **few, enable_gqa=True)
    with pytest.raises(ValueError, match=r"give them as many heads; key\.repeat_interleave\(4, dim=-3\) repeats each"):
        goldformer.assert_correct(result, ATTENTION, **{**given, **few})
    repeated = {name: array.repeat_interleave(4, dim=-3) for name, array in few.items()}
    goldformer.assert_correct(result, ATTENTION, **{**given, **repeated})


@pytest.mark.parametrize("keys", [10, 12])
def test_tokens_before_heads_say_how_to_swap_them(keys):
    given = attention(keys)
    result = F.scaled_dot_product_attention(**given).swapaxes(1, 2)
    swapped = {name: array.swapaxes(1, 2) for name, array in given.items()}
    with pytest.raises(ValueError, match=r"(query|key)\.swapaxes\(1, 2\).*, and so .* and the result"):
        goldformer.assert_correct(result, ATTENTION, **swapped)
    arrays: Any = {name: np.asarray(array) for name, array in swapped.items()}
    with pytest.raises(ValueError, match=r"swapaxes\(1, 2\)"):
        goldformer.assert_correct(result.numpy(), ATTENTION, **arrays)

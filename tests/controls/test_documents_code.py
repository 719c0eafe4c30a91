"""Code in the manner of the documents does what their errata say of it: in which dtype it is wrong, and how."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from controls import Control
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status


def attend(query, key, value, mask, num_heads, params, scale):
    """Multi-head attention as n9 and the batch-first class of illustrated have it, with a fill of −1e10."""
    q, k, v = (
        (x @ params[f"w_{name}"] + params.get(f"b_{name}", 0)).unflatten(-1, (num_heads, -1)).transpose(1, 2)
        for name, x in (("q", query), ("k", key), ("v", value))
    )
    scores = q @ k.mT / scale(q.shape[-1])
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e10)
    heads = torch.softmax(scores, -1) @ v
    return heads.transpose(1, 2).flatten(2) @ params["w_o"] + params.get("b_o", 0)


def scale_in_float32(query, key, value, mask=None, *, num_heads, params):
    return attend(query, key, value, mask, num_heads, params, lambda width: torch.sqrt(torch.FloatTensor([width])))


def plain_scale(query, key, value, mask=None, *, num_heads, params):
    return attend(query, key, value, mask, num_heads, params, math.sqrt)


def table_rounded_to_float32(x):
    """As the walkthrough has it: computed in float64, returned as float32."""
    table = np.zeros(x.shape[1:])
    for channel in range(x.shape[-1]):
        angle = np.arange(x.shape[1]) / 10000 ** (2 * (channel // 2) / x.shape[-1])
        table[:, channel] = np.sin(angle) if channel % 2 == 0 else np.cos(angle)
    return (x + torch.tensor(table, dtype=torch.float32)).to(x.dtype)


def table_in_float32(x):
    """As n9 has it: float32 from the start."""
    table = torch.zeros(x.shape[1:])
    position = torch.arange(x.shape[1], dtype=torch.float32).unsqueeze(1)
    rate = torch.exp(torch.arange(0, x.shape[-1], 2).float() * (-math.log(10000.0) / x.shape[-1]))
    table[:, 0::2], table[:, 1::2] = torch.sin(position * rate), torch.cos(position * rate)
    return (x + table).to(x.dtype)


#: By erratum: the code, and by dtype what its proof says of it.
SAID: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "n9-scale-float32": (scale_in_float32, {"float64": "wrong-value", "float32": "", "float16": "raised"}),
    "illustrated-scale-float32": (scale_in_float32, {"float64": "wrong-value", "float32": "", "bfloat16": "raised"}),
    "n9-fill-half": (plain_scale, {"float64": "", "float32": "", "float16": "raised", "bfloat16": ""}),
    "illustrated-fill-half": (plain_scale, {"float32": "", "float16": "raised"}),
    "walkthrough-pe-float32": (table_rounded_to_float32, {"float64": "wrong-value", "float32": "", "bfloat16": ""}),
    "n9-pe-float32": (table_in_float32, {"float64": "wrong-value", "float32": "", "float16": ""}),
}


@pytest.mark.parametrize(
    ("erratum", "dtype"), [(erratum, dtype) for erratum, (_, said) in SAID.items() for dtype in said]
)
def test_the_proof_of_an_erratum_finds_its_code(erratum, dtype, spec):
    function, said = SAID[erratum]
    [proof] = (spec.cases[id_] for id_ in spec.errata[erratum].proof)
    control = Control("document", {proof.component: function})
    verdict = check_case(proof, Bench(spec, control.adapter(spec), dtype, "cpu", Policy(strict=True)))
    assert (
        verdict.status
        is (Status.PASSED, Status.FAILED, Status.ERRORED)[["", "wrong-value", "raised"].index(said[dtype])]
    )
    assert verdict.reason == said[dtype]


def test_a_fill_that_float16_cannot_hold_raises_once_the_scale_is_a_number(spec):
    """With the scale as printed the scores are float32, and the call fails at the product with the values."""
    case = spec.cases["mha-causal-and-padding"]
    messages = {
        function: check_case(
            case, Bench(spec, Control("document", {case.component: function}).adapter(spec), "float16", "cpu")
        ).message
        for function in (scale_in_float32, plain_scale)
    }
    assert "overflow" not in messages[scale_in_float32]
    assert "dtype" in messages[scale_in_float32] or "scalar type" in messages[scale_in_float32]
    assert "without overflow" in messages[plain_scale]


@pytest.mark.parametrize("mask", ["key_padding_mask", "attn_mask"])
def test_a_mask_of_bytes_is_refused_by_torch(mask):
    """The reason of illustrated-byte-masks."""
    attention = torch.nn.MultiheadAttention(8, 2)
    x = torch.randn(3, 3, 8)
    with pytest.raises(AssertionError, match="only bool and floating types"):
        attention(x, x, x, **{mask: torch.zeros(3, 3, dtype=torch.uint8)})

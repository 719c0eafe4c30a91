"""How the reference refuses: every sentence says what it got, what it must be and what to do."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from goldformer.reference_impl import (
    FusedMultiHeadAttention,
    MultiHeadAttention,
    PositionalEncoding,
    SingleHeadAttention,
    TokenEmbedding,
    attention_scores,
    causal_mask,
    cut_fused,
    fused_multi_head_attention,
    merge_heads,
    multi_head_attention,
    padding_mask,
    positional_encoding,
    project_heads,
    scaled_dot_product_attention,
    scaled_scores,
    single_head_attention,
    single_head_attention_step,
    sinusoid_table,
    softmax,
    split_heads,
    token_embedding,
)


def real(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def refused(error: type[Exception], message: str) -> Any:
    return pytest.raises(error, match=f"^{re.escape(message)}$")


def attend(**changed: Any) -> Any:
    arguments = {"query": real(3, 5, 11), "key": real(3, 7, 11), "value": real(3, 7, 13)}
    return scaled_dot_product_attention(**{**arguments, **changed})


def attend_with_heads(**changed: Any) -> Any:
    arguments = {
        "query": real(3, 5, 17),
        "key": real(3, 7, 19),
        "value": real(3, 7, 23),
        "num_heads": 2,
        "w_q": real(17, 14),
        "w_k": real(19, 14),
        "w_v": real(23, 26),
        "w_o": real(26, 29),
    }
    return multi_head_attention(**{**arguments, **changed})


def attend_fused(**changed: Any) -> Any:
    arguments = {"x": real(3, 5, 17), "num_heads": 2, "w_qkv": real(17, 42), "w_o": real(14, 14)}
    return fused_multi_head_attention(**{**arguments, **changed})


def attend_alone(**changed: Any) -> Any:
    arguments = {"x": real(5, 2), "w_q": real(2, 2), "w_k": real(2, 2), "w_v": real(2, 2), "causal": True}
    return single_head_attention(**{**arguments, **changed})


def train_alone(**changed: Any) -> Any:
    arguments = {
        "x": real(5, 2),
        "output_gradient": real(5, 2),
        "w_q": real(2, 2),
        "w_k": real(2, 2),
        "w_v": real(2, 2),
    }
    return single_head_attention_step(**{**arguments, "causal": True, "learning_rate": 0.1, "steps": 1, **changed})


LINEAR = "make the two agree (weights are (in, out): transpose those of nn.Linear)"


@pytest.mark.parametrize(
    ("call", "changed", "message"),
    [
        (
            attend,
            {"query": real(5, 11)},
            "key has shape (3, 7, 11) and must be (..., kv_seq, d_k) with ...=() as in query: make the two agree",
        ),
        (
            attend,
            {"query": real(11)},
            "query has shape (11,) and must be (..., q_seq, d_k): reshape it to at least 2 axes",
        ),
        (
            attend,
            {"key": real(2, 7, 11)},
            "key has shape (2, 7, 11) and must be (..., kv_seq, d_k) with ...=(3,) as in query: make the two agree",
        ),
        (
            attend,
            {"key": real(3, 7, 12)},
            "key has shape (3, 7, 12) and must be (..., kv_seq, d_k) with d_k=11 as in query: make the two agree",
        ),
        (
            attend,
            {"value": real(3, 6, 13)},
            "value has shape (3, 6, 13) and must be (..., kv_seq, d_v) with kv_seq=7 as in key: make the two agree",
        ),
        (
            attend,
            {"key": real(3, 0, 11), "value": real(3, 0, 13)},
            "key has shape (3, 0, 11) and must be (..., kv_seq, d_k) without an empty axis: "
            "leave empty batches and sequences out",
        ),
        (
            attend,
            {"mask": torch.ones(7, 5, dtype=torch.bool)},
            "mask has shape (7, 5) and must broadcast to the scores, (..., q_seq, kv_seq) = (3, 5, 7): "
            "give it size 1 on the axes it repeats along, such as mask[:, None] for all heads of a sample",
        ),
        (
            attend,
            {"mask": torch.ones(7, 7, dtype=torch.bool)},
            "mask has shape (7, 7) and must broadcast to the scores, (..., q_seq, kv_seq) = (3, 5, 7): "
            "give it size 1 on the axes it repeats along, such as mask[:, None] for all heads of a sample",
        ),
        (
            attend,
            {"mask": torch.ones(1, 3, 5, 7, dtype=torch.bool)},
            "mask has shape (1, 3, 5, 7) and must broadcast to the scores, (..., q_seq, kv_seq) = (3, 5, 7): "
            "give it size 1 on the axes it repeats along, such as mask[:, None] for all heads of a sample",
        ),
        (
            attend_with_heads,
            {"num_heads": 4},
            "num_heads=4 does not divide the width 14 of w_q: choose a divisor of 14",
        ),
        (
            attend_with_heads,
            {"num_heads": 7},
            "num_heads=7 does not divide the width 26 of w_v: choose a divisor of 26",
        ),
        (attend_with_heads, {"num_heads": 0}, "num_heads=0 must be at least 1: pass a positive size"),
        (attend_with_heads, {"num_heads": -2}, "num_heads=-2 must be at least 1: pass a positive size"),
        (
            attend_with_heads,
            {"query": real(5, 17)},
            "query has shape (5, 17) and must be (batch, q_seq, d_query): reshape it to 3 axes",
        ),
        (
            attend_with_heads,
            {"key": real(1, 7, 19)},
            "key has shape (1, 7, 19) and must be (batch, kv_seq, d_key) with batch=3 as in query: make the two agree",
        ),
        (
            attend_with_heads,
            {"w_q": real(14, 17)},
            "w_q has shape (14, 17) and must be (d_query, heads*d_k) with d_query=17 as in query: " + LINEAR,
        ),
        (
            attend_with_heads,
            {"w_k": real(19, 16)},
            "w_k has shape (19, 16) and must be (d_key, heads*d_k) with heads*d_k=14 as in w_q: " + LINEAR,
        ),
        (
            attend_with_heads,
            {"w_v": real(22, 26)},
            "w_v has shape (22, 26) and must be (d_value, heads*d_v) with d_value=23 as in value: " + LINEAR,
        ),
        (
            attend_with_heads,
            {"w_o": real(29, 26)},
            "w_o has shape (29, 26) and must be (heads*d_v, d_model) with heads*d_v=26 as in w_v: " + LINEAR,
        ),
        (
            attend_with_heads,
            {"b_k": real(1)},
            "b_k has shape (1,) and must be (heads*d_k) with heads*d_k=14 as in w_q: make the two agree",
        ),
        (
            attend_with_heads,
            {"b_o": real(1, 29)},
            "b_o has shape (1, 29) and must be (d_model): reshape it to 1 axis",
        ),
        (
            attend_with_heads,
            {"mask": torch.ones(3, 5, 7, dtype=torch.bool)},
            "mask has shape (3, 5, 7) and must broadcast to the scores, (..., q_seq, kv_seq) = (3, 2, 5, 7): "
            "give it size 1 on the axes it repeats along, such as mask[:, None] for all heads of a sample",
        ),
        (
            attend_fused,
            {"num_heads": 4},
            "num_heads=4 does not divide the width 14 of w_o: choose a divisor of 14",
        ),
        (
            attend_fused,
            {"w_qkv": real(17, 43)},
            "w_qkv has shape (17, 43) and must have 42 columns, three times the width 14 of w_o: "
            "lay q, k and v of every head side by side",
        ),
        (
            attend_fused,
            {"w_o": real(14, 17)},
            "w_o has shape (14, 17) and must be (heads*d_k, heads*d_k) with heads*d_k=14 as in w_o: " + LINEAR,
        ),
        (
            attend_fused,
            {"b_qkv": real(14)},
            "b_qkv has shape (14,) and must be (3*heads*d_k) with 3*heads*d_k=42 as in w_qkv: make the two agree",
        ),
        (
            attend_fused,
            {"x": real(3, 5, 14)},
            "w_qkv has shape (17, 42) and must be (d_input, 3*heads*d_k) with d_input=14 as in x: " + LINEAR,
        ),
        (
            lambda **changed: project_heads(real(3, 5, 17), real(17, 14), **changed),
            {"num_heads": 4},
            "num_heads=4 does not divide the width 14 of w: choose a divisor of 14",
        ),
        (
            lambda **changed: project_heads(real(3, 5, 17), real(17, 14), **changed),
            {"num_heads": 2, "b": real(13)},
            "b has shape (13,) and must be (heads*d) with heads*d=14 as in w: make the two agree",
        ),
        (
            lambda **changed: cut_fused(real(3, 5, 42), **changed),
            {"num_heads": 4},
            "qkv has shape (3, 5, 42) and its columns must be a multiple of 12: "
            "lay q, k and v of 4 heads side by side, all of one width",
        ),
        (
            attend_alone,
            {"w_k": real(2, 3)},
            "w_k has shape (2, 3) and must be (d_model, d_model) with d_model=2 as in x: " + LINEAR,
        ),
        (
            attend_alone,
            {"w_v": real(3, 2)},
            "w_v has shape (3, 2) and must be (d_model, d_model) with d_model=2 as in x: " + LINEAR,
        ),
        (
            attend_alone,
            {"x": real(1, 5, 2)},
            "x has shape (1, 5, 2) and must be (seq, d_model): reshape it to 2 axes",
        ),
        (
            train_alone,
            {"output_gradient": real(1, 2)},
            "output_gradient has shape (1, 2) and must be (seq, d_model) with seq=5 as in x: make the two agree",
        ),
        (
            train_alone,
            {"w_k": real(2, 3)},
            "w_k has shape (2, 3) and must be (d_model, d_model) with d_model=2 as in x: " + LINEAR,
        ),
        (train_alone, {"steps": 0}, "steps=0 must be at least 1: pass a positive size"),
        (
            train_alone,
            {"learning_rate": -0.1},
            "learning_rate=-0.1 must be finite and at least 0: pass a small number such as 0.01",
        ),
        (
            train_alone,
            {"learning_rate": float("nan")},
            "learning_rate=nan must be finite and at least 0: pass a small number such as 0.01",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(call, changed, message):
    with refused(ValueError, message):
        call(**changed)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: softmax(real()), "scores has shape () and must be (..., n): reshape it to at least 1 axis"),
        (
            lambda: softmax(real(3, 0)),
            "scores has shape (3, 0) and must be (..., n) without an empty axis: leave empty batches and sequences out",
        ),
        (
            lambda: attention_scores(real(5, 11), real(7, 12)),
            "key has shape (7, 12) and must be (..., kv_seq, d_k) with d_k=11 as in query: make the two agree",
        ),
        (
            lambda: scaled_scores(real(5, 0), real(7, 0)),
            "query has shape (5, 0) and must be (..., q_seq, d_k) without an empty axis: "
            "leave empty batches and sequences out",
        ),
        (lambda: causal_mask(0, 5), "q_seq=0 must be at least 1: pass a positive size"),
        (lambda: causal_mask(5, -1), "kv_seq=-1 must be at least 1: pass a positive size"),
        (
            lambda: padding_mask(torch.tensor([1, 0]), 0),
            "ids has shape (2,) and must be (batch, seq): reshape it to 2 axes",
        ),
        (
            lambda: padding_mask(torch.ones(3, 0, dtype=torch.int64), 0),
            "ids has shape (3, 0) and must be (batch, seq) without an empty axis: "
            "leave empty batches and sequences out",
        ),
        (
            lambda: padding_mask(torch.ones(1, 2, dtype=torch.int32), 2**32 + 1),
            "pad_id=4294967297 must fit ids of torch.int32, -2147483648 … 2147483647: "
            "pass the id that pads these ids, or convert them with ids.long()",
        ),
        (
            lambda: token_embedding(torch.tensor([0, 1]), real(4, 3)),
            "ids has shape (2,) and must be (batch, seq): reshape it to 2 axes",
        ),
        (
            lambda: token_embedding(torch.tensor([[0, 1]]), real(4)),
            "table has shape (4,) and must be (vocab, d_model): reshape it to 2 axes",
        ),
        (
            lambda: token_embedding(torch.tensor([[0, 1]]), real(4, 3, device="meta")),
            "ids is on cpu and must be on the device of table, meta: move it with ids.to('meta')",
        ),
        (lambda: sinusoid_table(0, 4), "seq=0 must be at least 1: pass a positive size"),
        (lambda: sinusoid_table(4, -2), "d_model=-2 must be at least 1: pass a positive size"),
        (
            lambda: positional_encoding(real(5, 14)),
            "x has shape (5, 14) and must be (batch, seq, d_model): reshape it to 3 axes",
        ),
        (
            lambda: PositionalEncoding(14, max_len=17)(real(3, 5, 13)),
            "x has shape (3, 5, 13) and must be (batch, seq, d_model) with d_model=14 as in pe: make the two agree",
        ),
        (
            lambda: PositionalEncoding(14, max_len=17)(real(3, 5, 14, device="meta")),
            "x is on meta and must be on the device of pe, cpu: move it with x.to('cpu')",
        ),
        (lambda: PositionalEncoding(14, max_len=0), "max_len=0 must be at least 1: pass a positive size"),
        (lambda: PositionalEncoding(0), "d_model=0 must be at least 1: pass a positive size"),
        (
            lambda: split_heads(real(3, 5, 14), 4),
            "num_heads=4 does not divide the width 14 of x: choose a divisor of 14",
        ),
        (
            lambda: merge_heads(real(3, 5, 14)),
            "x has shape (3, 5, 14) and must be (batch, heads, seq, d): reshape it to 4 axes",
        ),
        (
            lambda: attend(key=real(3, 7, 11, device="meta")),
            "key is on meta and must be on the device of query, cpu: move it with key.to('cpu')",
        ),
        (
            lambda: attend(mask=torch.ones(5, 7, dtype=torch.bool, device="meta")),
            "mask is on meta and must be on the device of query, cpu: move it with mask.to('cpu')",
        ),
        (
            lambda: MultiHeadAttention(14, 4),
            "num_heads=4 does not divide the width 14 of the model, d_model: choose a divisor of 14",
        ),
        (lambda: MultiHeadAttention(0, 1), "d_model=0 must be at least 1: pass a positive size"),
        (lambda: MultiHeadAttention(14, 0), "num_heads=0 must be at least 1: pass a positive size"),
        (lambda: MultiHeadAttention(14, 2, d_key=0), "d_key=0 must be at least 1: pass a positive size"),
        (
            lambda: MultiHeadAttention(14, 2, d_value=-1),
            "d_value=-1 must be at least 1: pass a positive size",
        ),
        (
            lambda: FusedMultiHeadAttention(17, 14, 4),
            "num_heads=4 does not divide the width 14 of the model, d_model: choose a divisor of 14",
        ),
        (lambda: FusedMultiHeadAttention(0, 14, 2), "d_input=0 must be at least 1: pass a positive size"),
        (lambda: FusedMultiHeadAttention(17, 0, 2), "d_model=0 must be at least 1: pass a positive size"),
        (lambda: SingleHeadAttention(0), "d_model=0 must be at least 1: pass a positive size"),
        (lambda: TokenEmbedding(0, 14), "vocab=0 must be at least 1: pass a positive size"),
        (lambda: TokenEmbedding(29, -14), "d_model=-14 must be at least 1: pass a positive size"),
    ],
)
def test_sizes_and_devices_that_do_not_fit_are_refused(call, message):
    with refused(ValueError, message):
        call()


BOOLEAN = (
    "and must be torch.bool, True = may attend: convert a mask of ones and zeros with mask != 0, "
    "an additive mask of 0 and -inf with mask == 0"
)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attend(mask=torch.ones(5, 7)), f"mask has dtype torch.float32 {BOOLEAN}"),
        (lambda: attend_with_heads(mask=torch.ones(5, 7).long()), f"mask has dtype torch.int64 {BOOLEAN}"),
        (lambda: attend_fused(mask=torch.ones(5, 5).byte()), f"mask has dtype torch.uint8 {BOOLEAN}"),
        (
            lambda: attend(mask=[[True]]),
            "mask is of type list and must be a torch.Tensor: convert it with torch.as_tensor(mask)",
        ),
        (
            lambda: softmax(np.zeros(3)),  # type: ignore[arg-type]
            "scores is of type ndarray and must be a torch.Tensor: convert it with torch.as_tensor(scores)",
        ),
        (
            lambda: softmax(torch.tensor([1, 2])),
            "scores has dtype torch.int64 and must be floating point: convert it with scores.float()",
        ),
        (
            lambda: attend(value=real(3, 7, 13, dtype=torch.float64)),
            "value has dtype torch.float64 and must have that of query, torch.float32: "
            "convert it with value.to(torch.float32)",
        ),
        (
            lambda: attend_with_heads(b_v=real(26, dtype=torch.float16)),
            "b_v has dtype torch.float16 and must have that of query, torch.float32: "
            "convert it with b_v.to(torch.float32)",
        ),
        (
            lambda: PositionalEncoding(14)(real(3, 5, 14, dtype=torch.float64)),
            "x has dtype torch.float64 and must have that of pe, torch.float32: convert it with x.to(torch.float32)",
        ),
        (
            lambda: attend_alone(w_v=None),
            "w_v is of type NoneType and must be a torch.Tensor: it cannot be left out",
        ),
        (
            lambda: attend_alone(causal=1),
            "causal=1 is of type int and must be a bool: pass True or False",
        ),
        (
            lambda: SingleHeadAttention(2, causal="yes"),  # type: ignore[arg-type]
            "causal='yes' is of type str and must be a bool: pass True or False",
        ),
        (
            lambda: attend_with_heads(num_heads=2.0),
            "num_heads=2.0 is of type float and must be an int: pass int(num_heads)",
        ),
        (
            lambda: MultiHeadAttention(14, True),
            "num_heads=True is of type bool and must be an int: pass int(num_heads)",
        ),
        (
            lambda: causal_mask("5", 5),  # type: ignore[arg-type]
            "q_seq='5' is of type str and must be an int: pass int(q_seq)",
        ),
        (
            lambda: sinusoid_table(5, 4.0),  # type: ignore[arg-type]
            "d_model=4.0 is of type float and must be an int: pass int(d_model)",
        ),
        (
            lambda: sinusoid_table(5, 4, dtype=torch.int64),
            "dtype=torch.int64 must be a floating-point torch.dtype: pass torch.float32",
        ),
        (
            lambda: sinusoid_table(5, 4, dtype=float),  # type: ignore[arg-type]
            "dtype=<class 'float'> must be a floating-point torch.dtype: pass torch.float32",
        ),
        (
            lambda: positional_encoding(torch.ones(3, 5, 14).long()),
            "x has dtype torch.int64 and must be floating point: convert it with x.float()",
        ),
        (
            lambda: padding_mask(real(3, 5), 0),
            "ids has dtype torch.float32 and must be torch.int64 or torch.int32: convert it with ids.long()",
        ),
        (
            lambda: padding_mask(torch.ones(3, 5).long(), None),
            "pad_id=None is of type NoneType and must be an int: pass int(pad_id)",
        ),
        (
            lambda: token_embedding(torch.ones(3, 5, dtype=torch.uint8), real(4, 3)),
            "ids has dtype torch.uint8 and must be torch.int64 or torch.int32: convert it with ids.long()",
        ),
        (
            lambda: token_embedding([[1]], real(4, 3)),  # type: ignore[arg-type]
            "ids is of type list and must be a torch.Tensor: convert it with torch.as_tensor(ids)",
        ),
        (
            lambda: token_embedding(torch.tensor([[1]]), torch.tensor([[1, 2]])),
            "table has dtype torch.int64 and must be floating point: convert it with table.float()",
        ),
    ],
)
def test_wrong_kinds_are_refused(call, message):
    with refused(TypeError, message):
        call()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
@pytest.mark.parametrize(("wrong", "position"), [(29, [1, 2]), (10**6, [0, 0]), (-1, [1, 0]), (-29, [0, 3])])
def test_the_first_id_outside_the_table_is_named(wrong, position, dtype):
    ids = torch.tensor([[0, 28, 3, 4], [5, 6, 7, 8]], dtype=dtype)
    ids[tuple(position)] = wrong
    ids[1, 3] = 30
    fix = "use the vocabulary that the table was made for, or a longer table"

    message = f"ids{position}={wrong} must lie in 0 … 28, the rows of table: {fix}"
    with refused(IndexError, message):
        token_embedding(ids, real(29, 2))
    with refused(IndexError, message):
        TokenEmbedding(29, 2)(ids)

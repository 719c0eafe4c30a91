"""Symbolic shapes, and whether the arguments of a call keep a contract: what is solved, and what is said."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from goldformer.spec import Contract, Spec
from goldformer.spec.call import check_call
from goldformer.spec.shapes import Axis, Binder, ContractViolation, Shape

# ── axes and shapes ──


@pytest.mark.parametrize(
    ("text", "factor", "symbols", "written"),
    [
        ("d_k", 1, ("d_k",), "d_k"),
        (5, 5, (), "5"),
        ("1", 1, (), "1"),
        (0, 0, (), "0"),
        ("heads*d_k", 1, ("heads", "d_k"), "heads*d_k"),
        ("3*heads*d_k", 3, ("heads", "d_k"), "3*heads*d_k"),
        (" heads * 3 * d_k*2", 6, ("heads", "d_k"), "6*heads*d_k"),
    ],
)
def test_an_axis_is_a_product_of_a_number_and_sizes(text, factor, symbols, written):
    axis = Axis.parse(text)
    assert (axis.factor, axis.symbols, str(axis)) == (factor, symbols, written)
    assert Axis.parse(written) == axis


@pytest.mark.parametrize("text", ["n+1", "", "heads*", "*", "d k", "2.5", "-1", "heads/2", "..."])
def test_anything_else_is_no_axis(text):
    message = f"{text!r} is no axis: write a size, a number, or a product such as 3*heads*d_k"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Axis.parse(text)


def test_an_axis_knows_its_length_and_names_the_size_it_lacks():
    assert Axis.parse("3*heads*d_k").size({"heads": 5, "d_k": 7}) == 105
    with pytest.raises(KeyError, match=r"^'d_k'$"):
        Axis.parse("3*heads*d_k").size({"heads": 5})


@pytest.mark.parametrize(
    ("axes", "lead", "written", "symbols"),
    [
        (["...", "q_seq", "d_k"], True, "(..., q_seq, d_k)", ("q_seq", "d_k")),
        (["batch", 1, "3*heads*d_k"], False, "(batch, 1, 3*heads*d_k)", ("batch", "heads", "d_k")),
        (["..."], True, "(...)", ()),
        ([], False, "()", ()),
    ],
)
def test_a_shape_is_a_list_of_axes_behind_any_leading_ones(axes, lead, written, symbols):
    shape = Shape.parse(axes)
    assert (shape.lead, str(shape), shape.symbols) == (lead, written, symbols)


def test_leading_axes_are_written_in_front_alone():
    with pytest.raises(ValueError, match=re.escape("'...' is no axis")):
        Shape.parse(["batch", "...", "n"])


def test_a_shape_takes_the_leading_axes_only_where_it_has_them():
    sizes = {"q_seq": 3, "heads": 2, "d_k": 5}
    assert Shape.parse(["...", "q_seq", "heads*d_k"]).sizes(sizes, (7, 11)) == (7, 11, 3, 10)
    assert Shape.parse(["q_seq", "heads*d_k"]).sizes(sizes, (7, 11)) == (3, 10)


# ── the binder ──


def bind(*fits: tuple[str, list[str | int], tuple[int, ...]], **fixed: int) -> Binder:
    binder = Binder()
    for name, size in fixed.items():
        binder.fix(name, size, f"num_{name}")
    for argument, axes, got in fits:
        binder.fit(argument, Shape.parse(axes), got)
    return binder


@pytest.mark.parametrize(
    ("fits", "fixed", "sizes"),
    [
        ([("w", ["d_model", "heads*d_k"], (7, 15))], {"heads": 3}, {"heads": 3, "d_model": 7, "d_k": 5}),
        ([("w", ["3*heads*d_k"], (66,))], {"heads": 2}, {"heads": 2, "d_k": 11}),
        # What cannot be solved yet waits until another array gives the missing factor.
        ([("w", ["heads*d_k"], (35,)), ("x", ["heads", "n"], (5, 2))], {}, {"heads": 5, "n": 2, "d_k": 7}),
        (
            [("w", ["3*heads*d_k"], (42,)), ("v", ["heads*d_v"], (6,)), ("k", ["d_k"], (7,))],
            {},
            {"d_k": 7, "heads": 2, "d_v": 3},
        ),
    ],
)
def test_products_are_solved_whatever_the_order(fits, fixed, sizes):
    assert bind(*fits, **fixed).sizes == sizes
    assert bind(*reversed(fits), **fixed).sizes == sizes


@pytest.mark.parametrize("lead", [(), (3,), (2, 5)])
def test_leading_axes_are_any_number_of_axes(lead):
    binder = bind(
        ("query", ["...", "q_seq", "d_k"], (*lead, 7, 11)), ("key", ["...", "kv_seq", "d_k"], (*lead, 13, 11))
    )
    assert (binder.lead, binder.sizes) == (lead, {"q_seq": 7, "d_k": 11, "kv_seq": 13})


VIOLATIONS = {
    "two sizes for one name": (
        [("query", ["seq", "d_k"], (3, 5)), ("key", ["seq", "d_k"], (3, 7))],
        {},
        "key has an axis of 7 where d_k = 5 by query",
        {"query", "key"},
    ),
    "against an attribute": (
        [("mask", ["heads", "seq"], (3, 5))],
        {"heads": 2},
        "mask has an axis of 3 where heads = 2 by num_heads",
        {"mask", "num_heads"},
    ),
    "a product that does not come out": (
        [("w_q", ["heads*d_k"], (10,))],
        {"heads": 3},
        "w_q has an axis of 10 = heads*d_k, which 3 does not divide",
        {"w_q", "num_heads"},
    ),
    "a factor that does not come out": (
        [("w_qkv", ["3*heads*d_k"], (40,))],
        {"heads": 2},
        "w_qkv has an axis of 40 = 3*heads*d_k, which 6 does not divide",
        {"w_qkv", "num_heads"},
    ),
    "a product that is another one": (
        [("w_q", ["heads*d_k"], (10,)), ("w_k", ["heads*d_k"], (12,))],
        {"heads": 2},
        "w_k has an axis of 12 where heads*d_k = 10 by num_heads, w_q",
        {"w_k", "num_heads", "w_q"},
    ),
    "a product found wrong by a later array": (
        [("w", ["heads*d_k"], (35,)), ("x", ["heads"], (4,))],
        {},
        "w has an axis of 35 = heads*d_k, which 4 does not divide",
        {"w", "x"},
    ),
    "a number": ([("m", [1, "seq"], (2, 5))], {}, "m has an axis of 2 where 1 = 1", {"m"}),
    "too few axes": ([("x", ["seq", "d"], (3,))], {}, "x has shape (3,), the contract says (seq, d)", {"x"}),
    "too few axes behind leading ones": (
        [("x", ["...", "seq", "d"], (3,))],
        {},
        "x has shape (3,), the contract says (..., seq, d)",
        {"x"},
    ),
    "too many axes": (
        [("x", ["seq", "d"], (2, 3, 5))],
        {},
        "x has shape (2, 3, 5), the contract says (seq, d)",
        {"x"},
    ),
    "other leading axes": (
        [("query", ["...", "n"], (2, 3, 5)), ("key", ["...", "m"], (3, 2, 7))],
        {},
        "key has leading axes (3, 2), but query has (2, 3)",
        {"query", "key"},
    ),
    "more leading axes": (
        [("query", ["...", "n"], (3, 5)), ("key", ["...", "m"], (1, 3, 7))],
        {},
        "key has leading axes (1, 3), but query has (3,)",
        {"query", "key"},
    ),
}


@pytest.mark.parametrize(("fits", "fixed", "message", "arguments"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_contradiction_names_both_sides(fits, fixed, message, arguments):
    with pytest.raises(ContractViolation, match=f"^{re.escape(message)}$") as violation:
        bind(*fits, **fixed)
    assert set(violation.value.arguments) == arguments


def test_fixing_a_size_twice_names_both_who_did():
    binder = Binder()
    binder.fix("heads", 2, "num_heads")
    binder.fix("heads", 2, "w_q")
    with pytest.raises(ContractViolation, match=r"^w_o gives heads = 3, but num_heads gives heads = 2$") as violation:
        binder.fix("heads", 3, "w_o")
    assert violation.value.arguments == ("w_o", "num_heads")


@pytest.mark.parametrize("got", [(5, 7), (7,), (), (1, 7), (5, 1), (1, 1, 5, 7), (2, 3, 5, 7), (1, 3, 1, 7), (3, 1, 1)])
def test_what_broadcasts_without_enlarging_fits(got):
    binder = bind(("query", ["...", "q_seq"], (2, 3, 5)), ("key", ["...", "kv_seq"], (2, 3, 7)))
    binder.fit_broadcast("mask", Shape.parse(["...", "q_seq", "kv_seq"]), got)


@pytest.mark.parametrize(
    "got", [(7, 5), (5,), (2, 5, 7), (3, 3, 5, 7), (1, 2, 3, 5, 7), (2, 3, 5, 14), (2, 3, 5, 0), (2, 3, 5, 7, 1)]
)
def test_what_does_not_broadcast_is_refused(got):
    binder = bind(("query", ["...", "q_seq"], (2, 3, 5)), ("key", ["...", "kv_seq"], (2, 3, 7)))
    message = f"mask has shape {got}, which does not broadcast to (..., q_seq, kv_seq) = (2, 3, 5, 7)"
    with pytest.raises(ContractViolation, match=f"^{re.escape(message)}$") as violation:
        binder.fit_broadcast("mask", Shape.parse(["...", "q_seq", "kv_seq"]), got)
    assert violation.value.arguments == ("mask",)


# ── whole calls ──

BATCH, Q_SEQ, KV_SEQ, HEADS, D_K, D_V = 3, 5, 7, 2, 11, 13


def mha_call() -> dict[str, Any]:
    inputs = {"query": (BATCH, Q_SEQ, 17), "key": (BATCH, KV_SEQ, 19), "value": (BATCH, KV_SEQ, 23)}
    params = {
        "w_q": (17, HEADS * D_K), "w_k": (19, HEADS * D_K), "w_v": (23, HEADS * D_V), "w_o": (HEADS * D_V, 29),
    }  # fmt: skip
    return {
        "inputs": {name: np.zeros(shape) for name, shape in inputs.items()},
        "params": {name: np.zeros(shape) for name, shape in params.items()},
        "attributes": {"num_heads": HEADS},
    }


def test_a_call_that_keeps_the_contract_gives_every_size(spec: Spec):
    call = mha_call()
    call["inputs"]["mask"] = np.ones((BATCH, 1, 1, KV_SEQ), bool)
    call["params"]["b_o"] = None
    sizes = check_call(spec.contracts["multi_head_attention"], **call).sizes
    assert sizes == {
        "batch": 3, "q_seq": 5, "kv_seq": 7, "heads": 2, "d_k": 11, "d_v": 13,
        "d_query": 17, "d_key": 19, "d_value": 23, "d_model": 29,
    }  # fmt: skip


BROKEN = {
    "missing": ("inputs", "key", None, "key is missing", {"key"}),
    "missing parameter": ("params", "w_o", None, "w_o is missing", {"w_o"}),
    "unknown input": ("inputs", "keys", np.zeros(2), "multi_head_attention has no argument keys", {"keys"}),
    "unknown parameter": ("params", "w_x", np.zeros(2), "multi_head_attention has no argument w_x", {"w_x"}),
    "unknown attribute": ("attributes", "heads", 2, "multi_head_attention has no argument heads", {"heads"}),
    "integers for floats": (
        "inputs", "query", np.zeros((BATCH, Q_SEQ, 17), int), "query is int64, not floating point", {"query"},
    ),
    "floats for booleans": ("inputs", "mask", np.ones((KV_SEQ,)), "mask is float64, not boolean", {"mask"}),
    "no keys": ("inputs", "key", np.zeros((3, 0, 19)), "key is empty: its shape is (3, 0, 19)", {"key"}),
    "empty mask": ("inputs", "mask", np.ones((0, 7), bool), "mask is empty: its shape is (0, 7)", {"mask"}),
    "a mask too long": (
        "inputs", "mask", np.ones((1, 8), bool),
        "mask has shape (1, 8), which does not broadcast to (batch, heads, q_seq, kv_seq) = (3, 2, 5, 7)", {"mask"},
    ),
    "fewer values than keys": (
        "inputs", "value", np.zeros((BATCH, 6, 23)), "value has an axis of 6 where kv_seq = 7 by key", {"value", "key"},
    ),
    "heads that do not divide": (
        "attributes", "num_heads", 3, "w_q has an axis of 22 = heads*d_k, which 3 does not divide",
        {"w_q", "num_heads"},
    ),
    "an attribute missing": ("attributes", "num_heads", None, "num_heads is None, not one int", {"num_heads"}),
    "a bool for an int": ("attributes", "num_heads", True, "num_heads is True, not one int", {"num_heads"}),
    "a float for an int": ("attributes", "num_heads", 2.0, "num_heads is 2.0, not one int", {"num_heads"}),
    "below the minimum": ("attributes", "num_heads", 0, "num_heads is 0, less than 1", {"num_heads"}),
}  # fmt: skip


@pytest.mark.parametrize(("group", "name", "value", "message", "arguments"), BROKEN.values(), ids=BROKEN)
def test_a_broken_call_is_refused_by_name(spec: Spec, group, name, value, message, arguments):
    call = mha_call()
    call[group] = {**call[group], name: value}
    with pytest.raises(ContractViolation, match=f"^{re.escape(message)}$") as violation:
        check_call(spec.contracts["multi_head_attention"], **call)
    assert set(violation.value.arguments) == arguments


LIMITS = {
    "no multiple": (3, "rotary_width is 3, no multiple of 2", ("rotary_width",)),
    "more than an axis": (8, "rotary_width is 8, more than 2*pairs, 6", ("rotary_width", "x")),
}


@pytest.mark.parametrize(("value", "message", "arguments"), LIMITS.values(), ids=LIMITS)
def test_an_attribute_keeps_within_an_axis(spec: Spec, value, message, arguments):
    contract, arrays = spec.contracts["rotary_embedding"], {"x": np.zeros((3, 6)), "positions": np.arange(3)}
    for right in ({}, {"rotary_width": 2}, {"rotary_width": 6}):
        assert check_call(contract, arrays, {}, right).sizes == {"seq": 3, "pairs": 3}
    with pytest.raises(ContractViolation, match=f"^{re.escape(message)}$") as violation:
        check_call(contract, arrays, {}, {"rotary_width": value})
    assert violation.value.arguments == arguments


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("repetition_penalty", "repetition_penalty is 0, not above 0"),
        ("top_k", "top_k is 0, less than 1"),
    ],
)
def test_a_filter_without_a_meaning_is_refused(spec: Spec, name, says):
    contract, arrays = spec.contracts["token_filter"], {"logits": np.zeros((1, 3)), "previous": np.zeros((1, 2), int)}
    check_call(contract, arrays, {}, {name: 1})
    with pytest.raises(ContractViolation, match=f"^{says}$"):
        check_call(contract, arrays, {}, {name: 0})


@pytest.mark.parametrize("value", [1, 0, None, "yes"])
def test_an_int_is_no_bool(spec: Spec, value):
    contract, square = spec.contracts["single_head_attention"], np.zeros((2, 2))
    weights = {"w_q": square, "w_k": square, "w_v": square}
    check_call(contract, {"x": np.zeros((3, 2))}, weights, {"causal": True})
    with pytest.raises(ContractViolation, match=f"^causal is {re.escape(repr(value))}, not one bool$"):
        check_call(contract, {"x": np.zeros((3, 2))}, weights, {"causal": value})


def embed(contract: Contract, ids: list[list[int]]) -> Binder:
    return check_call(contract, {"ids": np.array(ids)}, {"table": np.zeros((12, 5))}, {})


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[0, 11], [12, 99]], "ids[1, 0] is 12, outside 0 … 11 (vocab)"),
        ([[3, -1], [4, 4]], "ids[0, 1] is -1, outside 0 … 11 (vocab)"),
    ],
)
def test_an_id_out_of_range_is_named_with_its_place(spec: Spec, ids, message):
    contract = spec.contracts["token_embedding"]
    assert embed(contract, [[0, 11], [11, 0]]).sizes["vocab"] == 12
    with pytest.raises(ContractViolation, match=f"^{re.escape(message)}$") as violation:
        embed(contract, ids)
    assert violation.value.arguments == ("ids",)


def test_ids_are_integers_of_any_width(spec: Spec):
    contract, table = spec.contracts["token_embedding"], np.zeros((12, 5))
    for dtype in (np.int32, np.uint8):
        check_call(contract, {"ids": np.zeros((2, 3), dtype)}, {"table": table}, {})
    with pytest.raises(ContractViolation, match=r"^ids is float64, not integer$"):
        check_call(contract, {"ids": np.zeros((2, 3))}, {"table": table}, {})
    with pytest.raises(ContractViolation, match=r"^ids is bool, not integer$"):
        check_call(contract, {"ids": np.zeros((2, 3), bool)}, {"table": table}, {})


def test_an_attribute_without_a_minimum_is_any_int(spec: Spec):
    contract = spec.contracts["padding_mask"]
    assert check_call(contract, {"ids": np.zeros((2, 3), int)}, {}, {"pad_id": -5}).sizes == {"batch": 2, "seq": 3}

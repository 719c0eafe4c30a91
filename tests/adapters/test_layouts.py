"""Layouts: each conversion against what it says, in NumPy and in torch; no two sizes are equal."""

import math
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from goldformer.adapters import layouts

BATCH, HEADS, Q_SEQ, KV_SEQ, D_K, D_IN = 3, 2, 5, 7, 11, 13
WIDTH = HEADS * D_K

LIBRARIES: dict[str, Callable[..., Any]] = {"numpy": np.asarray, "torch": torch.from_numpy}


@pytest.fixture(params=LIBRARIES)
def library(request):
    """Return a function that turns a NumPy array into one of the library under test."""
    return LIBRARIES[request.param]


def numbered(*shape):
    return np.arange(math.prod(shape), dtype=float).reshape(shape)


def random_mask(*shape):
    return np.random.default_rng(1).random(shape) < 0.5


def check(got, expected, like):
    """Same library, shape and values."""
    assert type(got) is type(like)
    np.testing.assert_array_equal(np.asarray(got), expected)


def test_torch_is_not_imported():
    code = "import sys, goldformer.adapters.layouts; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("columns", "axes", "shape"),
    [("halves", 2, (3, 2)), ("doubled", 3, (1, 3, 4)), ("in_turn", 4, (1, 3, 1, 4))],
)
def test_rotary_tables_turn_as_the_formula_does(columns, axes, shape):
    x = torch.zeros(2, 3, 8, dtype=torch.float64)
    angles = np.arange(3)[:, None] * np.array([1.0, 100.0**-0.5])
    cosines, sines = layouts.rotary_tables(x, 4, 100.0, columns, axes=axes)
    order = {"halves": [0, 1], "doubled": [0, 1, 0, 1], "in_turn": [0, 0, 1, 1]}[columns]
    assert (cosines.shape, sines.shape, cosines.dtype) == (shape, shape, torch.float64)
    np.testing.assert_allclose(cosines.reshape(3, -1), np.cos(angles)[:, order], rtol=1e-15)
    np.testing.assert_allclose(sines.reshape(3, -1), np.sin(angles)[:, order], rtol=1e-15)


def test_rotary_tables_are_one_array_too():
    x = torch.zeros(2, 3, 8)
    cosines, sines = layouts.rotary_tables(x, 4)
    stacked, turns = layouts.rotary_tables(x, 4, columns="stacked"), layouts.rotary_tables(x, 4, columns="turns")
    assert torch.equal(stacked, torch.stack((cosines, sines), -1))
    assert turns.dtype == torch.complex64
    assert torch.equal(torch.view_as_real(turns), stacked)
    assert layouts.rotary_tables(x, 4, columns="turns", axes=4).shape == (1, 3, 1, 2)


def test_linear_weight(library):
    weight = library(numbered(D_IN, WIDTH))
    check(layouts.linear_weight(weight), numbered(D_IN, WIDTH).T, weight)
    check(layouts.linear_weight(layouts.linear_weight(weight)), numbered(D_IN, WIDTH), weight)


def test_linear_weight_is_what_nn_linear_takes():
    weight, x = torch.from_numpy(numbered(D_IN, WIDTH)), torch.from_numpy(numbered(BATCH, D_IN))
    linear = torch.nn.functional.linear(x, layouts.linear_weight(weight))
    torch.testing.assert_close(linear, x @ weight)


def test_sequence_first_and_back(library):
    x = library(numbered(BATCH, Q_SEQ, D_IN))
    moved = layouts.sequence_first(x)
    check(moved, np.moveaxis(numbered(BATCH, Q_SEQ, D_IN), 0, 1), x)
    check(layouts.batch_first(moved), numbered(BATCH, Q_SEQ, D_IN), x)


def column(role, head, channel):
    """A number that says which column it is."""
    return 100 * role + 10 * head + channel / 100


def fused_columns(*, per_head):
    """The columns in either layout, written out one by one."""
    if per_head:
        return np.array([column(r, h, c) for h in range(HEADS) for r in range(3) for c in range(D_K)])
    return np.array([column(r, h, c) for r in range(3) for h in range(HEADS) for c in range(D_K)])


def test_stack_qkv_weight_and_bias(library):
    per_head, stacked = fused_columns(per_head=True), fused_columns(per_head=False)
    rows = np.arange(D_IN)[:, None] * 1000
    for before, after in ((per_head, stacked), (rows + per_head, rows + stacked)):
        x = library(before)
        check(layouts.stack_qkv(x, HEADS), after, x)


def test_split_fused_weight_and_bias(library):
    per_head = fused_columns(per_head=True)
    rows = np.arange(D_IN)[:, None] * 1000
    for fused, lead in ((per_head, 0), (rows + per_head, rows)):
        x = library(fused)
        for role, part in enumerate(layouts.split_fused(x, HEADS)):
            canonical = np.array([column(role, h, c) for h in range(HEADS) for c in range(D_K)])
            check(part, lead + canonical, x)


@pytest.mark.parametrize("heads", [0, 4])
@pytest.mark.parametrize("convert", [layouts.stack_qkv, layouts.split_fused])
def test_fused_columns_must_divide(library, convert, heads):
    with pytest.raises(ValueError, match="66 columns do not divide into"):
        convert(library(numbered(3 * WIDTH)), heads)


def test_ignore_mask(library):
    mask = library(random_mask(Q_SEQ, KV_SEQ))
    check(layouts.ignore_mask(mask), ~random_mask(Q_SEQ, KV_SEQ), mask)


DTYPES: dict[str, list[Any]] = {
    "numpy": [np.float64, np.float32, np.float16],
    "torch": [torch.float64, torch.float32, torch.float16, torch.bfloat16],
}
DTYPED = [(library, dtype) for library, dtypes in DTYPES.items() for dtype in dtypes]


@pytest.mark.parametrize(("name", "dtype"), DTYPED)
@pytest.mark.parametrize("fill", [-math.inf, -1024.0])
def test_additive_mask(name, dtype, fill):
    mask = LIBRARIES[name](random_mask(Q_SEQ, KV_SEQ))
    added = layouts.additive_mask(mask, dtype, fill=fill)
    assert added.dtype == dtype
    widened = added.double() if name == "torch" else added
    check(widened, np.where(random_mask(Q_SEQ, KV_SEQ), 0, fill), mask)


@pytest.mark.parametrize(("name", "dtype"), [("numpy", np.float16), ("torch", torch.float16)])
def test_additive_mask_refuses_a_fill_beyond_the_dtype(name, dtype):
    # Held as −inf it would turn an empty row from uniform to NaN without a word.
    with pytest.raises(OverflowError, match=r"the fill -1e\+09 is beyond (torch\.)?float16"):
        layouts.additive_mask(LIBRARIES[name](random_mask(Q_SEQ, KV_SEQ)), dtype, fill=-1e9)


@pytest.mark.parametrize("shape", [(BATCH, 1, 1, KV_SEQ), (1, 1, 1, KV_SEQ), (1, KV_SEQ), (KV_SEQ,)])
def test_key_padding_of_a_mask_of_keys(library, shape):
    mask = library(random_mask(*shape))
    expected = np.broadcast_to(random_mask(*shape).reshape(-1, KV_SEQ), (BATCH, KV_SEQ))
    check(layouts.key_padding(mask, batch=BATCH, kv_seq=KV_SEQ), expected, mask)


@pytest.mark.parametrize(
    "shape", [(Q_SEQ, KV_SEQ), (BATCH, 1, Q_SEQ, KV_SEQ), (1, HEADS, 1, KV_SEQ), (HEADS, 1, KV_SEQ), (Q_SEQ, 1)]
)
def test_key_padding_of_any_other_mask(library, shape):
    assert layouts.key_padding(library(random_mask(*shape)), batch=BATCH, kv_seq=KV_SEQ) is None


@pytest.mark.parametrize(
    "shape",
    [
        (BATCH, HEADS, Q_SEQ, KV_SEQ),
        (BATCH, 1, 1, KV_SEQ),
        (1, HEADS, Q_SEQ, 1),
        (HEADS, 1, KV_SEQ),
        (Q_SEQ, KV_SEQ),
        (KV_SEQ,),
    ],
)
def test_flatten_heads(library, shape):
    mask = library(random_mask(*shape))
    flat = layouts.flatten_heads(mask, batch=BATCH, heads=HEADS, q_seq=Q_SEQ, kv_seq=KV_SEQ)
    full = np.broadcast_to(random_mask(*shape), (BATCH, HEADS, Q_SEQ, KV_SEQ))
    check(flat, np.stack([full[b, h] for b in range(BATCH) for h in range(HEADS)]), mask)


@pytest.mark.parametrize("lead", [(), (BATCH,), (BATCH, HEADS), (4, BATCH, HEADS)])
@pytest.mark.parametrize("masked", [None, (KV_SEQ,), (1, KV_SEQ), (Q_SEQ, KV_SEQ), "lead", "keys"])
def test_four_axes_take_a_call_of_attention_there_and_back(library, lead, masked):
    full = (*lead, Q_SEQ, KV_SEQ)
    sizes = {"lead": full, "keys": (*lead, 1, KV_SEQ)}.get(masked, masked)
    query, key, value = (library(numbered(*lead, *s)) for s in ((Q_SEQ, D_K), (KV_SEQ, D_K), (KV_SEQ, D_IN)))
    mask = None if sizes is None else library(random_mask(*sizes))
    q, k, v, m, restore = layouts.four_axes(query, key, value, mask)
    scores = np.asarray(q) @ np.asarray(k).swapaxes(-1, -2)
    assert scores.ndim == 4
    if m is not None:
        assert m.ndim == 4
        scores = np.where(np.asarray(m), scores, 0.0)
    expected = np.asarray(query) @ np.asarray(key).swapaxes(-1, -2)
    check(restore(library(scores)), expected if mask is None else np.where(np.asarray(mask), expected, 0.0), query)
    check(restore(library(scores @ np.asarray(v))), np.asarray(restore(library(scores))) @ np.asarray(value), query)


def test_four_axes_are_views_where_they_can_be(library):
    query, key, value = (library(numbered(BATCH, Q_SEQ, HEADS, D_K)).swapaxes(1, 2) for _ in range(3))
    for given, made in zip((query, key, value), layouts.four_axes(query, key, value), strict=False):
        assert np.shares_memory(np.asarray(given), np.asarray(made))


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        (((5,), (5,), (5,)), r"query: shape \(5,\)"),
        (((3, 5, 7), (5, 7), (3, 5, 7)), r"key: shape \(5, 7\), but query, key and value have the same number"),
        (((3, 5, 7), (3, 5, 7), (3, 2, 5, 7)), r"value: shape \(3, 2, 5, 7\)"),
    ],
)
def test_four_axes_refuse_other_numbers_of_axes(library, shapes, says):
    with pytest.raises(ValueError, match=says):
        layouts.four_axes(*(library(numbered(*shape)) for shape in shapes))


def test_four_axes_refuse_a_mask_that_has_more_than_the_query_or_does_not_fit(library):
    three, five = library(numbered(BATCH, Q_SEQ, D_K)), library(numbered(1, 4, HEADS, Q_SEQ, D_K))
    with pytest.raises(ValueError, match=r"mask: shape \(2, 3, 5, 5\) has more axes than a query \(3, 5, 11\)"):
        layouts.four_axes(three, three, three, library(random_mask(HEADS, BATCH, Q_SEQ, Q_SEQ)))
    with pytest.raises(ValueError, match=r"mask: shape \(1, 3, 2, 5, 5\) does not broadcast"):
        layouts.four_axes(five, five, five, library(random_mask(3, HEADS, Q_SEQ, Q_SEQ)))


def test_four_axes_of_one_array_are_as_before_they_took_a_call(library):
    keys, rows = library(random_mask(KV_SEQ)), library(random_mask(BATCH, Q_SEQ, KV_SEQ))
    assert np.array_equal(np.asarray(layouts.four_axes(keys, 4)), np.asarray(keys)[None, None, None])
    assert np.array_equal(np.asarray(layouts.four_axes(rows, 4)), np.asarray(rows)[None])
    assert np.array_equal(np.asarray(layouts.four_axes(rows, 3)), np.asarray(rows)[:, None])
    with pytest.raises(NotImplementedError, match="attention over 5 axes"):
        layouts.four_axes(rows, 5)


def test_masks_have_at_most_four_axes(library):
    mask = library(random_mask(1, BATCH, HEADS, Q_SEQ, KV_SEQ))
    with pytest.raises(ValueError, match=r"mask: shape \(1, 3, 2, 5, 7\) has more axes than"):
        layouts.key_padding(mask, batch=BATCH, kv_seq=KV_SEQ)


def test_part_of_dotted_parameters(library):
    names = ("table", "encoder.1.norm_1.gamma", "encoder.1.self_attention.w_q", "encoder.10.norm_1.gamma")
    params = {name: library(numbered(index + 1)) for index, name in enumerate(names)}
    layer = layouts.part(params, "encoder.1")
    assert list(layer) == ["norm_1.gamma", "self_attention.w_q"]
    assert layouts.part(layer, "self_attention") == {"w_q": params["encoder.1.self_attention.w_q"]}
    assert layouts.part(params, "decoder.0") == {}


def test_square_projections_are_required_in_every_part(library):
    square, wide = library(numbered(3, 3)), library(numbered(3, 6))
    layouts.require_square_projections({"encoder.0.self_attention.w_o": square, "w_1": wide, "table": wide})
    for name in ("w_q", "encoder.1.self_attention.w_v", "cross_attention.w_o"):
        with pytest.raises(NotImplementedError, match=f"{name} is not square"):
            layouts.require_square_projections({"w_k": square, name: wide})


def test_each_query_head_gets_a_copy_of_its_head_of_keys(library):
    groups, heads = 2, 4
    columns = numbered(D_IN, groups * D_K)
    copies = np.concatenate([columns[:, start : start + D_K] for start in (0, 0, D_K, D_K)], axis=1)
    params = {"layers.0.w_k": library(columns), "b_v": library(columns[0]), "w_q": library(numbered(3, 2))}
    repeated = layouts.repeat_key_heads(params, heads, groups)
    check(repeated["layers.0.w_k"], copies, params["layers.0.w_k"])
    check(repeated["b_v"], copies[0], params["b_v"])
    assert repeated["w_q"] is params["w_q"]
    assert layouts.repeat_key_heads(params, groups, groups) == params
    with pytest.raises(ValueError, match=r"^num_heads 3 is no multiple of num_kv_heads 2$"):
        layouts.repeat_key_heads(params, 3, 2)


# Masks by their values


CAUSAL = np.tri(Q_SEQ, KV_SEQ, dtype=bool)
LENGTHS = np.array([7, 2, 4])
PADDING = np.arange(KV_SEQ) < LENGTHS[:, None]
SIZES: dict[str, Any] = {"batch": BATCH, "q_seq": Q_SEQ, "kv_seq": KV_SEQ}


@pytest.mark.parametrize(
    "shape", [(BATCH, 1, Q_SEQ, KV_SEQ), (BATCH, 1, 1, KV_SEQ), (1, Q_SEQ, KV_SEQ), (Q_SEQ, KV_SEQ), (KV_SEQ,)]
)
def test_drop_heads(library, shape):
    mask = library(random_mask(*shape))
    full = np.broadcast_to(random_mask(*shape), (BATCH, 1, Q_SEQ, KV_SEQ))
    check(layouts.drop_heads(mask, **SIZES), full[:, 0], mask)


@pytest.mark.parametrize("shape", [(BATCH, HEADS, Q_SEQ, KV_SEQ), (HEADS, Q_SEQ, KV_SEQ), (1, HEADS, 1, KV_SEQ)])
def test_drop_heads_keeps_no_mask_of_several_heads(library, shape):
    assert layouts.drop_heads(library(random_mask(*shape)), **SIZES) is None


@pytest.mark.parametrize("corner", ["top_left", "bottom_right"])
def test_is_causal_of_either_corner(library, corner):
    masks = {"top_left": CAUSAL, "bottom_right": np.tri(Q_SEQ, KV_SEQ, KV_SEQ - Q_SEQ, dtype=bool)}
    for name, mask in masks.items():
        for array in (mask, np.broadcast_to(mask, (BATCH, HEADS, Q_SEQ, KV_SEQ)).copy()):
            assert layouts.is_causal(library(array), q_seq=Q_SEQ, kv_seq=KV_SEQ, corner=corner) == (name == corner)


def test_is_causal_of_a_mask_that_differs_in_one_element(library):
    for head, query, key in ((0, 1, 4), (1, 4, 4)):
        mask = np.broadcast_to(CAUSAL, (HEADS, Q_SEQ, KV_SEQ)).copy()
        mask[head, query, key] ^= True
        assert not layouts.is_causal(library(mask), q_seq=Q_SEQ, kv_seq=KV_SEQ)


def test_a_mask_without_values_counts_as_causal_if_its_shape_fits():
    mask = torch.ones(Q_SEQ, KV_SEQ, dtype=torch.bool, device="meta")
    assert layouts.is_causal(mask, q_seq=Q_SEQ, kv_seq=KV_SEQ)
    with pytest.raises(ValueError, match=r"^mask: shape .* does not broadcast to"):
        layouts.is_causal(mask, q_seq=Q_SEQ, kv_seq=KV_SEQ + 1)


@pytest.mark.parametrize(
    ("q_seq", "kv_seq", "corners"),
    [
        (5, 5, set()),
        (5, 1, {"top_left"}),
        (1, 5, {"bottom_right"}),
        (1, 1, {"top_left", "bottom_right"}),
    ],
)
def test_a_call_without_a_mask_is_causal_only_where_there_is_nothing_to_hide(q_seq, kv_seq, corners):
    sees_all = np.ones((q_seq, kv_seq), dtype=bool)
    for corner in ("top_left", "bottom_right"):
        assert layouts.is_causal(None, q_seq=q_seq, kv_seq=kv_seq, corner=corner) == (corner in corners)
        assert layouts.is_causal(sees_all, q_seq=q_seq, kv_seq=kv_seq, corner=corner) == (corner in corners)


def test_is_causal_of_a_mask_of_keys(library):
    assert not layouts.is_causal(library(PADDING[:, None, None]), q_seq=Q_SEQ, kv_seq=KV_SEQ)


@pytest.mark.parametrize("convert", [layouts.is_causal, partial(layouts.drop_heads, batch=BATCH)])
def test_a_mask_of_other_lengths_says_which_sizes_to_give(library, convert):
    with pytest.raises(ValueError, match=r"^mask: shape .* does not broadcast to .*; q_seq is the number of queries"):
        convert(library(random_mask(BATCH, 1, 1, KV_SEQ + 1)), q_seq=Q_SEQ, kv_seq=KV_SEQ)


@pytest.mark.parametrize(
    ("mask", "padding", "causal"),
    [
        (PADDING[:, None, None], PADDING, False),
        (np.broadcast_to(PADDING[:, None, None], (BATCH, HEADS, Q_SEQ, KV_SEQ)), PADDING, False),
        (CAUSAL, np.broadcast_to(CAUSAL[-1], (BATCH, KV_SEQ)), True),
        (PADDING[:, None, None] & CAUSAL, PADDING & CAUSAL[-1], True),
    ],
    ids=["padding", "padding of every query", "causal", "both"],
)
def test_split_causal(library, mask, padding, causal):
    array = library(mask.copy())
    found = layouts.split_causal(array, **SIZES)
    assert found is not None
    check(found[0], padding, array)
    assert found[1] == causal
    # The two together hide just what the mask hides.
    together = padding[:, None, None] & (CAUSAL if causal else True)
    full = (BATCH, HEADS, Q_SEQ, KV_SEQ)
    np.testing.assert_array_equal(np.broadcast_to(together, full), np.broadcast_to(mask, full))


def test_split_causal_of_any_other_mask(library):
    one_key_more = PADDING[:, None, None] & CAUSAL
    one_key_more[1, 0, 0, 1] = True
    of_one_head = np.broadcast_to(PADDING[:, None, None], (BATCH, HEADS, Q_SEQ, KV_SEQ)).copy()
    of_one_head[0, 1, 2, 3] = False
    for mask in (one_key_more, of_one_head, ~CAUSAL):
        assert layouts.split_causal(library(mask), **SIZES) is None


def test_read_lengths(library):
    for mask in (PADDING[:, None, None], np.broadcast_to(PADDING[:, None, None], (BATCH, HEADS, Q_SEQ, KV_SEQ)).copy()):
        array = library(mask)
        check(layouts.read_lengths(array, batch=BATCH, kv_seq=KV_SEQ), LENGTHS, array)


def test_read_lengths_of_a_sample_without_a_key(library):
    mask = library((np.arange(KV_SEQ) < np.array([[3], [0], [7]]))[:, None, None])
    check(layouts.read_lengths(mask, batch=BATCH, kv_seq=KV_SEQ), [3, 0, 7], mask)


@pytest.mark.parametrize("mask", [~PADDING[:, None, None], CAUSAL, PADDING[:, None, None] & CAUSAL])
def test_read_lengths_of_any_other_mask(library, mask):
    assert layouts.read_lengths(library(mask), batch=BATCH, kv_seq=KV_SEQ) is None


# Projections and states


def projections(library, *, biases="qkv", widths=(WIDTH, WIDTH, WIDTH)):
    """w_q, w_k and w_v with columns that say which they are, and some of their biases."""
    params = {}
    for role, width in zip("qkv", widths, strict=True):
        columns = np.arange(width) + 1000.0 * "qkv".index(role)
        params[f"w_{role}"] = library(10_000.0 * np.arange(D_IN)[:, None] + columns)
        if role in biases:
            params[f"b_{role}"] = library(columns.copy())
    return params


def test_fused_projections_stand_side_by_side(library):
    params = projections(library)
    weight, bias = layouts.fuse_projections(params, HEADS)
    check(weight, np.concatenate([np.asarray(params[f"w_{role}"]) for role in "qkv"], axis=1), params["w_q"])
    check(bias, np.concatenate([np.asarray(params[f"b_{role}"]) for role in "qkv"]), params["w_q"])


def test_projections_fused_per_head_are_those_of_split_fused(library):
    params = projections(library)
    for fused, letter in zip(layouts.fuse_projections(params, HEADS, per_head=True), "wb", strict=True):
        for role, part in zip("qkv", layouts.split_fused(fused, HEADS), strict=True):
            check(part, np.asarray(params[f"{letter}_{role}"]), params["w_q"])


def test_fused_keys_and_values_of_other_widths_keep_their_heads(library):
    params = projections(library, biases="v", widths=(4, 4, 6))
    weight, bias = layouts.fuse_projections(params, HEADS, "kv", per_head=True)
    check(bias, [0, 0, 2000, 2001, 2002, 0, 0, 2003, 2004, 2005], params["w_q"])
    assert weight.shape == (D_IN, 10)


def test_fused_projections_without_any_bias(library):
    assert layouts.fuse_projections(projections(library, biases=""), HEADS)[1] is None


def test_fused_projections_must_read_one_input_and_divide(library):
    params = projections(library)
    with pytest.raises(ValueError, match="4 heads do not divide"):
        layouts.fuse_projections(params, 4, per_head=True)
    params["w_v"] = params["w_v"][1:]
    with pytest.raises(NotImplementedError, match=r"w_k \(13, 22\), w_v \(12, 22\)"):
        layouts.fuse_projections(params, HEADS)


def test_fused_projections_are_what_nn_multihead_attention_takes():
    generator = torch.Generator().manual_seed(1)
    params = {f"w_{role}": torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) for role in "qkvo"}
    params |= {f"b_{role}": torch.randn(WIDTH, generator=generator, dtype=torch.float64) for role in "qkvo"}
    x = torch.randn(BATCH, Q_SEQ, WIDTH, generator=generator, dtype=torch.float64)
    with torch.device("meta"):
        module = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    weight, bias = layouts.fuse_projections(params, HEADS)
    state = {"in_proj_weight": weight.T, "in_proj_bias": bias}
    state |= {"out_proj.weight": params["w_o"].T, "out_proj.bias": params["b_o"]}
    output, _ = torch.func.functional_call(module, state, (x, x, x), strict=True)
    q, k, v = (
        (x @ params[f"w_{role}"] + params[f"b_{role}"]).unflatten(-1, (HEADS, D_K)).transpose(1, 2) for role in "qkv"
    )
    heads = torch.softmax(q @ k.mT / D_K**0.5, dim=-1) @ v
    torch.testing.assert_close(output, heads.transpose(1, 2).flatten(2) @ params["w_o"] + params["b_o"])


LAYER = {"attention.w_q": "attn.query.weight", "feed_forward.w_1": "fc.weight", "norm_1.gamma": "ln1.weight"}


def layer(library, start=""):
    """The parameters of a layer by our names: two weights, one with a bias, and a norm."""
    sizes = {"attention.w_q": (3, 3), "attention.b_q": (3,), "feed_forward.w_1": (3, 4)}
    sizes |= {"norm_1.gamma": (3,), "norm_1.beta": (3,)}
    return {f"{start}{name}": library(numbered(*size) + len(name)) for name, size in sizes.items()}


class Part(torch.nn.Module):
    """A layer by its own names, with a buffer."""

    def __init__(self, *, bias=True):
        super().__init__()
        self.attn = torch.nn.ModuleDict({"query": torch.nn.Linear(3, 3, bias=bias)})
        self.fc = torch.nn.Linear(3, 4)
        self.ln1 = torch.nn.LayerNorm(3)
        self.register_buffer("table", torch.arange(3.0), persistent=False)

    def forward(self, x):
        return self.fc(self.ln1(self.attn["query"](x))), self.table


def test_map_state_without_a_module(library):
    params = layer(library)
    state = layouts.map_state(LAYER, params)
    assert set(state) == {"attn.query.weight", "attn.query.bias", "fc.weight", "ln1.weight", "ln1.bias"}
    check(state["attn.query.weight"], np.asarray(params["attention.w_q"]).T, params["attention.w_q"])
    check(state["fc.weight"], np.asarray(params["feed_forward.w_1"]).T, params["attention.w_q"])
    assert state["attn.query.bias"] is params["attention.b_q"]
    assert state["ln1.bias"] is params["norm_1.beta"]
    kept = layouts.map_state({**LAYER, "feed_forward.w_1": "fc.kernel"}, params)
    assert kept["fc.kernel"] is params["feed_forward.w_1"]
    assert layouts.map_state(LAYER, params, transpose=False)["fc.weight"] is params["feed_forward.w_1"]


def test_map_state_fills_a_module_as_functional_call_takes_it():
    params, module = layer(torch.from_numpy), Part().double()
    state = layouts.map_state(LAYER, params, module)
    x = torch.ones(2, 3, dtype=torch.float64)
    output, table = torch.func.functional_call(module, state, (x,), strict=True)
    q = x @ params["attention.w_q"] + params["attention.b_q"]
    normal = torch.nn.functional.layer_norm(q, (3,), params["norm_1.gamma"], params["norm_1.beta"])
    torch.testing.assert_close(output, normal @ params["feed_forward.w_1"])
    assert table.tolist() == [0, 1, 2]
    check(state["fc.bias"], np.zeros(4), params["attention.w_q"])


def test_map_state_of_a_stack_and_of_tied_weights(library):
    names = layouts.nest_names(LAYER, "encoder.*", "layers.*")
    names |= {"table": ("src.weight", "tgt.weight"), "encoder_norm.gamma": "end.weight"}
    params = {"table": library(numbered(5, 3)), **layer(library, "encoder.0."), **layer(library, "encoder.11.")}
    state = layouts.map_state(names, params)
    assert state["src.weight"] is state["tgt.weight"] is params["table"]
    assert state["layers.11.attn.query.bias"] is params["encoder.11.attention.b_q"]
    assert len(state) == 2 + 2 * 5


def test_names_of_a_module_that_wraps_another_have_a_prefix_on_one_side():
    assert layouts.nest_names({"table": ("src.weight", "tgt.weight")}, "", "inner") == {
        "table": ("inner.src.weight", "inner.tgt.weight")
    }
    assert layouts.nest_names({"w_q": "query.weight"}, "attention", "") == {"attention.w_q": ("query.weight",)}


def test_all_names_of_tied_weights_fit_on_the_meta_device_which_unties_them():
    module = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 3), "out": torch.nn.Linear(3, 5, bias=False)})
    module["out"].weight = module["embed"].weight
    names = {"table": ("embed.weight", "out.weight")}
    for device in ("cpu", "meta"):
        state = layouts.map_state(names, {"table": torch.zeros(5, 3, device=device)}, module.to(device))
        assert sorted(state) == ["embed.weight", "out.weight"]


def test_map_state_of_tied_weights_needs_one_of_their_names():
    module = torch.nn.ModuleDict({"embed": torch.nn.Embedding(5, 3), "out": torch.nn.Linear(3, 5, bias=False)})
    module["out"].weight = module["embed"].weight
    table = torch.zeros(5, 3)
    assert list(layouts.map_state({"table": "embed.weight"}, {"table": table}, module)) == ["embed.weight"]


def test_biases_of_keys_are_left_out_of_every_part():
    params = {"self_attention.w_k": 1, "self_attention.b_k": 2, "b_k": 3, "b_q": 4}
    assert layouts.leave_out_key_biases(params) == {"self_attention.w_k": 1, "b_q": 4}
    with pytest.raises(NotImplementedError, match="keys without a bias have no gradient of it"):
        layouts.leave_out_key_biases({"b_k": torch.zeros(3, requires_grad=True)})


def test_map_state_keeps_what_a_module_does_not_train():
    module = torch.nn.Linear(2, 3, bias=False)
    module.places = torch.nn.Parameter(torch.ones(5, 3), requires_grad=False)
    weight = torch.zeros(2, 3)
    assert layouts.map_state({"w_q": "weight"}, {"w_q": weight}, module)["places"] is module.places
    # A module that trains nothing at all says nothing by it.
    with pytest.raises(ValueError, match="places: names has no line that fills it"):
        layouts.map_state({"w_q": "weight"}, {"w_q": weight}, module.requires_grad_(False))


def test_map_state_fills_a_named_parameter_that_is_not_trained():
    module = torch.nn.ModuleDict({"words": torch.nn.Embedding(5, 3), "out": torch.nn.Linear(3, 5, bias=False)})
    module["words"].weight.requires_grad_(False)
    params = {"table": torch.zeros(5, 3), "w_vocab": torch.zeros(3, 5)}
    state = layouts.map_state({"table": "words.weight", "w_vocab": "out.weight"}, params, module)
    assert state["words.weight"] is params["table"]


def test_map_state_widens_a_weight_for_a_convolution(library):
    weight = library(numbered(3, 4))
    module = {"conv.weight": library(numbered(4, 3, 1)), "conv.bias": library(numbered(4))}
    state = layouts.map_state({"w_1": "conv.weight"}, {"w_1": weight}, module)
    check(state["conv.weight"], numbered(3, 4).T[..., None], weight)
    check(state["conv.bias"], np.zeros(4), weight)


def test_map_state_lists_all_that_does_not_fit():
    params = {**layer(torch.from_numpy), "atention.w_k": torch.zeros(3, 3)}
    names = {**LAYER, "feed_forward.w_1": "fcc.weight", "norm_2.gamma": "ln2.weight"}
    with pytest.raises(ValueError, match="do not fit") as error:
        layouts.map_state(names, params, Part())
    assert str(error.value).splitlines()[1:] == [
        "  fcc.weight: the module has no such parameter. Did you mean fc.weight?",
        "  atention.w_k: names has no line for it. Did you mean attention.w_q?",
        "  fc.weight: names has no line that fills it. Did you mean fcc.weight?",
        "  fc.bias: names has no line that fills it. Did you mean fcc.bias?",
    ]
    del params["atention.w_k"], params["norm_1.gamma"], params["norm_1.beta"]
    with pytest.raises(ValueError, match=r"ln1\.weight: the call has no norm_1\.gamma\n  ln1\.bias: the call has no"):
        layouts.map_state(LAYER, params, Part())
    with pytest.raises(ValueError, match=r"attention\.w_q: names has no line for it"):
        layouts.map_state({}, params)


def test_map_state_has_no_place_for_a_bias_that_the_module_does_not_have():
    with pytest.raises(NotImplementedError, match=r"attention\.b_q: the module has no attn\.query\.bias, .* biases"):
        layouts.map_state(LAYER, layer(torch.from_numpy), Part(bias=False))


def test_map_state_fills_the_bias_of_a_tied_output_that_a_call_does_not_have():
    table = torch.ones(5, 3)
    names = {"table": "embed.weight", "b_vocab": "bias"}
    state = layouts.map_state(names, {"table": table}, {"embed.weight": table, "bias": torch.ones(5)})
    assert state["bias"].tolist() == [0.0] * 5


def test_map_state_names_the_option_of_a_parameter_that_only_one_side_has():
    w, b, row = torch.zeros(3, 5), torch.zeros(5), torch.zeros(3)
    with pytest.raises(ValueError, match=r"w_vocab: names has no line for it; .* declared by output_layer: tied\n"):
        layouts.map_state({"table": "embed.weight"}, {"w_vocab": w}, {"embed.weight": w.T})
    refused = r"b_vocab: the module has no out\.bias, which is declared by output_layer: without_bias$"
    with pytest.raises(NotImplementedError, match=refused):
        layouts.map_state({"w_vocab": "out.weight"}, {"w_vocab": w, "b_vocab": b}, {"out.weight": w.T})
    for ours, option in (("decoder_norm.gamma", "final_norm: after_stack"), ("position_table", "positions: learned")):
        unfilled = f"mine: the call has no {ours}, which is declared by {option}$"
        with pytest.raises(ValueError, match=unfilled):
            layouts.map_state({ours: "mine"}, {}, {"mine": row})


def test_map_state_compares_sizes_which_functional_call_does_not():
    params = {**layer(torch.from_numpy), "attention.w_q": torch.zeros(3, 6)}
    with pytest.raises(ValueError, match=r"attn\.query\.weight: the module has \(3, 3\), the call \(6, 3\)"):
        layouts.map_state(LAYER, params, Part())


def attention_params(library, prefix=""):
    weights = dict.fromkeys(("w_q", "w_k", "w_v"), (D_IN, WIDTH))
    shapes = {**weights, **dict.fromkeys(("b_q", "b_k", "b_v"), (WIDTH,)), "w_o": (WIDTH, D_IN)}
    return {f"{prefix}{name}": library(numbered(*shape) + i) for i, (name, shape) in enumerate(shapes.items())}


@pytest.mark.parametrize("prefix", ["", "encoder.0.self_attention."])
def test_projections_are_joined_in_any_order_and_separated_again(library, prefix):
    params = attention_params(library, prefix)
    joined = layouts.join_projections(params, HEADS, "kqv")
    assert set(joined) == {f"{prefix}{name}" for name in ("w_kqv", "b_kqv", "w_o")}
    expected = np.concatenate([np.asarray(params[f"{prefix}w_{role}"]) for role in "kqv"], -1)
    check(joined[f"{prefix}w_kqv"], expected, params[f"{prefix}w_q"])
    fused = layouts.join_projections(params, HEADS, "qkv", per_head=True)
    separate = layouts.separate_projections(fused, HEADS)
    assert set(separate) == set(params)
    for name, value in params.items():
        check(separate[name], np.asarray(value), value)


def test_projections_without_biases_are_joined_without_one(library):
    params = {name: value for name, value in attention_params(library).items() if name[0] == "w"}
    assert set(layouts.join_projections(params, HEADS, "kv")) == {"w_q", "w_kv", "w_o"}


@pytest.mark.parametrize("prefix", ["", "decoder.0.feed_forward."])
def test_gate_and_up_are_joined_in_either_order_or_in_turn(library, prefix):
    gate, up, bias = numbered(3, 5), numbered(3, 5) + 100, numbered(5)
    params = {"w_gate": gate, "w_up": up, "b_up": bias, "w_down": numbered(5, 3)}
    params = {f"{prefix}{name}": library(array) for name, array in params.items()}
    like = params[f"{prefix}w_down"]
    joined = layouts.join_gate_and_up(params)
    assert set(joined) == {f"{prefix}{name}" for name in ("w_gate_up", "b_gate_up", "w_down")}
    check(joined[f"{prefix}w_gate_up"], np.concatenate([gate, up], -1), like)
    # The bias that is missing counts as zeros.
    check(joined[f"{prefix}b_gate_up"], np.concatenate([np.zeros(5), bias]), like)
    check(layouts.join_gate_and_up(params, "up_gate")[f"{prefix}w_up_gate"], np.concatenate([up, gate], -1), like)
    in_turn = layouts.join_gate_and_up(params, interleaved=True)[f"{prefix}w_gate_up"]
    check(in_turn, np.stack([gate, up], -1).reshape(3, 10), like)
    assert set(params) == {f"{prefix}{name}" for name in ("w_gate", "w_up", "b_up", "w_down")}


def test_gate_and_up_without_biases_are_joined_without_one(library):
    params = {name: library(numbered(3, 5)) for name in ("w_gate", "w_up")}
    assert set(layouts.join_gate_and_up(params)) == {"w_gate_up"}


def test_projections_are_split_by_head(library):
    params = attention_params(library, "decoder.1.cross_attention.")
    split = layouts.split_by_head(params, HEADS)
    for head in range(HEADS):
        columns = slice(head * D_K, (head + 1) * D_K)
        for name in ("w_q", "b_v"):
            whole = params[f"decoder.1.cross_attention.{name}"]
            check(split[f"decoder.1.cross_attention.heads.{head}.{name}"], np.asarray(whole)[..., columns], whole)
    assert "decoder.1.cross_attention.w_o" in split
    assert len(split) == 6 * HEADS + 1


@pytest.mark.parametrize("prefix", ["", "decoder.1.cross_attention."])
def test_projections_get_an_axis_for_the_heads(library, prefix):
    params = {**attention_params(library, prefix), "norm_1.gamma": library(numbered(D_IN))}
    stacked = layouts.stack_heads(params, HEADS)
    for head in range(HEADS):
        columns = slice(head * D_K, (head + 1) * D_K)
        for name in ("w_q", "w_v", "b_k"):
            whole = params[f"{prefix}{name}"]
            check(stacked[f"{prefix}{name}"][head], np.asarray(whole)[..., columns], whole)
        w_o = params[f"{prefix}w_o"]
        check(stacked[f"{prefix}w_o"][head], np.asarray(w_o)[columns], w_o)
    assert stacked["norm_1.gamma"] is params["norm_1.gamma"]
    assert set(stacked) == set(params)


def test_gradients_reach_the_parameters_through_an_axis_for_the_heads():
    params = {name: value.requires_grad_() for name, value in attention_params(torch.from_numpy).items()}
    sum(value.square().sum() / 2 for value in layouts.stack_heads(params, HEADS).values()).backward()
    for value in params.values():
        torch.testing.assert_close(value.grad, value.detach())


@pytest.mark.parametrize(("name", "shape"), [("w_q", (D_IN, 7)), ("b_v", (7,)), ("w_o", (7, D_IN))])
def test_heads_that_do_not_divide_get_no_axis(library, name, shape):
    message = rf"num_heads: {HEADS} heads do not divide the 7 channels of {name}"
    with pytest.raises(ValueError, match=message):
        layouts.stack_heads({name: library(numbered(*shape))}, HEADS)


def test_map_state_turns_no_weight_that_has_an_axis_for_the_heads(library):
    stacked = layouts.stack_heads(attention_params(library), HEADS)
    state = layouts.map_state(
        {"w_q": "queries.weight", "w_k": "k", "w_v": "v", "w_o": "o", "b_q": "b_q", "b_k": "b_k", "b_v": "b_v"}, stacked
    )
    assert state["queries.weight"] is stacked["w_q"]


COLLISION = "both go there, and it holds one"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            {"w_q": "in.weight", "w_k": "in.weight", "w_v": "v.weight", "w_o": "o.weight"},
            rf"in.weight: w_q and w_k {COLLISION}; join_projections makes one projection of several",
        ),
        (
            {"w_q": "q.weight", "w_k": "k.weight", "w_v": "v.weight", "w_o": "q.weight"},
            rf"q.weight: w_q and w_o {COLLISION}: give each its own name",
        ),
    ],
)
def test_map_state_refuses_two_parameters_for_one_name(library, names, message):
    with pytest.raises(ValueError, match=message):
        layouts.map_state(names, attention_params(library))


def test_map_state_says_what_declares_a_module_that_ties_table_and_output():
    names = {"table": "embed.weight", "w_vocab": "embed.weight", "b_vocab": "bias"}
    params = {"table": torch.ones(5, 3), "w_vocab": torch.ones(3, 5), "b_vocab": torch.ones(5)}
    message = rf"embed.weight: table and w_vocab {COLLISION}; a module that ties them is declared by output_layer: tied"
    with pytest.raises(ValueError, match=message):
        layouts.map_state(names, params)


def test_map_state_takes_one_array_under_two_of_our_names(library):
    table = library(numbered(5, 3))
    names = {"encoder.table": "embed.weight", "decoder.table": "embed.weight"}
    state = layouts.map_state(names, {"encoder.table": table, "decoder.table": table})
    assert state["embed.weight"] is table


def test_other_sizes_are_an_error_a_variant_or_taken():
    module, params = torch.nn.Linear(3, 2), {"w_1": torch.ones(3, 5), "b_1": torch.ones(5)}
    with pytest.raises(ValueError, match=r"weight: the module has \(2, 3\), the call \(5, 3\)"):
        layouts.map_state({"w_1": "weight"}, params, module)
    with pytest.raises(NotImplementedError, match=r"weight: the module has \(2, 3\), the call \(5, 3\)"):
        layouts.map_state({"w_1": "weight"}, params, module, other_sizes="skip")
    state = layouts.map_state({"w_1": "weight"}, params, module, other_sizes="take")
    assert torch.func.functional_call(module, state, (torch.ones(3),)).tolist() == [4.0] * 5

"""Layouts: each conversion against what it says, in NumPy and in torch; no two sizes are equal."""

import math
import subprocess
import sys
from collections.abc import Callable
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
    """What turns a NumPy array into one of the library under test."""
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
        check(layouts.unstack_qkv(library(after), HEADS), before, x)


def test_split_fused_weight_and_bias(library):
    per_head = fused_columns(per_head=True)
    rows = np.arange(D_IN)[:, None] * 1000
    for fused, lead in ((per_head, 0), (rows + per_head, rows)):
        x = library(fused)
        for role, part in enumerate(layouts.split_fused(x, HEADS)):
            canonical = np.array([column(role, h, c) for h in range(HEADS) for c in range(D_K)])
            check(part, lead + canonical, x)


@pytest.mark.parametrize("heads", [0, 4])
@pytest.mark.parametrize("convert", [layouts.stack_qkv, layouts.unstack_qkv, layouts.split_fused])
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

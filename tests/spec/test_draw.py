"""The generator against one written here from the words of transformer.md, and what its grids promise."""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from goldformer.spec import ROOT, Case, Spec, draw, load_spec
from goldformer.spec.draw import Argument, Blocks, Dyadic, Fill, Ids, Mask, Uniform

TEXT = (ROOT / "transformer.md").read_text(encoding="utf-8")
COMPONENTS = sorted(load_spec().contracts)
STREAMS = [(1, "query"), (7, "ids"), (0, "noise"), (101, "w_qkv"), (-3, "Größe")]


def fnv1a(text: str) -> int:
    """Step 1 of "The drawing of inputs": 64-bit FNV-1a of the UTF-8 bytes."""
    state = 14695981039346656037
    for byte in text.encode("utf-8"):
        state ^= byte
        state = state * 1099511628211 % 2**64
    return state


def splitmix64(state: int, count: int) -> list[int]:
    """Step 2: each call adds the constant to the state and mixes a copy of it."""
    results = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        results.append(z ^ (z >> 31))
    return results


def on_grid(seed: int, name: str, lo: Fraction, hi: Fraction, step: Fraction, count: int) -> list[Fraction]:
    """Step 3: lo + step · floor((z >> 32) · n / 2^32)."""
    n = (hi - lo) / step + 1
    return [lo + step * math.floor((z >> 32) * n / 2**32) for z in splitmix64(fnv1a(f"{seed}/{name}"), count)]


def with_all_bits(seed: int, name: str, lo: float, hi: float, count: int) -> list[float]:
    """lo + (hi − lo) · (z >> 11) / 2^53, rounded once: Python rounds a fraction to the nearest float, ties to even."""
    parts = [Fraction(z >> 11, 2**53) for z in splitmix64(fnv1a(f"{seed}/{name}"), count)]
    return [float(Fraction(lo) + (Fraction(hi) - Fraction(lo)) * part) for part in parts]


def dyadic(seed: int, lo: float, hi: float, step: str, **more: Any) -> Dyadic:
    return Dyadic(draw="dyadic", seed=seed, range=(lo, hi), step=step, **more)


def uniform(seed: int, lo: float, hi: float, **more: Any) -> Uniform:
    return Uniform(draw="uniform", seed=seed, range=(lo, hi), **more)


def ids(seed: int, lo: int, hi: int) -> Ids:
    return Ids(draw="ids", seed=seed, range=(lo, hi))


def list_arguments(case: Case) -> list[Argument]:
    return [*case.inputs.values(), *case.params.values()]


def significant_bits(value: float) -> int:
    numerator = abs(Fraction(value).numerator)
    return (numerator // (numerator & -numerator)).bit_length() if numerator else 0


# ── the check vectors that transformer.md prints ──


def test_the_printed_hash_and_first_result_are_those_of_the_words():
    assert fnv1a("1/query") == int(re.search(r'"1/query" has the hash (0x\w+)', TEXT)[1], 16)
    assert draw.stream(1, "query", 1)[0] == int(re.search(r"first result of its stream is (0x\w+)\.", TEXT)[1], 16)
    assert draw.stream(1, "query", 1)[0] == 0xEBD1FBE1353D5C50


@pytest.mark.parametrize(
    ("recipe", "name", "sentence", "numbers"),
    [
        (
            dyadic(1, -2, 2, "1/32"),
            "query",
            "Seed 1, name query, range [−2, 2] and step 1/32 begin with ",
            [1.6875, -0.5625, 1.34375, 0.59375, 0.21875, -1.34375],
        ),
        (
            uniform(1, -1, 1),
            "query",
            "Seed 1, name query, range [−1, 1] and all bits begin with ",
            [0.8423457002304342, -0.2761340549220228],
        ),
        (ids(7, 0, 12), "ids", "Seed 7, name ids and range [0, 12] begin with ", [1, 4, 12, 2, 11, 8, 10, 10]),
    ],
    ids=["dyadic", "uniform", "ids"],
)
def test_the_printed_elements_are_drawn(recipe, name, sentence, numbers):
    printed = TEXT.split(sentence)[1].split("\n")[0].rstrip(".").replace("−", "-")
    assert [float(x) for x in printed.split(", ")] == numbers
    assert recipe.build(name, (len(numbers),)).tolist() == numbers


@pytest.mark.parametrize(("kind", "step"), [(dyadic, ["1/32"]), (uniform, [])])
def test_an_array_drawn_like_another_is_drawn_under_its_name(kind, step):
    recipe, shape = kind(3, -2, 2, *step), (4, 5)
    query = recipe.build("query", shape)
    assert np.array_equal(kind(3, -2, 2, *step, like="query").build("key", shape), query)
    assert not np.array_equal(recipe.build("key", shape), query)


# ── against the words ──


@pytest.mark.parametrize(("seed", "name"), STREAMS)
def test_streams_are_splitmix64_from_the_fnv_hash(seed, name):
    drawn = draw.stream(seed, name, 500)
    assert drawn.dtype == np.uint64
    assert drawn.tolist() == splitmix64(fnv1a(f"{seed}/{name}"), 500)


@pytest.mark.parametrize(
    ("lo", "hi", "step"), [("-2", "2", "1/32"), ("-1", "1", "1/64"), ("-1.75", "0.5", "1/4"), ("3", "200", "1")]
)
def test_grids_are_filled_row_major_from_the_words(lo, hi, step):
    drawn = dyadic(5, float(lo), float(hi), step).build("key", (2, 3, 7))
    assert drawn.dtype == np.float64
    expected = on_grid(5, "key", Fraction(lo), Fraction(hi), Fraction(step), 42)
    assert [Fraction(x) for x in drawn.ravel().tolist()] == expected
    assert Fraction(drawn[1, 2, 0]) == expected[(1 * 3 + 2) * 7]


@pytest.mark.parametrize(("lo", "hi"), [(-1.0, 1.0), (0.75, 1.75), (-0.25, 0.25), (3.0, 7.0), (-64.0, -63.0)])
def test_numbers_with_all_bits_are_filled_row_major_from_the_words(lo, hi):
    drawn = uniform(5, lo, hi).build("key", (2, 3, 7))
    assert drawn.dtype == np.float64
    expected = with_all_bits(5, "key", lo, hi, 42)
    assert drawn.ravel().tolist() == expected
    assert drawn[1, 2, 0] == expected[(1 * 3 + 2) * 7]
    assert lo <= drawn.min() <= drawn.max() <= hi


def test_numbers_with_all_bits_are_rounded_by_every_other_dtype():
    drawn = uniform(5, -1, 1).build("key", (40_000,))
    assert drawn.ravel()[32_768:].tolist() == with_all_bits(5, "key", -1.0, 1.0, 40_000)[32_768:]
    assert np.mean(drawn.astype(np.float32) == drawn) < 1e-3
    assert np.mean([significant_bits(x) >= 40 for x in drawn[:2000].tolist()]) > 0.95
    assert max(map(significant_bits, uniform(5, 0.75, 1.75).build("key", (2000,)).tolist())) == 53


@pytest.mark.parametrize(("lo", "hi"), [(0, 0), (-3, 4), (0, 9999), (5, 2**32 + 4)])
def test_ids_are_drawn_with_step_one_and_no_limit_on_size(lo, hi):
    drawn = ids(11, lo, hi).build("ids", (40, 5))
    assert drawn.dtype == np.int64
    assert drawn.ravel().tolist() == on_grid(11, "ids", Fraction(lo), Fraction(hi), Fraction(1), 200)


def test_both_ends_of_a_range_are_drawn_and_nothing_beyond():
    drawn = dyadic(2, -1, 1, "1/4").build("x", (2000,))
    assert sorted(set(drawn.tolist())) == [k / 4 for k in range(-4, 5)]
    assert set(ids(2, 3, 6).build("x", (500,)).tolist()) == {3, 4, 5, 6}


@pytest.mark.parametrize(("seed", "name"), [(4, "query"), (3, "key")])
def test_seed_and_name_each_select_another_stream(seed, name):
    assert not set(draw.stream(3, "query", 50)) & set(draw.stream(seed, name, 50))


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_drawn_argument_of_the_spec_has_a_stream_of_its_own_name(component: str, spec: Spec):
    """One recipe for all parameters draws each under its own name, an argument of a refused call too."""
    for case in spec.cases_of(component):
        arrays = {**case.input_arrays, **case.param_arrays}
        for name, argument in {**case.inputs, **case.params}.items():
            recipe = argument.made_of
            if isinstance(recipe, Dyadic) and arrays[name].size > 2:
                first = on_grid(recipe.seed, recipe.like or name, *recipe.grid, 3)
                first = [number + recipe.ends_of_ramp[0] for number in first]
                assert arrays[name].ravel()[:3].tolist() == first, f"{case.id}: {name}"


def test_arguments_of_every_kind_are_drawn(spec: Spec):
    drawn = {
        name
        for case in spec.cases.values()
        for name, argument in {**case.inputs, **case.params}.items()
        if isinstance(argument.made_of, Dyadic) and math.prod(argument.shape) > 2
    }
    assert drawn >= {"query", "key", "value", "scores", "x", "table", "w_q", "w_k", "w_v", "w_o", "b_o", "w_qkv"}


@pytest.mark.parametrize(("start", "stop"), [("-3/2", "3/2"), ("2", "-1/32"), ("1", "1")])
@pytest.mark.parametrize("rows", [1, 2, 7, 130])
def test_a_ramp_adds_to_each_row_what_the_words_say(start, stop, rows):
    shape = (2, rows, 3)
    start, stop, step = Fraction(start), Fraction(stop), Fraction(1, 32)
    added = dyadic(5, -1, 1, "1/32", ramp=(float(start), float(stop))).build("key", shape)
    added = added - dyadic(5, -1, 1, "1/32").build("key", shape)
    words = [step * (start / step + math.floor((stop - start) / step * i / max(rows - 1, 1))) for i in range(rows)]
    assert [[Fraction(x) for x in row] for row in added[0].tolist()] == [[word] * 3 for word in words]
    assert np.array_equal(added[1], added[0])


def test_a_ramp_beyond_the_grid_is_refused():
    assert draw.ramp("-6", "6", "-2", "2", "1/32") == (Fraction(-6), Fraction(6))
    with pytest.raises(ValueError, match=r"^with 7 of the ramp added, the range \[5, 9\] with step 1/32 has ends at "):
        draw.ramp("-6", "7", "-2", "2", "1/32")
    with pytest.raises(ValueError, match=r"^with 1/64 of the ramp added, the range "):
        draw.ramp("-6", "1/64", "-2", "2", "1/32")


# ── masks ──


@pytest.mark.parametrize(
    ("lengths", "causal", "shape"),
    [
        ((5, 4, 2), True, (3, 5, 5)),
        ((5, 4, 2), False, (3, 1, 1, 5)),
        ((0, 3), True, (2, 2, 3, 4)),
        (None, True, (3, 7)),
        (None, True, (7, 3)),
        (None, False, (2, 3)),
    ],
)
def test_a_mask_is_true_where_the_words_say(lengths, causal, shape):
    mask = Mask(lengths=lengths, causal=causal, shape=shape).build("mask", shape)
    assert (mask.dtype, mask.shape) == (np.dtype(bool), shape)
    for index in np.ndindex(shape):
        i, j = index[-2:]
        assert mask[index] == ((lengths is None or j < lengths[index[0]]) and (not causal or j <= i)), index


def test_a_mask_of_blocks_is_true_where_the_words_say():
    keep = ((1, 0, 1), (0, 1, 1))
    blocks, shape = Blocks(size=4, keep=keep), (2, 7, 10)
    mask = Mask(blocks=blocks, shape=shape).build("mask", shape)
    for index in np.ndindex(mask.shape):
        assert mask[index] == bool(keep[index[1] // 4][index[2] // 4]), index
    causal = Mask(causal=True, blocks=blocks, shape=shape).build("mask", shape)
    assert np.array_equal(causal, mask & np.tri(7, 10, dtype=bool))


# ── the grids of the shipped spec ──


def test_the_shipped_spec_draws_inputs_in_every_way(spec: Spec):
    kinds = {type(argument.made_of) for case in spec.cases.values() for argument in list_arguments(case)}
    assert kinds == {np.ndarray, Fill, Dyadic, Uniform, Ids, Mask}


def test_every_component_that_computes_with_floats_has_a_case_whose_numbers_fill_every_dtype(spec: Spec):
    """Code that keeps weights or inputs in a half type shows nowhere else; alibi_bias and xavier_uniform are exempt."""
    filled = {c.component for c in spec.cases.values() if c.id.endswith("every-bit") and c.golden is not None}
    floats = {
        name
        for name, contract in spec.contracts.items()
        if contract.takes_params or any(array.kind == "float" for array in contract.inputs.values())
    }
    assert floats - filled == {"alibi_bias", "xavier_uniform"}
    for case in (c for c in spec.cases.values() if c.has_all_bits):
        recipes = [argument.made_of for argument in list_arguments(case)]
        drawn = [recipe for recipe in recipes if not isinstance(recipe, (Fill, Ids, Mask, np.ndarray))]
        assert all(isinstance(recipe, Uniform) for recipe in drawn), case.id


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_drawn_or_filled_number_of_the_spec_is_exact_in_float16_and_bfloat16(component: str, spec: Spec):
    for case in spec.cases_of(component):
        arrays = (*case.input_arrays.values(), *case.param_arrays.values())
        for argument, array in zip(list_arguments(case), arrays, strict=True):
            recipe = argument.made_of
            if not isinstance(recipe, Dyadic | Fill):
                continue
            numbers = np.unique(array)
            assert all(significant_bits(x) <= 8 for x in numbers.tolist()), f"{case.id}: bfloat16"
            assert np.array_equal(numbers.astype(np.float16).astype(np.float64), numbers), f"{case.id}: float16"
            assert np.array_equal(numbers.astype(np.float32).astype(np.float64), numbers), f"{case.id}: float32"
            if isinstance(recipe, Dyadic) and array.size:
                lo, hi, _ = recipe.grid
                assert lo + min(recipe.ends_of_ramp) <= array.min() <= array.max() <= hi + max(recipe.ends_of_ramp)


def test_what_no_half_type_holds_is_written_out_in_decimals(spec: Spec):
    """NUM-1 needs such a case, and the walkthrough's is one: every one of its numbers is a short decimal."""
    inexact = {
        case.id
        for case in spec.cases.values()
        for argument in list_arguments(case)
        if argument.written is not None and argument.written.dtype.kind == "f"
        if any(significant_bits(x) > 8 for x in argument.written.ravel().tolist())
    }
    assert "sdpa-walkthrough-3x2" in inexact


@pytest.mark.parametrize(
    ("step", "lo", "hi", "message"),
    [
        ("1/3", "-1", "1", "step 1/3 is not a power of two such as 1/32"),
        ("3/32", "-3", "3", "step 3/32 is not a power of two such as 1/32"),
        ("6", "-6", "6", "step 6 is not a power of two such as 1/32"),
        ("0", "-1", "1", "step 0 is not a power of two such as 1/32"),
        ("-1/32", "-1", "1", "step -1/32 is not a power of two such as 1/32"),
        ("1/32", "-0.1", "1", "range [-1/10, 1] with step 1/32 has ends at -16/5 and 32 steps: "),
        ("1/32", "-2", "8.03125", "range [-2, 257/32] with step 1/32 has ends at -64 and 257 steps: "),
        ("1/128", "-3", "1", "range [-3, 1] with step 1/128 has ends at -384 and 128 steps: "),
        ("1/32", "1", "1", "range [1, 1] with step 1/32 has ends at 32 and 32 steps: "),
        ("1/32", "2", "-2", "range [2, -2] with step 1/32 has ends at 64 and -64 steps: "),
    ],
)
def test_a_recipe_off_the_grid_is_named(step, lo, hi, message):
    if message.startswith("range"):
        message += "both must be whole, rising and at most 256 in size, so that bfloat16 holds every element"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        draw.grid(lo, hi, step)


@pytest.mark.parametrize(
    ("lo", "hi", "message"),
    [
        ("-1", "0.5", "range [-1, 1/2] has the width 3/2: write ends that are a power of two apart"),
        ("1", "1", "range [1, 1] has the width 0: write ends that are a power of two apart"),
        ("1", "-1", "range [1, -1] has the width -2: write ends that are a power of two apart"),
        ("0.3", "1.3", "range [3/10, 13/10] has an end that is no multiple of a 256th of its width, or more than 256 "),
        ("300", "301", "range [300, 301] has an end that is no multiple of a 256th of its width, or more than 256 "),
    ],
)
def test_ends_that_could_round_differently_are_refused(lo, hi, message):
    message += "widths from 0" if message.endswith(" ") else ""
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        draw.interval(lo, hi)


@pytest.mark.parametrize(("step", "lo", "hi"), [("1/32", "-8", "8"), ("1", "-256", "256"), ("4", "0", "1024")])
def test_the_widest_grids_are_allowed_and_exact(step, lo, hi):
    drawn = dyadic(1, float(lo), float(hi), step).build("x", (999,))
    assert max(map(significant_bits, drawn.tolist())) == 8


# ── what is built ──


@pytest.mark.parametrize(
    "recipe",
    [
        np.array([0.5, 1.5]),
        Fill(fill=0.25),
        dyadic(1, 0, 1, "1/2"),
        uniform(1, 0, 1),
        ids(1, 0, 4),
        Mask(shape=(2,)),
    ],
    ids=lambda recipe: type(recipe).__name__,
)
def test_a_built_array_is_read_only(recipe):
    with pytest.raises(ValueError, match="assignment destination is read-only"):
        Argument(recipe, (2,)).build("x")[..., 0] = 1


def test_every_array_of_a_case_is_read_only(spec: Spec):
    arrays = [a for c in spec.cases.values() for a in (*c.input_arrays.values(), *c.param_arrays.values())]
    goldens = [
        array.values
        for case in spec.cases.values()
        if case.golden
        for outputs in case.golden.options.values()
        for array in (outputs or {}).values()
    ]
    assert len(arrays) > 200
    assert len(goldens) > 200
    assert not any(array.flags.writeable for array in (*arrays, *goldens))

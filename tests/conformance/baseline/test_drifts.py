"""Drifts of every kind are put in their class, with what they are."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from drifts import (
    accumulated_in_bfloat16,
    attention,
    feed_forward,
    layer_norm,
    moves,
    on_torch,
    recorded,
    reversed_sums,
    softmax,
    textbook,
    tf32,
)
from goldformer.conformance.baseline.classify import Classifier
from goldformer.conformance.baseline.drift import Drift, describe_move, explain_drift
from goldformer.conformance.baseline.expected import find_shown, list_coarser
from goldformer.conformance.baseline.model import Key
from goldformer.conformance.baseline.moves import Kind, Move, Tally, group_by_reason, sort_worst_first
from goldformer.conformance.judging.verdict import Element

ATTENTION = "scaled_dot_product_attention"


@pytest.fixture(scope="module")
def drift(spec):
    """Return the drift from one adapter to another in one component, in float32 by default."""

    def between(old, new, component, **request):
        before, after = (recorded(spec, adapter, component, **request) for adapter in (old, new))
        return Drift(before, after, tuple(moves(spec, before, after)), spec)

    return between


def move_to(device, baseline):
    """The same results, as if another device had given them."""
    entries = {key._replace(device=device): entry for key, entry in baseline.entries.items()}
    return replace(baseline, entries=entries)


def kinds(found):
    return {move.kind for move in found.moves}


def kinds_of_outputs(found):
    """Without the cases of gradients, which a constant or a cast behind the function leaves as they are."""
    return {move.kind for move in found.moves if found.spec.cases[move.key.case].cotangent is None}


def list_remarks(found):
    return [f"{remark.label}: {remark.text}" for remark in explain_drift(found)]


# ── what is no drift, and rounding ──


def test_a_difference_of_the_environment_is_one_line(drift, spec):
    found = drift(on_torch(spec, softmax), on_torch(spec, softmax), "softmax")
    (made,) = found.old.recordings
    odd = made.model_copy(update={"name": "a\n::error::b", "environment": {"x\n::c": "y\n::d"}})
    named = replace(found, old=replace(found.old, recordings=(odd,))).environment
    assert ("implementation", f"a ::error::b {made.version}".strip(), found.new.recordings[0].title) in named
    assert ("x ::c", "y ::d", "none") in named


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_same_code_gives_the_same_bits(spec, drift, dtype):
    mine = on_torch(spec, softmax)
    found = drift(mine, mine, "softmax", dtype=dtype)
    assert kinds(found) == {Kind.IDENTICAL}
    assert found.environment == []


def test_sums_in_another_order_are_rounding(spec, drift):
    found = drift(on_torch(spec, attention()), on_torch(spec, attention(reversed_sums)), ATTENTION)
    assert kinds(found) == {Kind.IDENTICAL, Kind.ROUNDING}
    assert 0 < found.tally.ratio < 0.8  # two honest results, each within 0.4


def test_another_thread_count_is_named_and_no_more_than_rounding(spec):
    mine = on_torch(spec, attention())
    before, after = (recorded(spec, mine, ATTENTION, threads=count) for count in (1, 2))
    torch.set_num_threads(1)
    found = Drift(before, after, tuple(moves(spec, before, after)), spec)
    assert found.environment == [("threads", "1", "2")]
    assert found.tally.worst <= Kind.ROUNDING


def test_random_numbers_that_repeat_are_recorded_and_others_are_not(spec):
    seeded = recorded(spec, textbook(spec), "dropout")
    assert {key.case for key in seeded.entries if spec.cases[key.case].random}

    def dropout(x, *, rate, training, seed):
        return torch.nn.functional.dropout(x, rate, training)

    free = recorded(spec, on_torch(spec, dropout), "dropout")
    assert {key.case for key in free.entries if spec.cases[key.case].random} == set()
    assert set(free.absent.values()) == {"it is drawn at random, and a second call gives other numbers"}


def test_other_random_numbers_are_said_to_be_that(spec, drift):
    def drawn(add):
        def dropout(x, *, rate, training, seed):
            torch.manual_seed(seed + add)
            return torch.nn.functional.dropout(x, rate, training)

        return on_torch(spec, dropout)

    found = drift(drawn(0), drawn(1), "dropout")
    moved = [move for move in found.moves if move.kind is not Kind.IDENTICAL]
    assert moved
    assert {describe_move(move, spec).partition("; ")[2] for move in moved} == {
        "other random numbers are drawn; their statistics are right"
    }


# ── lower precision ──


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("product", "device", "named", "component", "made"),
    [
        (tf32, "cuda:0", "TF32", ATTENTION, attention),
        (tf32, "cuda:0", "TF32", "feed_forward", feed_forward),
        # A CPU has no TF32; factors of float16 have as many bits.
        (tf32, "cpu", "float16", ATTENTION, attention),
        (accumulated_in_bfloat16, "cpu", "bfloat16", ATTENTION, attention),
        (accumulated_in_bfloat16, "cpu", "bfloat16", "feed_forward", feed_forward),
    ],
)
def test_a_lower_precision_of_products_is_named(spec, product, device, named, component, made):
    old, new = (move_to(device, recorded(spec, on_torch(spec, f), component)) for f in (made(), made(product)))
    found = Drift(old, new, tuple(moves(spec, old, new)), spec)
    assert kinds(found) <= {Kind.IDENTICAL, Kind.ROUNDING, Kind.PRECISION}
    first = sort_worst_first(found.moves)[0]
    assert first.kind is Kind.PRECISION
    assert first.ratio > 100
    assert re.search(rf"within what {named} moves|looks like {named}[,:]", first.why)


def cast_softmax(dtype):
    """A softmax in a lower precision, cast back."""

    def softmax(scores):
        return torch.softmax(scores, -1, dtype=dtype).to(scores.dtype)

    return softmax


@pytest.mark.parametrize(
    ("lower", "dtype"),
    [
        ("bfloat16", "float32"),
        ("float16", "float32"),
        ("bfloat16", "float64"),
        ("float32", "float64"),
    ],
)
def test_a_precision_is_named_by_the_numbers_that_it_has(spec, drift, lower, dtype):
    """A bfloat16 softmax was called TF32, which moves this far too, and which no CPU has."""
    found = drift(on_torch(spec, softmax), on_torch(spec, cast_softmax(getattr(torch, lower))), "softmax", dtype=dtype)
    moved = [move for move in found.moves if move.kind > Kind.ROUNDING]
    assert moved
    named = [move for move in moved if move.precision]
    assert {(move.kind, move.precision) for move in named} == {(Kind.PRECISION, lower)}
    assert len(named) >= len(moved) - 1  # a gradient may be none of its numbers
    assert f"looks like {lower}: all values of output are {lower} numbers" in {move.why for move in named}


def test_the_other_outputs_and_the_components_built_of_it_look_like_the_same_precision(spec, drift):
    """The output of attention is a product in float32, and is no bfloat16 number."""
    plain = attention()

    def coarse(query, key, value, mask=None):
        _, weights, *scores = plain(query, key, value, mask)
        weights = weights.bfloat16().float()
        return weights @ value, weights, *scores

    coarse.__name__ = ATTENTION

    def multi_head(inner):
        def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
            def project(x, name):
                projected = x @ params[f"w_{name}"] + params.get(f"b_{name}", 0)
                return projected.unflatten(-1, (num_heads, -1)).transpose(1, 2)

            each = project(query, "q"), project(key, "k"), project(value, "v")
            mask = None if mask is None else mask.unsqueeze(1) if mask.ndim == 3 else mask
            joined = inner(*each, mask)[0].transpose(1, 2).flatten(-2)
            return joined @ params["w_o"] + params.get("b_o", 0)

        return multi_head_attention

    old, new = (on_torch(spec, inner, multi_head(inner)) for inner in (plain, coarse))
    before, after = (recorded(spec, adapter, ATTENTION, "multi_head_attention") for adapter in (old, new))
    found = moves(spec, before, after)
    whys = {(move.component, move.output, move.why) for move in found if move.precision}
    shown = "looks like bfloat16: all values of weights are bfloat16 numbers"
    assert (ATTENTION, "weights", shown) in whys
    assert (ATTENTION, "output", shown) in whys
    assert ("multi_head_attention", "output", f"looks like bfloat16, as {ATTENTION} does") in whys


def test_few_numbers_that_any_precision_has_show_none(spec):
    """Halves and zeros were bfloat16 numbers before."""
    halves, thirds = np.array([0.5, 0.0, 1.0]), np.array([1 / 3, 0.5, np.nan])
    lower = list_coarser("float64", "cpu")
    assert [p.name for p in lower] == ["float32", "float16", "bfloat16"]
    assert [p.name for p in list_coarser("float32", "cuda")] == ["TF32", "float16", "bfloat16"]
    assert find_shown(halves, halves[::-1], lower) is None
    assert find_shown(thirds, thirds + 1e-9, lower) is None
    # What is no number is no number of a precision.
    assert find_shown(thirds, np.full(3, np.nan), lower) is None
    assert find_shown(thirds, np.array([np.nan, 0.5, 0.5]), lower) is None
    assert find_shown(thirds, np.array([0.25, np.inf, np.nan]), lower).name == "bfloat16"
    assert find_shown(thirds, halves, lower).name == "bfloat16"
    assert find_shown(thirds, thirds.astype("float16"), lower).name == "float16"
    # Beyond the range of float16 there is bfloat16, and beyond that float32.
    assert find_shown(thirds, np.array([2.0**-100, 1.0, 3.0]), lower).name == "bfloat16"
    assert find_shown(thirds, np.array([1 + 2.0**-9, 1e-30, 3.0]).astype("float32"), lower).name == "float32"


def test_numbers_of_a_lower_precision_need_no_search_for_mistakes(spec, monkeypatch):
    """They equal no mistake to the tolerance of the dtype, and the search takes a minute for a coarse attention."""
    before, after = (recorded(spec, on_torch(spec, f), "softmax") for f in (softmax, cast_softmax(torch.bfloat16)))
    classifier = Classifier(spec)
    monkeypatch.setattr(classifier.imitator, "find_matches", lambda *_: pytest.fail("searched"))
    plain = {key for key in before.entries if spec.cases[key.case].cotangent is None}
    found = list(classifier.moves(before, after, plain))
    assert sum(move.precision == "bfloat16" for move in found) > 3


# ── reasons ──


def moved(component, kind, why="", precision="", ratio=2.0, case="sm-equal-elements"):
    key = Key(case, "float32", "cpu")
    return Move(key, component, "output", kind, why, ratio, Element((0,), 0.0, 1.0), precision=precision)


def test_moves_for_the_same_reason_are_one_group_and_the_unexplained_ones_of_a_component():
    coarse = [
        moved("softmax", Kind.PRECISION, "itself", "bfloat16"),
        moved("encoder", Kind.PRECISION, "so", "bfloat16"),
    ]
    other = moved("encoder", Kind.PRECISION, "itself", "float16", ratio=3.0)
    odd = [moved("softmax", Kind.UNEXPLAINED, why, ratio=r) for why, r in (("?", 5.0), ("?; nan", 9.0))]
    apart = moved("encoder", Kind.UNEXPLAINED, "?")
    groups = group_by_reason([*coarse, other, *odd, apart])
    assert [(group.shown, group.moves) for group in groups] == [
        (odd[1], (odd[0], odd[1])), (apart, (apart,)), (coarse[0], tuple(coarse)), (other, (other,)),
    ]  # fmt: skip
    assert groups[0].extent == "2 outputs of 1 call, by up to 9 times the tolerance"
    assert (groups[0].others, groups[2].others, groups[3].others) == ("softmax 1", "encoder 1", "")


def test_the_commonest_reason_is_said_first_also_if_it_is_not_the_worst(spec):
    """The empty rows of a coarse attention are NaN, and hid that it is coarse."""
    cases = ("sm-equal-elements", "sm-a-thousand")
    coarse = [moved("softmax", Kind.PRECISION, "looks like bfloat16", "bfloat16", case=case) for case in cases]
    odd = moved("softmax", Kind.UNEXPLAINED, "unknown", case="sm-one-row-by-hand")
    gone = moved("layer_norm", Kind.FORM, "is gone", case="ln-scale-zero")
    assert list_remarks(Drift(None, None, (odd, *coarse, gone), spec)) == [
        "Moved first: layer_norm",
        "Form: is gone. 1 of 1 outputs that moved.",
        "Moved first: softmax",
        "Precision: looks like bfloat16. 2 of 3 outputs that moved.",
        "Cause unknown: unknown. 1 of 3 outputs that moved. Worst: sm-one-row-by-hand (float32).",
    ]


def test_what_is_too_far_for_the_precision_that_it_shows_is_unexplained_and_says_so(spec, drift):
    def coarse(scores):
        return (torch.softmax(scores, -1) + 0.3).bfloat16().float()

    coarse.__name__ = "softmax"
    worst = sort_worst_first(drift(on_torch(spec, softmax), on_torch(spec, coarse), "softmax").moves)[0]
    assert worst.kind is Kind.UNEXPLAINED
    assert worst.why.endswith("no known mistake or option explains it; all values of output are bfloat16 numbers")


def test_what_no_precision_explains_is_unexplained(spec, drift):
    def shifted(scores):
        return torch.softmax(scores, -1) + 0.3

    shifted.__name__ = "softmax"
    found = drift(on_torch(spec, softmax), on_torch(spec, shifted), "softmax")
    assert kinds_of_outputs(found) == {Kind.UNEXPLAINED}
    assert "no lower precision and no known mistake" in describe_move(sort_worst_first(found.moves)[0], spec)


def test_a_baseline_that_was_far_from_right_makes_no_precision_of_what_is(spec, drift):
    """Near what was given is not enough: what is given now is to be near the golden values, too."""

    def off(by):
        def softmax(scores):
            return torch.softmax(scores, -1) + by

        return on_torch(spec, softmax)

    assert kinds_of_outputs(drift(off(0.3), off(0.3 + 1e-4), "softmax")) == {Kind.UNEXPLAINED}
    assert kinds_of_outputs(drift(off(0.0), off(1e-4), "softmax")) == {Kind.PRECISION}


# ── known mistakes and options ──


def test_another_eps_is_an_option_that_is_named(spec, drift):
    found = drift(on_torch(spec, layer_norm()), on_torch(spec, layer_norm(1e-6)), "layer_norm")
    assert found.tally.worst is Kind.SEMANTIC
    assert Kind.PRECISION not in kinds(found)
    assert any(line.startswith("Option found: layer_norm_eps: 1e-6 (") for line in list_remarks(found))
    assert "equals layer_norm_eps: 1e-6 (" in describe_move(sort_worst_first(found.moves)[0], spec)


def test_another_eps_is_named_in_float64_where_the_norm_casts_to_float32(spec, drift):
    def cast(eps, **declared):
        def rms_norm(x, *, params):
            wide = x.float()
            return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).type_as(x) * params["gamma"]

        return on_torch(spec, rms_norm, CONVENTIONS=declared)

    found = drift(cast(1e-6), cast(1e-5), "rms_norm", dtype="float64")
    named = [move for move in found.moves if move.kind is Kind.SEMANTIC]
    assert {move.reason for move in named} == {(Kind.SEMANTIC, ("rms_norm_eps: 1e-5",), False)}
    assert len(named) > 10
    assert Kind.UNEXPLAINED not in kinds(found)
    declared = drift(cast(1e-5, rms_norm_eps="1e-5"), cast(1e-6), "rms_norm", dtype="float64")
    why = "rms_norm_eps: 1e-6 instead of 1e-5 is declared now, and the result agrees"
    assert {move.why for move in declared.moves if move.kind > Kind.ROUNDING} == {why}
    assert "rms-gradient-small" in {move.key.case for move in declared.moves if move.why == why}


def test_gelu_for_relu_is_an_option_that_is_named(spec, drift):
    gelu = feed_forward(activation=torch.nn.functional.gelu)
    found = drift(on_torch(spec, feed_forward()), on_torch(spec, gelu), "feed_forward")
    assert found.tally.worst is Kind.SEMANTIC
    assert any(line.startswith("Option found: activation: gelu (") for line in list_remarks(found))


def test_an_option_that_is_gone_is_said_to_have_been(spec, drift):
    gelu = feed_forward(activation=torch.nn.functional.gelu)
    found = drift(on_torch(spec, gelu), on_torch(spec, feed_forward()), "feed_forward")
    assert found.tally.worst is Kind.SEMANTIC
    assert any(line.startswith("Option removed: activation: gelu (") for line in list_remarks(found))
    assert "no longer " in describe_move(sort_worst_first(found.moves)[0], spec)


def test_calls_that_did_not_move_rule_out_what_would_have_moved_them(spec, drift):
    nan = {"empty_row": "nan"}
    found = drift(textbook(spec, "empty_row: nan", declared=nan), textbook(spec, declared=nan), ATTENTION)
    said = list_remarks(found)
    assert any(line.startswith("Option found: empty_row: uniform (") for line in said)
    # Real scores beat a fill of -100 and one of -10000 in cases that are as they were.
    assert not any(line.startswith(("Or: fill-hundred", "Or: fill-too-small")) for line in said)


def test_another_option_is_named_whether_it_is_declared_or_not(spec, drift):
    silently = drift(textbook(spec), textbook(spec, "empty_row: nan"), ATTENTION)
    assert kinds(silently) == {Kind.IDENTICAL, Kind.SEMANTIC}
    assert any(line.startswith("Option found: empty_row: nan (") for line in list_remarks(silently))
    openly = drift(textbook(spec), textbook(spec, "empty_row: nan", declared={"empty_row": "nan"}), ATTENTION)
    assert ("convention empty_row", "none", "nan") in openly.environment
    whys = {move.why for move in openly.moves if move.kind is Kind.SEMANTIC}
    assert whys == {"empty_row: nan instead of uniform is declared now, and the result agrees"}
    (gone,) = [move for move in openly.moves if move.kind is Kind.FORM]
    assert gone.why == "is gone: only for empty_row: uniform; the adapter declares nan"


# ── form ──


def test_a_wider_dtype_is_a_change_though_the_values_agree(spec, drift):
    def wider(scores):
        return torch.softmax(scores, -1).double()

    wider.__name__ = "softmax"
    found = drift(on_torch(spec, softmax), on_torch(spec, wider), "softmax")
    assert kinds_of_outputs(found) == {Kind.FORM}
    why = sort_worst_first(found.moves)[0].why
    assert why.startswith("gives no result any more: wrong-dtype: output is float64, must be float32")


def test_ids_of_another_width_are_a_change_though_the_values_agree(spec, drift):
    def made(dtype):
        def shift_right(ids, *, bos_id):
            return torch.cat([torch.full_like(ids[:, :1], bos_id), ids[:, :-1]], 1).to(dtype)

        return on_torch(spec, shift_right)

    found = drift(made(torch.int64), made(torch.int32), "shift_right")
    assert {move.why for move in found.moves} == {"dtype int64 → int32"}


def test_outputs_calls_and_components_that_are_gone_or_new_are_form(spec, drift):
    def bare(query, key, value, mask=None):
        if mask is not None:
            raise NotImplementedError("without masks")
        return attention()(query, key, value)[0]

    bare.__name__ = ATTENTION
    both = on_torch(spec, attention()), on_torch(spec, bare)
    lost, won = drift(*both, ATTENTION), drift(*reversed(both), ATTENTION)
    whys = {(move.output, move.why) for move in lost.moves if move.kind is Kind.FORM}
    assert ("weights", "is gone: it is not returned any more") in whys
    assert ("", "gives no result any more: not-implemented: without masks") in whys
    whys = {(move.output, move.why) for move in won.moves if move.kind is Kind.FORM}
    assert ("weights", "is new: the baseline does not have it") in whys
    assert ("", "gives a result now; it was not-implemented: without masks") in whys


def test_an_error_is_kept_without_its_place_in_a_file(spec):
    def one_row(scores):
        if scores.ndim == 1:
            raise TypeError("one row (or fewer)")
        return torch.softmax(scores, -1)

    one_row.__name__ = "softmax"
    found = recorded(spec, on_torch(spec, one_row), "softmax")
    messages = {entry.ended.message for entry in found.entries.values() if entry.ended}
    assert messages == {"raised TypeError: one row (or fewer)"}


def test_classes_are_ordered_and_counted():
    assert sorted(Kind) == [
        Kind.IDENTICAL, Kind.ROUNDING, Kind.PRECISION, Kind.SEMANTIC, Kind.UNEXPLAINED, Kind.FORM,
    ]  # fmt: skip
    assert Tally.of([]).worst is Kind.IDENTICAL

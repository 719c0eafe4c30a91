"""Drifts of every kind are put in their class, with what they are."""

from __future__ import annotations

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
from goldformer.conformance.baseline.drift import Drift, headline, remarks
from goldformer.conformance.baseline.moves import Kind, Tally, worst_first

ATTENTION = "scaled_dot_product_attention"


@pytest.fixture(scope="module")
def drift(spec):
    """Return the drift from one adapter to another in one component, in float32 by default."""

    def between(old, new, component, **request):
        before, after = (recorded(spec, adapter, component, **request) for adapter in (old, new))
        return Drift(before, after, tuple(moves(spec, before, after)), spec)

    return between


def kinds(found):
    return {move.kind for move in found.moves}


def kinds_of_outputs(found):
    """Without the cases of gradients, which a constant or a cast behind the function leaves as they are."""
    return {move.kind for move in found.moves if found.spec.cases[move.key.case].cotangent is None}


def list_remarks(found):
    return [f"{remark.label}: {remark.text}" for remark in remarks(found)]


# ── what is no drift, and rounding ──


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
    assert {headline(move, spec).partition("; ")[2] for move in moved} == {
        "other random numbers are drawn; their statistics are right"
    }


# ── lower precision ──


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("product", "named", "component", "made"),
    [
        (tf32, "TF32", ATTENTION, attention),
        (tf32, "TF32", "feed_forward", feed_forward),
        (accumulated_in_bfloat16, "bfloat16", ATTENTION, attention),
        (accumulated_in_bfloat16, "bfloat16", "feed_forward", feed_forward),
    ],
)
def test_a_lower_precision_of_products_is_named(spec, drift, product, named, component, made):
    found = drift(on_torch(spec, made()), on_torch(spec, made(product)), component)
    assert kinds(found) <= {Kind.IDENTICAL, Kind.ROUNDING, Kind.PRECISION}
    first = worst_first(found.moves)[0]
    assert first.kind is Kind.PRECISION
    assert first.ratio > 100
    assert f"within what {named} moves" in first.why


def test_float64_that_is_computed_in_float32_is_precision(spec, drift):
    def softly(scores):
        return torch.softmax(scores.float(), -1).to(scores.dtype)

    softly.__name__ = "softmax"
    found = drift(on_torch(spec, softmax), on_torch(spec, softly), "softmax", dtype="float64")
    assert found.tally.worst is Kind.PRECISION
    assert "within what float32 moves" in worst_first(found.moves)[0].why


def test_what_no_precision_explains_is_unexplained(spec, drift):
    def shifted(scores):
        return torch.softmax(scores, -1) + 0.3

    shifted.__name__ = "softmax"
    found = drift(on_torch(spec, softmax), on_torch(spec, shifted), "softmax")
    assert kinds_of_outputs(found) == {Kind.UNEXPLAINED}
    assert "no lower precision and no known mistake" in headline(worst_first(found.moves)[0], spec)


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
    assert "equals layer_norm_eps: 1e-6 (" in headline(worst_first(found.moves)[0], spec)


def test_gelu_for_relu_is_a_mistake_that_is_named(spec, drift):
    gelu = feed_forward(activation=torch.nn.functional.gelu)
    found = drift(on_torch(spec, feed_forward()), on_torch(spec, gelu), "feed_forward")
    assert found.tally.worst is Kind.SEMANTIC
    assert any(line.startswith("Mistake found: ffn-gelu, ") for line in list_remarks(found))


def test_a_mistake_that_is_gone_is_said_to_have_been(spec, drift):
    gelu = feed_forward(activation=torch.nn.functional.gelu)
    found = drift(on_torch(spec, gelu), on_torch(spec, feed_forward()), "feed_forward")
    assert found.tally.worst is Kind.SEMANTIC
    assert any(line.startswith("Mistake removed: ffn-gelu, ") for line in list_remarks(found))
    assert "no longer " in headline(worst_first(found.moves)[0], spec)


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


def test_drawn_calls_of_realistic_size_are_classed_as_golden_ones_are(spec, drift):
    pairs = [
        (on_torch(spec, feed_forward()), on_torch(spec, feed_forward(reversed_sums)), Kind.ROUNDING),
        (on_torch(spec, feed_forward()), on_torch(spec, feed_forward(tf32)), Kind.PRECISION),
        (textbook(spec), textbook(spec, "ffn-gelu"), Kind.SEMANTIC),
    ]
    for old, new, kind in pairs:
        found = drift(old, new, "feed_forward", drawn=1)
        drawn = [move for move in found.moves if move.key.case == "drawn-feed-forward-1"]
        assert {move.output for move in drawn} == {"output", "hidden"}
        assert Tally.of(drawn).worst is kind


# ── form ──


def test_a_wider_dtype_is_a_change_though_the_values_agree(spec, drift):
    def wider(scores):
        return torch.softmax(scores, -1).double()

    wider.__name__ = "softmax"
    found = drift(on_torch(spec, softmax), on_torch(spec, wider), "softmax")
    assert kinds_of_outputs(found) == {Kind.FORM}
    why = worst_first(found.moves)[0].why
    assert why.startswith("gives no result any more; wrong-dtype: output is float64, must be float32")


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
    assert ("", "gives no result any more; not-implemented: without masks") in whys
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

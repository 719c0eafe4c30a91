"""Pictures of pages: strips of ratios, windows of wrong outputs, and the outputs of an implementation."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from comparisons import made, of, verdict, wrong
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.judging.comparator import compare
from goldformer.conformance.reports.comparison_page import page
from goldformer.conformance.reports.pictures import (
    compare_values,
    draw_matrix,
    draw_picture,
    make_pictures,
    make_strips,
    name_window,
)
from pages import Page, must_stand_alone


def strip_of(*ratios):
    (found,) = make_strips(
        [verdict(f"v{nth}", "softmax", ratio=ratio) for nth, ratio in enumerate(ratios)], ["softmax"]
    )
    return found


# Strips


def test_a_ratio_stands_at_its_power_of_ten():
    strip = strip_of(0.01, 1.0, 100.0)
    assert [dot.at for dot in strip.dots] == [0.25, 0.5, 0.75]
    assert strip.limit == 0.5


@pytest.mark.parametrize(("ratio", "end"), [(0.0, 0.0), (1e-9, 0.0), (1e9, 1.0), (math.inf, 1.0)])
def test_what_lies_beyond_the_strip_stands_at_its_end(ratio, end):
    assert [dot.at for dot in strip_of(ratio).dots] == [end]


def test_equal_ratios_are_one_dot_that_counts_them():
    assert [(dot.count, dot.tooltip) for dot in strip_of(0.1, 0.1, 0.1).dots] == [(3, "3 checks: about 0.1")]
    assert strip_of(0.1, 0.25).text == "softmax: 2 checks, the worst at 0.25"


def test_what_fails_is_drawn_apart_and_what_was_not_measured_is_not():
    found = make_strips(
        [wrong("a", "softmax").verdict, verdict("b", "softmax", ratio=0.5), verdict("c", "softmax")], ["softmax"]
    )
    assert [(dot.wrong, dot.count) for dot in found[0].dots] == [(False, 1), (True, 1)]
    assert make_strips([verdict("c", "softmax")], ["softmax"]) == []


# Windows


def test_a_window_shows_the_worst_element_of_its_matrix():
    expected = np.zeros((2, 3, 40, 30))
    got = expected.copy()
    got[1, 2, 25, 28] = 7.0
    difference = compare("weights", got, expected, 1e-6)
    assert name_window(difference.output, difference.grid) == "weights[1, 2, 19:31, 18:30]"
    kinds = {
        h.title: [(spot.kind, spot.tooltip) for row in h.rows for spot in row if spot.strength]
        for h in compare_values(difference)
    }
    assert kinds == {"expected": [], "actual": [("high", "7")], "actual − expected": [("high", "7")]}


def test_a_small_output_is_drawn_whole_and_named_by_its_name_alone():
    difference = compare("output", np.array([[1.0, 2.0], [3.0, -4.0]]), np.ones((2, 2)), 1e-6)
    assert name_window("output", difference.grid) == "output"
    assert [[spot.tooltip for spot in row] for row in compare_values(difference)[1].rows] == [["1", "2"], ["3", "-4"]]


def test_a_vector_is_a_single_row():
    difference = compare("loss", np.arange(20.0), np.zeros(20), 1e-6)
    assert name_window(difference.output, difference.grid) == "loss[8:20]"
    assert [len(h.rows) for h in compare_values(difference)] == [1, 1, 1]


def test_what_is_within_the_tolerance_is_no_difference():
    difference = compare("output", np.array([1.0, 2.0 + 1e-9, 9.0]), np.array([1.0, 2.0, 3.0]), 1e-6)
    assert [spot.strength for spot in compare_values(difference)[2].rows[0]] == [0.0, 0.0, 1.0]


def test_a_scalar_and_single_elements_have_no_window():
    assert compare_values(compare("loss", np.array(1.0), np.array(2.0), 1e-6)) == ()
    assert compare("output", np.array([1.0]), np.array([2.0]), 1e-6, ((0, 3),)).grid is None


def test_numbers_that_are_not_finite_are_drawn_as_such():
    difference = compare("weights", np.array([[math.nan, 0.5]]), np.array([[0.5, 0.5]]), 1e-6)
    assert [spot.kind for spot in compare_values(difference)[1].rows[0]] == ["odd", "high"]
    assert compare_values(difference)[1].text == "actual, 1 × 2 numbers from 0.5 to 0.5, 1 of them not finite"
    assert draw_matrix("actual", np.array([[math.inf]]), 1.0).text == "actual, 1 × 1 numbers without a finite number"


def test_booleans_have_a_window_too():
    difference = compare("mask", np.array([[True, False]]), np.array([[True, True]]), 0.0)
    assert [spot.strength for spot in compare_values(difference)[2].rows[0]] == [0.0, 1.0]


def test_a_window_survives_the_way_between_processes():
    difference = compare("output", np.eye(3), np.ones((3, 3)), 1e-6)
    sent = wrong("a", "softmax", differences=(difference,))
    assert Explained.from_json(sent.as_json()) == sent


# Pictures


def test_weights_and_encodings_are_drawn(bench):
    found = make_pictures(bench("textbook"))
    titles = [picture.title for picture in found]
    assert titles[-1] == "Positional encoding: a row for each position"
    assert any(
        re.match(r"Attention weights of sdpa-\S+: a row|Attention weights of sdpa-\S+, head 0", t) for t in titles
    )
    assert any(t.startswith("Attention weights of mha-") for t in titles)
    for picture in found[:-1]:
        assert np.array(picture.rows).sum(-1) == pytest.approx(1.0)
    assert len(found[-1].rows) == 48
    assert {len(row) for row in found[-1].rows} == {32}
    assert draw_picture(found[-1]).text.startswith(
        "Positional encoding: a row for each position, 48 × 32 numbers from -1 to 1"
    )


def test_what_is_not_there_or_raises_is_not_drawn(bench, adapter_file):
    raising = "ARRAYS = 'numpy'\ndef positional_encoding(x):\n    raise ValueError('no')\n"
    assert make_pictures(bench(adapter_file(raising))) == ()


def test_the_page_draws_all_three_and_stands_alone(bench, spec):
    difference = compare("output", np.eye(3), np.ones((3, 3)), 1e-6)
    failing = made("mine", wrong("a", "softmax", differences=(difference,)), pictures=make_pictures(bench("textbook")))
    parsed = Page(page(of(failing), spec))
    must_stand_alone(parsed)
    labels = [attributes["aria-label"] for attributes, _ in parsed.all("svg")]
    assert "softmax: 1 check, the worst at 2.5e+05" in labels
    assert "actual, 3 × 3 numbers from 0 to 1" in labels
    assert any(label.startswith("Positional encoding") for label in labels)


def test_the_finding_of_one_implementation_comes_before_the_tables(spec):
    text = page(of(made("mine", wrong("a", "softmax"))), spec)
    places = [
        text.index(part) for part in ("fails in 1 of 1", ">Fix first<", "1 fail</h3>", 'id="components"', ">Details<")
    ]
    assert places == sorted(places)
    both = page(of(made("mine", wrong("a", "softmax")), made("other", verdict("a", "softmax"))), spec)
    assert both.index('id="components"') < both.index(">Fix first<")
    assert ">Details<" not in both


def test_only_the_first_check_of_the_first_causes_of_a_component_is_drawn(spec):
    difference = compare("output", np.eye(3), np.ones((3, 3)), 1e-6)
    causes = [*itertools.islice(spec.mistakes, 7)]
    verdicts = [
        wrong(f"v{cause}{nth}", "softmax", differences=(difference,), matches=(Match((cause,), 0.1),))
        for cause in causes
        for nth in range(2)
    ]
    labels = [attributes["aria-label"] for attributes, _ in Page(page(of(made("mine", *verdicts)), spec)).all("svg")]
    assert sum(label.startswith("expected") for label in labels) == 5


def test_documents_have_a_row_each(spec):
    mine = made("mine", verdict("a", "softmax"), wrong("b", "softmax", source="walkthrough W1 W2"))
    drawn_page = Page(page(of(mine, replace(mine, name="other")), spec))
    rows = [text for _, text in drawn_page.all("tr") if text.startswith(("walkthrough", "java", "n9"))]
    assert [row.split()[-8:] for row in rows if row.startswith("walkthrough")] == [["✗", "0", "of", "1"] * 2]
    assert [row.split()[-8:] for row in rows if row.startswith("java")] == [["✓", "1", "of", "1"] * 2]
    assert not any(row.startswith("n9") for row in rows)

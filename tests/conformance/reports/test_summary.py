"""A failing run ends with its finding on one screen, and notes of many classes are counted."""

from __future__ import annotations

from goldformer.conformance.diagnosis.finding import FIX_FIRST, FIX_TOO, MISTAKE_FOUND, PLACE, Finding
from goldformer.conformance.reports.record import RunRecord
from goldformer.conformance.reports.summary import list_hints, shorten_findings

LONG = "The first sentence. " + "One more sentence of a finding that needs a line by itself, or nearly as much. " * 6


def make_block(label, component):
    return [Finding(label, component, inner=False), Finding(MISTAKE_FOUND, LONG), Finding(PLACE, LONG)]


def test_findings_that_fit_are_whole():
    findings = make_block(FIX_FIRST, "softmax")
    assert shorten_findings(findings) == findings


def test_only_the_first_component_is_whole_where_they_do_not_fit():
    first, also = make_block(FIX_FIRST, "softmax"), make_block(FIX_TOO, "layer_norm")
    last = Finding("These also fail", "encoder", inner=False)
    shortened = shorten_findings([*first, *also, last])
    assert shortened == [*first, also[0], Finding(MISTAKE_FOUND, "The first sentence."), last]


def test_calls_that_golden_values_prove_are_counted_and_guesses_are_shown():
    calls = [f"{name} is called as Mine(x)" for name in ("softmax", "layer_norm")]
    guess = "feed_forward is called as Mine(x) by its names: no call gave golden values"
    record = RunRecord("mine.py", "mine.py", hints=(*calls, guess))
    assert [line.text for line in list_hints(record, whole=False)] == [
        f"Note: {guess}", "Note: golden values show how 2 components are called; -v lists it",
    ]  # fmt: skip
    assert len([*list_hints(record, whole=True)]) == 3

"""goldformer compare: the worst outcome is that of all, in the order that was given."""

from __future__ import annotations

import pytest

from comparisons import FAILING, MISSING, RIGHT, made, of, verdict
from goldformer.conformance.reports.comparison import ComparisonRequest
from goldformer.conformance.runner import check_implementation, run_comparison

#: Two of its three cases are declined.
PARTIAL = made(
    "few",
    verdict("sm-one", "softmax"),
    *(verdict(f"sm-{nth}", "softmax", "skipped", "not-implemented") for nth in range(2)),
    implemented=frozenset({"softmax"}),
)


@pytest.mark.parametrize(
    ("implementations", "outcome"),
    [
        ([RIGHT], "conforms"),
        ([RIGHT, PARTIAL], "partial"),
        ([PARTIAL, FAILING], "fails"),
        ([RIGHT, FAILING], "fails"),
        ([PARTIAL, MISSING], "unusable"),
        ([MISSING, FAILING], "unusable"),
        ([], "unusable"),
    ],
)
def test_the_worst_outcome_is_that_of_all(implementations, outcome):
    assert of(*implementations).outcome == outcome


def test_they_are_handed_on_as_they_are_done_and_kept_in_order(spec):
    seen = []

    def watch(found, total):
        for one in found:
            seen.append((one.given, total))
            yield one

    found = run_comparison(["no.py", "none.py"], ComparisonRequest(("float32",)), spec, 1, watch)
    assert sorted(seen) == [("no.py", 2), ("none.py", 2)]
    assert [i.given for i in found.records] == ["no.py", "none.py"]


def test_what_the_options_leave_nothing_of_is_unusable(spec):
    found = check_implementation("textbook", ComparisonRequest(("bfloat16",), ("softmax",)), spec)
    assert found.outcome == "unusable"
    assert found.problem.startswith("nothing was checked: ")

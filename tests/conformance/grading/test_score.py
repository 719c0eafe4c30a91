"""From checks to points: every rule on paper, with numbers that can be checked by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import pytest

from goldformer.conformance.diagnosis.diagnosed import CheckDiagnosis
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.grading.model import (
    Assignment,
    Check,
    ComponentGrade,
    Deduction,
    Grade,
    GradedComponent,
    Origin,
    Outcome,
)
from goldformer.conformance.grading.results.words import describe_rule
from goldformer.conformance.grading.sandbox import Isolation
from goldformer.conformance.grading.score import CheckKinds, grade_components, round_points, summarize_outcomes
from goldformer.conformance.grading.store import BadRecord, from_json, to_json
from goldformer.conformance.judging.verdict import Difference, Element, Reason, Status, Verdict

KINDS = CheckKinds(
    refusals=frozenset({"refused", "new-refused"}), numeric=frozenset({"one", "two", "new", "large", "new-large"}),
    extreme=frozenset({"large", "new-large"}), advised=frozenset({"advised"}),
)  # fmt: skip


def check(name: str, outcome: Outcome = "correct", origin: Origin = "published", reason: Reason = "") -> Check:
    status = Status.PASSED if outcome == "correct" else Status.SKIPPED if outcome == "missing" else Status.FAILED
    kind: Literal["case", "property"] = "property" if origin == "property" else "case"
    verdict = Verdict(name, kind, "softmax", "", status, reason, "", "float64", "cpu", (), "")
    return Check(origin, outcome, verdict)


def graded(
    *checks: Check, part: GradedComponent | None = None, said: tuple[Finding, ...] = (), **kwargs: object
) -> ComponentGrade:
    part = part or GradedComponent(component="softmax", points=10.0)
    assignment = Assignment(Path(), "", Path(), None, (part,), ("float64",), 1, None, **kwargs)  # type: ignore[arg-type]
    (grade,) = grade_components(assignment, checks, said, KINDS)
    return grade


def test_a_component_earns_the_share_of_checks_that_pass() -> None:
    grade = graded(check("one"), check("two", "wrong"), check("refused"), check("new", origin="fresh"))
    assert grade.earned == 6.67
    assert grade.shares == {"published": (2, 3), "fresh": (1, 1)}


def test_answers_copied_from_the_published_cases_earn_nothing() -> None:
    assert graded(check("one"), check("two"), check("new", "wrong", "fresh")).earned == 0.0


def test_the_worse_share_counts() -> None:
    fresh = [check("new", origin="fresh"), check("new", "wrong", "fresh")]
    assert graded(check("one"), check("two"), *fresh).earned == 5.0


def test_an_assignment_may_weigh_published_and_fresh_cases() -> None:
    part = GradedComponent(component="softmax", points=10.0, visible=1.0, hidden=3.0)
    fresh = [check("new", origin="fresh"), check("new", "wrong", "fresh")]
    assert graded(check("one"), check("two"), *fresh, part=part).earned == 6.25
    assert graded(check("one"), check("two", "wrong"), fresh[0], part=part).earned == 8.75
    # Without fresh cases there is nothing to weigh.
    assert graded(check("one"), check("two", "wrong"), part=part).earned == 5.0


def test_a_table_of_published_answers_earns_nothing_whatever_it_weighs() -> None:
    part = GradedComponent(component="softmax", points=10.0, visible=9.0, hidden=1.0)
    assert graded(check("one"), check("two"), check("new", "wrong", "fresh"), part=part).earned == 0.0


@pytest.mark.parametrize("kind", ["refused", "large"])
def test_a_table_of_a_rare_kind_earns_what_honest_code_earns(kind: str) -> None:
    """Both are right elsewhere; the table is right in the published case of that kind, and wrong in the fresh one."""
    rest = [check("one"), check("two"), check("new", origin="fresh"), check(f"new-{kind}", "wrong", "fresh")]
    honest, table = graded(*rest, check(kind, "wrong")), graded(*rest, check(kind))
    assert (honest.earned, table.earned) == (6.67, 6.67)
    # A rare kind weighs as much as it has published cases, however few cases are drawn.
    assert graded(*rest[:3], check(f"new-{kind}", origin="fresh"), check(kind)).earned == 10.0


def test_a_student_can_compute_the_points_from_the_numbers_that_are_told() -> None:
    fresh = [check("new", "wrong", "fresh"), check("new", origin="fresh"), check("new-large", origin="fresh")]
    grade = graded(check("one"), check("two"), check("large", "wrong"), check("refused"), check("refused"), *fresh)
    assert describe_rule(GradedComponent(component="softmax", points=10.0), grade) == (
        "6 of 10 points. "
        "Ordinary numbers: 2 of 4 points, because 2 of 2 published cases and 1 of 2 drawn ones pass. "
        "Large scores: 0 of 2 points, because 0 of 1 published cases and 1 of 1 drawn ones pass. "
        "Calls to be refused: 4 of 4 points, because all cases pass. "
        "Where published and drawn cases differ, the smaller share counts.",
    )
    assert grade.earned == 6.0


def test_large_scores_are_worth_as_many_points_as_the_assignment_says() -> None:
    part = GradedComponent(component="softmax", points=10.0, large_scores=8.0)
    ordinary = [check("one"), check("two"), check("new", origin="fresh"), check("refused")]
    overflowing = graded(*ordinary, check("large", "wrong"), check("new-large", origin="fresh"), part=part)
    assert overflowing.earned == 2.0
    assert "Large scores: 0 of 8 points" in describe_rule(part, overflowing)[0]
    assert graded(*ordinary, check("large"), check("new-large", origin="fresh"), part=part).earned == 10.0
    # The other kinds share what is left by their numbers of published cases.
    fails = [check("one", "wrong"), check("two"), check("refused"), check("large")]
    assert graded(*fails, part=part).earned == 9.33
    # Without cases of large scores, and with nothing else, they weigh what there is.
    assert graded(check("one"), check("two", "wrong"), part=part).earned == 5.0
    assert graded(check("large"), part=part).earned == 10.0


def test_a_table_with_refusals_of_its_own_earns_nothing() -> None:
    fresh = [check("new", "wrong", "fresh"), check("new-refused", origin="fresh")]
    assert graded(check("one"), check("refused"), *fresh).earned == 0.0


def test_whoever_refuses_everything_earns_nothing() -> None:
    grade = graded(check("one", "error"), check("refused"), check("refused"))
    assert grade.earned == 0.0
    assert grade.shares == {"published": (0, 3)}
    assert graded(check("shape-only"), check("one", "wrong")).earned == 0.0


def test_what_is_only_advised_costs_nothing_and_earns_nothing() -> None:
    for outcome in ("correct", "error"):
        grade = graded(check("one"), check("two", "wrong"), check("advised", outcome))
        assert (grade.earned, grade.shares) == (5.0, {"published": (1, 2)})


def test_properties_count_in_so_far_as_golden_cases_pass() -> None:
    part = GradedComponent(component="softmax", points=10.0, golden=3.0, properties=1.0)
    held = [check("p", origin="property"), check("q", "wrong", "property")]
    assert graded(check("one"), *held, part=part).earned == 8.75
    assert graded(check("one"), check("two", "wrong"), *held, part=part).earned == 4.38
    assert graded(check("one", "wrong"), check("p", origin="property"), part=part).earned == 0.0
    # Without a property that was judged there is nothing to weigh.
    assert graded(check("one"), part=part).earned == 10.0
    assert graded(check("one"), *held).earned == 10.0


def test_all_or_nothing() -> None:
    part = GradedComponent(component="softmax", points=10.0, golden=1.0, properties=1.0, rule="all")
    assert graded(check("one"), check("two"), check("p", "wrong", "property"), part=part).earned == 5.0
    assert graded(check("one"), check("two", "wrong"), check("p", origin="property"), part=part).earned == 0.0


def test_what_was_skipped_or_failed_in_grading_does_not_count_and_what_is_missing_does() -> None:
    skipped = Check(
        "published", "correct", Verdict("two", "case", "softmax", "", Status.SKIPPED, "dtype", "", "", "", (), "")
    )
    assert graded(check("one"), skipped, check("two", "grader-error")).earned == 10.0
    assert graded(check("one"), check("two", "missing")).earned == 5.0


def test_a_deduction_is_taken_once_where_it_shows_and_never_below_zero() -> None:
    changed = Deduction(points=1.5, reason="mutated-input", note="Work on a copy.")
    grade = graded(
        check("one"), check("one", "wrong", reason="mutated-input"), check("two", "wrong", reason="mutated-input"),
        check("two"), deductions=(changed,),
    )  # fmt: skip
    assert (grade.earned, grade.deductions) == (3.5, (changed,))
    assert graded(check("one", "wrong", reason="mutated-input"), deductions=(changed,)).earned == 0.0
    assert graded(check("one"), deductions=(changed,)).deductions == ()


@pytest.mark.parametrize(("label", "taken"), [("Mistake found", True), ("Possible causes", False), ("Or", False)])
def test_a_mistake_costs_points_where_the_diagnosis_is_certain(label: str, taken: bool) -> None:
    named = Deduction(points=2.0, mistake="softmax-no-max")
    said = (Finding("Fix first", "softmax", inner=False), Finding(label, "…", mistakes=("softmax-no-max",)))
    grade = graded(check("one"), check("two", "wrong"), said=said, deductions=(named,))
    assert grade.earned == (3.0 if taken else 5.0)
    elsewhere = (Finding("Fix first", "layer_norm", inner=False), said[1])
    assert graded(check("one"), check("two", "wrong"), said=elsewhere, deductions=(named,)).earned == 5.0


def test_points_are_rounded_as_they_are_written() -> None:
    assert [round_points(x) for x in (0.125, 0.375, 2.675, 1 / 3, 0.005)] == [0.12, 0.38, 2.68, 0.33, 0.0]
    thirds = [check("one"), check("two", "wrong"), check("two", "wrong")]
    assert graded(*thirds).earned == 3.33


def test_the_outcome_is_the_worst_that_happened() -> None:
    assert summarize_outcomes([check("one")])[0] == "correct"
    assert summarize_outcomes([check("one"), check("one", "wrong"), check("one", "missing")])[0] == "missing"
    assert summarize_outcomes([check("one", "timeout"), check("one", "tampered")])[0] == "tampered"
    assert summarize_outcomes([check("one", "tampered"), check("one", "grader-error")])[0] == "grader-error"


def whole() -> Grade:
    worst = Element((0, 1), 1.0, -math.inf)
    ids = Difference("ids", 1, 2, 0.0, math.inf, Element((0,), 5, 1 << 62), Element((0,), 5, 1 << 62))
    failed = Verdict(
        "c", "case", "softmax", "t", Status.FAILED, "wrong-value", "ünïcode", "float64", "cpu", ("SM-1",), "s", ("x",),
        math.inf, (Difference("output", 1, 2, 0.1, math.inf, worst, Element((), True, False)), ids),
    )  # fmt: skip
    found = CheckDiagnosis((Match(("a",), 0.0),))
    part = ComponentGrade(
        "softmax", 10.0, 5.0, {"published": (1, 2), "fresh": (1, 1)}, (Deduction(points=1.0, mistake="x"),)
    )
    return Grade(
        "alice", "k", "wrong", "m", 10.0, 5.0, (part,), (Finding("Mistake found", "t", mistakes=("x",)),),
        (Check("published", "wrong", failed, diagnosis=found), check("one")), Isolation("files", ("a",), {"b": "c"}),
    )  # fmt: skip


def test_a_grade_is_read_as_it_was_written() -> None:
    text = to_json(whole())
    assert from_json(text) == whole()
    assert to_json(from_json(text)) == text


def test_what_is_no_grade_is_refused() -> None:
    with pytest.raises(BadRecord, match="the record: Invalid JSON"):
        from_json("{")
    with pytest.raises(BadRecord, match="outcome: Input should be 'correct', 'imprecise', 'wrong'"):
        from_json(to_json(whole()).replace('"outcome":"wrong","parts"', '"outcome":"fine","parts"'))

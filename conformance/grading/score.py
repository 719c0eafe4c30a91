"""Turn checks into points by the rules of the assignment; nothing here runs anything."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final, get_args

from goldformer.conformance.grading.model import (
    CERTAIN_LABELS,
    SEVERITY,
    Assignment,
    Check,
    ComponentGrade,
    Deduction,
    DiagnosisLine,
    GradedComponent,
    Origin,
    Outcome,
)

_CENT: Final = Decimal("0.01")

_MESSAGES: Final[Mapping[Outcome, str]] = {
    "correct": "Every check passes.",
    "wrong": "It runs; some results are wrong.",
    "missing": "Something that was asked for is not implemented or not returned.",
    "error": "Some calls raise an error.",
    "protocol": "Some answers cannot be read as results.",
    "output-limit": "It prints more than is allowed.",
    "timeout": "Some calls take longer than is allowed.",
    "memory": "Some calls take more memory than is allowed.",
    "killed": "Its process ended in the middle of some calls.",
    "tampered": "It did what no honest answer needs; the staff look at it.",
    "grader-error": "Grading itself failed, which is no fault of yours; the staff look at it.",
}


@dataclass(frozen=True, slots=True)
class CheckKinds:
    """The ids of checks that ask for an error, and of those that ask for numbers; a check of a shape is in neither.

    `advised` are those that only SHOULD clauses ask for: they cost nothing, and so they earn nothing.
    """

    refusals: Collection[str]
    numeric: Collection[str]
    advised: Collection[str] = frozenset()

    def counts(self, check: Check) -> bool:
        """Return True if a check decides about points."""
        return check.counts and check.verdict.check not in self.advised


def round_points(points: float | Decimal) -> float:
    """Round to two digits, half to even, in decimal arithmetic."""
    exact = points if isinstance(points, Decimal) else Decimal(repr(points))
    return float(exact.quantize(_CENT, ROUND_HALF_EVEN))


def grade_components(
    assignment: Assignment, checks: Sequence[Check], diagnosis: Sequence[DiagnosisLine], kinds: CheckKinds
) -> tuple[ComponentGrade, ...]:
    """Return the points of each component."""
    due = _assign_deductions(assignment, checks, diagnosis)
    return tuple(
        _grade_component(part, [c for c in checks if c.verdict.component == part.component], due[part.component], kinds)
        for part in assignment.parts
    )


def _grade_component(
    part: GradedComponent, checks: Iterable[Check], deductions: tuple[Deduction, ...], kinds: CheckKinds
) -> ComponentGrade:
    counted = [check for check in checks if kinds.counts(check)]
    works = any(check.outcome == "correct" and check.verdict.check in kinds.numeric for check in counted)
    shares: dict[Origin, tuple[int, int]] = {}
    for origin in get_args(Origin):
        if mine := [check for check in counted if check.origin == origin]:
            # Code that refuses every input also refuses the bad ones: that counts only if something else works.
            passed = [c for c in mine if c.outcome == "correct" and (works or c.verdict.check not in kinds.refusals)]
            shares[origin] = (len(passed), len(mine))
    earned = Decimal(repr(part.points)) * _compute_share(part, shares) if works else Decimal(0)
    lost = sum((Decimal(repr(deduction.points)) for deduction in deductions), Decimal(0))
    return ComponentGrade(part.component, part.points, round_points(max(earned - lost, Decimal(0))), shares, deductions)


def _compute_share(part: GradedComponent, shares: Mapping[Origin, tuple[int, int]]) -> Decimal:
    """Return the share of its points that a component earns.

    Answers copied from the published cases fail the fresh ones, so the smaller of the two shares counts.
    """
    fractions = {
        origin: Decimal(passed == counted) if part.rule == "all" else Decimal(passed) / Decimal(counted)
        for origin, (passed, counted) in shares.items()
    }
    golden = min((fractions[origin] for origin in ("published", "fresh") if origin in fractions), default=Decimal(0))
    weight, other = Decimal(repr(part.golden)), Decimal(repr(part.properties))
    if "property" not in fractions or not other:
        return golden
    return golden * (weight + other * fractions["property"]) / (weight + other)


def _assign_deductions(
    assignment: Assignment, checks: Sequence[Check], diagnosis: Sequence[DiagnosisLine]
) -> dict[str, tuple[Deduction, ...]]:
    """Return the deductions of each component: each once, in the first component that shows its reason."""
    found = _find_mistakes(diagnosis)
    due: dict[str, list[Deduction]] = {part.component: [] for part in assignment.parts}
    for deduction in assignment.deductions:
        for component, deductions in due.items():
            reasons = {c.verdict.reason for c in checks if c.verdict.component == component and c.counts}
            if deduction.reason in reasons or (deduction.mistake, component) in found:
                deductions.append(deduction)
                break
    return {component: tuple(deductions) for component, deductions in due.items()}


def _find_mistakes(diagnosis: Iterable[DiagnosisLine]) -> set[tuple[str | None, str]]:
    """Return the mistakes that the diagnosis is certain of, each with its component."""
    found: set[tuple[str | None, str]] = set()
    component = ""
    for line in diagnosis:
        if not line.inner:
            component = line.text
        elif line.label in CERTAIN_LABELS:
            found.update((mistake, component) for mistake in line.mistakes)
    return found


def summarize_outcomes(checks: Sequence[Check]) -> tuple[Outcome, str]:
    """Return the outcome of a submission by its checks, and a sentence for the student."""
    counted = [check.outcome for check in checks if check.counts or check.outcome == "grader-error"]
    outcome: Outcome = max(counted, key=SEVERITY.index, default="correct")
    return outcome, _MESSAGES[outcome]

"""From checks to points, by the rules of the assignment; nothing here runs anything."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Final, get_args

from goldformer.conformance.diagnosis.findings import MISTAKE_FOUND
from goldformer.conformance.grading.model import (
    SEVERITY,
    Assignment,
    Check,
    Deduction,
    Origin,
    Outcome,
    Part,
    PartGrade,
    Said,
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
class Kinds:
    """Which checks ask for an error, and which for numbers; the others, such as those of a shape, are neither.

    `advised` are those that only SHOULD clauses ask for: they cost nothing, and so they earn nothing.
    """

    refusals: Collection[str]
    numeric: Collection[str]
    advised: Collection[str] = frozenset()

    def counts(self, check: Check) -> bool:
        """Whether a check decides about points."""
        return check.counts and check.verdict.check not in self.advised


def rounded(points: float | Decimal) -> float:
    """Two digits, half to even, as it is written in decimals."""
    exact = points if isinstance(points, Decimal) else Decimal(repr(points))
    return float(exact.quantize(_CENT, ROUND_HALF_EVEN))


def grade_parts(
    assignment: Assignment, checks: Sequence[Check], said: Sequence[Said], kinds: Kinds
) -> tuple[PartGrade, ...]:
    """What each component earned."""
    due = _deductions(assignment, checks, said)
    return tuple(
        _grade_part(part, [c for c in checks if c.verdict.component == part.component], due[part.component], kinds)
        for part in assignment.parts
    )


def _grade_part(part: Part, checks: Iterable[Check], due: tuple[Deduction, ...], kinds: Kinds) -> PartGrade:
    counted = [check for check in checks if kinds.counts(check)]
    works = any(check.outcome == "correct" and check.verdict.check in kinds.numeric for check in counted)

    def passes(check: Check) -> bool:
        # Whoever refuses everything refuses what is bad, too.
        return check.outcome == "correct" and (works or check.verdict.check not in kinds.refusals)

    shares: dict[Origin, tuple[int, int]] = {}
    for origin in get_args(Origin):
        mine = [check for check in counted if check.origin == origin]
        if mine:
            shares[origin] = (sum(map(passes, mine)), len(mine))
    reached = Decimal(repr(part.points)) * _share(part, shares) if works else Decimal(0)
    lost = sum((Decimal(repr(deduction.points)) for deduction in due), Decimal(0))
    return PartGrade(part.component, part.points, rounded(max(reached - lost, Decimal(0))), shares, due)


def _share(part: Part, shares: Mapping[Origin, tuple[int, int]]) -> Decimal:
    """How much of its points a component reaches.

    Answers that are copied from the published cases fail those that nobody has seen, and the worse share counts.
    """
    got = {origin: _fraction(passed, of, part) for origin, (passed, of) in shares.items()}
    golden = min((got[origin] for origin in ("published", "fresh") if origin in got), default=Decimal(0))
    weight, other = Decimal(repr(part.golden)), Decimal(repr(part.properties))
    if "property" not in got or not other:
        return golden
    return golden * (weight + other * got["property"]) / (weight + other)


def _fraction(passed: int, counted: int, part: Part) -> Decimal:
    return Decimal(passed == counted) if part.rule == "all" else Decimal(passed) / Decimal(counted)


def _deductions(
    assignment: Assignment, checks: Sequence[Check], said: Sequence[Said]
) -> dict[str, tuple[Deduction, ...]]:
    """What is taken off each component: every deduction once, where its reason shows first."""
    named = _mistakes(said)
    due: dict[str, list[Deduction]] = {part.component: [] for part in assignment.parts}
    for deduction in assignment.deductions:
        for component, deducted in due.items():
            reasons = {c.verdict.reason for c in checks if c.verdict.component == component and c.counts}
            if deduction.reason in reasons or (deduction.mistake, component) in named:
                deducted.append(deduction)
                break
    return {component: tuple(deductions) for component, deductions in due.items()}


def _mistakes(said: Iterable[Said]) -> set[tuple[str | None, str]]:
    """The mistakes that the diagnosis is certain of, each with the component of which it says so."""
    named: set[tuple[str | None, str]] = set()
    component = ""
    for remark in said:
        if not remark.inner:
            component = remark.text
        elif remark.label == MISTAKE_FOUND:
            named.update((mistake, component) for mistake in remark.mistakes)
    return named


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The outcome that says most."""
    return max(outcomes, key=SEVERITY.index, default="correct")


def outcome_of_all(checks: Sequence[Check]) -> tuple[Outcome, str]:
    """The outcome of a submission by its checks, and a sentence for the student."""
    counted = [check.outcome for check in checks if check.counts or check.outcome == "grader-error"]
    outcome = worst(counted)
    # A check that failed for a broken contract is wrong as well; one that is missing is worth saying before that.
    return outcome, _MESSAGES[outcome]

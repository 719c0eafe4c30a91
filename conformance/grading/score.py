"""Turn checks into points by the rules of the assignment; nothing here runs anything."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_EVEN, Decimal
from fractions import Fraction
from typing import Final, get_args

from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.grading.model import (
    CERTAIN_LABELS,
    NOT_STARTED,
    SEVERITY,
    Assignment,
    CarriedMistake,
    Check,
    ComponentGrade,
    Deduction,
    Grade,
    GradedComponent,
    Kind,
    Origin,
    Outcome,
)
from goldformer.conformance.judging.verdict import CheckKey

_CENT: Final = Decimal("0.01")
#: The part of a check that counts as passed if its result is right but for its last digits.
_IMPRECISE: Final = 0.75

#: The reason of a check whose call was declined: the code raised NotImplementedError.
_DECLINED: Final = "not-implemented"

_MESSAGES: Final[Mapping[Outcome, str]] = {
    "correct": "Every check passes.",
    "imprecise": "It runs; some results are right but for their last digits.",
    "wrong": "It runs; some results are wrong.",
    "missing": "Something that was asked for is not implemented or not returned.",
    "error": "Some calls raise an error.",
    "protocol": "Some answers cannot be read as results.",
    "output-limit": "It prints more than is allowed.",
    "timeout": "Some calls take longer than is allowed.",
    "not-judged": "Some calls wait instead of computing, so they are not judged; the staff look at it.",
    "memory": "Some calls take more memory than is allowed.",
    "killed": "Its process ended in the middle of some calls.",
    "tampered": "It did what no honest answer needs; the staff look at it.",
    "grader-error": "Grading itself failed, which is no fault of yours; the staff look at it.",
}


@dataclass(frozen=True, slots=True)
class CheckKinds:
    """The ids of checks that ask for an error, and of those that ask for numbers; a check of a shape is in neither.

    `extreme` are those whose numbers overflow a plain exponential. `advised` are those that only SHOULD clauses ask
    for: they cost nothing, and so they earn nothing.
    """

    refusals: Collection[str]
    numeric: Collection[str]
    extreme: Collection[str] = frozenset()
    advised: Collection[str] = frozenset()

    def find_kind(self, check: Check) -> Kind:
        """Return the kind of a golden case. Published cases of a kind are compared with fresh ones of that kind."""
        id_ = check.verdict.check
        return "refusal" if id_ in self.refusals else "extreme" if id_ in self.extreme else "value"

    def counts(self, check: Check) -> bool:
        """Return True if a check decides about points."""
        return check.counts and check.verdict.check not in self.advised


@dataclass(frozen=True, slots=True)
class Carried:
    """The checks of one component, each in a dtype, that fail without costing points; and the mistakes they inherit."""

    keys: frozenset[CheckKey] = frozenset()
    mistakes: tuple[CarriedMistake, ...] = ()


def round_points(points: float | Decimal) -> float:
    """Round to two digits, half to even, in decimal arithmetic."""
    exact = points if isinstance(points, Decimal) else Decimal(repr(points))
    return float(exact.quantize(_CENT, ROUND_HALF_EVEN))


def grade_components(
    assignment: Assignment,
    checks: Sequence[Check],
    diagnosis: Sequence[Finding],
    kinds: CheckKinds,
    carried: Mapping[str, Carried] | None = None,
) -> tuple[ComponentGrade, ...]:
    """Return the points of each component; `carried` are the failures that cost points elsewhere already."""
    due = _assign_deductions(assignment, checks, diagnosis)
    return tuple(
        _grade_component(
            part,
            [c for c in checks if c.verdict.component == part.component],
            due[part.component],
            kinds,
            (carried or {}).get(part.component, Carried()),
        )
        for part in assignment.parts
    )


def _grade_component(
    part: GradedComponent,
    checks: Iterable[Check],
    deductions: tuple[Deduction, ...],
    kinds: CheckKinds,
    carried: Carried,
) -> ComponentGrade:
    counted = [check for check in checks if kinds.counts(check)]
    kept = [c for c in counted if c.outcome in ("correct", "imprecise") or c.verdict.key in carried.keys]
    works = _find_works(counted, kept, kinds)
    # Code that refuses every input also refuses the bad ones: that counts only if something else works.
    passed = [c for c in kept if works or c.verdict.check not in kinds.refusals]
    shares = {origin: (_count_correct(passed, origin), number) for origin, number in _count_origins(counted).items()}
    counts = _count_kinds(counted, passed, carried, kinds)
    earned = Decimal(0)
    if works:
        share = _compute_share(part, counted, passed, counts)
        earned = Decimal(repr(part.points)) * Decimal(share.numerator) / Decimal(share.denominator)
    lost = sum((Decimal(repr(deduction.points)) for deduction in deductions), Decimal(0))
    points = round_points(max(earned - lost, Decimal(0)))
    return ComponentGrade(part.component, part.points, points, shares, deductions, carried.mistakes, kinds=counts)


def _find_works(counted: Sequence[Check], kept: Sequence[Check], kinds: CheckKinds) -> bool:
    """Return True if a check of numbers passes, a fresh one too if there are any."""

    def find_origins(checks: Sequence[Check]) -> set[Origin]:
        return {check.origin for check in checks if check.verdict.check in kinds.numeric}

    return bool(find_origins(kept)) and find_origins(kept) == find_origins(counted)


def _count_origins(checks: Iterable[Check]) -> dict[Origin, int]:
    """Return the number of checks of each origin that has any."""
    counts = Counter(check.origin for check in checks)
    return {origin: counts[origin] for origin in get_args(Origin) if counts[origin]}


def _count_correct(checks: Iterable[Check], origin: Origin) -> int:
    return sum(check.origin == origin and check.outcome == "correct" for check in checks)


def _count_kinds(
    counted: Iterable[Check], passed: Iterable[Check], carried: Carried, kinds: CheckKinds
) -> dict[Kind, dict[Origin, tuple[float, int]]]:
    """Return the numbers of passed and of counted golden cases of each kind, by their origin."""
    among = Counter((kinds.find_kind(check), check.origin) for check in counted if check.origin != "property")
    right: defaultdict[tuple[Kind, Origin], float] = defaultdict(int)
    for check in passed:
        costs = check.outcome == "imprecise" and check.verdict.key not in carried.keys
        right[kinds.find_kind(check), check.origin] += _IMPRECISE if costs else 1
    counts: dict[Kind, dict[Origin, tuple[float, int]]] = {}
    for kind, origin in sorted(among):
        counts.setdefault(kind, {})[origin] = (right[kind, origin], among[kind, origin])
    return counts


def _compute_share(
    part: GradedComponent,
    counted: Sequence[Check],
    passed: Sequence[Check],
    counts: Mapping[Kind, Mapping[Origin, tuple[float, int]]],
) -> Fraction:
    """Return the share of its points that a component earns.

    Answers copied from the published cases fail the fresh ones, so of each kind of cases the smaller share counts: a
    table of the few published refusals, for instance, must not make up for fresh refusals that fail. An assignment may
    weigh published and fresh cases instead.
    """
    golden = _compute_golden_share(part, counts)
    properties = [check for check in counted if check.origin == "property"]
    if not properties or not part.properties:
        return golden
    holding = sum(check.origin == "property" for check in passed)
    held = Fraction(holding == len(properties)) if part.rule == "all" else Fraction(holding, len(properties))
    weight, other = Fraction(repr(part.golden)), Fraction(repr(part.properties))
    return golden * (weight + other * held) / (weight + other)


def _compute_golden_share(part: GradedComponent, counts: Mapping[Kind, Mapping[Origin, tuple[float, int]]]) -> Fraction:
    """Return the share of golden cases that pass, or all or nothing if that is the rule."""
    if part.rule == "all" or not counts:
        every = [passed == among for of_kind in counts.values() for passed, among in of_kind.values()]
        return Fraction(bool(every) and all(every))
    shares = compute_kind_shares(part, counts)
    return sum((earned * weight for earned, weight in shares.values()), Fraction(0))


def compute_kind_shares(
    part: GradedComponent, counts: Mapping[Kind, Mapping[Origin, tuple[float, int]]]
) -> dict[Kind, tuple[Fraction, Fraction]]:
    """Return of each kind of cases the share that passes, and its weight; all weights add up to 1.

    A kind weighs as much as it has published cases, and large scores as many points as the assignment says.
    """
    origin: Origin = "published" if any("published" in of_kind for of_kind in counts.values()) else "fresh"
    numbers = {kind: of_kind[origin][1] for kind, of_kind in counts.items() if origin in of_kind}
    weights = {kind: Fraction(number, sum(numbers.values())) for kind, number in numbers.items()}
    others = 1 - weights.get("extreme", Fraction(0))
    if part.large_scores is not None and part.points and 0 < others < 1:
        large = Fraction(repr(part.large_scores)) / Fraction(repr(part.points))
        weights = {k: large if k == "extreme" else w / others * (1 - large) for k, w in weights.items()}
    return {
        kind: (_weigh_origins(part, {o: Fraction(right) / among for o, (right, among) in counts[kind].items()}), weight)
        for kind, weight in weights.items()
    }


def _weigh_origins(part: GradedComponent, shares: Mapping[Origin, Fraction]) -> Fraction:
    """Return the smaller of the published and the fresh share, or both by the weights of the assignment."""
    if part.visible is None or part.hidden is None or len(shares) == 1:
        return min(shares.values())
    visible, hidden = Fraction(repr(part.visible)), Fraction(repr(part.hidden))
    return (visible * shares["published"] + hidden * shares["fresh"]) / (visible + hidden)


def _assign_deductions(
    assignment: Assignment, checks: Sequence[Check], diagnosis: Sequence[Finding]
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


def _find_mistakes(diagnosis: Iterable[Finding]) -> set[tuple[str | None, str]]:
    """Return the mistakes that the diagnosis is certain of, each with its component."""
    found: set[tuple[str | None, str]] = set()
    component = ""
    for line in diagnosis:
        if not line.inner:
            component = line.text
        elif line.label in CERTAIN_LABELS:
            found.update((mistake, component) for mistake in line.mistakes)
    return found


def find_declined(checks: Iterable[Check], kinds: CheckKinds) -> dict[str, tuple[str, ...]]:
    """Return by component the checks of a solution that were declined in every dtype.

    A component without a check of numbers that passes is not written: nothing of it is left out.
    """
    working: set[str] = set()
    declined: defaultdict[str, dict[str, bool]] = defaultdict(dict)
    for check in checks:
        if not check.counts:
            continue
        verdict, seen = check.verdict, declined[check.verdict.component]
        seen[verdict.check] = seen.get(verdict.check, True) and verdict.reason == _DECLINED
        if check.outcome == "correct" and verdict.check in kinds.numeric:
            working.add(verdict.component)
    found = {name: tuple(id_ for id_, every in declined[name].items() if every) for name in declined if name in working}
    return {name: ids for name, ids in found.items() if ids}


def summarize_outcomes(checks: Sequence[Check]) -> tuple[Outcome, str]:
    """Return the outcome of a submission by its checks, and a sentence for the student."""
    counted = [check.outcome for check in checks if check.has_outcome]
    outcome: Outcome = max(counted, key=SEVERITY.index, default="correct")
    return outcome, _MESSAGES[outcome]


def note_failures(grade: Grade) -> Grade:
    """Return a grade with what pages of a class need of its checks: the outcome of each component, and what fails."""
    parts = tuple(replace(part, outcome=_find_outcome(part.component, grade)) for part in grade.parts)
    failed = dict.fromkeys((check.origin, check.verdict.check) for check in _list_causes(grade))
    return replace(grade, parts=parts, failed=tuple(failed))


def _list_causes(grade: Grade) -> Iterator[Check]:
    """Yield the failing checks whose cause is in their own component; none if the submission could not be called."""
    if grade.message.startswith(NOT_STARTED):
        return
    # An exception of one component ends the calls of those that are built of it too.
    raised: dict[str, str] = {}
    for check in grade.checks:
        if check.outcome == "error":
            raised.setdefault(check.verdict.message, check.verdict.component)
    for check in grade.checks:
        verdict = check.verdict
        own = raised.get(verdict.message, verdict.component) == verdict.component
        if check.is_shown and own and not check.inherited:
            yield check


def _find_outcome(component: str, grade: Grade) -> Outcome:
    """Return the worst outcome in a component, a grader error only if nothing else is bad.

    If nothing of the component was checked, return that of the submission.
    """
    mine = [check for check in grade.checks if check.verdict.component == component and check.has_outcome]
    if not mine:
        return grade.outcome
    outcomes = {check.outcome for check in mine}
    return max(outcomes - {"grader-error", "correct"} or outcomes, key=SEVERITY.index)

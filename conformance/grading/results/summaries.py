"""A student's grade in a line: all that tables and pages of a class need, so that memory stays flat."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from sys import intern

from goldformer.conformance.diagnosis.findings import MISTAKE_FOUND, NOTHING_KNOWN, OPTION_FOUND, POSSIBLE_CAUSES
from goldformer.conformance.grading.model import Check, Grade, Isolation, Origin, Outcome, PartGrade, Said
from goldformer.conformance.grading.results import words

#: The labels of the diagnosis that say what a mistake is, and not what it could be.
_CERTAIN = frozenset({MISTAKE_FOUND, OPTION_FOUND})

#: How much of a sentence is kept.
_KEPT = 400


@dataclass(frozen=True, slots=True)
class PartLine:
    """A component: what it earned, and the worst that happened in it. `alone`: published cases pass, drawn ones do not.

    `said` tells in a few words how its checks came out.
    """

    component: str
    points: float
    earned: float
    outcome: Outcome
    said: str
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A student's grade without its checks.

    `mistakes` are those that the diagnosis is certain of and `maybe` those that could be; `failed` are the checks that
    fail, by their origin and id. `diagnosis` is its first sentence that says what is wrong.
    """

    submission: str
    key: str
    outcome: Outcome
    message: str
    points: float
    earned: float
    parts: tuple[PartLine, ...]
    mistakes: tuple[str, ...]
    maybe: tuple[str, ...]
    failed: tuple[tuple[Origin, str], ...]
    diagnosis: str
    isolation: Isolation

    @classmethod
    def of(cls, grade: Grade) -> Line:
        """What a class needs of a grade."""
        certain = _named(said for said in grade.said if said.label in _CERTAIN)
        bad = (c for c in grade.checks if c.shown)
        return cls(
            submission=grade.submission, key=grade.key, outcome=grade.outcome,
            message=words.line(grade.message, _KEPT), points=grade.points, earned=grade.earned,
            parts=tuple(_part(part, grade) for part in grade.parts),
            mistakes=certain,
            maybe=tuple(id_ for id_ in _named(grade.said) if id_ not in certain),
            # The ids are the same for everyone: kept once.
            failed=tuple(dict.fromkeys((c.origin, intern(c.verdict.check)) for c in bad)),
            diagnosis=words.line(_first(grade.said), _KEPT), isolation=grade.isolation,
        )  # fmt: skip


def outcome_of_part(component: str, grade: Grade) -> Outcome:
    """The worst that happened in a component; the submission's own outcome where nothing of it was checked."""
    mine = [check for check in grade.checks if check.verdict.component == component and _matters(check)]
    return words.worst(mine) if mine else grade.outcome


def _matters(check: Check) -> bool:
    return check.counts or check.outcome == "grader-error"


def _part(part: PartGrade, grade: Grade) -> PartLine:
    counts = [f"{passed} of {among} {words.ORIGINS[o]}" for o, (passed, among) in part.shares.items() if among]
    outcome = outcome_of_part(part.component, grade)
    said = ", ".join([words.BRIEF[outcome], *counts])
    alone = words.passed_alone(grade, part.component)
    return PartLine(part.component, part.points, part.earned, outcome, said, alone)


def _named(said: Iterable[Said]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(intern(id_) for sentence in said for id_ in sentence.mistakes))


def _first(said: tuple[Said, ...]) -> str:
    telling = [s for s in said if s.label in (*_CERTAIN, POSSIBLE_CAUSES, "Convention", NOTHING_KNOWN)]
    return telling[0].text if telling else ""

"""What a student is told: the one place where feedback is chosen, so that no format tells more than another."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from goldformer.conformance.diagnosis.findings import FIX_FIRST
from goldformer.conformance.grading.model import (
    LACKS,
    NOT_STARTED,
    Assignment,
    Deduction,
    Grade,
    Origin,
    Outcome,
    PartGrade,
)
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.failures import Failure, Failures
from goldformer.conformance.grading.results.summaries import outcome_of_part
from goldformer.conformance.judging.verdict import WITHHELD
from goldformer.spec import Mistake, Spec

#: How many failing checks of a component are listed; the others are counted.
_LISTED: Final = 8

#: Sentences of the diagnosis that name a check, which may be one that was drawn; its place says `First wrong`.
_NAMING: Final = frozenset({"First seen"})


@dataclass(frozen=True, slots=True)
class Row:
    """A component: what it earned, how its checks came out, and what fails in it."""

    component: str
    title: str
    grade: PartGrade
    outcome: Outcome
    note: str
    first_wrong: str
    failures: tuple[Failure, ...]
    more: int
    deductions: tuple[str, ...]
    ran: bool = True

    @property
    def says(self) -> bool:
        """Whether there is anything to say of it beyond its points."""
        return bool(self.note or self.first_wrong or self.failures or self.deductions)

    @property
    def brief(self) -> str:
        """How it came out, in a few words."""
        return words.BRIEF[self.outcome] if self.ran else "not run"

    @property
    def full(self) -> bool:
        """Whether nothing is missing."""
        return self.outcome == "correct" and self.grade.earned >= self.grade.points

    def share(self, origin: Origin) -> str:
        """How many of a kind of checks pass, as "3 of 4"; empty where there are none."""
        passed, among = self.grade.shares.get(origin, (0, 0))
        return f"{passed} of {among}" if among else ""


@dataclass(frozen=True, slots=True)
class Remark:
    """A sentence of the diagnosis, and what the catalogue knows of the mistakes that it names.

    `quoted` is what the suite says of an answer, which may repeat what the submission says.
    """

    label: str
    text: str
    inner: bool
    mistakes: tuple[Mistake, ...] = ()
    quoted: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """All that a student is told of a submission."""

    grade: Grade
    passing: bool
    headline: str
    message: str
    advice: str
    rows: tuple[Row, ...]
    remarks: tuple[Remark, ...]
    command: str
    isolation: str
    stderr: str = ""

    @property
    def compares(self) -> bool:
        """Whether numbers are said to be wrong, by how much."""
        return any("the tolerance" in failure.said for row in self.rows for failure in row.failures)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The kinds of checks that there are."""
        return tuple(origin for origin in words.ORIGINS if any(row.share(origin) for row in self.rows))


def told(grade: Grade, assignment: Assignment, spec: Spec) -> Told:
    """What the student is told of a grade, as the assignment's feedback allows."""
    failures = Failures(grade, assignment, spec)
    if grade.outcome != "grader-error" and (not grade.checks or grade.message.startswith(NOT_STARTED)):
        return _not_run(grade, assignment, failures, spec)
    rows = tuple(_row(part, grade, failures, assignment, spec) for part in grade.parts)
    passing = grade.outcome == "correct" and all(row.full for row in rows)
    return Told(
        grade=grade,
        passing=passing,
        headline=_headline(grade, passing=passing),
        message="" if passing else _message(grade),
        advice=words.advice(grade.outcome, assignment),
        rows=rows,
        remarks=tuple(_with_first_seen(list(_remarks(grade, assignment, spec)), failures)),
        command=_command(grade, assignment, failures, spec),
        isolation=words.in_force(grade.isolation),
    )


def _not_run(grade: Grade, assignment: Assignment, failures: Failures, spec: Spec) -> Told:
    """What is told where nothing could be called: why, once, and nothing of each component."""
    rows = tuple(
        Row(part.component, spec.contracts[part.component].title, part, grade.outcome, "", "", (), 0, (), ran=False)
        for part in grade.parts
    )
    shown = [failure.stderr for row in rows for failure in failures.of(row.component) if failure.stderr]
    advice = words.advice(grade.outcome, assignment)
    if grade.outcome == "error":
        advice = words.UNSTARTED if grade.checks else words.UNREAD
    return Told(
        grade=grade,
        passing=False,
        headline=_headline(grade, passing=False),
        message=_message(grade),
        advice=advice,
        rows=rows,
        remarks=(),
        command="",
        isolation=words.in_force(grade.isolation) if grade.checks else "",
        stderr=shown[0] if shown else "",
    )


def _headline(grade: Grade, *, passing: bool) -> str:
    if passing:
        return f"Well done: all {words.points(grade.points)} points."
    return f"{words.points(grade.earned)} of {words.points(grade.points)} points."


def _message(grade: Grade) -> str:
    """The grade's own sentence, unless it says what was said of a case that was drawn and of no other."""
    said: dict[bool, set[str]] = {True: set(), False: set()}
    for check in grade.checks:
        said[check.origin == "fresh"] |= {check.verdict.check, check.verdict.message, check.verdict.detail}
    secret = said[True] - said[False] - {""}
    return "" if any(text in grade.message for text in secret) else grade.message


def _row(part: PartGrade, grade: Grade, failures: Failures, assignment: Assignment, spec: Spec) -> Row:
    found = failures.of(part.component)
    return Row(
        component=part.component,
        title=spec.contracts[part.component].title,
        grade=part,
        outcome=outcome_of_part(part.component, grade),
        note=_note(part, grade),
        first_wrong=failures.first_wrong(part.component),
        failures=found[:_LISTED],
        more=sum(1 + failure.alike for failure in found[_LISTED:]),
        deductions=tuple(_deducted(deduction, assignment) for deduction in part.deductions),
    )


def _deducted(deduction: Deduction, assignment: Assignment) -> str:
    """What was taken off; why, as far as the note says so or the diagnosis is told."""
    told_why = deduction.mistake if assignment.feedback.diagnosis else "a known mistake"
    why = deduction.note or (told_why if deduction.mistake else f"checks fail for the reason {deduction.reason}")
    return f"{words.points(deduction.points)} point{'' if deduction.points == 1 else 's'} less: {why}"


def _note(part: PartGrade, grade: Grade) -> str:
    if words.passed_alone(grade, part.component):
        return (
            "The published cases pass, cases drawn anew do not. Points are given for what holds on both: the formula "
            "has to work for inputs that it has not seen."
        )
    absent = (LACKS.search(c.verdict.message) for c in grade.checks if c.verdict.component == part.component)
    if found := next(filter(None, absent), None):
        return f"There is no {found[1]} in submission.py."
    published, drawn = part.shares.get("published", (0, 0)), part.shares.get("fresh", (0, 0))
    if 0 < published[1] == published[0] and drawn[0] < drawn[1]:
        failing = drawn[1] - drawn[0]
        does = "do" if failing > 1 else "does"
        return f"The published cases pass; {failing} of {drawn[1]} cases drawn for grading {does} not."
    return ""


def _remarks(grade: Grade, assignment: Assignment, spec: Spec) -> Iterator[Remark]:
    if not assignment.feedback.diagnosis:
        return
    drawn = {check.verdict.check for check in grade.checks if check.origin == "fresh"}
    for said in grade.said:
        if said.label in _NAMING or any(id_ in said.text for id_ in drawn):
            continue
        text = said.text if assignment.feedback.first_wrong else said.text.partition("; the first wrong output")[0]
        known = tuple(spec.mistakes[id_] for id_ in said.mistakes if id_ in spec.mistakes)
        yield Remark(said.label, text, said.inner, known)


def _with_first_seen(remarks: list[Remark], failures: Failures) -> Iterator[Remark]:
    """Where no mistake is named, what was seen first, as it may be told."""
    for place, remark in enumerate(remarks):
        yield remark
        below = list(takewhile(lambda other: other.inner, remarks[place + 1 :]))
        if remark.label == FIX_FIRST and not any(other.mistakes for other in below):
            for seen in failures.of(remark.text)[:1]:
                yield Remark("First seen", seen.check, inner=True, quoted=seen.said)


def _command(grade: Grade, assignment: Assignment, failures: Failures, spec: Spec) -> str:
    """The line that repeats a failing check at home: a published one, of the component that others are built of."""
    components = [name for name in spec.components if name in {check.verdict.component for check in grade.checks}]
    found = [check for name in components for check in failures.open_ones(name)]
    # At home every output but the first is optional: nothing would be seen of one that is missing.
    known = [check for check in found if check.verdict.reason != WITHHELD]
    if not assignment.feedback.reproduction or not known:
        return ""
    verdict = min(known, key=lambda check: check.origin != "published").verdict
    chosen = ["--case", verdict.check]
    if verdict.kind == "property":
        chosen = ["--property", verdict.check, "--component", verdict.component]
    return shlex.join(["goldformer", "check", assignment.adapter.name, *chosen, "--dtype", verdict.dtype])

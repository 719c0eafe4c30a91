"""What a student is told: the one place where feedback is chosen, so that no format tells more than another.

Nothing is told of a case that was drawn for grading but that it passes or fails, and which output goes wrong first.
What submitted code says itself (messages, numbers, standard error) is told only as long as it has not seen such a
case, since it could say what it was given.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from goldformer.conformance.grading.model import Assignment, Check, Deduction, Grade, Origin, Outcome, PartGrade
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.matrices import Key, Matrices
from goldformer.conformance.grading.results.summaries import outcome_of_part
from goldformer.conformance.text import difference_lines
from goldformer.conformance.verdict import Difference, Verdict
from goldformer.spec import Mistake, Spec

#: How many failing checks of a component are listed; the others are counted.
_LISTED: Final = 8

#: How much of standard error is shown.
_STDERR: Final = 15

#: Sentences of the diagnosis that name a check, which may be one that was drawn; its place says `First wrong`.
_NAMING: Final = frozenset({"First seen"})


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that fails, published or a property, in the dtypes in which it does.

    `alike` counts other checks of the component that fail with the same words.
    """

    check: str
    title: str
    dtypes: tuple[str, ...]
    said: str
    numbers: tuple[str, ...]
    stderr: str
    matrices: tuple[Matrices, ...]
    alike: int = 0


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

    @property
    def says(self) -> bool:
        """Whether there is anything to say of it beyond its points."""
        return bool(self.note or self.first_wrong or self.failures or self.deductions)

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
    """A sentence of the diagnosis, and what the catalogue knows of the mistakes that it names."""

    label: str
    text: str
    inner: bool
    mistakes: tuple[Mistake, ...]


@dataclass(frozen=True, slots=True)
class Told:
    """All that a student is told of a submission."""

    grade: Grade
    passing: bool
    headline: str
    meaning: str
    message: str
    rows: tuple[Row, ...]
    remarks: tuple[Remark, ...]
    command: str
    isolation: str

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The kinds of checks that there are."""
        return tuple(origin for origin in words.ORIGINS if any(row.share(origin) for row in self.rows))


def told(grade: Grade, assignment: Assignment, spec: Spec, matrices: Mapping[Key, Matrices] | None = None) -> Told:
    """What the student is told of a grade, as the assignment's feedback allows.

    `matrices` are what small outputs should have been and what they were, where the caller has them; those of cases
    that were drawn are left out.
    """
    failures = _Failures(grade, assignment, matrices or {})
    rows = tuple(_row(part, grade, failures, assignment, spec) for part in grade.parts)
    passing = grade.outcome == "correct" and all(row.full for row in rows)
    return Told(
        grade=grade,
        passing=passing,
        headline=_headline(grade, passing=passing),
        meaning="" if passing else words.meaning(grade.outcome, assignment),
        message=_message(grade),
        rows=rows,
        remarks=tuple(_remarks(grade, assignment, spec)),
        command=_command(grade, assignment, spec),
        isolation=words.in_force(grade.isolation),
    )


def _headline(grade: Grade, *, passing: bool) -> str:
    if passing:
        return f"Well done: all {words.points(grade.points)} points."
    return f"{words.points(grade.earned)} of {words.points(grade.points)} points."


def _message(grade: Grade) -> str:
    """The grade's own sentence, unless it says something of a case that was drawn."""
    drawn = [check.verdict for check in grade.checks if check.origin == "fresh"]
    secret = [text for verdict in drawn for text in (verdict.check, verdict.message, verdict.detail) if text]
    return "" if any(text in grade.message for text in secret) else grade.message


def _row(part: PartGrade, grade: Grade, failures: _Failures, assignment: Assignment, spec: Spec) -> Row:
    mine = [check for check in grade.checks if check.verdict.component == part.component]
    found = failures.of(mine)
    return Row(
        component=part.component,
        title=spec.contracts[part.component].title,
        grade=part,
        outcome=outcome_of_part(part.component, grade),
        note=_note(part, grade),
        first_wrong=failures.first_wrong(mine),
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


def _command(grade: Grade, assignment: Assignment, spec: Spec) -> str:
    """The line that repeats a failing check at home: a published one, of the component that others are built of."""
    order = {name: place for place, name in enumerate(spec.components)}
    known = [c for c in grade.checks if _wrong(c) and c.origin != "fresh" and c.outcome != "missing"]
    if not assignment.feedback.reproduction or not known:
        return ""
    verdict = min(known, key=lambda c: (order[c.verdict.component], c.origin != "published")).verdict
    chosen = ["--case", verdict.check]
    if verdict.kind == "property":
        chosen = ["--property", verdict.check, "--component", verdict.component]
    return shlex.join(["goldformer", "check", assignment.adapter.name, *chosen, "--dtype", verdict.dtype])


def _wrong(check: Check) -> bool:
    return check.outcome not in ("correct", "grader-error")


class _Failures:
    """The failing checks of a grade, told as the assignment allows."""

    def __init__(self, grade: Grade, assignment: Assignment, matrices: Mapping[Key, Matrices]) -> None:
        self._feedback = assignment.feedback
        self._matrices = matrices
        places = [place for place, check in enumerate(grade.checks) if check.origin == "fresh"]
        until = places[0] if places else len(grade.checks)
        self._before = {id(check) for check in grade.checks[:until]}

    def of(self, checks: Iterable[Check]) -> tuple[Failure, ...]:
        """Those that are no secret, by check."""
        bad: dict[str, list[Check]] = {}
        for check in checks:
            if _wrong(check) and check.origin != "fresh" and check.outcome != "missing":
                bad.setdefault(check.verdict.check, []).append(check)
        alike: dict[str, list[Failure]] = {}
        for listed in bad.values():
            failure = self._failure(listed)
            alike.setdefault(failure.said, []).append(failure)
        return tuple(replace(first, alike=len(others)) for first, *others in alike.values())

    def first_wrong(self, checks: Iterable[Check]) -> str:
        """Which output goes wrong first in the flow of data, in a published case if there is one."""
        wrong = [check for check in checks if _wrong(check) and check.verdict.differences]
        if not wrong or not self._feedback.first_wrong:
            return ""
        check = min(wrong, key=lambda c: c.origin == "fresh")
        difference = check.verdict.differences[0]
        where = words.DRAWN if check.origin == "fresh" else check.verdict.check
        said = f"{difference.output} is the first output that is wrong, in {where}"
        if check.origin == "fresh" or difference.first is None:
            return f"{said}."
        at = f", the first at {list(difference.first.index)}" if difference.first.index else ""
        return f"{said}: {_many(difference)}{at}."

    def _failure(self, checks: list[Check]) -> Failure:
        check = checks[0]
        verdict = check.verdict
        # The code may repeat what it was given before.
        speaks = id(check) in self._before
        shows = speaks and self._feedback.expected
        visible = self._visible(verdict)
        lines = [line for difference in visible for line in difference_lines(difference)]
        pictures = (self._matrices.get((verdict.check, verdict.dtype, d.output)) for d in visible)
        return Failure(
            check=verdict.check,
            title=verdict.title,
            dtypes=tuple(dict.fromkeys(check.verdict.dtype for check in checks)),
            said=self._said(check, speaks=speaks),
            numbers=tuple(lines) if shows else (),
            stderr=words.tail(verdict.detail, _STDERR) if speaks and self._feedback.stderr and _ended(verdict) else "",
            matrices=tuple(picture for picture in pictures if picture) if shows else (),
        )

    def _visible(self, verdict: Verdict) -> tuple[Difference, ...]:
        """The outputs that are wrong; without the first wrong step, the last of them alone, which is the result."""
        return verdict.differences if self._feedback.first_wrong else verdict.differences[-1:]

    def _said(self, check: Check, *, speaks: bool) -> str:
        verdict = check.verdict
        valued = bool(verdict.differences) or verdict.reason in ("wrong-value", "not-finite")
        if valued and not (speaks and self._feedback.expected and self._feedback.first_wrong):
            return ", ".join(f"{d.output}: {_many(d)}" for d in self._visible(verdict)[:1]) or "values are wrong"
        return words.line(verdict.message) if speaks else words.BRIEF[check.outcome]


def _many(difference: Difference) -> str:
    return f"{difference.wrong} of {difference.compared} values {'is' if difference.wrong == 1 else 'are'} wrong"


def _ended(verdict: Verdict) -> bool:
    """Whether the detail is what the code wrote, and not an input that shows a violation."""
    return verdict.kind == "case" and bool(verdict.detail)

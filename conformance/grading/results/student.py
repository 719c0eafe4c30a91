"""Choose what a student reads about a grade; all formats show this, so that none reveals more than another.

Of a fresh case, a student learns only whether it passes and which output goes wrong first. Texts of the submission
itself (messages, numbers, standard error) are shown only from before it saw a fresh case, since later texts could
repeat the case.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final

from goldformer.conformance.diagnosis.causes import drop_declaration
from goldformer.conformance.diagnosis.finding import ADAPTER_LABELS, FIX_FIRST, Finding
from goldformer.conformance.grading.compact import WINDOWS, find_place, list_public_failures
from goldformer.conformance.grading.model import (
    CERTAIN_LABELS,
    NOT_STARTED,
    UNDEFINED,
    Assignment,
    Check,
    ComponentGrade,
    Deduction,
    Grade,
    Origin,
    Outcome,
)
from goldformer.conformance.grading.results import words
from goldformer.conformance.judging.measure import describe_values
from goldformer.conformance.judging.verdict import WITHHELD, Difference, Verdict
from goldformer.conformance.reports.fixes import put_fixes_first
from goldformer.conformance.reports.pictures import HeatMap, compare_values, name_axes, name_window
from goldformer.conformance.reports.text import format_difference
from goldformer.spec import Mistake, Spec

#: The number of failing checks of a component that are listed; the others are counted.
_LISTED: Final = 8

#: The number of lines of standard error that are shown.
_STDERR: Final = 15

#: Labels of diagnosis lines that name a check, which may be a fresh one; `first_wrong` replaces them.
_NAMING: Final = frozenset({"First seen"})


@dataclass(frozen=True, slots=True)
class StudentFinding:
    """The first thing to fix in a component, for the top of the page; `certain` if the diagnosis names the mistake.

    `quoted` is a text of the suite about an answer, as in StudentRemark. `code` has the lines "Instead of" and "Write".
    """

    component: str
    text: str
    certain: bool
    quoted: str = ""
    code: tuple[StudentRemark, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A failing check, published or a property, with its outcome and the dtypes in which it fails; none if in all.

    `windows` are parts of its wrong outputs, to be drawn; `alike` are other checks of the component with the same
    text.
    """

    check: str
    title: str
    outcome: Outcome
    dtypes: tuple[str, ...]
    said: str
    numbers: tuple[str, ...]
    stderr: str
    windows: tuple[tuple[str, tuple[HeatMap, ...]], ...]
    alike: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ComponentFeedback:
    """A component: its grade, the worst outcome of its checks, and the checks that fail."""

    component: str
    title: str
    grade: ComponentGrade
    outcome: Outcome
    note: str = ""
    first_wrong: str = ""
    failures: tuple[FailedCheck, ...] = ()
    more: tuple[str, ...] = ()
    deductions: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    rule: tuple[str, ...] = ()
    ran: bool = True

    @property
    def has_details(self) -> bool:
        """True if there is something to read in addition to the points."""
        return bool(self.note or self.first_wrong or self.failures or self.deductions or self.carried)

    @property
    def brief(self) -> str:
        """The outcome in a few words."""
        if not self.ran:
            return "not run"
        return words.BRIEF[self.outcome] + (", not deducted again" if self.is_spared else "")

    @property
    def is_spared(self) -> bool:
        """True if checks fail and cost nothing: full points next to a failure would look like an error of the page."""
        return bool(self.carried) and self.grade.earned >= self.grade.points

    @property
    def earns_everything(self) -> bool:
        """True if it earns all its points."""
        return self.outcome == "correct" and self.grade.earned >= self.grade.points

    def share(self, origin: Origin) -> str:
        """Return how many checks of an origin pass, as "3 of 4"; nothing if there are none."""
        passed, among = self.grade.shares.get(origin, (0, 0))
        return f"{passed} of {among}" if among else ""


@dataclass(frozen=True, slots=True)
class StudentRemark(Finding):
    """A finding of the diagnosis, and the catalogue's entries of the mistakes that it names.

    `quoted` is a text of the suite about an answer, which may repeat text of the submission.
    """

    known: tuple[Mistake, ...] = ()
    quoted: str = ""


@dataclass(frozen=True, slots=True)
class StudentFeedback:
    """Everything that a student reads about a submission."""

    grade: Grade
    passing: bool
    headline: str
    message: str
    advice: str
    rows: tuple[ComponentFeedback, ...]
    remarks: tuple[StudentRemark, ...]
    command: str
    isolation: str
    findings: tuple[StudentFinding, ...] = ()
    stderr: str = ""
    forbidden: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def mentions_tolerance(self) -> bool:
        """True if the feedback mentions the tolerance."""
        return any("tolerance" in line for row in self.rows for failure in row.failures for line in failure.numbers)

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The origins of the checks."""
        return tuple(origin for origin in words.ORIGINS if any(row.share(origin) for row in self.rows))


class _FailedChecks:
    """The failing checks of a grade, as far as the assignment allows to show them."""

    def __init__(self, grade: Grade, assignment: Assignment, spec: Spec) -> None:
        self._checks = grade.checks
        self._assignment = assignment
        self._feedback = assignment.feedback
        self._dtypes = assignment.dtypes
        self._spec = spec
        places = [place for place, check in enumerate(grade.checks) if check.origin == "fresh"]
        until = places[0] if places else len(grade.checks)
        self._before = {id(check) for check in grade.checks[:until]}

    def list_public(self, component: str) -> list[Check]:
        """Return the failing checks of a component except fresh cases, the earliest in the flow of data first."""
        return list_public_failures(self._checks, component, self._assignment, self._spec)

    def _list_bad(self, component: str) -> list[Check]:
        return [check for check in self._checks if check.verdict.component == component and check.is_shown]

    def describe(self, component: str) -> tuple[FailedCheck, ...]:
        """Describe the public ones, each check once; those with the same text are counted with the first one.

        Only the first ones have windows.
        """
        bad: dict[str, list[Check]] = {}
        for check in self.list_public(component):
            bad.setdefault(check.verdict.check, []).append(check)
        alike: dict[str, list[FailedCheck]] = {}
        for nth, checks in enumerate(bad.values()):
            failure = self._describe_check(checks, drawn=nth < WINDOWS)
            alike.setdefault(failure.said, []).append(failure)
        return tuple(replace(first, alike=tuple(o.check for o in others)) for first, *others in alike.values())

    def describe_first_wrong(self, component: str) -> str:
        """Say which output goes wrong first in the flow of data, in a published case if there is one."""
        wrong = [check for check in self._list_bad(component) if check.verdict.differences]
        if not wrong or not self._feedback.first_wrong:
            return ""
        check = min(wrong, key=lambda check: (check.origin == "fresh", find_place(check, self._spec)))
        difference = check.verdict.differences[0]
        if check.origin == "fresh":
            return f"The first output that is wrong is {difference.output}, in {words.DRAWN}."
        at = f", the first at {list(difference.first.index)}" if difference.first and difference.first.index else ""
        wrong_values = _count_wrong(difference)
        return f"The first output that is wrong is {difference.output}, in {check.verdict.check}: {wrong_values}{at}."

    def _describe_check(self, checks: list[Check], *, drawn: bool) -> FailedCheck:
        check = checks[0]
        verdict = check.verdict
        # Later texts could repeat a fresh case.
        quotable = id(check) in self._before
        shows_values = quotable and self._feedback.expected
        visible = self._select_differences(verdict)
        # The detail of a case is standard error; that of a property is an input that shows a violation.
        has_stderr = quotable and self._feedback.stderr and verdict.kind == "case"
        dtypes = tuple(dict.fromkeys(check.verdict.dtype for check in checks))
        return FailedCheck(
            check=verdict.check,
            title=verdict.title,
            outcome=check.outcome,
            dtypes=() if {*dtypes} == {*self._dtypes} else dtypes,
            said=self._summarize_check(check, quotable=quotable),
            numbers=tuple(line for d in visible for line in format_difference(d)) if shows_values else (),
            stderr=words.tail(verdict.detail, _STDERR) if has_stderr and verdict.detail else "",
            windows=tuple(self._draw(d, verdict.component) for d in visible if d.grid)
            if shows_values and drawn
            else (),
        )

    def _draw(self, difference: Difference, component: str) -> tuple[str, tuple[HeatMap, ...]]:
        axes = name_axes(component, difference.output, self._spec)
        return name_window(difference.output, difference.grid), compare_values(difference, axes)

    def _select_differences(self, verdict: Verdict) -> tuple[Difference, ...]:
        """Return the wrong outputs, or only the last one, the result, if the first wrong step is not shown."""
        return verdict.differences if self._feedback.first_wrong else verdict.differences[-1:]

    def _summarize_check(self, check: Check, *, quotable: bool) -> str:
        verdict = check.verdict
        has_values = bool(verdict.differences) or verdict.reason in ("wrong-value", "not-finite")
        if has_values and not (quotable and self._feedback.expected and self._feedback.first_wrong):
            differences = self._select_differences(verdict)[:1]
            return ", ".join(f"{d.output}: {_count_wrong(d)}" for d in differences) or "values are wrong"
        if verdict.differences and verdict.reason in ("wrong-value", "not-finite"):
            return _compare_first(verdict.differences[0])
        return words.shorten_to_line(verdict.message) if quotable else words.BRIEF[check.outcome]


def _compare_first(difference: Difference) -> str:
    """Say what the first wrong element should have been and what it was, and how many are wrong."""
    first = difference.first
    if first is None:
        return f"{difference.output}: {_count_wrong(difference)}"
    at = f"[{', '.join(map(str, first.index))}]" if first.index else ""
    return f"{difference.output}{at}: {describe_values(first)}; {_count_wrong(difference)}"


def _count_wrong(difference: Difference) -> str:
    return f"{difference.wrong} of {difference.compared} values {'is' if difference.wrong == 1 else 'are'} wrong"


def build_feedback(grade: Grade, assignment: Assignment, spec: Spec) -> StudentFeedback:
    """Return what the student reads about a grade, as the assignment's feedback options allow.

    If the submission could not be called, the feedback says why once, and nothing about components.
    """
    failures = _FailedChecks(grade, assignment, spec)
    ran = grade.outcome == "grader-error" or (bool(grade.checks) and not grade.message.startswith(NOT_STARTED))
    rows = tuple(_describe_component(part, grade, failures, assignment, spec, ran=ran) for part in grade.parts)
    passing = ran and grade.outcome == "correct" and all(row.earns_everything for row in rows)
    earned, points = words.points(grade.earned), words.points(grade.points)
    remarks = tuple(_add_first_seen(list(_list_remarks(grade, assignment, spec)), failures)) if ran else ()
    findings = tuple(_list_findings(remarks))
    # What to do is known: no general advice is needed, nor a formula where no value was compared.
    compared = any(check.verdict.differences for check in grade.checks if check.is_shown)
    known = grade.outcome in ("imprecise", "wrong") and (not compared or any(finding.certain for finding in findings))
    advice, stderr = "" if known else words.advise(grade.outcome, assignment), ""
    if not ran:
        failed = (failure.stderr for row in rows for failure in failures.describe(row.component))
        stderr = next(filter(None, failed), "")
        if grade.outcome == "error":
            advice = words.UNSTARTED if grade.checks else words.UNREAD
    return StudentFeedback(
        grade=grade,
        passing=passing,
        headline=f"Well done: all {points} points." if passing else f"{earned} of {points} points.",
        message="" if passing else _select_message(grade),
        advice=advice,
        rows=rows,
        remarks=tuple(put_fixes_first(remarks)),
        command=_make_command(grade, assignment, failures, spec) if ran else "",
        isolation=words.describe_isolation(grade.isolation) if ran or grade.checks else "",
        findings=findings,
        stderr=stderr,
        forbidden=words.describe_forbidden(grade.forbidden),
        left_out=() if passing else tuple(f"{_capitalize(reason)}." for reason in grade.left_out),
    )


def _select_message(grade: Grade) -> str:
    """Return the grade's own sentence, unless it contains text that only a fresh case has."""
    texts: dict[bool, set[str]] = {True: set(), False: set()}
    for check in grade.checks:
        texts[check.origin == "fresh"] |= {check.verdict.check, check.verdict.message, check.verdict.detail}
    secret = texts[True] - texts[False] - {""}
    return "" if any(text in grade.message for text in secret) else grade.message


def _describe_component(
    part: ComponentGrade, grade: Grade, failures: _FailedChecks, assignment: Assignment, spec: Spec, *, ran: bool
) -> ComponentFeedback:
    title = spec.contracts[part.component].title
    if not ran:
        return ComponentFeedback(part.component, title, part, grade.outcome, ran=False)
    failed = _list_outcomes_first(failures.describe(part.component))
    asked = next(asked for asked in assignment.parts if asked.component == part.component)
    return ComponentFeedback(
        component=part.component,
        title=title,
        grade=part,
        outcome=part.outcome,
        note=_make_note(part, grade),
        first_wrong=failures.describe_first_wrong(part.component),
        failures=failed[:_LISTED],
        more=tuple(check for failure in failed[_LISTED:] for check in (failure.check, *failure.alike)),
        deductions=tuple(_describe_deduction(deduction, assignment) for deduction in part.deductions),
        carried=tuple(words.describe_carried(carried, named=assignment.feedback.diagnosis) for carried in part.carried),
        rule=words.describe_rule(asked, part),
    )


def _list_outcomes_first(failed: tuple[FailedCheck, ...]) -> tuple[FailedCheck, ...]:
    """Return failing checks in their order, but those that would be counted only and are the first of an outcome.

    They take the last places of the list: a call that raises is shown with its error, however many values are wrong.
    """
    firsts = {failure.outcome: failure for failure in reversed(failed)}
    late = [failure for failure in failed[_LISTED:] if firsts[failure.outcome] is failure]
    others = [failure for failure in failed if failure not in late]
    listed = _LISTED - len(late)
    return (*others[:listed], *late, *others[listed:])


def _describe_deduction(deduction: Deduction, assignment: Assignment) -> str:
    """Say how many points are deducted, and why, as far as the note or the diagnosis may be shown."""
    mistake = deduction.mistake if assignment.feedback.diagnosis else "a known mistake"
    why = deduction.note or (mistake if deduction.mistake else f"checks fail for the reason {deduction.reason}")
    return f"{words.points(deduction.points)} point{'' if deduction.points == 1 else 's'} less: {why}"


def _make_note(part: ComponentGrade, grade: Grade) -> str:
    if part.passes_only_published:
        return (
            "The published cases pass, cases drawn for grading do not. Points are given for what holds on both: the "
            "formula has to work for inputs that it has not seen."
        )
    absent = (UNDEFINED.search(c.verdict.message) for c in grade.checks if c.verdict.component == part.component)
    if found := next(filter(None, absent), None):
        return f"There is no {found[1]} in submission.py{found[2] or ''}."
    published, drawn = part.shares.get("published", (0, 0)), part.shares.get("fresh", (0, 0))
    if 0 < published[1] == published[0] and drawn[0] < drawn[1]:
        failing = drawn[1] - drawn[0]
        does = "do" if failing > 1 else "does"
        return f"The published cases pass; {failing} of {drawn[1]} cases drawn for grading {does} not."
    return ""


def _list_remarks(grade: Grade, assignment: Assignment, spec: Spec) -> Iterator[StudentRemark]:
    if not assignment.feedback.diagnosis:
        return
    fresh = {check.verdict.check for check in grade.checks if check.origin == "fresh"}
    for line in grade.said:
        if line.label in (*_NAMING, *ADAPTER_LABELS) or any(id_ in line.text for id_ in fresh):
            continue
        text = drop_declaration(line.text)
        text = text if assignment.feedback.first_wrong else text.partition("; the first wrong output")[0]
        known = tuple(spec.mistakes[id_] for id_ in line.mistakes if id_ in spec.mistakes)
        yield StudentRemark(line.label, text, line.inner, line.mistakes, known)


def _add_first_seen(remarks: list[StudentRemark], failures: _FailedChecks) -> Iterator[StudentRemark]:
    """Add the first failure that may be shown to each component to fix for which no mistake is named."""
    for place, remark in enumerate(remarks):
        yield remark
        below = takewhile(lambda other: other.inner, remarks[place + 1 :])
        if remark.label == FIX_FIRST and not any(o.known or o.label in CERTAIN_LABELS for o in below):
            for failure in failures.describe(remark.text)[:1]:
                yield StudentRemark("First seen", failure.check, inner=True, quoted=failure.said)


def _list_findings(remarks: Sequence[StudentRemark]) -> Iterator[StudentFinding]:
    """Yield for each component to fix first its mistake and what to do; the first sentence if no mistake is certain."""
    component = ""
    for place, remark in enumerate(remarks):
        if not remark.inner:
            component = remark.text if remark.label == FIX_FIRST else ""
            continue
        if not component:
            continue
        below = takewhile(lambda other: other.inner, remarks[place + 1 :])
        code = tuple(other for other in below if other.is_code)
        certain = remark.label in CERTAIN_LABELS
        if certain and remark.known:
            text = " ".join(f"{_capitalize(mistake.title)}. {mistake.hint}" for mistake in remark.known)
        else:
            text = f"{remark.label}: {remark.text}"
        yield StudentFinding(component, text, certain, remark.quoted, code)
        component = ""


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]


def _make_command(grade: Grade, assignment: Assignment, failures: _FailedChecks, spec: Spec) -> str:
    """Return the command that repeats a failing check at home: a published one of the most basic component."""
    components = [name for name in spec.components if name in {check.verdict.component for check in grade.checks}]
    public = [check for name in components for check in failures.list_public(name)]
    # At home every output but the first is optional: the check of a missing one would pass.
    known = [check for check in public if check.verdict.reason != WITHHELD]
    if not assignment.feedback.reproduction or not known:
        return ""
    verdict = min(known, key=lambda check: check.origin != "published").verdict
    chosen = ["--case", verdict.check]
    if verdict.kind == "property":
        chosen = ["--property", verdict.check, "--component", verdict.component]
    return shlex.join(["goldformer", "check", assignment.adapter.name, *chosen, "--dtype", verdict.dtype])

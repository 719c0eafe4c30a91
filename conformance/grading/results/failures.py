"""What fails, as a student is told it.

Nothing is told of a case that was drawn for grading but that it passes or fails, and which output goes wrong first.
What submitted code says itself (messages, numbers, standard error) is told only as long as it has not seen such a
case, since it could say what it was given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from goldformer.conformance.grading.model import Assignment, Check, Grade
from goldformer.conformance.grading.results import words
from goldformer.conformance.judging.verdict import Difference, Verdict
from goldformer.conformance.reports.pictures import HeatMap, compare_values, name_window
from goldformer.conformance.reports.text import difference_lines
from goldformer.spec import Spec

#: How much of standard error is shown.
_STDERR: Final = 15


@dataclass(frozen=True, slots=True)
class Failure:
    """A check that fails, published or a property, in the dtypes in which it does.

    `windows` are parts of its wrong outputs, to be drawn; `alike` counts other checks of the component that fail with
    the same words.
    """

    check: str
    title: str
    dtypes: tuple[str, ...]
    said: str
    numbers: tuple[str, ...]
    stderr: str
    windows: tuple[tuple[str, tuple[HeatMap, ...]], ...]
    alike: int = 0


class Failures:
    """The failing checks of a grade, told as the assignment allows."""

    def __init__(self, grade: Grade, assignment: Assignment, spec: Spec) -> None:
        self._checks = grade.checks
        self._feedback = assignment.feedback
        self._spec = spec
        places = [place for place, check in enumerate(grade.checks) if check.origin == "fresh"]
        until = places[0] if places else len(grade.checks)
        self._before = {id(check) for check in grade.checks[:until]}

    def open_ones(self, component: str) -> list[Check]:
        """The failing checks of a component that are no secret, the earliest in the flow of data first."""
        bad = [check for check in self._bad(component) if check.origin != "fresh"]
        return sorted(bad, key=self._place) if self._feedback.first_wrong else bad

    def _bad(self, component: str) -> list[Check]:
        mine = (check for check in self._checks if check.verdict.component == component)
        return [check for check in mine if check.shown]

    def _place(self, check: Check) -> int:
        """How early in the flow of data the first wrong output is; what is no output comes last."""
        flow = self._spec.contracts[check.verdict.component].flow
        outputs = [difference.output for difference in check.verdict.differences[:1]]
        return flow.index(outputs[0]) if outputs and outputs[0] in flow else len(flow)

    def of(self, component: str) -> tuple[Failure, ...]:
        """Those that are no secret, by check; those that fail with the same words stand for one another."""
        bad: dict[str, list[Check]] = {}
        for check in self.open_ones(component):
            bad.setdefault(check.verdict.check, []).append(check)
        alike: dict[str, list[Failure]] = {}
        for listed in bad.values():
            failure = self._failure(listed)
            alike.setdefault(failure.said, []).append(failure)
        return tuple(replace(first, alike=len(others)) for first, *others in alike.values())

    def first_wrong(self, component: str) -> str:
        """Which output goes wrong first in the flow of data, in a published case if there is one."""
        wrong = [check for check in self._bad(component) if check.verdict.differences]
        if not wrong or not self._feedback.first_wrong:
            return ""
        check = min(wrong, key=lambda check: (check.origin == "fresh", self._place(check)))
        difference = check.verdict.differences[0]
        if check.origin == "fresh":
            return f"The first output that is wrong is {difference.output}, in {words.DRAWN}."
        at = f", the first at {list(difference.first.index)}" if difference.first and difference.first.index else ""
        return (
            f"The first output that is wrong is {difference.output}, in {check.verdict.check}: {_many(difference)}{at}."
        )

    def _failure(self, checks: list[Check]) -> Failure:
        check = checks[0]
        verdict = check.verdict
        # The code may repeat what it was given before.
        speaks = id(check) in self._before
        shows = speaks and self._feedback.expected
        visible = self._visible(verdict)
        lines = [line for difference in visible for line in difference_lines(difference)]
        windows = tuple((name_window(d.output, d.grid), compare_values(d)) for d in visible if d.grid)
        return Failure(
            check=verdict.check,
            title=verdict.title,
            dtypes=tuple(dict.fromkeys(check.verdict.dtype for check in checks)),
            said=self._said(check, speaks=speaks),
            numbers=tuple(lines) if shows else (),
            stderr=words.tail(verdict.detail, _STDERR) if speaks and self._feedback.stderr and _ended(verdict) else "",
            windows=windows if shows else (),
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

"""Show the staff one submission: every bad check, including fresh cases, and how it ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from goldformer.adapters.process.faults import printable
from goldformer.conformance.grading.model import Assignment, Check, Grade, Origin, Outcome
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.gradebook import find_outcome
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.page import render
from goldformer.conformance.reports.text import difference_lines, facts, headline
from goldformer.spec import Spec

#: The file name of the transcript, next to the pages.
TRANSCRIPT: Final = "transcript.jsonl.gz"

#: The numbers of lines of standard error, and of bad checks of one origin of a component, that are shown in full.
_STDERR: Final = 40
_IN_FULL: Final = 40


@dataclass(frozen=True, slots=True)
class BadCheck:
    """A bad check with everything that is known about it."""

    origin: Origin
    outcome: Outcome
    verdict: Verdict
    numbers: str
    facts: tuple[tuple[str, str], ...]
    stderr: str


@dataclass(frozen=True, slots=True)
class ComponentDetails:
    """A component: its points, its shares by origin, the outcomes of its checks, and the bad ones."""

    component: str
    title: str
    earned: float
    points: float
    outcome: Outcome
    shares: dict[str, str]
    ended: str
    deductions: tuple[str, ...]
    bad: tuple[BadCheck, ...]
    more: tuple[str, ...]


def html(grade: Grade, assignment: Assignment, spec: Spec) -> str:
    """Return the staff's page of a submission, which no student may see: it shows the fresh cases."""
    return printable(
        render(
            "staff.html",
            grade=grade,
            assignment=assignment,
            sections=list(_list_components(grade, spec)),
            limits=_list_limits(assignment),
            transcript=TRANSCRIPT,
            words=words,
        )
    )


def _list_limits(assignment: Assignment) -> dict[str, str]:
    """Return the limits of a submission with their units."""
    units = {"call": "s", "start": "s", "total": "s", "cpu": "s", "processes": "", "files": ""}
    return {name: f"{value:g} {units.get(name, 'MiB')}".strip() for name, value in asdict(assignment.limits).items()}


def _list_components(grade: Grade, spec: Spec) -> Iterator[ComponentDetails]:
    for part in grade.parts:
        mine = [check for check in grade.checks if check.verdict.component == part.component]
        bad = [_describe_check(check, spec) for check in mine if check.outcome != "correct"]
        nth: Counter[Origin] = Counter()
        full = []
        for item in bad:
            nth[item.origin] += 1
            full.append((item, nth[item.origin] <= _IN_FULL))
        ended = Counter(check.outcome for check in mine if check.counts or check.outcome == "grader-error")
        yield ComponentDetails(
            component=part.component, title=spec.contracts[part.component].title,
            earned=part.earned, points=part.points, outcome=find_outcome(part.component, grade),
            shares={words.ORIGINS[o]: f"{passed} of {among}" for o, (passed, among) in part.shares.items()},
            ended=", ".join(f"{count} {words.BRIEF[outcome]}" for outcome, count in sorted(ended.items())),
            deductions=tuple(
                f"−{words.points(d.points)} for {d.mistake or d.reason}{': ' if d.note else ''}{d.note}"
                for d in part.deductions
            )
            + tuple(words.describe_carried(carried) for carried in part.carried),
            bad=tuple(item for item, in_full in full if in_full),
            more=tuple(headline(item.verdict) for item, in_full in full if not in_full),
        )  # fmt: skip


def _describe_check(check: Check, spec: Spec) -> BadCheck:
    verdict = check.verdict
    lines = [line for difference in verdict.differences for line in difference_lines(difference)]
    stderr = "" if verdict.detail.startswith("smallest input") else words.tail(verdict.detail, _STDERR)
    return BadCheck(check.origin, check.outcome, verdict, "\n".join(lines), tuple(facts(verdict, spec)), stderr)

"""What staff see of one submission: every check that is bad, those on drawn cases too, and how it was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from goldformer.adapters.process.faults import printable
from goldformer.conformance.grading.model import Assignment, Check, Grade, Origin, Outcome
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.summaries import outcome_of_part
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.page import render
from goldformer.conformance.reports.text import difference_lines, facts, headline
from goldformer.spec import Spec

#: What the transcript of a submission is called, beside its pages.
TRANSCRIPT: Final = "transcript.jsonl.gz"

#: How many lines of standard error, and how many bad checks of a kind of a component in full.
_STDERR: Final = 40
_IN_FULL: Final = 40


@dataclass(frozen=True, slots=True)
class Bad:
    """A bad check with all that is known of it."""

    origin: Origin
    outcome: Outcome
    verdict: Verdict
    numbers: str
    facts: tuple[tuple[str, str], ...]
    stderr: str


@dataclass(frozen=True, slots=True)
class Section:
    """A component: what it earned, its shares by origin, how its checks ended, and those that are bad."""

    component: str
    title: str
    earned: float
    points: float
    outcome: Outcome
    shares: dict[str, str]
    ended: str
    deductions: tuple[str, ...]
    bad: tuple[Bad, ...]
    more: tuple[str, ...]


def html(grade: Grade, assignment: Assignment, spec: Spec) -> str:
    """The staff's page of a submission, which no student may see: it shows the cases that were drawn."""
    return printable(
        render(
            "staff.html",
            grade=grade,
            assignment=assignment,
            sections=list(_sections(grade, spec)),
            limits=limits(assignment),
            transcript=TRANSCRIPT,
            words=words,
        )
    )


def limits(assignment: Assignment) -> dict[str, str]:
    """What a submission may use, with units."""
    units = {"call": "s", "start": "s", "total": "s", "cpu": "s", "processes": "", "files": ""}
    return {name: f"{value:g} {units.get(name, 'MiB')}".strip() for name, value in asdict(assignment.limits).items()}


def _sections(grade: Grade, spec: Spec) -> Iterator[Section]:
    for part in grade.parts:
        mine = [check for check in grade.checks if check.verdict.component == part.component]
        bad = [_bad(check, spec) for check in mine if check.outcome != "correct"]
        nth: Counter[Origin] = Counter()
        full = []
        for item in bad:
            nth[item.origin] += 1
            full.append((item, nth[item.origin] <= _IN_FULL))
        ended = Counter(check.outcome for check in mine if check.counts or check.outcome == "grader-error")
        yield Section(
            component=part.component, title=spec.contracts[part.component].title,
            earned=part.earned, points=part.points, outcome=outcome_of_part(part.component, grade),
            shares={words.ORIGINS[o]: f"{passed} of {among}" for o, (passed, among) in part.shares.items()},
            ended=", ".join(f"{count} {words.BRIEF[outcome]}" for outcome, count in sorted(ended.items())),
            deductions=tuple(
                f"−{words.points(d.points)} for {d.mistake or d.reason}{': ' if d.note else ''}{d.note}"
                for d in part.deductions
            ),
            bad=tuple(item for item, shown in full if shown),
            more=tuple(headline(item.verdict) for item, shown in full if not shown),
        )  # fmt: skip


def _bad(check: Check, spec: Spec) -> Bad:
    verdict = check.verdict
    lines = [line for difference in verdict.differences for line in difference_lines(difference)]
    stderr = "" if verdict.detail.startswith("smallest input") else words.tail(verdict.detail, _STDERR)
    return Bad(check.origin, check.outcome, verdict, "\n".join(lines), tuple(facts(verdict, spec)), stderr)

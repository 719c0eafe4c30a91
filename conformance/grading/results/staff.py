"""Show the staff one submission: every bad check, including fresh cases, and how it ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from goldformer.adapters.untrusted_text import printable
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.grading.model import Assignment, Check, ComponentGrade, Grade, Origin, Outcome
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.source import Snippet, SubmissionSource
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.fixes import put_fixes_first
from goldformer.conformance.reports.page import render
from goldformer.conformance.reports.text import format_difference, format_headline, list_facts
from goldformer.spec import Spec

#: The numbers of lines of standard error, and of bad checks of one origin of a component, that are shown in full.
_STDERR: Final = 40
_IN_FULL: Final = 40


@dataclass(frozen=True, slots=True)
class BadCheck:
    """A bad check with everything that is known about it, in the first of the dtypes in which it is bad.

    `alike` are the other checks of the same origin that fail with the same message.
    """

    dtypes: tuple[str, ...]
    origin: Origin
    outcome: Outcome
    verdict: Verdict
    numbers: str
    facts: tuple[tuple[str, str], ...]
    stderr: str
    alike: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ComponentDetails:
    """A component: its grade, its shares by origin, the outcomes of its checks, and the bad ones.

    `inherited` are checks that fail only because of a mistake in another component; `source` is what the adapter calls.
    """

    part: ComponentGrade
    title: str
    shares: dict[str, str]
    ended: str
    deductions: tuple[str, ...]
    bad: tuple[BadCheck, ...]
    more: tuple[str, ...]
    inherited: tuple[str, ...]
    source: tuple[Snippet, ...]


def html(grade: Grade, assignment: Assignment, spec: Spec, source: SubmissionSource | None = None) -> str:
    """Return the staff's page of a submission, which no student may see: it shows the fresh cases, and the source."""
    source = source or SubmissionSource({}, b"", grade)
    return printable(
        render(
            "staff.html",
            grade=grade,
            said=put_fixes_first(grade.said),
            assignment=assignment,
            sections=list(_list_components(grade, spec, source)),
            files=list(source.list_files()),
            limits=_list_limits(assignment),
            words=words,
        )
    )


def _list_limits(assignment: Assignment) -> dict[str, str]:
    """Return the limits of a submission with their units."""
    limits = assignment.limits.model_dump(exclude_none=True)
    units = {"call": "s", "start": "s", "total": "s", "wait": "s", "cpu": "s", "processes": "", "files": ""}
    return {name: f"{value:g} {units.get(name, 'MiB')}".strip() for name, value in limits.items()}


def _list_components(grade: Grade, spec: Spec, source: SubmissionSource) -> Iterator[ComponentDetails]:
    for part in grade.parts:
        mine = [check for check in grade.checks if check.verdict.component == part.component]
        failing: dict[str, list[Check]] = {}
        for check in mine:
            if check.outcome != "correct" and not check.inherited:
                failing.setdefault(check.verdict.check, []).append(check)
        bad = list(_group_alike(_describe_check(checks, spec) for checks in failing.values()))
        nth: Counter[Origin] = Counter()
        full = []
        for item in bad:
            nth[item.origin] += 1
            full.append((item, nth[item.origin] <= _IN_FULL))
        ended = Counter(check.outcome for check in mine if check.has_outcome)
        yield ComponentDetails(
            part=part, title=spec.contracts[part.component].title,
            shares={
                name: "{} of {}".format(*part.shares[origin])
                for origin, name in words.ORIGINS.items()
                if origin in part.shares
            },
            ended=", ".join(f"{count} {words.BRIEF[outcome]}" for outcome, count in sorted(ended.items())),
            deductions=tuple(
                f"−{words.points(d.points)} for {d.mistake or d.reason}{': ' if d.note else ''}{d.note}"
                for d in part.deductions
            )
            + tuple(words.describe_carried(carried) for carried in part.carried),
            bad=tuple(item for item, in_full in full if in_full),
            more=tuple(format_headline(item.verdict) for item, in_full in full if not in_full),
            inherited=tuple(format_headline(check.verdict) for check in mine if check.inherited),
            source=tuple(source.list_snippets(part.component)),
        )  # fmt: skip


def _group_alike(bad: Iterable[BadCheck]) -> Iterator[BadCheck]:
    groups: dict[tuple[Origin, Outcome, str], list[BadCheck]] = {}
    for item in bad:
        groups.setdefault((item.origin, item.outcome, item.verdict.message), []).append(item)
    for first, *others in groups.values():
        yield replace(first, alike=tuple(item.verdict.check for item in others))


def _describe_check(checks: Sequence[Check], spec: Spec) -> BadCheck:
    """Describe a bad check by the first dtype in which it is bad."""
    check, verdict = checks[0], checks[0].verdict
    dtypes = tuple(other.verdict.dtype for other in checks)
    lines = [line for difference in verdict.differences for line in format_difference(difference)]
    stderr = "" if verdict.detail.startswith("smallest input") else words.tail(verdict.detail, _STDERR)
    return BadCheck(
        dtypes,
        check.origin,
        check.outcome,
        verdict,
        "\n".join(lines),
        tuple(list_facts(Explained(verdict, check.diagnosis), spec)),
        stderr,
    )

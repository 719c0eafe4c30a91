"""The failing checks of a page: those of one cause together, the first one in full and the others in a list."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final

from goldformer.conformance.diagnosis.causes import Causes, find_cause
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.evidence import Evidence
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.pictures import HeatMap, compare_values, name_axes, name_window
from goldformer.conformance.reports.record import RunRecord
from goldformer.conformance.reports.text import format_difference, list_facts
from goldformer.spec import Spec

#: The number of checks of one cause that are listed.
_LISTED: Final = 50
#: The number of causes of a component whose first check has pictures, and of wrong outputs in each.
_PICTURED: Final = 5
_OUTPUTS: Final = 2

_NUMBERS: Final = re.compile(r"-?\d[\d.]*(e[+-]\d+)?")


@dataclass(frozen=True, slots=True)
class FailingCheck:
    """A failing check in full; `windows` are pictures of its first wrong outputs."""

    explained: Explained
    numbers: str
    facts: tuple[tuple[str, str], ...]
    windows: tuple[tuple[str, tuple[HeatMap, ...]], ...]


@dataclass(frozen=True, slots=True)
class FailuresOfCause:
    """The failing checks of one cause, with the id of its place on the page.

    `cause` is "" if no known mistake or option reproduces their output. `others` are listed after the `first` one;
    `clauses` are those of all checks, `more` are not listed.
    """

    id: str
    cause: str
    first: FailingCheck
    others: tuple[Verdict, ...]
    more: int
    clauses: frozenset[str]

    @property
    def count(self) -> int:
        """The number of checks that fail for this cause."""
        return 1 + len(self.others) + self.more


@dataclass(frozen=True, slots=True)
class ComponentFailures:
    """The failing checks of one component of an implementation by cause; `command` shows them all in full."""

    id: str
    component: str
    groups: tuple[FailuresOfCause, ...]
    command: str

    @property
    def count(self) -> int:
        """The number of its failing checks."""
        return sum(group.count for group in self.groups)


def list_failures(section: str, found: RunRecord, named: Collection[str], spec: Spec) -> list[ComponentFailures]:
    """Return the failing checks of an implementation by component; `named` are the causes that the diagnosis names."""
    listed = []
    for component in dict.fromkeys(v.component for v in found.bad):
        id_ = f"{section}-{component}"
        bad = [v for v in found.bad if v.component == component]
        groups = tuple(
            _describe_group(f"{id_}-{nth}", causes, [*map(found.run.explain, mine)], spec, drawn=nth <= _PICTURED)
            for nth, (causes, mine) in enumerate(group_by_cause(bad, found.run.evidence, named), 1)
        )
        command = shlex.join(["goldformer", "check", found.given, "--component", component, "--verbose"])
        listed.append(ComponentFailures(id_, component, groups, command))
    return listed


def group_by_cause(
    bad: Sequence[Verdict], evidence: Evidence, named: Collection[str]
) -> Iterator[tuple[Causes, list[Verdict]]]:
    """Yield the causes of failing checks of a component with the checks, the cause of most of them first.

    Where several causes fit, that of most checks counts, a named one before others. Checks whose output no known cause
    reproduces are together if they fail in the same way.
    """
    left = list(bad)
    while fitting := Counter(causes for v in left for causes in evidence.list_equal(v.key)):
        causes = max(fitting, key=lambda c: (fitting[c], named and not {*c}.isdisjoint(named), -len(c)))
        fits = [causes in evidence.list_equal(v.key) for v in left]
        yield causes, list(compress(left, fits))
        left = [v for v, fit in zip(left, fits, strict=True) if not fit]
    ways: dict[str, list[Verdict]] = {}
    for verdict in left:
        # All wrong values look different, and messages of one error differ in sizes.
        way = verdict.reason if verdict.differences else _NUMBERS.sub("", verdict.message)
        ways.setdefault(way, []).append(verdict)
    for verdicts in ways.values():
        yield (), verdicts


def _describe_group(
    id_: str, causes: Sequence[str], listed: Sequence[Explained], spec: Spec, *, drawn: bool
) -> FailuresOfCause:
    first, *others = listed
    return FailuresOfCause(
        id_,
        " and ".join(find_cause(cause, spec).title for cause in causes),
        _describe_failure(first, spec, with_pictures=drawn),
        tuple(verdict for verdict, _ in others[:_LISTED]),
        len(others[_LISTED:]),
        frozenset(clause for verdict, _ in listed for clause in verdict.clauses),
    )


def _describe_failure(explained: Explained, spec: Spec, *, with_pictures: bool) -> FailingCheck:
    verdict = explained.verdict
    lines = [line for difference in verdict.differences for line in format_difference(difference)]
    outputs = verdict.differences[:_OUTPUTS] if with_pictures else ()
    windows = tuple(
        (
            name_window(difference.output, difference.grid),
            compare_values(difference, name_axes(verdict.component, difference.output, spec)),
        )
        for difference in outputs
    )
    return FailingCheck(
        explained, "\n".join(lines), tuple(list_facts(explained, spec)), tuple(w for w in windows if w[1])
    )

"""Verdicts as plain text, for pytest and the command line."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from goldformer.adapters.protocol import TO_BE_WRITTEN
from goldformer.conformance.diagnosis.causes import find_cause
from goldformer.conformance.diagnosis.findings import Finding, describe_distance, diagnose
from goldformer.conformance.diagnosis.suspects import find_failing_roots
from goldformer.conformance.judging.verdict import ERRORS, UNANSWERED, Difference, Element, Reason, Status, Verdict
from goldformer.spec import Spec

_WIDTH = 100
_MOST_STDERR = 10
_MOST_MATCHES = 3

#: The clause that a result breaks, whatever the case is about, by the reason of a verdict.
_BROKEN: Final[Mapping[Reason, str]] = {
    "wrong-shape": "CALL-1",
    "wrong-dtype": "CALL-1",
    "not-an-array": "CALL-1",
    "nothing-returned": "CALL-1",
    "mutated-input": "CALL-2",
    "wrong-device": "CALL-3",
}


def explain_verdict(verdict: Verdict, spec: Spec) -> str:
    """Return what failed, the expected and actual values, the clause and its document, and the line that repeats it."""
    lines = [
        f"{verdict.status.value.upper()}  {verdict.check}  ({verdict.component}, {verdict.dtype} on {verdict.device})",
        f"  {verdict.title}",
        *wrap(verdict.message, "  → "),
    ]
    for difference in verdict.differences:
        lines += [f"  {line}" for line in difference_lines(difference)]
    for label, text in facts(verdict, spec):
        lines += wrap(text, f"  {label:12}")
    if verdict.detail and (verdict.is_fault or verdict.reason in UNANSWERED):
        last = verdict.detail.splitlines()[-_MOST_STDERR:]
        label = "Traceback" if verdict.is_fault else "Stderr"
        lines += [f"  {head:12}{line}" for head, line in zip((label, *[""] * len(last)), last, strict=False)]
    # Not wrapped, so that it can be copied.
    lines.append(f"  Repeat      {verdict.reproduce}")
    if verdict.example:
        lines.append("  As a case   keep it in a file, which goldformer check reads with --cases FILE:")
        lines += verdict.example.splitlines()
    return "\n".join(lines)


def facts(verdict: Verdict, spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield what is known of a bad verdict beyond its numbers, each with a label."""
    for match in (verdict.matches or ())[:_MOST_MATCHES]:
        titles = " and ".join(find_cause(id_, spec).title for id_ in match.causes)
        yield "Equals", f"{titles}, {describe_distance(match.ratio)}"
    if verdict.advice:
        yield "Convention", verdict.advice
    for id_ in list_broken_clauses(verdict):
        clause = spec.clauses[id_]
        yield "Clause", f"{id_} {clause.level.value}: {clause.title}"
    if verdict.kind == "case":
        yield "Source", verdict.source
    if verdict.detail.startswith("smallest input"):
        yield "Input", verdict.detail


def list_broken_clauses(verdict: Verdict) -> tuple[str, ...]:
    """Return the clauses that a failure breaks: all of its check's if values are wrong, none if there is no result."""
    if verdict.reason in ERRORS:
        return ()
    broken = _BROKEN.get(verdict.reason)
    return (broken,) if broken else verdict.clauses


def number(margin: float) -> str:
    """Return an error ÷ tolerance in few characters."""
    return "∞" if math.isinf(margin) else f"{margin:.3g}"


def headline(verdict: Verdict) -> str:
    """Return a bad verdict in one line."""
    return f"{verdict.status.value.upper()}  {verdict.check} ({verdict.dtype}): {verdict.message}"


def wrap(text: str, head: str) -> list[str]:
    """Return a text as lines; the first one begins with `head`."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def difference_lines(difference: Difference) -> list[str]:
    """Return how much of an output is wrong, and its first and its worst element."""
    bound = f"tolerance {difference.tolerance:.3g}" if difference.tolerance else "must be exact"
    if difference.worst is not None and not difference.worst.index:
        return [f"{difference.output}: {_element(difference.worst, difference.tolerance)} ({bound})"]
    lines = [f"{difference.output}: {difference.wrong} of {difference.compared} wrong ({bound})"]
    places = [("first", difference.first)]
    if difference.worst != difference.first:
        places.append(("worst", difference.worst))
    for word, element in places:
        if element is not None:
            lines.append(f"  {word} at {list(element.index)}: {_element(element, difference.tolerance)}")
    return lines


def _element(element: Element, tolerance: float) -> str:
    if isinstance(element.expected, bool):
        return f"expected {element.expected}, actual {element.got}"
    text = f"expected {element.expected:.9g}, actual {element.got:.9g}"
    error = abs(element.got - element.expected)
    return text + (f", error ÷ tolerance {error / tolerance:.3g}" if tolerance and error < float("inf") else "")


@dataclass(frozen=True, slots=True)
class ComponentRow:
    """One line of the summary; `skipped` counts the checks that were not judged although the component is there."""

    component: str
    passed: int
    failed: int
    absent: int
    skipped: int
    worst: float | None
    state: str

    @property
    def stands_on(self) -> str:
        """The number of the component's checks that were judged, in words; "" if all were or none."""
        judged = self.passed + self.failed
        return stands_on(judged, judged + self.absent + self.skipped)


def stands_on(judged: int, checks: int) -> str:
    """Return how many checks a verdict stands on, "" if it stands on all of them or on none."""
    return f"{judged} of {checks} checks apply" if 0 < judged < checks else ""


def summary(verdicts: Sequence[Verdict], spec: Spec, implemented: Collection[str]) -> list[ComponentRow]:
    """Return a row for each component that was run, roots of the dependency order first.

    `implemented` are the components that the adapter has.
    """
    roots, followers = find_failing_roots(verdicts, spec)
    rows = []
    for component in spec.components:
        mine = [v for v in verdicts if v.component == component]
        if not mine:
            continue
        passed, failed = sum(v.status is Status.PASSED for v in mine), sum(v.bad for v in mine)
        absent = sum(v.reason == "not-implemented" and v.status is Status.SKIPPED for v in mine)
        ratios = [v.ratio for v in mine if v.ratio is not None]
        state = "fails first" if component in roots else "fails" if component in followers else ""
        state = state or ("conforms" if passed else _explain_no_verdict(mine, implemented=component in implemented))
        skipped = len(mine) - passed - failed - absent
        rows.append(ComponentRow(component, passed, failed, absent, skipped, max(ratios, default=None), state))
    return rows


def _explain_no_verdict(verdicts: Sequence[Verdict], *, implemented: bool) -> str:
    """Return the state of a component of which no check was judged."""
    if any(v.is_fault for v in verdicts):
        return "fault in goldformer"
    if not implemented or any(v.message.endswith(TO_BE_WRITTEN) for v in verdicts):
        return "not implemented"
    # If the dtype or the device is missing, nothing was asked of it.
    asked = any(v.reason not in ("dtype", "device") for v in verdicts)
    return "nothing to judge" if asked else "not checked"


HEADINGS = ("component", "passed", "failed", "not impl.", "skipped", "error÷tol.", "")


def cells(row: ComponentRow) -> tuple[str, ...]:
    """Return a row's texts under HEADINGS."""
    worst = "–" if row.worst is None else f"{row.worst:.3g}"
    counts = (str(n) if n else "·" for n in (row.passed, row.failed, row.absent, row.skipped))
    stands_on = f" ({row.stands_on})" if row.state == "conforms" and row.stands_on else ""
    return (row.component, *counts, worst, row.state + stands_on)


def table(rows: Sequence[ComponentRow]) -> str:
    """Return the summary as aligned columns."""
    lines = [HEADINGS, *(cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i in (0, 6) else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def closing(verdicts: Sequence[Verdict], spec: Spec) -> list[str]:
    """Return the diagnosis in lines."""
    return format_remarks(diagnose(verdicts, spec))


def format_remarks(remarks: Iterable[Finding]) -> list[str]:
    """Return remarks in lines; what is said of a component is indented below it."""
    return [line for r in remarks for line in wrap(r.text, f"{'  ' if r.inner else ''}{r.label}: ")]


def nothing_was_checked(verdicts: Iterable[Verdict]) -> bool:
    """Return True if every check was skipped, so that a green run would mean nothing."""
    return all(v.status is Status.SKIPPED for v in verdicts)

"""A person's first look at a run: the verdict, what to fix, one failure in full, and the other remarks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.diagnosis.suspects import ACCEPTED
from goldformer.conformance.reports.comparison import Implementation
from goldformer.conformance.reports.remarks import NOTES
from goldformer.conformance.reports.text import (
    describe_rest,
    explain_verdict,
    format_remarks,
    format_table,
    select_rows,
)
from goldformer.spec import Spec
from goldformer.spec.edition import read_edition


@dataclass(frozen=True, slots=True)
class Line:
    """A line, or several, with the style that a terminal shows them in."""

    text: str
    style: str | None = None


def summarise(
    implementation: Implementation,
    spec: Spec,
    *,
    brief: bool = False,
    more: str = "-v",
    each: str = "-v explains each",
) -> Iterator[Line]:
    """Yield the verdict first; if it is to be `brief`, no failure is shown.

    `more` is what shows the reader the whole remarks, and `each` says what shows the failures.
    """
    yield from list_verdict(implementation, spec)
    remarks = implementation.remarks(spec, more=more)
    yield from list_remarks(remark for remark in remarks if remark.label not in NOTES)
    failing = [verdict for verdict in implementation.verdicts if verdict.bad or verdict.is_fault]
    if failing and not brief:
        # Prefer a check that isolates a mistake: its wrong call is the smallest. An accepted bad call helps least.
        shown = min(failing, key=lambda verdict: (not verdict.isolated, verdict.reason == ACCEPTED))
        yield Line(f"\n{explain_verdict(shown, spec)}\n")
        yield from map(Line, describe_rest([verdict for verdict in failing if verdict is not shown], shown, each))
    yield from list_remarks(remark for remark in remarks if remark.label in NOTES)
    yield from list_declarations(implementation)
    if implementation.verdicts:
        yield make_edition_line(spec)


def explain_all(implementation: Implementation, spec: Spec) -> Iterator[Line]:
    """Yield every failure in full, also what is tolerated, and the verdict last."""
    for verdict in implementation.verdicts:
        if verdict.bad or verdict.is_fault or verdict.is_tolerated:
            yield Line(f"{explain_verdict(verdict, spec)}\n")
    yield from list_verdict(implementation, spec)
    yield from list_remarks(implementation.remarks(spec, whole=True))
    yield from list_declarations(implementation)
    if implementation.verdicts:
        yield make_edition_line(spec)


def list_verdict(implementation: Implementation, spec: Spec) -> Iterator[Line]:
    """Yield the title, and a row for each component that there is."""
    rows = select_rows(implementation.results(spec).values())
    yield Line(implementation.title, "bold")
    if rows:
        heading, *lines = format_table(rows).splitlines()
        yield Line(heading, "bold")
        yield from (Line(line, "red" if row.counts.bad else None) for row, line in zip(rows, lines, strict=True))


def list_remarks(remarks: Iterable[Finding]) -> Iterator[Line]:
    """Yield the remarks below the table of a run."""
    yield from map(Line, format_remarks(remarks))


def make_edition_line(spec: Spec) -> Line:
    """Return the line that names the edition, the version and the digest of the spec, as a claim does."""
    return Line(f"Spec: {read_edition(spec.root)}", "dim")


def list_declarations(implementation: Implementation) -> Iterator[Line]:
    """Yield what an adapter declares, and what may be wrong with its declarations."""
    for name, option in implementation.conventions.items():
        yield Line(f"Convention declared: {name}: {option}", "dim")
    for hint in implementation.hints:
        yield Line(f"Note: {hint}")

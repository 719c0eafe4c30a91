"""A comparison as one HTML page that loads nothing from the network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.comparison import Comparison
from goldformer.conformance.reports.failing_checks import ComponentFailures, list_failures
from goldformer.conformance.reports.fixes import ShownFinding, show_fixes_first
from goldformer.conformance.reports.markdown import SYMBOLS, describe_outcome, list_reasons
from goldformer.conformance.reports.page import TableCell, render
from goldformer.conformance.reports.pictures import HeatMap, Strip, draw_picture, make_strips
from goldformer.conformance.reports.record import RunRecord
from goldformer.conformance.reports.remarks import NOTES, TOO_FEW
from goldformer.conformance.reports.results import NOT_IMPLEMENTED, PARTIAL, ComponentResult, Counts
from goldformer.conformance.reports.text import format_ratio
from goldformer.spec import Clause, Spec
from goldformer.spec.tables import Document

#: The reasons of skipped checks that say something about the implementation, not about the run.
_OWN: Final = frozenset({"not-implemented", "convention"})


@dataclass(frozen=True, slots=True)
class ImplementationPart:
    """The part of the page about one implementation: its `notes` say nothing of why checks fail."""

    id: str
    name: str
    found: RunRecord
    outcome: str
    findings: tuple[ShownFinding, ...]
    notes: tuple[Finding, ...]
    by_dtype: tuple[tuple[str, tuple[TableCell, ...], str], ...]
    parts: tuple[ComponentFailures, ...]
    tolerated: tuple[Verdict, ...]
    strips: tuple[Strip, ...]
    pictures: tuple[HeatMap, ...]

    @property
    def symbol(self) -> str:
        """The symbol before its name."""
        return SYMBOLS[self.found.outcome]

    def place_of(self, clause: str) -> str:
        """Return the id of the first failing checks that are about a clause, or of the section."""
        groups = [group for part in self.parts for group in part.groups]
        return next((group.id for group in groups if clause in group.clauses), self.id)


def page(comparison: Comparison, spec: Spec) -> str:
    """Return the whole page."""
    pairs = zip(comparison.names, comparison.records, strict=True)
    dtypes = comparison.request.dtypes
    sections = [_make_section(f"i{nth}", name, found, dtypes, spec) for nth, (name, found) in enumerate(pairs, 1)]
    return render(
        "comparison.html",
        sections=sections,
        components=list(_list_components(comparison, sections, spec)),
        clauses=list(_list_clauses(comparison, sections, spec)),
        documents=list(_list_documents(sections, spec)),
        request=comparison.request,
        too_few=TOO_FEW,
        environment=comparison.environment(spec),
    )


# ── the tables ──


def _list_components(
    comparison: Comparison, sections: Iterable[ImplementationPart], spec: Spec
) -> Iterator[tuple[str, str, list[TableCell]]]:
    """Yield a row for each component: its name, its title, and a cell for each implementation."""
    listed = [*sections]
    for name in comparison.components(spec):
        row = [_make_component_cell(section, section.found.results.get(name)) for section in listed]
        yield name, spec.contracts[name].title, row


def _make_component_cell(section: ImplementationPart, cell: ComponentResult | None) -> TableCell:
    if cell is None:
        return TableCell("–")
    counts = cell.counts
    if not counts.number_judged and cell.state != PARTIAL:
        return TableCell(f"– {cell.state}", () if cell.state == NOT_IMPLEMENTED else _describe_notes(cell))
    notes = [f"{counts.passed} of {counts.number_judged}"]
    notes += [f"error {format_ratio(counts.worst_ratio)}"] if counts.worst_ratio is not None else []
    notes += _describe_notes(cell, _OWN)
    target = next((part.id for part in section.parts if part.component == cell.component), "")
    return TableCell(f"{SYMBOLS[cell.state]} {cell.state}", tuple(notes), target, _name_kind(cell))


def _name_kind(result: ComponentResult) -> str:
    """Return the CSS class of the cell of a component."""
    return PARTIAL if result.state == PARTIAL else "fails" if result.counts.bad else "holds"


def _describe_notes(result: ComponentResult, among: Collection[str] | None = None) -> tuple[str, ...]:
    """Return how many cases were judged, how many bad inputs are refused, and why checks were skipped."""
    counts = result.counts
    refuses = f"refuses {counts.refused} of {counts.refusals}" if counts.refusals else ""
    return tuple(filter(None, (result.stands_on, refuses, list_reasons(counts, among))))


def _list_clauses(
    comparison: Comparison, sections: Iterable[ImplementationPart], spec: Spec
) -> Iterator[tuple[Clause, bool, list[TableCell]]]:
    """Yield a row for each clause: the clause, True if something fails it, and a cell for each implementation."""
    listed = [*sections]
    for id_ in comparison.clauses(spec):
        row = [_make_cell(section.found.clauses.get(id_), section.place_of(id_)) for section in listed]
        yield spec.clauses[id_], any(cell.kind == "fails" for cell in row), row


def _list_documents(sections: Iterable[ImplementationPart], spec: Spec) -> Iterator[tuple[Document, list[TableCell]]]:
    """Yield a row for each document that cases come from."""
    tallies = [section.found.documents for section in sections]
    for id_, document in spec.documents.items():
        row = [_make_cell(mine.get(id_), "") for mine in tallies]
        if any(cell.kind != "none" for cell in row):
            yield document, row


def _make_cell(counts: Counts | None, target: str = "", *, with_error: bool = False) -> TableCell:
    """Return a cell with the number of checks that pass; if some fail, it links to `target`."""
    if counts is None or not counts.number_judged:
        return TableCell("–")
    notes = (f"error {format_ratio(counts.worst_ratio)}",) if with_error and counts.worst_ratio is not None else ()
    text = f"{counts.passed} of {counts.number_judged}"
    if counts.bad:
        return TableCell(f"✗ {text}", notes, target, "fails")
    return TableCell(f"✓ {text}", notes, "", "holds")


# ── one implementation ──


def _make_section(id_: str, name: str, found: RunRecord, dtypes: Sequence[str], spec: Spec) -> ImplementationPart:
    rows = tuple(
        (
            component,
            tuple(_make_cell(result.dtypes.get(dtype), with_error=True) for dtype in dtypes),
            list_reasons(result.counts),
        )
        for component, result in found.results.items()
        if result.counts.number_judged
    )
    findings = [r for r in found.findings if r.label not in NOTES or r.label == TOO_FEW]
    named = {id_ for finding in findings for id_ in finding.mistakes}
    return ImplementationPart(
        id_,
        name,
        found,
        describe_outcome(found),
        tuple(show_fixes_first(findings, spec)),
        tuple(remark for remark in found.findings if remark not in findings),
        rows,
        tuple(list_failures(id_, found, named, spec)),
        tuple(v for v in found.verdicts if v.is_tolerated),
        tuple(make_strips(found.verdicts, spec.components)),
        tuple(map(draw_picture, found.pictures)),
    )

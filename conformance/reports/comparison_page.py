"""A comparison as one HTML page that loads nothing from the network."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.comparison import Comparison, Implementation, describe_system
from goldformer.conformance.reports.comparison_data import (
    SYMBOLS,
    collect_libraries,
    describe_outcome,
    list_reasons,
)
from goldformer.conformance.reports.page import TableCell, render
from goldformer.conformance.reports.pictures import (
    HeatMap,
    Strip,
    compare_values,
    draw_picture,
    make_strips,
    name_axes,
    name_window,
)
from goldformer.conformance.reports.remarks import NOTES
from goldformer.conformance.reports.results import NOT_IMPLEMENTED, PARTIAL, ComponentResult, Counts
from goldformer.conformance.reports.text import format_difference, format_ratio, list_facts
from goldformer.spec import Clause, Spec
from goldformer.spec.tables import Document

#: The number of failing checks of a component that are shown in full.
_SHOWN: Final = 50
#: The number of them that have pictures, and of wrong outputs in each.
_PICTURED: Final = 5
_OUTPUTS: Final = 2

#: The reasons of skipped checks that say something about the implementation, not about the run.
_OWN: Final = frozenset({"not-implemented", "convention"})


@dataclass(frozen=True, slots=True)
class FailingCheck:
    """A failing check with the id of its place on the page; `windows` are pictures of its first wrong outputs."""

    id: str
    verdict: Verdict
    numbers: str
    facts: tuple[tuple[str, str], ...]
    windows: tuple[tuple[str, tuple[HeatMap, ...]], ...]


@dataclass(frozen=True, slots=True)
class ComponentFailures:
    """The failing checks of one component of an implementation; `more` are left out, which a command shows."""

    id: str
    component: str
    failures: tuple[FailingCheck, ...]
    more: int
    command: str


@dataclass(frozen=True, slots=True)
class ImplementationPart:
    """The part of the page about one implementation."""

    id: str
    name: str
    found: Implementation
    outcome: str
    remarks: tuple[Finding, ...]
    by_dtype: tuple[tuple[str, tuple[TableCell, ...], str], ...]
    parts: tuple[ComponentFailures, ...]
    tolerated: tuple[Verdict, ...]
    unseen: tuple[tuple[str, tuple[str, ...]], ...]
    strips: tuple[Strip, ...]
    pictures: tuple[HeatMap, ...]

    @property
    def symbol(self) -> str:
        """The symbol before its name."""
        return SYMBOLS[self.found.outcome]

    def place_of(self, clause: str) -> str:
        """Return the id of the first failing check that is about a clause, or of the section."""
        listed = [failure for part in self.parts for failure in part.failures]
        return next((f.id for f in listed if clause in f.verdict.clauses), self.id)


def page(comparison: Comparison, spec: Spec) -> str:
    """Return the whole page."""
    pairs = zip(comparison.names, comparison.implementations, strict=True)
    dtypes = comparison.request.dtypes
    sections = [_make_section(f"i{nth}", name, found, dtypes, spec) for nth, (name, found) in enumerate(pairs, 1)]
    return render(
        "comparison.html",
        sections=sections,
        components=list(_list_components(comparison, sections, spec)),
        clauses=list(_list_clauses(comparison, sections, spec)),
        documents=list(_list_documents(sections, spec)),
        request=comparison.request,
        notes=NOTES,
        environment=describe_system() | collect_libraries(comparison),
    )


# ── the tables ──


def _list_components(
    comparison: Comparison, sections: Iterable[ImplementationPart], spec: Spec
) -> Iterator[tuple[str, str, list[TableCell]]]:
    """Yield a row for each component: its name, its title, and a cell for each implementation."""
    cells = [(section, section.found.results(spec)) for section in sections]
    for name in comparison.components(spec):
        row = [_make_component_cell(section, mine.get(name)) for section, mine in cells]
        yield name, spec.contracts[name].title, row


def _make_component_cell(section: ImplementationPart, cell: ComponentResult | None) -> TableCell:
    if cell is None:
        return TableCell("–")
    counts = cell.counts
    if not counts.number_judged and cell.state != PARTIAL:
        return TableCell(f"– {cell.state}", () if cell.state == NOT_IMPLEMENTED else _describe_notes(cell))
    notes = [f"{counts.passed} of {counts.number_judged}"]
    notes += [f"error {format_ratio(counts.worst)}"] if counts.worst is not None else []
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
    tallies = [(section, section.found.clauses(spec)) for section in sections]
    for id_ in comparison.clauses(spec):
        row = [_make_cell(mine.get(id_), section.place_of(id_)) for section, mine in tallies]
        yield spec.clauses[id_], any(cell.kind == "fails" for cell in row), row


def _list_documents(sections: Iterable[ImplementationPart], spec: Spec) -> Iterator[tuple[Document, list[TableCell]]]:
    """Yield a row for each document that cases come from."""
    tallies = [section.found.documents(spec) for section in sections]
    for id_, document in spec.documents.items():
        row = [_make_cell(mine.get(id_), "") for mine in tallies]
        if any(cell.kind != "none" for cell in row):
            yield document, row


def _make_cell(counts: Counts | None, target: str = "", *, with_error: bool = False) -> TableCell:
    """Return a cell with the number of checks that pass; if some fail, it links to `target`."""
    if counts is None or not counts.number_judged:
        return TableCell("–")
    notes = (f"error {format_ratio(counts.worst)}",) if with_error and counts.worst is not None else ()
    text = f"{counts.passed} of {counts.number_judged}"
    if counts.bad:
        return TableCell(f"✗ {text}", notes, target, "fails")
    return TableCell(f"✓ {text}", notes, "", "holds")


# ── one implementation ──


def _make_section(id_: str, name: str, found: Implementation, dtypes: Sequence[str], spec: Spec) -> ImplementationPart:
    rows = tuple(
        (
            component,
            tuple(_make_cell(result.dtypes.get(dtype), with_error=True) for dtype in dtypes),
            list_reasons(result.counts),
        )
        for component, result in found.results(spec).items()
        if result.counts.number_judged
    )
    parts = tuple(
        _list_component_failures(id_, component, found, spec)
        for component in dict.fromkeys(v.component for v in found.bad)
    )
    remarks = tuple(found.remarks(spec))
    tolerated = tuple(v for v in found.verdicts if v.is_tolerated)
    unseen = tuple((name, r.coverage.unseen) for name, r in found.results(spec).items() if r.coverage.unseen)
    ratios = tuple(make_strips(found.verdicts, spec.components))
    return ImplementationPart(
        id_,
        name,
        found,
        describe_outcome(found, spec),
        remarks,
        rows,
        parts,
        tolerated,
        unseen,
        ratios,
        tuple(map(draw_picture, found.pictures)),
    )


def _list_component_failures(section: str, component: str, found: Implementation, spec: Spec) -> ComponentFailures:
    bad = [v for v in found.bad if v.component == component]
    id_ = f"{section}-{component}"
    shown = tuple(
        _describe_failure(f"{id_}-{nth}", verdict, spec, with_pictures=nth <= _PICTURED)
        for nth, verdict in enumerate(bad[:_SHOWN], 1)
    )
    command = shlex.join(["goldformer", "check", found.given, "--component", component, "--verbose"])
    return ComponentFailures(id_, component, shown, len(bad) - len(shown), command)


def _describe_failure(id_: str, verdict: Verdict, spec: Spec, *, with_pictures: bool) -> FailingCheck:
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
        id_, verdict, "\n".join(lines), tuple(list_facts(verdict, spec)), tuple(w for w in windows if w[1])
    )

"""A comparison as one page of HTML that asks nothing of the network."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.diagnosis.findings import Finding, diagnose
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.comparison import Cell, Comparison, Implementation, Tally, environment
from goldformer.conformance.reports.comparison_text import SYMBOLS, ends, libraries, reasons
from goldformer.conformance.reports.page import rendered
from goldformer.conformance.reports.pictures import Heat, Strip, drawn, heats, strips, where
from goldformer.conformance.reports.text import difference_lines, facts, number
from goldformer.spec import Clause, Spec
from goldformer.spec.tables import Document

#: So many failing checks of a component are shown in full.
_SHOWN: Final = 50
#: So many of them are drawn, and so many wrong outputs of each.
_PICTURED: Final = 5
_OUTPUTS: Final = 2

#: Why checks are skipped that says something of the implementation, and not of how it was run.
_OWN: Final = frozenset({"not-implemented", "convention"})


@dataclass(frozen=True, slots=True)
class Square:
    """A cell as it is drawn: what it says, what it adds to that, where it leads to, and its class."""

    said: str
    notes: tuple[str, ...] = ()
    target: str = ""
    kind: str = "none"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failing check as it is shown, with the id of its place; `windows` are drawn of its first wrong outputs."""

    id: str
    verdict: Verdict
    numbers: str
    facts: tuple[tuple[str, str], ...]
    windows: tuple[tuple[str, tuple[Heat, ...]], ...]


@dataclass(frozen=True, slots=True)
class Part:
    """What fails in one component of an implementation; `more` checks are left out, which a command shows."""

    id: str
    component: str
    failures: tuple[Failure, ...]
    more: int
    command: str


@dataclass(frozen=True, slots=True)
class Section:
    """One implementation: its row in the list, and what is told of it below."""

    id: str
    name: str
    found: Implementation
    ends: str
    remarks: tuple[Finding, ...]
    by_dtype: tuple[tuple[str, tuple[Square, ...], str], ...]
    parts: tuple[Part, ...]
    strips: tuple[Strip, ...]
    pictures: tuple[Heat, ...]

    @property
    def symbol(self) -> str:
        """What stands before its name."""
        return "!" if self.found.problem else SYMBOLS[self.found.outcome]

    def place_of(self, clause: str) -> str:
        """Where the first failing check that is about a clause is shown."""
        listed = [failure for part in self.parts for failure in part.failures]
        return next((f.id for f in listed if clause in f.verdict.clauses), self.id)


def page(comparison: Comparison, spec: Spec) -> str:
    """The whole page, as text."""
    pairs = zip(comparison.names, comparison.implementations, strict=True)
    dtypes = comparison.request.dtypes
    sections = [_section(f"i{nth}", name, found, dtypes, spec) for nth, (name, found) in enumerate(pairs, 1)]
    return rendered(
        "comparison.html",
        sections=sections,
        components=list(_components(comparison, sections, spec)),
        clauses=list(_clauses(comparison, sections, spec)),
        documents=list(_documents(sections, spec)),
        request=comparison.request,
        environment=environment() | libraries(comparison),
    )


# ── the tables ──


def _components(
    comparison: Comparison, sections: Iterable[Section], spec: Spec
) -> Iterator[tuple[str, str, list[Square]]]:
    """A row for each component: its name, its title, and a cell for each implementation."""
    cells = [(section, section.found.cells(spec)) for section in sections]
    for name in comparison.components(spec):
        row = [_component(section, mine.get(name)) for section, mine in cells]
        yield name, spec.contracts[name].title, row


def _component(section: Section, cell: Cell | None) -> Square:
    if cell is None:
        return Square("–")
    tally = cell.tally
    if not tally.judged:
        return Square(f"– {cell.state}", () if cell.state == "not implemented" else (reasons(tally),))
    notes = [f"{tally.passed} of {tally.judged}"]
    notes += [f"error {number(tally.worst)}"] if tally.worst is not None else []
    notes += [tally.stands_on] if tally.stands_on else []
    notes += [reasons(tally, _OWN)] if _OWN & tally.skipped.keys() else []
    target = next((part.id for part in section.parts if part.component == cell.component), "")
    return Square(f"{SYMBOLS[cell.state]} {cell.state}", tuple(notes), target, "fails" if tally.bad else "holds")


def _clauses(
    comparison: Comparison, sections: Iterable[Section], spec: Spec
) -> Iterator[tuple[Clause, bool, list[Square]]]:
    """A row for each clause: itself, whether some implementation fails it, and a cell for each implementation."""
    tallies = [(section, section.found.clauses(spec)) for section in sections]
    for id_ in comparison.clauses(spec):
        row = [_counted(mine.get(id_), section.place_of(id_)) for section, mine in tallies]
        yield spec.clauses[id_], any(square.kind == "fails" for square in row), row


def _documents(sections: Iterable[Section], spec: Spec) -> Iterator[tuple[Document, list[Square]]]:
    """A row for each document that cases come from."""
    tallies = [section.found.documents(spec) for section in sections]
    for id_, document in spec.documents.items():
        row = [_counted(mine.get(id_), "") for mine in tallies]
        if any(square.kind != "none" for square in row):
            yield document, row


def _counted(tally: Tally | None, target: str) -> Square:
    """How many of the checks of a tally pass; where some fail, it leads to a place."""
    if tally is None or not tally.judged:
        return Square("–")
    said = f"{tally.passed} of {tally.judged}"
    return Square(f"✗ {said}", (), target, "fails") if tally.bad else Square(f"✓ {said}", (), "", "holds")


# ── one implementation ──


def _section(id_: str, name: str, found: Implementation, dtypes: Sequence[str], spec: Spec) -> Section:
    rows = tuple(
        (component, tuple(_dtype(cell.dtypes.get(dtype)) for dtype in dtypes), reasons(cell.tally))
        for component, cell in found.cells(spec).items()
        if cell.tally.judged
    )
    parts = tuple(_part(id_, component, found, spec) for component in dict.fromkeys(v.component for v in found.bad))
    remarks = tuple(diagnose(found.verdicts, spec))
    ratios = tuple(strips(found.verdicts, spec.components))
    return Section(id_, name, found, ends(found, spec), remarks, rows, parts, ratios, tuple(map(drawn, found.pictures)))


def _dtype(tally: Tally | None) -> Square:
    if tally is None or not tally.judged:
        return Square("–")
    notes = (f"error {number(tally.worst)}",) if tally.worst is not None else ()
    said = f"{tally.passed} of {tally.judged}"
    return Square(f"✗ {said}", notes, "", "fails") if tally.bad else Square(f"✓ {said}", notes, "", "holds")


def _part(section: str, component: str, found: Implementation, spec: Spec) -> Part:
    bad = [v for v in found.bad if v.component == component]
    id_ = f"{section}-{component}"
    shown = tuple(
        _failure(f"{id_}-{nth}", verdict, spec, pictured=nth <= _PICTURED)
        for nth, verdict in enumerate(bad[:_SHOWN], 1)
    )
    command = shlex.join(["goldformer", "check", found.given, "--component", component, "--verbose"])
    return Part(id_, component, shown, len(bad) - len(shown), command)


def _failure(id_: str, verdict: Verdict, spec: Spec, *, pictured: bool) -> Failure:
    lines = [line for difference in verdict.differences for line in difference_lines(difference)]
    outputs = verdict.differences[:_OUTPUTS] if pictured else ()
    windows = tuple((where(difference.output, difference.grid), heats(difference)) for difference in outputs)
    return Failure(id_, verdict, "\n".join(lines), tuple(facts(verdict, spec)), tuple(w for w in windows if w[1]))

"""A comparison as one page of HTML that asks nothing of the network."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.comparison import Cell, Comparison, Implementation, Tally, environment
from goldformer.conformance.comparison_text import SYMBOLS, ends, libraries, reasons
from goldformer.conformance.page import rendered
from goldformer.conformance.text import Remark, diagnosis, difference_lines, facts, number
from goldformer.conformance.verdict import Verdict
from goldformer.spec import Clause, Spec

#: So many failing checks of a component are shown in full.
_SHOWN: Final = 50

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
    """A failing check as it is shown, with the id of its place."""

    id: str
    verdict: Verdict
    numbers: str
    facts: tuple[tuple[str, str], ...]


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
    remarks: tuple[Remark, ...]
    by_dtype: tuple[tuple[str, tuple[Square, ...], str], ...]
    parts: tuple[Part, ...]

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
    notes += [reasons(tally, _OWN)] if _OWN & tally.skipped.keys() else []
    target = next((part.id for part in section.parts if part.component == cell.component), "")
    return Square(f"{SYMBOLS[cell.state]} {cell.state}", tuple(notes), target, "fails" if tally.bad else "holds")


def _clauses(
    comparison: Comparison, sections: Iterable[Section], spec: Spec
) -> Iterator[tuple[Clause, bool, list[Square]]]:
    """A row for each clause: itself, whether some implementation fails it, and a cell for each implementation."""
    tallies = [(section, section.found.clauses(spec)) for section in sections]
    for id_ in comparison.clauses(spec):
        row = [_clause(section, id_, mine.get(id_)) for section, mine in tallies]
        yield spec.clauses[id_], any(square.kind == "fails" for square in row), row


def _clause(section: Section, clause: str, tally: Tally | None) -> Square:
    if tally is None or not tally.judged:
        return Square("–")
    said = f"{tally.passed} of {tally.judged}"
    if tally.bad:
        return Square(f"✗ {said}", (), section.place_of(clause), "fails")
    return Square(f"✓ {said}", (), "", "holds")


# ── one implementation ──


def _section(id_: str, name: str, found: Implementation, dtypes: Sequence[str], spec: Spec) -> Section:
    rows = tuple(
        (component, tuple(_dtype(cell.dtypes.get(dtype)) for dtype in dtypes), reasons(cell.tally))
        for component, cell in found.cells(spec).items()
        if cell.tally.judged
    )
    parts = tuple(_part(id_, component, found, spec) for component in dict.fromkeys(v.component for v in found.bad))
    remarks = tuple(diagnosis(found.verdicts, spec))
    return Section(id_, name, found, ends(found, spec), remarks, rows, parts)


def _dtype(tally: Tally | None) -> Square:
    if tally is None or not tally.judged:
        return Square("–")
    notes = (f"error {number(tally.worst)}",) if tally.worst is not None else ()
    said = f"{tally.passed} of {tally.judged}"
    return Square(f"✗ {said}", notes, "", "fails") if tally.bad else Square(f"✓ {said}", notes, "", "holds")


def _part(section: str, component: str, found: Implementation, spec: Spec) -> Part:
    bad = [v for v in found.bad if v.component == component]
    id_ = f"{section}-{component}"
    shown = tuple(_failure(f"{id_}-{nth}", verdict, spec) for nth, verdict in enumerate(bad[:_SHOWN], 1))
    command = shlex.join(["goldformer", "check", found.given, "--component", component, "--verbose"])
    return Part(id_, component, shown, len(bad) - len(shown), command)


def _failure(id_: str, verdict: Verdict, spec: Spec) -> Failure:
    lines = [line for difference in verdict.differences for line in difference_lines(difference)]
    return Failure(id_, verdict, "\n".join(lines), tuple(facts(verdict, spec)))

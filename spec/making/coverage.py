"""The coverage of clauses, rows of documents and errata by cases and properties."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from goldformer.spec.errors import Problem
from goldformer.spec.load import Spec
from goldformer.spec.model import Case
from goldformer.spec.strict import Location
from goldformer.spec.tables import Clause, DocumentRow, Erratum, Level, Property

#: Clauses that every case shows: the engine checks them on each call.
EVERY_CALL = frozenset({"CALL-1", "CALL-2", "CALL-3", "CALL-4"})


@dataclass(frozen=True, slots=True)
class Proofs:
    """The ids that show one thing: cases that ask for results, cases that ask for a refusal, and properties."""

    cases: tuple[str, ...]
    refusals: tuple[str, ...]
    properties: tuple[str, ...]

    @classmethod
    def of(cls, ids: Iterable[str], spec: Spec) -> Proofs:
        """Sort the ids that exist, each once and in order, by kind."""
        once = dict.fromkeys(ids)
        cases = [spec.cases[id_] for id_ in once if id_ in spec.cases]
        return cls(
            tuple(case.id for case in cases if case.error is None),
            tuple(case.id for case in cases if case.error is not None),
            tuple(id_ for id_ in once if id_ in spec.properties),
        )

    @property
    def ids(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.cases, *self.refusals, *self.properties)


@dataclass(frozen=True, slots=True)
class ClauseCoverage:
    """A clause, and what shows it."""

    clause: Clause
    proofs: Proofs

    def problems(self) -> Iterator[Problem]:
        """Yield a problem if the clause is a MUST without a proof, unless every call proves it."""
        clause = self.clause
        if not self.proofs.ids and clause.level is Level.MUST and clause.id not in EVERY_CALL:
            yield clause.place.problem(clause.id, "is a MUST that no case and no property shows")


@dataclass(frozen=True, slots=True)
class RowCoverage:
    """A row of a document (or a section of the paper), the clauses and errata that name it, and what shows it."""

    document: str
    row: DocumentRow
    clauses: tuple[str, ...]
    errata: tuple[str, ...]
    proofs: Proofs

    def problems(self) -> Iterator[Problem]:
        """Yield a problem if no case, property or proof of an erratum shows the row; a citation is not enough."""
        if self.proofs.ids:
            return
        cited = f"only {', '.join(self.clauses)}" if self.clauses else "nothing"
        message = f"is shown by no case, no property and no proof of an erratum; it is cited by {cited}"
        yield self.row.place.problem(f"{self.document} {self.row.id}", message)


@dataclass(frozen=True, slots=True)
class ErratumCoverage:
    """An erratum, and those of its proofs that exist."""

    erratum: Erratum
    proofs: Proofs
    #: True if a proof shows a clause that the erratum names.
    to_the_point: bool

    def problems(self) -> Iterator[Problem]:
        """Yield each proof that does not exist, and a problem if no other proof shows a clause of the erratum."""
        erratum = self.erratum
        for id_ in erratum.proof:
            if id_ not in self.proofs.ids:
                yield erratum.place.problem(erratum.id, f"is proven by {id_!r}, which is no case and no property")
        if self.proofs.ids and not self.to_the_point:
            message = f"its proofs ({', '.join(self.proofs.ids)}) show no clause of it"
            yield erratum.place.problem(erratum.id, f"{message} ({', '.join(erratum.clauses)})")


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage of each clause, row and erratum."""

    clauses: Mapping[str, ClauseCoverage]
    rows: tuple[RowCoverage, ...]
    errata: tuple[ErratumCoverage, ...]

    def problems(self) -> list[Problem]:
        """List the clauses, rows and errata that are not covered."""
        items: list[ClauseCoverage | RowCoverage | ErratumCoverage]
        items = [*self.clauses.values(), *self.rows, *self.errata]
        return [problem for item in items for problem in item.problems()]


def cover(spec: Spec) -> Coverage:
    """Return the coverage of each clause, row and erratum."""
    by_clause: dict[str, list[str]] = {id_: [] for id_ in spec.clauses}
    showing: list[Case | Property] = [*spec.cases.values(), *spec.properties.values()]
    for item in showing:
        for clause in item.clauses:
            by_clause[clause].append(item.id)
    clauses = {id_: ClauseCoverage(spec.clauses[id_], Proofs.of(shown, spec)) for id_, shown in by_clause.items()}
    rows = tuple(_cover_row(document, row, clauses, spec) for document, row in _list_rows(spec))
    return Coverage(clauses, rows, tuple(_cover_erratum(erratum, spec) for erratum in spec.errata.values()))


def _list_rows(spec: Spec) -> Iterator[tuple[str, DocumentRow]]:
    """Yield every row with its document; for a paper, the sections that are cited, in the paper's order."""
    citations = [(source, clause.place) for clause in spec.clauses.values() for source in clause.sources]
    citations += [(case.source, case.place) for case in spec.cases.values() if case.source is not None]
    for document in spec.documents.values():
        yield from ((document.id, row) for row in document.rows)
        known = {row.id for row in document.rows}
        sections: dict[str, Location] = {}
        for source, place in citations:
            for section in source.rows if source.document == document.id else ():
                sections.setdefault(section, place)
        for section in sorted(sections.keys() - known, key=_section_order):
            row = DocumentRow.model_construct(id=section, section=section, says="")
            row.set_place(sections[section])
            yield document.id, row


def _section_order(section: str) -> tuple[tuple[int, str], ...]:
    return tuple((int(part) if part.isdecimal() else 0, part) for part in section.split("."))


def _cover_row(document: str, row: DocumentRow, clauses: Mapping[str, ClauseCoverage], spec: Spec) -> RowCoverage:
    citing = [
        covered
        for covered in clauses.values()
        if any(source.document == document and row.id in source.rows for source in covered.clause.sources)
    ]
    errata = [e for e in spec.errata.values() if e.document == document and row.id in e.rows]
    # Cases whose own source is the row come first: they show it best.
    ids = [case.id for case in spec.cases.values() if cites_row(case, document, row)]
    ids += [id_ for covered in citing for id_ in covered.proofs.ids]
    ids += [id_ for erratum in errata for id_ in erratum.proof]
    return RowCoverage(
        document, row, tuple(c.clause.id for c in citing), tuple(e.id for e in errata), Proofs.of(ids, spec)
    )


def cites_row(case: Case, document: str, row: DocumentRow) -> bool:
    """Return True if a case's own source is the row."""
    return case.source is not None and case.source.document == document and row.id in case.source.rows


def _cover_erratum(erratum: Erratum, spec: Spec) -> ErratumCoverage:
    proofs = Proofs.of(erratum.proof, spec)
    shown = {clause for id_ in proofs.ids for clause in (spec.cases.get(id_) or spec.properties[id_]).clauses}
    return ErratumCoverage(erratum, proofs, to_the_point=not shown.isdisjoint(erratum.clauses))

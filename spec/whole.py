"""The whole spec, whose tables and cases are read from their files on first use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol, TypeVar

from goldformer.spec.edition import Edition
from goldformer.spec.model import Case, Contract
from goldformer.spec.tables import Clause, Convention, Document, Erratum, Family, Level, Mistake, Property

Entry = TypeVar("Entry")

#: The fewest judged cases of a component on which an implementation conforms.
FEWEST_CASES: Final = 10


class _CaseFiles(Protocol):
    """The files of the cases, each read when it is needed."""

    def read_component(self, component: str) -> tuple[Case, ...]: ...
    def read_case(self, id_: str) -> Case | None: ...
    def read_all(self) -> Mapping[str, Case]: ...
    def list_killing(self, mistake: str) -> Sequence[str]: ...


class Table(Mapping[str, Entry]):
    """The entries of one table by their ids."""

    def __init__(self, files: object, name: str) -> None:
        self._files = files
        self._name = name

    @cached_property
    def _entries(self) -> Mapping[str, Entry]:
        entries: Mapping[str, Entry] = getattr(self._files, self._name)
        return entries

    def __getitem__(self, id_: str) -> Entry:
        return self._entries[id_]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class Cases(Mapping[str, Case]):
    """The cases of a spec by their ids, followed by further ones."""

    def __init__(self, files: _CaseFiles, more: Mapping[str, Case] | None = None) -> None:
        self._files = files
        self._more = dict(more or {})

    def with_more(self, more: Mapping[str, Case]) -> Cases:
        """Return these cases, followed by further ones."""
        return Cases(self._files, {**self._more, **more})

    def of(self, component: str) -> tuple[Case, ...]:
        """Return the cases of one component."""
        further = (case for case in self._more.values() if case.component == component)
        return (*self._files.read_component(component), *further)

    def killing(self, mistake: str, first: str) -> Iterator[Case]:
        """Yield the cases that kill a mistake, those of one component first; files are read one after the other."""
        yield from (case for case in self._files.read_component(first) if mistake in case.kills)
        names = (name for name in self._files.list_killing(mistake) if name != first)
        yield from (case for name in names for case in self._files.read_component(name) if mistake in case.kills)
        yield from (case for case in self._more.values() if mistake in case.kills)

    def __getitem__(self, id_: str) -> Case:
        found = self._more.get(id_) or self._files.read_case(id_)
        if found is None:
            raise KeyError(id_)
        return found

    def __iter__(self) -> Iterator[str]:
        yield from self._files.read_all()
        yield from self._more

    def __len__(self) -> int:
        return len(self._files.read_all()) + len(self._more)


@dataclass(frozen=True, eq=False)
class Spec:
    """The whole spec. Tables and cases are read from their files on first use."""

    root: Path
    editions: Mapping[str, Edition]
    documents: Mapping[str, Document]
    clauses: Mapping[str, Clause]
    errata: Mapping[str, Erratum]
    conventions: Mapping[str, Convention]
    families: Mapping[str, Family]
    mistakes: Mapping[str, Mistake]
    properties: Mapping[str, Property]
    contracts: Mapping[str, Contract]
    cases: Mapping[str, Case] = field(repr=False)

    @property
    def default_edition(self) -> Edition:
        """The edition of contracts that name none; its general clauses hold for every other edition too."""
        return next(iter(self.editions.values()))

    def edition_of(self, component: str) -> Edition:
        """Return the edition of a component."""
        return self.editions[self.contracts[component].edition]

    def editions_of(self, components: Iterable[str]) -> tuple[Edition, ...]:
        """Return the editions of some components, in the order of the spec; the default one if there are none."""
        names = {self.contracts[component].edition for component in components} or {self.default_edition.edition}
        return tuple(edition for name, edition in self.editions.items() if name in names)

    def cases_of(self, component: str) -> tuple[Case, ...]:
        """Return the cases of one component in file order, reading no other component's files."""
        if isinstance(self.cases, Cases):
            return self.cases.of(component)
        return tuple(case for case in self.cases.values() if case.component == component)

    def with_cases(self, more: Mapping[str, Case]) -> Spec:
        """Return the spec with further cases after its own, which stay unread until first use."""
        if isinstance(self.cases, Cases):
            return replace(self, cases=self.cases.with_more(more))
        return replace(self, cases={**self.cases, **more})

    def is_advice(self, case: Case) -> bool:
        """Return True if all clauses of a case are SHOULD, so that failing it is not wrong."""
        return {self.clauses[id_].level for id_ in case.clauses} == {Level.SHOULD}

    def list_dependencies(self, component: str) -> tuple[str, ...]:
        """List all components that one depends on, directly or not, the nearest first."""
        names = list(self.contracts[component].depends_on)
        for name in names:
            names += [other for other in self.contracts[name].depends_on if other not in names]
        return tuple(names)

    def cases_killing(self, mistake: str, first: str) -> Iterator[Case]:
        """Yield the cases that kill a mistake, those of one component first; stop early to read few files."""
        if isinstance(self.cases, Cases):
            yield from self.cases.killing(mistake, first)
        else:
            yield from (case for case in self.cases.values() if mistake in case.kills)

    def errata_quoted_in(self, text: str) -> list[Erratum]:
        """Return the errata whose code a text quotes: a line that is no Python, or the words of an error."""
        return [erratum for erratum in self.errata.values() if erratum.code and erratum.code in text]

    def checks_catching(self, mistake: str) -> list[Case | Property]:
        """Return the cases that kill a mistake, and the properties that catch it."""
        cases = [case for case in self.cases.values() if mistake in case.kills]
        return [*cases, *(prop for prop in self.properties.values() if mistake in prop.catches)]

    @property
    def components(self) -> tuple[str, ...]:
        """Component names, each after those it depends on."""
        return tuple(self.contracts)

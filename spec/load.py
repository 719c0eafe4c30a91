"""The whole spec, read from its files on first use; what contradicts its schema, itself or other files is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, TypeVar

from goldformer.spec.casefile import read_cases
from goldformer.spec.clauses import cite, read_clauses
from goldformer.spec.contractfile import read_contracts
from goldformer.spec.edition import Edition, read_editions
from goldformer.spec.errors import Problem, SpecError
from goldformer.spec.goldenfile import StoredGolden, golden_path, read_golden_file
from goldformer.spec.model import Case, Contract
from goldformer.spec.tables import (
    Clause,
    Convention,
    Document,
    Erratum,
    Family,
    Level,
    Mistake,
    Property,
    name_texts,
    read_conventions,
    read_documents,
    read_errata,
    read_families,
    read_mistakes,
    read_properties,
)
from goldformer.spec.yamlfile import YamlFile

#: The folder that holds the spec's data, in the checkout and in an installed wheel.
ROOT = Path(__file__).resolve().parent

#: The kills of a case, in the text of a golden file.
_KILLS: Final = re.compile(r'"kills":\s*\[([^\]]*)\]')


Entry = TypeVar("Entry")

#: The fewest judged cases of a component on which an implementation conforms.
FEWEST_CASES: Final = 10


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

    def __init__(self, files: SpecFiles, more: Mapping[str, Case] | None = None) -> None:
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
        names = (name for name in self._files.killing.get(mistake, ()) if name != first)
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


@lru_cache(maxsize=4)
def load_spec(root: Path = ROOT, *, underived: bool = False, whole: bool = False) -> Spec:
    """Return the spec; its tables and cases are read when something asks for them first.

    SpecError lists the problems of a file with their lines and fields when the file is read. With `whole`, everything
    is read at once and every reference between files is checked. With `underived`, golden values may be missing or out
    of date: deriving starts so.
    """
    files = SpecFiles(root, underived=underived, whole=whole)
    spec = Spec(
        root, Table(files, "editions"), Table(files, "documents"), Table(files, "clauses"), Table(files, "errata"),
        files.conventions, Table(files, "families"), Table(files, "mistakes"), Table(files, "properties"),
        files.contracts, Cases(files),
    )  # fmt: skip
    if whole:
        files.read_everything()
    return spec


def load_own_cases(path: Path, spec: Spec) -> list[Case]:
    """Return the cases of a file outside the spec, checked as those in it; SpecError lists every problem.

    The file may have any name, and be a list of what such a file holds, with cases of several components. Golden
    values may be missing or out of date, and ids of the spec are taken.
    """
    cases: list[Case] = []
    for file in YamlFile.read(path).split_list():
        read = read_cases(file, spec.contracts, spec.conventions, underived=True)
        if problems := [*_check_references(read, file, spec.clauses, spec.documents, spec.mistakes)]:
            raise SpecError(problems)
        cases += read
    ids = [case.id for case in cases]
    taken = [c for i, c in enumerate(cases) if c.id in spec.cases or c.id in spec.properties or c.id in ids[:i]]
    if taken:
        raise SpecError(
            [case.place.problem("id", f"{case.id!r} is taken: the spec has it, or a file before") for case in taken]
        )
    return cases


class SpecFiles:
    """The files of a spec, each read once, on first use.

    With `whole`, they are read to be checked: references to tables that are read for nothing else are looked up too.
    """

    def __init__(self, root: Path, *, underived: bool, whole: bool) -> None:
        self._root = root
        self._underived = underived
        self._whole = whole
        self._read: dict[str, tuple[Case, ...]] = {}
        self._by_id: dict[str, Case] = {}
        self._all: dict[str, Case] | None = None

    def read_everything(self) -> None:
        """Read every file; SpecError for the first table, or for all files of cases, that has problems."""
        _ = self.mistakes, self.properties, self.families
        cases = self.read_all()
        # `explain` and `Repeat` lines name cases and properties only by their ids.
        if shared := [p for p in self.properties.values() if p.id in cases]:
            raise SpecError([p.place.problem("id", f"{p.id!r} is a case's id") for p in shared])
        _ = self.errata

    # ── tables ──

    @cached_property
    def editions(self) -> Mapping[str, Edition]:
        """The editions."""
        return read_editions(self._root)

    @cached_property
    def documents(self) -> Mapping[str, Document]:
        """The source documents."""
        return read_documents(self._table("documents"))

    @cached_property
    def clauses(self) -> Mapping[str, Clause]:
        """The clauses of all editions."""
        return read_clauses(self._root, self.editions, self.documents)

    @cached_property
    def conventions(self) -> Mapping[str, Convention]:
        """The conventions; every call of a component needs them."""
        return read_conventions(self._table("conventions"), self.clauses if self._whole else None)

    @cached_property
    def contracts(self) -> Mapping[str, Contract]:
        """The contracts, each after those it depends on."""
        files = [YamlFile.read(path) for path in _list_folder(self._root / "contracts")]
        return read_contracts(files, self.conventions, tuple(self.editions))

    @cached_property
    def families(self) -> Mapping[str, Family]:
        """The families of models."""
        return read_families(self._table("families"), self.contracts, self.conventions)

    @cached_property
    def mistakes(self) -> Mapping[str, Mistake]:
        """The catalogue of mistakes."""
        return read_mistakes(self._table("mistakes"), self.contracts)

    @cached_property
    def properties(self) -> Mapping[str, Property]:
        """The properties."""
        mistakes = self.mistakes if self._whole else None
        return read_properties(self._table("properties"), self.contracts, self.clauses, mistakes)

    @cached_property
    def errata(self) -> Mapping[str, Erratum]:
        """The errata."""
        mistakes = self.mistakes if self._whole else None
        return read_errata(self._table("errata"), self.documents, self.clauses, mistakes)

    def _table(self, name: str) -> YamlFile:
        return YamlFile.read(self._root / f"{name}.yaml")

    # ── cases ──

    def read_component(self, component: str) -> tuple[Case, ...]:
        """Return the cases of one component in file order."""
        if component not in self._read:
            path = self._case_file(component)
            self._read[component] = self._read_cases(path) if path.exists() else ()
            self._by_id |= {case.id: case for case in self._read[component]}
        return self._read[component]

    def read_case(self, id_: str) -> Case | None:
        """Return one case, reading only the files that could hold it; None if no file does."""
        if id_ not in self._by_id and self._all is None:
            unread = (component for component in self.contracts if component not in self._read)
            for component in unread:
                if self._mentions(component, id_):
                    self.read_component(component)
                    if id_ in self._by_id:
                        break
        return self._by_id.get(id_)

    def _mentions(self, component: str, id_: str) -> bool:
        """Return True if the text of a file has an id, which takes a hundredth of the time that parsing takes."""
        path = self._case_file(component)
        return path.exists() and id_.encode() in path.read_bytes()

    @cached_property
    def killing(self) -> Mapping[str, Sequence[str]]:
        """The components by the mistakes in their kills, from the text of the golden files: parsing takes long.

        Those whose cases are read fastest come first: who looks for any case mostly finds it there.
        """
        found: dict[str, dict[str, None]] = {}
        paths = {name: path for name in self.contracts if (path := golden_path(self._case_file(name))).exists()}
        for name, path in sorted(paths.items(), key=lambda item: item[1].stat().st_size):
            for kills in _KILLS.findall(path.read_text(encoding="utf-8")):
                for id_ in json.loads(f"[{kills}]"):
                    found.setdefault(id_, {})[name] = None
        return {id_: tuple(names) for id_, names in found.items()}

    def read_all(self) -> Mapping[str, Case]:
        """Return all cases in the order of the components; SpecError lists the problems of all files."""
        if self._all is None:
            self._all = self._read_all()
        return self._all

    def _case_file(self, component: str) -> Path:
        return self._root / "cases" / f"{component}.yaml"

    def _read_all(self) -> dict[str, Case]:
        cases: dict[str, Case] = {}
        problems: list[Problem] = []
        paths = _list_folder(self._root / "cases")
        for path in paths:
            try:
                read = self.read_component(path.stem)
            except SpecError as error:
                problems += error.problems
                continue
            for case in read:
                if case.id in cases:
                    first = cases[case.id].place
                    message = f"{case.id!r} is taken, see {first.file.name}:{first.line}"
                    problems.append(case.place.problem("id", message))
                cases[case.id] = case
        # If a file of cases is refused, perhaps its name was changed: do not report its golden file too.
        problems = problems or [*self._list_stray_golden_files()]
        if problems:
            raise SpecError(problems)
        return {case.id: case for component in self.contracts for case in self._read.get(component, ())}

    def _list_stray_golden_files(self) -> Iterator[Problem]:
        for path in sorted((self._root / "golden").glob("*.json")):
            if not self._case_file(path.stem).exists():
                yield Problem(path, 1, "file", f"belongs to cases/{path.stem}.yaml, which is missing: remove it")

    def _read_cases(self, path: Path) -> tuple[Case, ...]:
        file, golden = YamlFile.read(path), read_golden_file(golden_path(path), path.stem)
        cases = read_cases(file, self.contracts, self.conventions, golden, underived=self._underived)
        mistakes = self.mistakes if self._whole else None
        problems = [*_check_references(cases, file, self.clauses, self.documents, mistakes)]
        if mistakes is not None:
            problems += _list_unknown_kills(cases, golden, mistakes)
            problems += _list_bad_values(cases)
        if problems:
            raise SpecError(problems)
        return tuple(cases)


def _list_folder(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise SpecError([Problem(folder, 1, "folder", "holds no .yaml file")])
    return paths


def _check_references(
    cases: Iterable[Case],
    file: YamlFile,
    clauses: Mapping[str, Clause],
    documents: Mapping[str, Document],
    mistakes: Mapping[str, Mistake] | None,
) -> Iterator[Problem]:
    """Yield the references of cases to clauses, documents and mistakes that do not exist; None: ignore mistakes."""
    texts = name_texts(clauses)
    for index, case in enumerate(cases):
        found = [("clauses", f"{id_} is no clause of {texts}") for id_ in case.clauses if id_ not in clauses]
        if case.source is not None:
            try:
                cite(str(case.source), documents)
            except ValueError as error:
                found.append(("source", str(error)))
        if mistakes is not None:
            # The catalogue is long: a case that names no mistake does not wait for it.
            unknown = [id_ for id_ in case.meant_for if id_ not in mistakes]
            found += [("meant_for", f"{id_!r} is not in mistakes.yaml") for id_ in unknown]
        for key, message in found:
            yield Problem(file.path, file.line(("cases", index, key)), f"{case.id}.{key}", message)


def _list_bad_values(cases: Iterable[Case]) -> Iterator[Problem]:
    """Yield the problems of golden values, which other runs read on first use."""
    for case in cases:
        try:
            for _ in case.golden.options.values() if case.golden is not None else ():
                pass
        except SpecError as error:
            yield from error.problems


def _list_unknown_kills(
    cases: Iterable[Case], golden: StoredGolden, mistakes: Mapping[str, Mistake]
) -> Iterator[Problem]:
    for case in cases:
        for id_ in case.kills:
            if id_ not in mistakes:
                message = f"kills {id_!r}, which is not in mistakes.yaml: run goldformer mistakes --matrix --write"
                yield golden.problem(case.id, message)

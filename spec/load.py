"""Loads the spec, refusing whatever contradicts its schema, itself or its other files."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from goldformer.spec import schema_tables
from goldformer.spec.casefile import read_cases
from goldformer.spec.clauses import cite, read_clauses
from goldformer.spec.contractfile import read_contracts
from goldformer.spec.errors import Problem, SpecError
from goldformer.spec.model import Case, Contract, Spec
from goldformer.spec.tables import Clause, Convention, Digits, Document, Erratum, Mistake, Place, Property, Row
from goldformer.spec.yamlfile import Field, YamlFile

#: The folder that holds the spec's data, in the checkout and in an installed wheel alike.
ROOT = Path(__file__).resolve().parent


@lru_cache(maxsize=4)
def load_spec(root: Path = ROOT, *, underived: bool = False, cases: bool = True) -> Spec:
    """The whole spec; SpecError lists every problem with its file, line and field.

    With `underived`, golden values may be missing or out of date: what deriving starts from. Without `cases`,
    which take most of the time, there are none of them: enough to call a component.
    """
    with _collector_paused():
        documents = _documents(YamlFile.read(root / "documents.yaml"))
        clauses = read_clauses(root / "transformer.md", documents)
        conventions = _conventions(YamlFile.read(root / "conventions.yaml"), clauses)
        contracts = read_contracts(_read_all(root / "contracts"), conventions)
        mistakes = _mistakes(YamlFile.read(root / "mistakes.yaml"), contracts)
        properties = _properties(YamlFile.read(root / "properties.yaml"), contracts, clauses, mistakes)
        found = _cases(root, contracts, conventions, underived=underived) if cases else []
        _check_references(found, clauses, documents, mistakes)
        _refuse_shared_ids(properties, {case.id for case, _, _ in found})
        errata = _errata(YamlFile.read(root / "errata.yaml"), documents, clauses)
        ordered = {case.id: case for name in contracts for case, _, _ in found if case.component == name}
        return Spec(root, documents, clauses, errata, conventions, mistakes, properties, contracts, ordered)


def load_own_cases(path: Path, spec: Spec) -> list[Case]:
    """The cases of a file outside the spec, checked as those in it; SpecError lists every problem.

    The file may have any name, and be a list of what such a file holds, with cases of several components. Golden
    values may be missing or out of date, and ids of the spec are taken.
    """
    cases: list[Case] = []
    for file in YamlFile.read(path).listed():
        read = read_cases(file, spec.contracts, spec.conventions, underived=True, any_name=True)
        _check_references(
            [(case, file, ("cases", i)) for i, case in enumerate(read)], spec.clauses, spec.documents, spec.mistakes
        )
        cases += read
    before = [case.id for case in cases]
    taken = [
        case
        for i, case in enumerate(cases)
        if case.id in spec.cases or case.id in spec.properties or case.id in before[:i]
    ]
    if taken:
        raise SpecError(
            [case.place.problem("id", f"{case.id!r} is taken: the spec has it, or a file before") for case in taken]
        )
    return cases


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Loading makes a hundred thousand objects that all stay: looking for garbage among them doubles its time."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


def _read_all(folder: Path) -> list[YamlFile]:
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise SpecError([Problem(folder, 1, "folder", "holds no .yaml file")])
    return [YamlFile.read(path) for path in paths]


def _unique(file: YamlFile, group: str, items: Iterable[Any]) -> None:
    seen: set[str] = set()
    for index, item in enumerate(items):
        if item.id in seen:
            raise SpecError([file.problem((group, index, "id"), f"{item.id!r} is taken")])
        seen.add(item.id)


def _documents(file: YamlFile) -> dict[str, Document]:
    models = file.parse(schema_tables.DocumentsFile).documents
    _unique(file, "documents", models)
    for index, model in enumerate(models):
        seen = [row.id for row in model.rows]
        if len(set(seen)) < len(seen):
            raise SpecError([file.problem(("documents", index, "rows"), "has a row id twice")])
    documents = {}
    for index, m in enumerate(models):
        rows = [
            Row(row.id, row.section, row.says, Place(file.path, file.line(("documents", index, "rows", i, "id"))))
            for i, row in enumerate(m.rows)
        ]
        documents[m.id] = Document(m.id, m.title, m.english, m.kind, m.about, tuple(rows))
    return documents


def _known(file: YamlFile, where: Field, names: Iterable[str], known: Mapping[str, Any], home: str) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SpecError([file.problem(where, f"{unknown[0]!r} is not in {home}")])


def _conventions(file: YamlFile, clauses: Mapping[str, Clause]) -> dict[str, Convention]:
    models = file.parse(schema_tables.ConventionsFile).conventions
    _unique(file, "conventions", models)
    for index, model in enumerate(models):
        _known(file, ("conventions", index, "clause"), [model.clause], clauses, "transformer.md")
        _known(file, ("conventions", index, "default"), [model.default], model.options, "its options")
    return {m.id: Convention(m.id, m.title, m.clause, m.default, m.options, m.left_open or "") for m in models}


def _mistakes(file: YamlFile, contracts: Mapping[str, Contract]) -> dict[str, Mistake]:
    models = file.parse(schema_tables.MistakesFile).mistakes
    _unique(file, "mistakes", models)
    for index, model in enumerate(models):
        _known(file, ("mistakes", index, "component"), [model.component], contracts, "contracts/")
    return {m.id: Mistake(**{**m.model_dump(), "seen": tuple(m.seen)}) for m in models}


def _properties(
    file: YamlFile,
    contracts: Mapping[str, Contract],
    clauses: Mapping[str, Clause],
    mistakes: Mapping[str, Mistake],
) -> dict[str, Property]:
    models = file.parse(schema_tables.PropertiesFile).properties
    _unique(file, "properties", models)
    properties = {}
    for index, m in enumerate(models):
        where: Field = ("properties", index)
        _known(file, (*where, "component"), {m.component} - {"*"}, contracts, "contracts/")
        _known(file, (*where, "needs"), m.needs, contracts, "contracts/")
        _known(file, (*where, "clauses"), m.clauses, clauses, "transformer.md")
        _known(file, (*where, "catches"), m.catches, mistakes, "mistakes.yaml")
        place = Place(file.path, file.line((*where, "id")))
        lists = (tuple(m.clauses), tuple(m.catches), tuple(m.needs))
        properties[m.id] = Property(m.id, m.component, m.title, *lists, place)
    return properties


def _cases(
    root: Path, contracts: Mapping[str, Contract], conventions: Mapping[str, Convention], *, underived: bool
) -> list[tuple[Case, YamlFile, Field]]:
    """Every case, with its file and its field there."""
    cases: dict[str, tuple[Case, YamlFile, Field]] = {}
    problems: list[Problem] = []
    for file in _read_all(root / "cases"):
        try:
            read = read_cases(file, contracts, conventions, underived=underived)
        except SpecError as error:
            problems += error.problems
            continue
        for index, case in enumerate(read):
            if case.id in cases:
                first = cases[case.id][0].place
                message = f"{case.id!r} is taken, see {first.file.name}:{first.line}"
                problems.append(Problem(case.place.file, case.place.line, "id", message))
            cases[case.id] = (case, file, ("cases", index))
    if problems:
        raise SpecError(problems)
    return list(cases.values())


def _check_references(
    cases: Iterable[tuple[Case, YamlFile, Field]],
    clauses: Mapping[str, Clause],
    documents: Mapping[str, Document],
    mistakes: Mapping[str, Mistake],
) -> None:
    problems: list[Problem] = []
    for case, file, where in cases:
        wrong = [("clauses", f"{id_} is no clause of transformer.md") for id_ in case.clauses if id_ not in clauses]
        wrong += [("catches", f"{id_!r} is not in mistakes.yaml") for id_ in case.catches if id_ not in mistakes]
        if case.source is not None:
            try:
                cite(str(case.source), documents)
            except ValueError as error:
                wrong.append(("source", str(error)))
        problems += [Problem(file.path, file.line((*where, f)), f"{case.id}.{f}", message) for f, message in wrong]
    if problems:
        raise SpecError(problems)


def _refuse_shared_ids(properties: Mapping[str, Property], cases: set[str]) -> None:
    """`explain` and `Repeat` lines name cases and properties by their ids alone."""
    shared = [p for p in properties.values() if p.id in cases]
    if shared:
        raise SpecError([Problem(p.place.file, p.place.line, "id", f"{p.id!r} is a case's id") for p in shared])


def _errata(file: YamlFile, documents: Mapping[str, Document], clauses: Mapping[str, Clause]) -> dict[str, Erratum]:
    models = file.parse(schema_tables.ErrataFile).errata
    _unique(file, "errata", models)
    errata = {}
    for index, m in enumerate(models):
        where: Field = ("errata", index)
        _known(file, (*where, "document"), [m.document], documents, "documents.yaml")
        rows = {row.id: row for row in documents[m.document].rows}
        _known(file, (*where, "rows"), m.rows, rows, f"documents.yaml under {m.document}")
        _known(file, (*where, "clauses"), m.clauses, clauses, "transformer.md")
        digits = tuple(Digits(d.case, d.output, tuple(tuple(i) for i in d.indices)) for d in m.digits)
        errata[m.id] = Erratum(
            m.id, m.document, tuple(m.rows), m.section, m.printed, m.correct, m.why,
            tuple(m.clauses), tuple(m.proof), digits, Place(file.path, file.line((*where, "id"))),
        )  # fmt: skip
    return errata

"""goldformer explain: one id of the spec in plain words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from json import dumps
from pathlib import Path
from typing import Any, Final

import click

from goldformer.adapters.skeleton import sign, write_example
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import (
    OK,
    CannotRun,
    plain_table,
    print_table,
    require_known,
    save_json,
    say,
)
from goldformer.spec import Case, Contract, Spec, load_spec
from goldformer.spec.families import count_cases, list_variants
from goldformer.spec.making.coverage import Coverage, RowCoverage, cover
from goldformer.spec.making.readme import SHOWN, join_first
from goldformer.spec.model import UNSPECIFIED, GoldenArray
from goldformer.spec.scope import explain_scope
from goldformer.spec.tables import Clause, Convention, Document, Erratum, Family, Mistake, Property, find_address

Entry = dict[str, Any]

#: The fields of entries that are cases and properties.
_CHECKS: Final = ("cases", "shown by", "caught by")


@click.command(epilog=options.list_statuses())
@click.argument("name", required=False, shell_complete=options.complete(lambda: _list_ids(load_spec())))
@options.JSON
@click.option("-v", "--verbose", is_flag=True, help="Name all cases and properties, not only the first.")
def explain(*, name: str | None, json: Path | None, verbose: bool) -> int:
    """Explain an id: case, clause, component, mistake and so on.

    Conventions, families of models, documents and their rows, errata and properties have ids too. Without an id, list
    the components, which are what is judged.
    """
    spec = load_spec()
    if name is None:
        return _list_components(spec)
    entry = find_entry(name, spec) or find_entry(name.upper(), spec)
    if entry is None:
        if scope := explain_scope([name]):
            raise CannotRun(scope)
        require_known((name,), list(_list_ids(spec)), "no such id")
        raise CannotRun(name)
    if json is not None:
        save_json(json, dumps(entry, ensure_ascii=False, default=str) + "\n")
    for line in format_entry(entry, folded=() if verbose else _CHECKS):
        say(line)
    return OK


def _list_components(spec: Spec) -> int:
    """Print each component with the number of its golden cases and its title."""
    cases = Counter(case.component for case in spec.cases.values())
    table = plain_table("component", "cases", "title", right=("cases",))
    for component, contract in spec.contracts.items():
        table.add_row(component, str(cases[component]), contract.title)
    print_table(table)
    return OK


def find_entry(name: str, spec: Spec) -> Entry | None:
    """Return what the spec says of an id, or None if nothing has that id; only what the id needs is read."""
    for table, describe in _TABLES.items():
        if name in (entries := getattr(spec, table)):
            return describe(entries[name], spec)
    # Rows come last: only all cases together show which sections of a paper are rows.
    return next((_describe_row(covered) for covered in _cover(spec).rows if covered.row.id == name), None)


@lru_cache(maxsize=1)
def _cover(spec: Spec) -> Coverage:
    return cover(spec)


def _list_ids(spec: Spec) -> Iterator[str]:
    for table in _TABLES:
        yield from getattr(spec, table)
    yield from (covered.row.id for covered in _cover(spec).rows)


def _describe_document(document: Document, _: Spec) -> Entry:
    return {
        "document": document.id, "title": document.title, "english": document.english, "about": document.about,
        "rows": {row.id: row.says for row in document.rows},
    }  # fmt: skip


def _describe_row(covered: RowCoverage) -> Entry:
    return {
        "row": covered.row.id, "document": covered.document, "section": covered.row.section, "says": covered.row.says,
        "clauses": list(covered.clauses), "errata": list(covered.errata), "shown by": list(covered.proofs.ids),
    }  # fmt: skip


def _describe_clause(clause: Clause, spec: Spec) -> Entry:
    return {
        "clause": clause.id, "level": clause.level.value, "title": clause.title, "text": clause.text,
        "sources": [str(source) for source in clause.sources],
        "shown by": list(_cover(spec).clauses[clause.id].proofs.ids),
    }  # fmt: skip


def _describe_convention(convention: Convention, _: Spec) -> Entry:
    more = {UNSPECIFIED: convention.left_open, "any number": convention.number}
    options = convention.options | {name: text for name, text in more.items() if text}
    return {
        "convention": convention.id, "title": convention.title, "clause": convention.clause,
        "default": convention.default, "options": options,
    }  # fmt: skip


def _describe_family(family: Family, spec: Spec) -> Entry:
    own = list_variants(family, spec)[0]
    return {
        "family": family.id, "title": family.title,
        "options": {name: " or ".join(options) for name, options in family.options.items()},
        "cases with values": {component: count_cases(component, own, spec) for component in family.components},
        "sources": {place: find_address(place) for place in family.sources},
    }  # fmt: skip


def _describe_property(prop: Property, _: Spec) -> Entry:
    return {
        "property": prop.id, "component": prop.component, "title": prop.title, "clauses": list(prop.clauses),
        "catches": list(prop.catches),
    }  # fmt: skip


def _describe_mistake(mistake: Mistake, spec: Spec) -> Entry:
    killing: defaultdict[str, list[str]] = defaultdict(list)
    for case in spec.cases_killing(mistake.id, mistake.component):
        killing[case.component].append(case.id)
    caught = {name: killing[name] for name in spec.components if name in killing}
    for prop in spec.properties.values():
        if mistake.id in prop.catches:
            caught.setdefault(prop.component, []).append(prop.id)
    return {
        "mistake": mistake.id, "component": mistake.component, "title": mistake.title, "does": mistake.does,
        "symptom": mistake.symptom, "why": mistake.why, "hint": mistake.hint, "reveals": mistake.reveals,
        "hides": mistake.hides, "error": mistake.error,
        "seen": {place: find_address(place) for place in mistake.seen}, "caught by": caught,
    }  # fmt: skip


def _describe_erratum(erratum: Erratum, _: Spec) -> Entry:
    return {
        "erratum": erratum.id, "document": erratum.document, "section": erratum.section, "printed": erratum.printed,
        "correct": erratum.correct, "why": erratum.why, "clauses": list(erratum.clauses), "proof": list(erratum.proof),
        "mistakes": list(erratum.mistakes),
    }  # fmt: skip


def _describe_contract(contract: Contract, spec: Spec) -> Entry:
    arrays = {
        group: {
            name: f"{a.kind} {'broadcasts to ' if a.broadcast else ''}{a.shape}{' (optional)' if a.optional else ''}"
            for name, a in specs.items()
        }
        for group, specs in (
            ("inputs", contract.inputs),
            ("params", contract.params_for(dict.fromkeys((k.count for k in contract.layers), 1))),
            ("outputs", contract.outputs),
        )
        if specs
    }
    cases = spec.cases_of(contract.component)
    clauses = {id_ for case in cases for id_ in case.clauses}
    return {
        "component": contract.component, "title": contract.title, "formula": contract.formula,
        "call": f"{sign(contract)} → {', '.join(contract.outputs)}", "adapter": write_example(contract), **arrays,
        "attributes": {a.name: a.kind + (" (optional)" if a.optional else "") for a in contract.attributes.values()},
        "conventions": list(contract.conventions), "depends on": list(contract.depends_on),
        "clauses": [id_ for id_ in spec.clauses if id_ in clauses],
        "cases": [case.id for case in cases],
    }  # fmt: skip


def _describe_case(case: Case, _: Spec) -> Entry:
    arrays = {
        name: (array.tolist() if (array := argument.written) is not None and array.size <= 64 else str(argument))
        for name, argument in {**case.inputs, **case.params}.items()
    }
    entry: Entry = {
        "case": case.id, "component": case.component, "title": case.title, "clauses": list(case.clauses),
        "source": str(case.source or "derived"), "sizes": dict(case.sizes), "attributes": dict(case.attributes),
        "arguments": arrays, "meant for": list(case.meant_for), "catches": list(case.kills),
        "written in": f"{case.place.file.name}:{case.place.line}",
    }  # fmt: skip
    if case.error:
        entry |= {"must refuse": case.error, "base": case.base}
    if case.golden is not None:
        entry["margin"] = case.golden.margin
        entry["expect"] = {
            (f"{option}: {name}" if option else name): {"error scale": array.error_scale, **_format_golden(array)}
            for option, outputs in case.golden.options.items()
            for name, array in (outputs or {}).items()
        }
    return entry


def _format_golden(array: GoldenArray) -> Entry:
    values = array.values.tolist()
    if array.within is not None:
        found = zip(values, array.within.items(), strict=True)
        return {name: f"{value:.9g} ± {within:.3g}" for value, (name, within) in found}
    return {"values": values if array.values.size <= 64 else f"{array.values.size} values"}


#: The tables of the spec that have ids, and what describes an entry of each.
_TABLES: Final[Mapping[str, Callable[[Any, Spec], Entry]]] = {
    "documents": _describe_document, "clauses": _describe_clause, "conventions": _describe_convention,
    "families": _describe_family, "properties": _describe_property, "mistakes": _describe_mistake,
    "errata": _describe_erratum, "contracts": _describe_contract, "cases": _describe_case,
}  # fmt: skip


def format_entry(entry: Entry, indent: str = "", *, folded: Collection[str] = ()) -> list[str]:
    """Return an entry as lines, without its empty fields; of the ids in `folded` fields the first are named."""
    lines = []
    for key, value in entry.items():
        if not value and value != 0:
            continue
        if isinstance(value, dict):
            lines += [
                f"{indent}{key}",
                *format_entry(value, indent + "  ", folded=[*value] if key in folded else folded),
            ]
        elif isinstance(value, list):
            nested = bool(value) and isinstance(value[0], list)
            names = _name_first(value) if key in folded else ", ".join(map(str, value))
            lines += [f"{indent}{key}: {names}"] if not nested else [f"{indent}{key}:"]
            lines += [f"{indent}  {row}" for row in value] if nested else []
        elif "\n" in str(value):
            lines += [f"{indent}{key}:", *(f"{indent}  {line}".rstrip() for line in str(value).splitlines())]
        else:
            lines.append(f"{indent}{key}: {value}")
    return lines


def _name_first(ids: Sequence[str]) -> str:
    """Return the first ids and the number of the others."""
    return join_first(ids) + (" (-v names all)" if len(ids) > SHOWN + 1 else "")

"""goldformer explain: whatever an id stands for, in plain words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from goldformer.conformance.commands._console import OK, out, say_json, unusable
from goldformer.conformance.reports.did_you_mean import unknown
from goldformer.spec import Case, Contract, Spec, SpecError, load_spec
from goldformer.spec.coverage import cover
from goldformer.spec.draw import Values
from goldformer.spec.model import UNSPECIFIED, GoldenArray
from goldformer.spec.tables import Mistake

Entry = dict[str, Any]


def run(name: str, *, as_json: bool) -> int:
    """Look an id up and print it; the exit status."""
    try:
        spec = load_spec()
    except SpecError as error:
        return unusable(str(error))
    index = _index(spec)
    entry = index.get(name) or index.get(name.upper())
    if entry is None:
        return unusable(unknown((name,), tuple(index), "no such id") or name)
    if as_json:
        say_json(json.dumps(entry, ensure_ascii=False, default=str))
    else:
        for line in _lines(entry):
            out.print(line, markup=False)
    return OK


@lru_cache(maxsize=1)
def _index(spec: Spec) -> Mapping[str, Entry]:
    coverage = cover(spec)
    index: dict[str, Entry] = {}
    for document in spec.documents.values():
        index[document.id] = {
            "document": document.id, "title": document.title, "english": document.english, "about": document.about,
            "rows": {row.id: row.says for row in document.rows},
        }  # fmt: skip
    for covered in coverage.rows:
        row = covered.row
        index[row.id] = {
            "row": row.id, "document": covered.document, "section": row.section, "says": row.says,
            "clauses": list(covered.clauses), "errata": list(covered.errata),
        }  # fmt: skip
    for clause in spec.clauses.values():
        index[clause.id] = {
            "clause": clause.id, "level": clause.level.value, "title": clause.title, "text": clause.text,
            "sources": [str(source) for source in clause.sources],
            "shown by": list(coverage.clauses[clause.id].proofs.ids),
        }  # fmt: skip
    for convention in spec.conventions.values():
        left_open = {UNSPECIFIED: convention.left_open} if convention.left_open else {}
        index[convention.id] = {
            "convention": convention.id, "title": convention.title, "clause": convention.clause,
            "default": convention.default, "options": {**convention.options, **left_open},
        }  # fmt: skip
    for prop in spec.properties.values():
        index[prop.id] = {
            "property": prop.id, "component": prop.component, "title": prop.title, "clauses": list(prop.clauses),
            "catches": list(prop.catches),
        }  # fmt: skip
    for mistake in spec.mistakes.values():
        index[mistake.id] = {
            "mistake": mistake.id, "component": mistake.component, "title": mistake.title, "does": mistake.does,
            "symptom": mistake.symptom, "why": mistake.why, "hint": mistake.hint, "reveals": mistake.reveals,
            "hides": mistake.hides, "seen": {place: address(place) for place in mistake.seen},
            "caught by": _catching(mistake, spec),
        }  # fmt: skip
    for erratum in spec.errata.values():
        index[erratum.id] = {
            "erratum": erratum.id, "document": erratum.document, "section": erratum.section,
            "printed": erratum.printed, "correct": erratum.correct, "why": erratum.why,
            "clauses": list(erratum.clauses), "proof": list(erratum.proof),
        }  # fmt: skip
    index |= {contract.component: _contract(contract, spec) for contract in spec.contracts.values()}
    return index | {case.id: _case(case) for case in spec.cases.values()}


def _catching(mistake: Mistake, spec: Spec) -> dict[str, list[str]]:
    """Return the cases that kill a mistake and the properties that catch it, by component."""
    found: dict[str, list[str]] = {}
    for check in spec.checks_catching(mistake.id):
        found.setdefault(check.component, []).append(check.id)
    return found


def address(place: str) -> str:
    """Where a place at which a mistake was seen can be read: a thread, a file, or a repository."""
    where = place.partition(" ")[0]
    repository, _, path = where.partition(":")
    if path:
        return f"https://github.com/{repository}/blob/HEAD/{quote(path)}"
    repository, _, thread = where.partition("#")
    # Where the thread is a pull request, GitHub leads on from the address of an issue.
    return f"https://github.com/{repository}" + (f"/issues/{thread}" if thread else "")


def _contract(contract: Contract, spec: Spec) -> Entry:
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
        "component": contract.component, "title": contract.title, **arrays,
        "attributes": {a.name: a.kind + (" (optional)" if a.optional else "") for a in contract.attributes.values()},
        "conventions": list(contract.conventions), "depends on": list(contract.depends_on),
        "clauses": [id_ for id_ in spec.clauses if id_ in clauses],
        "cases": [case.id for case in cases],
    }  # fmt: skip


def _case(case: Case) -> Entry:
    arrays = {
        name: (recipe.array.tolist() if isinstance(recipe, Values) and recipe.array.size <= 64 else str(recipe))
        for name, recipe in {**case.inputs, **case.params}.items()
    }
    entry: Entry = {
        "case": case.id, "component": case.component, "title": case.title, "clauses": list(case.clauses),
        "source": str(case.source or "derived"), "sizes": dict(case.sizes), "attributes": dict(case.attributes),
        "arguments": arrays, "meant for": list(case.meant_for), "catches": list(case.kills),
        "written in": f"{case.place.file.name}:{case.place.line}",
    }  # fmt: skip
    if case.error:
        entry |= {"must refuse": case.error, "otherwise like": case.base}
    if case.golden is not None:
        entry["margin"] = case.golden.margin
        entry["expect"] = {
            (f"{option}: {name}" if option else name): {
                "error scale": array.error_scale,
                **_golden(array),
            }
            for option, outputs in case.golden.options.items()
            for name, array in (outputs or {}).items()
        }
    return entry


def _golden(array: GoldenArray) -> Entry:
    values = array.values.tolist()
    if array.within is not None:
        found = zip(values, array.within.items(), strict=True)
        return {name: f"{value:.9g} ± {within:.3g}" for value, (name, within) in found}
    return {"values": values if array.values.size <= 64 else f"{array.values.size} values"}


def _lines(entry: Entry, indent: str = "") -> list[str]:
    lines = []
    for key, value in entry.items():
        if not value and value != 0:
            continue
        if isinstance(value, dict):
            lines += [f"{indent}{key}", *_lines(value, indent + "  ")]
        elif isinstance(value, list):
            nested = bool(value) and isinstance(value[0], list)
            lines += [f"{indent}{key}: {', '.join(map(str, value))}"] if not nested else [f"{indent}{key}:"]
            lines += [f"{indent}  {row}" for row in value] if nested else []
        elif "\n" in str(value):
            lines += [f"{indent}{key}:", *(f"{indent}  {line}" for line in str(value).splitlines())]
        else:
            lines.append(f"{indent}{key}: {value}")
    return lines

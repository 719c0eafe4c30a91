"""The page spec/README.md, rendered from the data: the files, and the coverage of each row of a document."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from goldformer.spec.edition import Edition
from goldformer.spec.families import count_cases, list_variants
from goldformer.spec.load import Spec
from goldformer.spec.making.coverage import Coverage, Proofs, RowCoverage, cover
from goldformer.spec.markdown import escape, markdown_table
from goldformer.spec.model import UNSPECIFIED, Case
from goldformer.spec.tables import Clause, Document, Level, Property

#: The number of ids that a cell lists before it counts the others.
SHOWN = 3

_HEAD = """\
<!-- Written by `goldformer coverage --write` from the files next to it. Change those files, not this page. -->

# The spec

The spec says what the components of a Transformer compute, as data that any language can read.
Begin with [transformer.md](transformer.md): its first part explains how to read everything else.

| file | what it holds |
|---|---|
| [transformer.md](transformer.md) | the clauses of the edition `2017`: what each component computes, with sources |
| [decoder_only.md](decoder_only.md) | the clauses of the edition `decoder-only`: components of today's models |
| [contracts/](contracts) | for each component its arguments, parameters and results, with their shapes |
| [cases/](cases) | for each component its cases: inputs and expectations |
| [golden/](golden) | for each component the generated part of its cases: golden values, error scales, kills |
| [properties.yaml](properties.yaml) | relations that hold for every input |
| [conventions.yaml](conventions.yaml) | choices that correct code makes differently |
| [families.yaml](families.yaml) | models that people name, such as Llama 3: their components and their options |
| [out_of_scope.yaml](out_of_scope.yaml) | parts of today's models that no clause covers |
| [edges.yaml](edges.yaml) | edges of contracts that no case visits, each with the reason |
| [documents.yaml](documents.yaml) | the source documents, their origin, and what each of them defines, row by row |
| [errata.yaml](errata.yaml) | wrong statements of the documents, with proofs |
| [mistakes.yaml](mistakes.yaml) | mistakes that people really make, with symptoms and fixes |
| [version.json](version.json) | editions, their versions, and a digest of cases and golden values of each component |
| [ids.json](ids.json) | the ids that the last release has promised |
| [schemas/](schemas) | the JSON Schemas of these files, and of those that `goldformer export` writes |
| `*.py`, [making/](making), [oracle/](oracle) | code that reads, checks and derives; the data is complete without it |

Text and data are under the MIT license, as all of goldformer. The source documents belong to their authors.
`goldformer explain ID` shows anything that has an id, such as a row of a document and what covers it (`W2`).

In Python `goldformer.spec.load_spec()` returns all of it as frozen objects. A file is read on first use, so that a
check of one component reads only the files of that component. Begin with `model.py` and `load.py`; `making/lint.py`
checks the spec as a whole.
"""

_COVERAGE = """\
## Coverage

Each row of a document, the clauses that cite it, and the checks that show it: first the cases whose own source it is,
then the cases and properties of those clauses, then the proofs of errata in it. Refusals are the cases that ask for an
error. The paper is cited by its sections.
"""

_ERRATA = """\
## Errata

Wrong statements of the documents. Each has a proof: cases and properties that show the correct one.
"""

_CONVENTIONS = """\
## Conventions

Choices that correct code makes differently. The first option is the default, the choice of the documents.
"""

_FAMILIES = """\
## Families

Models that people name. For each component that one has: the number of cases with stored golden values for its options.
"""


def readme(spec: Spec) -> str:
    """Render the whole page; the same data gives the same page."""
    coverage = cover(spec)
    parts = [
        _HEAD,
        "\n".join(["## In numbers", "", *(f"- {line}" for line in numbers(spec))]) + "\n",
        "## Components\n\n" + _components(spec),
        _COVERAGE,
        *(document_table(document, coverage) for document in spec.documents.values()),
        _ERRATA + "\n" + errata_table(coverage),
        _CONVENTIONS + "\n" + _conventions(spec),
        _FAMILIES + "\n" + families_table(spec),
    ]
    return "\n".join(parts)


def numbers(spec: Spec) -> list[str]:
    """Describe in words how many clauses there are by level, cases by what they ask for, and everything else."""
    levels = Counter(clause.level for clause in spec.clauses.values())
    kinds = Counter(map(_name_kind, spec.cases.values()))
    combinations = (case.golden.options.values() for case in spec.cases.values() if case.golden is not None)
    golden = sum(array.values.size for each in combinations for outputs in each for array in (outputs or {}).values())
    return [
        f"{len(spec.clauses)} clauses: {', '.join(f'{levels[level]} {level.value}' for level in Level)}",
        f"{len(spec.cases)} cases: {', '.join(f'{kinds[kind]} {kind}' for kind in _KINDS)}; {golden} golden numbers in "
        "all",
        *(_count_edition(edition, spec) for edition in spec.editions.values()),
        f"{len(spec.properties)} properties, {len(spec.conventions)} conventions, {len(spec.errata)} errata, "
        f"{len(spec.mistakes)} known mistakes",
    ]


#: The kinds of cases, by the results that they ask for.
_KINDS: Final = ("with golden values", "with golden gradients", "with only shapes", "refusals")


def _name_kind(case: Case) -> str:
    values, gradients, shapes, refusals = _KINDS
    if case.error is not None:
        return refusals
    return shapes if case.shape_only else values if case.cotangent is None else gradients


def _count_edition(edition: Edition, spec: Spec) -> str:
    components = sum(contract.edition == edition.edition for contract in spec.contracts.values())
    clauses = sum(clause.edition == edition.edition for clause in spec.clauses.values())
    counts = (f"{count} {noun}{'s' * (count != 1)}" for count, noun in ((components, "component"), (clauses, "clause")))
    return f"edition {edition}: {', '.join(counts)}"


def document_table(document: Document, coverage: Coverage) -> str:
    """Render one document's rows under its heading."""
    name = document.title if document.title == document.english else f"{document.title} ({document.english})"
    rows = [row for row in coverage.rows if row.document == document.id]
    return (
        f"### {document.id}\n\n{escape(name)}. {escape(document.about)}\n\n{escape(document.origin)}\n\n"
        + rows_table(rows, coverage)
    )


def rows_table(rows: Iterable[RowCoverage], coverage: Coverage) -> str:
    """Render rows of documents as a table: clauses, numbers of cases, refusals and properties, the first of them."""
    lines = []
    for covered in rows:
        links = " ".join(link(coverage.clauses[id_].clause) for id_ in covered.clauses)
        # A row of the paper is a section and has no other name.
        section = "" if covered.row.section == covered.row.id else escape(covered.row.section)
        proofs = covered.proofs
        counts = (len(ids) for ids in (proofs.cases, proofs.refusals, proofs.properties))
        example = join_first(proofs.ids) or "**nothing**"
        lines.append((covered.row.id, section, links or "–", *map(_count, counts), example))
    return markdown_table(("row", "section", "clauses", "cases", "refusals", "properties", "shown by"), lines)


def errata_table(coverage: Coverage) -> str:
    """Render errata as a table: id, place, the printed statement, the correct one, proofs."""
    lines = []
    for covered in coverage.errata:
        erratum = covered.erratum
        where = f"{erratum.document} {' '.join(erratum.rows) or erratum.section}"
        proofs = ", ".join(covered.proofs.ids) or "**nothing**"
        lines.append((erratum.id, escape(where), escape(erratum.printed), escape(erratum.correct), proofs))
    return markdown_table(("erratum", "where", "printed", "correct", "proven by"), lines)


def _components(spec: Spec) -> str:
    lines = []
    for component, contract in spec.contracts.items():
        cases = spec.cases_of(component)
        own = [p for p in spec.properties.values() if p.component == component]
        showing: list[Case | Property] = [*cases, *own]
        clauses = {clause for item in showing for clause in item.clauses}
        proofs = Proofs.of((item.id for item in showing), spec)
        file = f"[{len(proofs.cases)}](cases/{cases[0].place.file.name})" if cases else "–"
        counts = (len(proofs.refusals), len(proofs.properties))
        name = f"[{component}](contracts/{component}.yaml)"
        lines.append((name, escape(contract.title), _count(len(clauses)), file, *map(_count, counts)))
    table = markdown_table(("component", "what it is", "clauses", "cases", "refusals", "properties"), lines)
    everywhere = [p.id for p in spec.properties.values() if p.component == "*"]
    return table + (f"\nFor every component that takes arrays also: {', '.join(everywhere)}.\n" if everywhere else "")


def _conventions(spec: Spec) -> str:
    lines = []
    for convention in spec.conventions.values():
        names = sorted(convention.options, key=lambda name: name != convention.default)
        options = "<br>".join(f"`{name}`: {escape(convention.options[name])}" for name in names)
        if convention.left_open:
            options += f"<br>`{UNSPECIFIED}`: {escape(convention.left_open)}"
        if convention.number:
            options += f"<br>any number {escape(convention.number)}"
        lines.append((convention.id, escape(convention.title), link(spec.clauses[convention.clause]), options))
    return markdown_table(("convention", "what it decides", "clause", "options"), lines)


def families_table(spec: Spec) -> str:
    """Render the number of cases with values for each component of each family, by its own options."""
    families = spec.families.values()
    options = {family.id: list_variants(family, spec)[0] for family in families}
    lines = [
        (component, *(
            _count(count_cases(component, options[family.id], spec)) if component in family.components else ""
            for family in families
        ))
        for component in spec.contracts
        if any(component in family.components for family in families)
    ]  # fmt: skip
    return markdown_table(("component", *options), lines)


def link(clause: Clause) -> str:
    """Return a link from a clause's id to its heading in the text of its edition."""
    return f"[{clause.id}]({clause.place.file.name}#{anchor(f'{clause.id} · {clause.level.value} · {clause.title}')})"


def anchor(heading: str) -> str:
    """Return the fragment by which GitHub finds a heading.

    Letters become small and spaces hyphens; of the rest digits, marks, underscores and hyphens stay, and other
    signs go without a trace, so that a sign between two spaces leaves two hyphens.
    """
    kept = (c for c in heading.lower() if c in " -" or unicodedata.category(c) in _KEPT)
    return "".join(kept).replace(" ", "-")


_KEPT = frozenset({"Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "Pc"})


def join_first(ids: Sequence[str]) -> str:
    """Join ids with commas; of many ids list the first and count the others."""
    if len(ids) <= SHOWN + 1:
        return ", ".join(ids)
    return f"{', '.join(ids[:SHOWN])} and {len(ids) - SHOWN} more"


def _count(number: int) -> str:
    return str(number) if number else "–"

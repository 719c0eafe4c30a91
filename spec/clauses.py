"""The clauses of the text of an edition: a heading, a body, a line of sources."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from goldformer.spec.edition import Edition
from goldformer.spec.errors import Problem, SpecError
from goldformer.spec.strict import Location
from goldformer.spec.tables import Citation, Clause, Document, Level

_HEADING = re.compile(r"^### ([A-Z]+-\d+) · (MUST|SHOULD|CONVENTION) · (.+)$")
_SOURCE = re.compile(r"^Source: (.+)\.$")

#: The source of a clause that no document states.
THIS_SPEC = "this spec"


def read_clauses(root: Path, editions: Mapping[str, Edition], documents: Mapping[str, Document]) -> dict[str, Clause]:
    """Read the clauses of all editions, in the order of their texts; SpecError names each malformed block."""
    clauses: dict[str, Clause] = {}
    problems: list[Problem] = []
    for edition in editions.values():
        problems += _read_text(root / edition.text, edition.edition, documents, clauses)
    if problems:
        raise SpecError(problems)
    return clauses


def _read_text(
    path: Path, edition: str, documents: Mapping[str, Document], clauses: dict[str, Clause]
) -> Iterator[Problem]:
    """Add every `### ID · LEVEL · Title` block of a text to the clauses; yield what is wrong, with its line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("### ")]
    if not starts:
        yield Problem(path, 1, "file", "holds no clause")
    for start in starts:
        end = next((i for i in range(start + 1, len(lines)) if lines[i].startswith("#")), len(lines))
        heading, body = _HEADING.match(lines[start]), lines[start + 1 : end]
        if heading is None:
            yield Problem(path, start + 1, "heading", "write ### ID-1 · MUST|SHOULD|CONVENTION · Title")
            continue
        id_, level, title = heading.groups()
        if id_ in clauses:
            first = clauses[id_].place
            elsewhere = "" if first.file == path else f" of {first.file.name}: give one of the two another id"
            yield Problem(path, start + 1, id_, f"first stands on line {first.line}{elsewhere}")
            continue
        try:
            text, sources = _split_sources(body, documents)
        except ValueError as error:
            yield Problem(path, start + 1, id_, str(error))
            continue
        clauses[id_] = Clause(id_, edition, Level(level), title, text, sources, Location(path, start + 1))


def _split_sources(body: list[str], documents: Mapping[str, Document]) -> tuple[str, tuple[Citation, ...]]:
    text = "\n".join(body).strip()
    paragraphs = text.split("\n\n")
    match = _SOURCE.match(" ".join(paragraphs[-1].split()))
    if match is None:
        raise ValueError("must end with a paragraph such as: Source: walkthrough W1; paper 3.2.1.")
    return "\n\n".join(paragraphs[:-1]).strip(), tuple(cite(item, documents) for item in match[1].split(";"))


def cite(item: str, documents: Mapping[str, Document]) -> Citation:
    """Read `walkthrough W1 W4`; ValueError when the document or a row does not exist."""
    if item.strip() == THIS_SPEC:
        return Citation.model_construct(document=THIS_SPEC, rows=())
    name, *rows = item.split()
    if name not in documents:
        raise ValueError(f"cites {name!r}, which documents.yaml does not have: it has {', '.join(documents)}")
    known = {row.id for row in documents[name].rows}
    unknown = [row for row in rows if row not in known and documents[name].kind != "paper"]
    if unknown or not rows:
        raise ValueError(f"cites rows {unknown} of {name}, which has {', '.join(sorted(known))}")
    return Citation(document=name, rows=tuple(rows))

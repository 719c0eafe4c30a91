"""The clauses of transformer.md: a heading, a body, a line of sources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from goldformer.spec.errors import Problem, SpecError
from goldformer.spec.strict import Location
from goldformer.spec.tables import Citation, Clause, Document, Level

_HEADING = re.compile(r"^### ([A-Z]+-\d+) · (MUST|SHOULD|CONVENTION) · (.+)$")
_SOURCE = re.compile(r"^Source: (.+)\.$")

#: The source of a clause that no document states.
THIS_SPEC = "this spec"


def read_clauses(path: Path, documents: Mapping[str, Document]) -> dict[str, Clause]:
    """Read every `### ID · LEVEL · Title` block; SpecError names each malformed block, with its line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("### ")]
    clauses: dict[str, Clause] = {}
    problems: list[Problem] = []
    for start in starts:
        end = next((i for i in range(start + 1, len(lines)) if lines[i].startswith("#")), len(lines))
        heading, body = _HEADING.match(lines[start]), lines[start + 1 : end]
        if heading is None:
            problems.append(Problem(path, start + 1, "heading", "write ### ID-1 · MUST|SHOULD|CONVENTION · Title"))
            continue
        id_, level, title = heading.groups()
        if id_ in clauses:
            problems.append(Problem(path, start + 1, id_, f"first stands on line {clauses[id_].place.line}"))
            continue
        try:
            text, sources = _split_sources(body, documents)
        except ValueError as error:
            problems.append(Problem(path, start + 1, id_, str(error)))
            continue
        clauses[id_] = Clause(id_, Level(level), title, text, sources, Location(path, start + 1))
    if problems or not clauses:
        raise SpecError(problems or [Problem(path, 1, "file", "holds no clause")])
    return clauses


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
        return Citation(THIS_SPEC, ())
    name, *rows = item.split()
    if name not in documents:
        raise ValueError(f"cites {name!r}, which documents.yaml does not have: it has {', '.join(documents)}")
    known = {row.id for row in documents[name].rows}
    unknown = [row for row in rows if row not in known and documents[name].kind != "paper"]
    if unknown or not rows:
        raise ValueError(f"cites rows {unknown} of {name}, which has {', '.join(sorted(known))}")
    return Citation(name, tuple(rows))

"""The normative text: one page for how to read it, one for each of its sections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from goldformer.spec import Spec
from goldformer.spec.coverage import Coverage, cover
from goldformer.spec.readme import anchor, numbers
from goldformer.spec.tables import Clause
from goldformer_site.markdown import Words, cite_rows, fields, link, links, target, toctree

_TITLE = "The spec"


@dataclass(frozen=True, slots=True)
class Section:
    """A section of transformer.md: its heading, what it says before its first clause, and its clauses."""

    title: str
    text: str
    clauses: tuple[Clause, ...]

    @property
    def name(self) -> str:
        """The name of its page, and the fragment under which GitHub finds it."""
        return anchor(self.title)


def sections(spec: Spec) -> Iterator[Section]:
    """Return the sections of transformer.md, in its order."""
    lines = (spec.root / "transformer.md").read_text(encoding="utf-8").splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("## ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        body = lines[start + 1 : end]
        before = next((index for index, line in enumerate(body) if line.startswith("### ")), len(body))
        clauses = tuple(clause for clause in spec.clauses.values() if start < clause.place.line <= end)
        yield Section(lines[start].removeprefix("## "), "\n".join(body[:before]).strip(), clauses)


def clause_pages(spec: Spec) -> Mapping[str, str]:
    """Return the index page of the clauses, and the pages of their groups."""
    found = list(sections(spec))
    writer = _ClauseWriter(spec)
    return {
        "spec/index.md": _index(spec, found),
        **{f"spec/{section.name}.md": writer.section(section) for section in found},
    }


def _index(spec: Spec, found: list[Section]) -> str:
    text = (spec.root / "transformer.md").read_text(encoding="utf-8")
    (before,) = re.findall(r"\A# .*?\n(.*?)\n## ", text, re.DOTALL)
    listed = "".join(
        f"- {link('section', section.name, section.title)}"
        + (f": {links('clause', [clause.id for clause in section.clauses])}" if section.clauses else "")
        + "\n"
        for section in found
    )
    return (
        f"(the-spec)=\n# {_TITLE}\n\n{before.strip()}\n\n"
        + "".join(f"- {line}\n" for line in numbers(spec))
        + f"\n## Sections\n\n{listed}\n"
        + toctree((section.name for section in found), hidden=True)
    )


class _ClauseWriter:
    """Writes the sections of one spec."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.words = spec, Words(spec)
        self.coverage: Coverage = cover(spec)

    def section(self, section: Section) -> str:
        """Return the page of one section."""
        # The fragment is that of GitHub too, so that links to it hold here and there.
        head = f"{target('section', section.name)}({section.name})=\n# {section.title}\n"
        parts = [head, self.words.body(section.text), *map(self.clause, section.clauses)]
        return "\n".join(part for part in parts if part) + "\n"

    def clause(self, clause: Clause) -> str:
        """Render one clause, and the checks that show it."""
        conventions = [c.id for c in self.spec.conventions.values() if c.clause == clause.id]
        errata = [erratum.id for erratum in self.spec.errata.values() if clause.id in erratum.clauses]
        facts = fields(
            [
                ("Source", "; ".join(map(cite_rows, clause.sources))),
                ("Convention", links("convention", conventions)),
                ("Shown by", self.words.checks(self.coverage.clauses[clause.id].proofs.ids) or "every call"),
                ("Errata", links("erratum", errata)),
            ]
        )
        heading = f"## {clause.id} · {clause.level.value} · {clause.title}"
        return f"\n{target('clause', clause.id)}{heading}\n\n{self.words.body(clause.text, but=clause.id)}\n\n{facts}"

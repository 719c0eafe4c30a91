"""The normative texts: for each edition a page on how to read it, and one for each of its sections."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from goldformer.spec import Spec
from goldformer.spec.edition import Edition
from goldformer.spec.making.coverage import Coverage, cover
from goldformer.spec.making.readme import anchor, numbers
from goldformer.spec.tables import Clause
from goldformer_site.markdown import Words, cite_rows, fields, link, links, target, toctree


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the text of an edition: its heading, what it says before its first clause, and its clauses.

    `name` is that of its page, and of the place in it to which links lead.
    """

    name: str
    title: str
    text: str
    clauses: tuple[Clause, ...]


def name_place(fragment: str, edition: Edition, spec: Spec) -> str:
    """Return the place of a heading that GitHub finds under a fragment; texts after the first have prefixes."""
    return fragment if edition == spec.default_edition else f"{edition.edition}-{fragment}"


def sections(edition: Edition, spec: Spec) -> Iterator[Section]:
    """Return the sections of the text of an edition, in its order."""
    lines = (spec.root / edition.text).read_text(encoding="utf-8").splitlines()
    own = [clause for clause in spec.clauses.values() if clause.edition == edition.edition]
    starts = [index for index, line in enumerate(lines) if line.startswith("## ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        body = lines[start + 1 : end]
        before = next((index for index, line in enumerate(body) if line.startswith("### ")), len(body))
        clauses = tuple(clause for clause in own if start < clause.place.line <= end)
        title = lines[start].removeprefix("## ")
        yield Section(name_place(anchor(title), edition, spec), title, "\n".join(body[:before]).strip(), clauses)


def clause_pages(spec: Spec) -> Mapping[str, str]:
    """Return the index page of the clauses of each edition, and the pages of their groups."""
    found = {edition: list(sections(edition, spec)) for edition in spec.editions.values()}
    writer = _ClauseWriter(spec)
    first, *others = found
    pages = {"spec/index.md": _index(first, found[first], spec, others)}
    pages |= {f"spec/{edition.edition}.md": _index(edition, found[edition], spec) for edition in others}
    return pages | {
        f"spec/{section.name}.md": writer.section(section) for listed in found.values() for section in listed
    }


def _index(edition: Edition, found: list[Section], spec: Spec, others: Sequence[Edition] = ()) -> str:
    """Return the page above the sections of an edition; the first one leads to those of the others."""
    text = (spec.root / edition.text).read_text(encoding="utf-8")
    ((heading, before),) = re.findall(r"\A# (.*?)\n(.*?)\n## ", text, re.DOTALL)
    first = edition == spec.default_edition
    totals = numbers(spec) if first else ()
    listed = "".join(
        f"- {link('section', section.name, section.title)}"
        + (f": {links('clause', [clause.id for clause in section.clauses])}" if section.clauses else "")
        + "\n"
        for section in found
    )
    if others:
        listed += "\n## Further editions\n\n" + "".join(
            f"- [`{other.edition}`](#{name_place('the-spec', other, spec)})\n" for other in others
        )
    return (
        f"({name_place('the-spec', edition, spec)})=\n# {'The spec' if first else heading}\n\n{before.strip()}\n\n"
        + "".join(f"- {line}\n" for line in totals)
        + f"\n## Sections\n\n{listed}\n"
        + toctree((*(section.name for section in found), *(other.edition for other in others)), hidden=True)
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

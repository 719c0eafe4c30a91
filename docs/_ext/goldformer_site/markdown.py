"""Words of the spec as Markdown of the site: escaped, with every id that they name leading to its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from goldformer.spec import Spec
from goldformer.spec.markdown import escape
from goldformer.spec.tables import Citation

_CODE = re.compile(r"(``.+?``|`[^`]+`)")
_CLAUSE = re.compile(r"\b[A-Z]+-\d+\b")


def label(kind: str, id_: str) -> str:
    """Return the name of a place, which is also its anchor in the page: clause-sdpa-2, mistake-scale-missing."""
    return f"{kind}-{id_}".lower().replace("_", "-").replace(".", "-")


def target(kind: str, id_: str) -> str:
    """Return the line that marks the next block as the place of an id."""
    return f"({label(kind, id_)})=\n"


def link(kind: str, id_: str, text: str | None = None) -> str:
    """Return a link to the place of an id; ids of code are shown as code."""
    return f"[{text or (id_ if kind in ('clause', 'row') else f'`{id_}`')}](#{label(kind, id_)})"


def links(kind: str, ids: Iterable[str]) -> str:
    """Return links to the places of several ids."""
    return ", ".join(link(kind, id_) for id_ in ids)


def cite_rows(source: Citation) -> str:
    """Return a citation with links to the document and its rows; other text is returned unchanged."""
    rows = " ".join(link("row", f"{source.document}-{row}", row) for row in source.rows)
    return f"{link('document', source.document, source.document)} {rows}" if rows else source.document


class Words:
    """Texts of one spec as Markdown."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def plain(self, text: str, *, but: str = "") -> str:
        """Escape prose; text in backticks stays code, and clauses other than `but` become links.

        A sign that would end a table cell is escaped everywhere.
        """
        parts = _CODE.split(" ".join(text.split()))
        return "".join(
            part.replace("|", "\\|") if index % 2 else self.link_clauses(_escape_part(part), but=but)
            for index, part in enumerate(parts)
        )

    def link_clauses(self, text: str, *, but: str = "") -> str:
        """Return the text with links on the clauses that it names."""

        def link_if_known(match: re.Match[str]) -> str:
            known = match[0] in self.spec.clauses and match[0] != but
            return link("clause", match[0]) if known else match[0]

        return _CLAUSE.sub(link_if_known, text)

    def body(self, text: str, *, but: str = "") -> str:
        """Return Markdown, such as that of a clause, with links outside of code and formulas."""
        parts = re.split(r"(\$\$.*?\$\$|``.+?``|`[^`]+`)", text, flags=re.DOTALL)
        return "".join(part if index % 2 else self.link_clauses(part, but=but) for index, part in enumerate(parts))

    def check(self, id_: str) -> str:
        """Return a link to a case or a property."""
        return link("case" if id_ in self.spec.cases else "property", id_)

    def checks(self, ids: Sequence[str], shown: int = 8) -> str:
        """Return links to the first cases and properties, and the number of the others."""
        first = ", ".join(map(self.check, ids if len(ids) <= shown + 1 else ids[:shown]))
        return first if len(ids) <= shown + 1 else f"{first} and {len(ids) - shown} more"


def _escape_part(text: str) -> str:
    """Return a part of a line with the spaces at its ends."""
    words = escape(text)
    return f"{' ' * text[:1].isspace()}{words}{' ' * text[-1:].isspace()}" if words else text


def fields(items: Iterable[tuple[str, str]]) -> str:
    """Return names and their texts, one line each; names without a text are left out."""
    return "".join(f":{name}: {text}\n" for name, text in items if text)


def render_term(term: str, *paragraphs: str) -> str:
    """Return a term with its description."""
    text = "\n\n".join(f"  {paragraph}" for paragraph in paragraphs if paragraph)
    return f"{term}\n: {text.lstrip()}\n"


def toctree(names: Iterable[str], *, hidden: bool = False) -> str:
    """Return the table of contents of the pages below this one."""
    hiding = ":hidden:\n" if hidden else ""
    return "```{toctree}\n:maxdepth: 1\n" + hiding + "\n".join(names) + "\n```\n"

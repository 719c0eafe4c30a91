"""Text and tables in Markdown, for the page of the spec and for reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def escape(text: str) -> str:
    """Escape Markdown signs inside a table, and what would make a link or an image."""
    for sign in ("\\", "|", "<", "*", "`", "$", "]("):
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def markdown_table(headings: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Render a Markdown table from cells that are escaped already."""

    def rows() -> Iterator[Sequence[str]]:
        yield headings
        yield ["---"] * len(headings)
        yield from lines

    return "".join(f"| {' | '.join(row)} |\n" for row in rows())

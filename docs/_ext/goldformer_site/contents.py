"""The table of contents: which pages stand under which heading."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

#: Pages by heading, in order. One that is not there is passed over.
_CONTENTS: Final[Mapping[str, tuple[str, ...]]] = {
    "Tutorial": ("tutorial", "llama", "first_check", "generated/transformer"),
    "How to": (
        "check",
        "read-a-failure",
        "infer",
        "trace",
        "adapters",
        "bridges",
        "python",
        "assert",
        "kernels",
        "gpu",
        "baselines",
        "ci",
        "grading",
        "gradebook",
        "assignments",
        "extend",
    ),
    "Reference": (
        "generated/command-line",
        "exit-status",
        "generated/spec/index",
        "generated/components/index",
        "generated/conventions",
        "generated/mistakes/index",
        "generated/properties",
        "generated/documents",
        "generated/errata",
        "cases",
        "adapter-reference",
        "assignment-reference",
        "isolation",
        "protocol",
        "implementations",
        "wrapped",
    ),
    "Why": ("values", "tolerances", "findings", "benchmarks"),
}

#: The heading of pages that no heading above lists.
_OTHERS: Final = "More"


def contents(root: str, found: Collection[str]) -> str:
    """Return the tables of contents of the first page; each page stands in one of them."""
    listed = {root, *(page for pages in _CONTENTS.values() for page in pages)}
    others = tuple(sorted(page for page in found if "/" not in page and page not in listed))
    tables = {**_CONTENTS, _OTHERS: others}
    there = {title: [page for page in pages if page in found] for title, pages in tables.items()}
    return "".join(
        "\n```{toctree}\n:hidden:\n:caption: " + title + "\n\n" + "\n".join(pages) + "\n```\n"
        for title, pages in there.items()
        if pages
    )

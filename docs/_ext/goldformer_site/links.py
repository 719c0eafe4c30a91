"""Links that hold on GitHub, from docs/ to files of the repository, lead to the pages that the site makes of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from goldformer.spec import ROOT, Spec
from goldformer.spec.making.readme import anchor
from goldformer_site.clauses import name_place
from goldformer_site.markdown import label

_FENCE = re.compile(r"(^(`{3,}|~{3,}).*?^\2\s*$)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\(\.\./([^)#\s]+)(?:#([^)\s]*))?\)")

#: Files that have one page, by the label of that page.
_PAGES = {
    "conformance/cli.py": "the-command-line",
    "reference_impl/transformer.py": "the-transformer-on-one-page",
    "spec": "the-spec",
    "spec/README.md": "the-spec",
    "spec/contracts": "the-components",
    "spec/cases": "the-components",
    "spec/golden": "the-components",
    "spec/conventions.yaml": "the-conventions",
    "spec/documents.yaml": "the-documents",
    "spec/errata.yaml": "the-errata",
    "spec/mistakes.yaml": "known-mistakes",
    "spec/properties.yaml": "the-properties",
}


class Links:
    """The targets of the links of the pages in one folder."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.spec, self.folder = spec, folder

    def lead_page(self, text: str) -> str:
        """Return a page whose links lead to pages of the site, or to the file if the site has no page for it."""
        parts = _FENCE.split(text)
        # Each fence comes with the group of its ticks.
        kept = [part for index, part in enumerate(parts) if index % 3 != 2]
        return "".join(part if index % 2 else _LINK.sub(self._lead_link, part) for index, part in enumerate(kept))

    def _lead_link(self, match: re.Match[str]) -> str:
        text, path, fragment = match[1], match[2].rstrip("/"), match[3]
        place = self._label(path, fragment)
        if place is not None:
            return f"[{text}](#{place})"
        if path == "README.md":
            return f"[{text}](index.md)"
        file = ROOT.parent / path
        if file.is_dir():
            return text
        # A link to a missing file stays, and Sphinx says that it leads nowhere.
        there = os.path.relpath(file, self.folder)
        # MyST takes what ends in .md for a page of the site.
        return f"{{download}}`{text} <{there}>`" if file.suffix == ".md" else f"[{text}]({there})"

    def _label(self, path: str, fragment: str | None) -> str | None:
        edition = next((e for e in self.spec.editions.values() if path == f"spec/{e.text}"), None)
        if edition is not None:
            known = self._headings if fragment else {}
            return known.get(fragment or "") or name_place(fragment or "the-spec", edition, self.spec)
        folder, _, name = path.rpartition("/")
        component, _, _ = name.rpartition(".")
        if folder in ("spec/contracts", "spec/cases", "spec/golden") and component in self.spec.contracts:
            return label("component", component)
        return _PAGES.get(path)

    @cached_property
    def _headings(self) -> Mapping[str, str]:
        """The clauses by the fragments under which GitHub finds them."""
        return {
            anchor(f"{clause.id} · {clause.level.value} · {clause.title}"): label("clause", clause.id)
            for clause in self.spec.clauses.values()
        }

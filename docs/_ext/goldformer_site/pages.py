"""All pages that are made, by their paths."""

from __future__ import annotations

from collections.abc import Mapping

from goldformer.spec import Spec
from goldformer_site import (
    catalogue,
    command_line,
    components,
    documents,
    properties_and_conventions,
    reference_page,
)
from goldformer_site.clauses import clause_pages


def pages(spec: Spec) -> Mapping[str, str]:
    """Return the Markdown of each page by its path below the folder of generated pages; the same for the same spec."""
    return {
        **clause_pages(spec),
        **components.pages(spec),
        "documents.md": documents.documents(spec),
        "errata.md": documents.errata(spec),
        **catalogue.pages(spec),
        "properties.md": properties_and_conventions.properties(spec),
        "conventions.md": properties_and_conventions.conventions(spec),
        "command-line.md": command_line.page(),
        "transformer.md": reference_page.page(spec),
    }

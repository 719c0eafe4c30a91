"""Sphinx extension: the pages of the site that follow from the spec and from the command line, made at build time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from goldformer.spec import load_spec
from goldformer_site import mathml
from goldformer_site.contents import contents
from goldformer_site.links import Links
from goldformer_site.pages import pages

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

#: The folder of the pages that are made, below the site's own; git ignores it.
GENERATED = "generated"


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect to Sphinx: make pages before it reads them, links while it reads them, and formulas as MathML."""
    app.connect("builder-inited", _write_pages)
    app.connect("env-get-outdated", _list_notebooks)
    app.connect("source-read", _follow_links)
    app.add_html_math_renderer("mathml", (mathml.visit_inline, None), (mathml.visit_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _write_pages(app: Sphinx) -> None:
    made = pages(load_spec())
    folder = Path(app.srcdir) / GENERATED
    for path in folder.rglob("*.md"):
        if path.relative_to(folder).as_posix() not in made:
            path.unlink()
    for name, text in made.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # A page that did not change is not read again.
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _list_notebooks(app: Sphinx, env: BuildEnvironment, *changes: object) -> list[str]:
    """Return the notebooks, which are run again: what they show changes with the code and not with their file."""
    del app, changes
    return [name for name in env.found_docs if env.doc2path(name).suffix == ".ipynb"]


def _follow_links(app: Sphinx, name: str, source: list[str]) -> None:
    if not name.startswith(f"{GENERATED}/"):
        source[0] = Links(load_spec(), Path(app.srcdir)).lead_page(source[0])
    if name == app.config.root_doc:
        source[0] += contents(name, app.env.found_docs)

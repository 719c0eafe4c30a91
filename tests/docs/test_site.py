"""The site as it is built: nothing is asked of the network, everything has its place, and links lead somewhere.

Needs Sphinx, which the extra `docs` installs; `make docs` has it, and names the site that it built in SITE.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from goldformer.spec import load_spec
from repository import REPOSITORY

BUILT = os.environ.get("SITE")

if importlib.util.find_spec("sphinx") is None:
    pytest.skip("Sphinx is not installed: `make docs` builds the site and tests it", allow_module_level=True)

#: Elements that load what they name, with the attributes that name it. A link that is only followed is none of them.
LOADING = {
    "script": ("src",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",), "embed": ("src",), "object": ("data",), "use": ("href",), "form": ("action",), "link": ("href",),
}  # fmt: skip
ELSEWHERE = re.compile(r"^\s*(https?:|//|wss?:)")


class Page(HTMLParser):
    """The contents of a page: its ids, where its links lead, what it loads, its style, and the text of its formulas."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads, self.styles, self.formulas = [], [], [], [], []
        self.inside = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.loads += [given[name] for name in LOADING.get(tag, ()) if given.get(name)]
        self.styles.append(given.get("style") or "")
        if tag == "math":
            self.formulas.append("")
        if tag in ("math", "style"):
            self.inside.append(tag)

    def handle_endtag(self, tag):
        if self.inside and self.inside[-1] == tag:
            self.inside.pop()

    def handle_data(self, data):
        if self.inside[-1:] == ["math"]:
            self.formulas[-1] += data
        elif self.inside[-1:] == ["style"]:
            self.styles.append(data)


@cache
def pages_in(folder):
    return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.html"))}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site: the one that is named in SITE, or else one that is built here."""
    if BUILT:
        return (REPOSITORY / BUILT).resolve()
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", target / "doctrees"]
    done = subprocess.run(
        [*command, "docs", target / "html"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return target / "html"


@pytest.fixture(scope="module")
def pages(site):
    return pages_in(site)


@pytest.fixture(scope="module")
def everything():
    return load_spec()


def page(site, name):
    return pages_in(site)[site / f"{name}.html"]


def place(kind, id_):
    return f"{kind}-{id_}".lower().replace("_", "-").replace(".", "-")


# Nothing is asked of the network


def test_no_page_loads_anything_from_elsewhere(pages):
    loads = [(path.name, what) for path, found in pages.items() for what in found.loads]
    assert len(loads) > len(pages)
    assert [(name, what) for name, what in loads if ELSEWHERE.match(what)] == []


def test_no_style_loads_anything_from_elsewhere(site, pages):
    sheets = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    inline = [style for found in pages.values() for style in found.styles if style]
    assert sheets
    for style in (*sheets, *inline):
        assert not re.search(r"(url\(|@import)\s*['\"]?\s*(https?:)?//", style)


def test_no_script_asks_anything_from_elsewhere(site):
    scripts = [path for path in site.rglob("*.js") if path.name != "searchindex.js"]
    assert scripts
    for path in scripts:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"(fetch|import|open|importScripts)\(\s*['\"`](https?:)?//", text), path.name


# Everything has its place


@pytest.mark.parametrize(
    ("kind", "name"),
    [("clause", "clauses"), ("mistake", "mistakes"), ("erratum", "errata"), ("component", "contracts"),
     ("case", "cases"), ("property", "properties"), ("convention", "conventions"), ("document", "documents")],
)  # fmt: skip
def test_everything_that_has_an_id_has_one_place(kind, name, pages, everything):
    wanted = {place(kind, id_) for id_ in getattr(everything, name)}
    found = [id_ for found in pages.values() for id_ in found.ids if id_ in wanted]
    assert wanted
    assert sorted(found) == sorted(wanted)


def test_every_row_of_a_document_has_its_place(site, everything):
    rows = {place("row", f"{d.id}-{row.id}") for d in everything.documents.values() for row in d.rows}
    assert rows
    assert rows <= set(page(site, "generated/documents").ids)


def test_every_command_has_its_place(site):
    from goldformer.conformance.cli import main

    assert {f"command-{name}" for name in main.list_commands(None)} <= set(page(site, "generated/command-line").ids)


def test_every_formula_is_mathematics(site, pages, everything):
    """As many formulas as the clauses write, and nothing of TeX is left in them."""
    text = (everything.root / "transformer.md").read_text(encoding="utf-8")
    written = len(re.findall(r"\$\$.+?\$\$", text, re.DOTALL))
    found = [
        formula for path, p in pages.items() if path.parent == site / "generated" / "spec" for formula in p.formulas
    ]
    assert len(found) == written > 0
    assert [formula for formula in found if "\\" in formula or "$" in formula or not formula.strip()] == []


def test_no_page_shows_the_marks_of_its_source(pages):
    """Markdown that was not read as such stands in the text."""
    for path in pages:
        text = re.sub(
            r"<pre.*?</pre>|<code.*?</code>|<script.*?</script>", "", path.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        text = re.sub(r"<[^>]*>", "", text)
        for mark in ("](#", "```", ":::", ")=\n", "{toctree}", "$$"):
            assert mark not in text, f"{path.name}: {mark}"


# Links lead somewhere


def test_every_link_within_the_site_leads_to_a_place(pages):
    broken, followed = [], 0
    for path, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            followed += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = target in pages and (not parts.fragment or unquote(parts.fragment) in pages[target].ids)
            # Files that are there to be loaded down have no places.
            if not there and not (target.is_file() and target.suffix != ".html"):
                broken.append((path.name, link))
    assert followed > 1000
    assert broken == []


def test_no_id_stands_twice_on_a_page(pages):
    for path, found in pages.items():
        twice = (
            {id_ for id_ in found.ids if found.ids.count(id_) > 1} if len(set(found.ids)) < len(found.ids) else set()
        )
        assert twice == set(), path.name


def test_links_to_other_sites_are_encrypted(pages):
    outward = {link for found in pages.values() for link in found.links if urlsplit(link).netloc}
    assert outward
    assert [link for link in outward if not link.startswith("https://")] == []


def test_the_written_pages_lead_from_files_to_the_pages_made_of_them(site):
    links = page(site, "index").links
    for target in ("generated/spec/index.html", "generated/components/index.html", "generated/mistakes/index.html"):
        assert any(link.startswith(target) for link in links), target
    assert any(link.endswith(f"#{place('clause', 'NUM-1')}") for link in page(site, "values").links)

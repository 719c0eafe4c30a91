"""Coverage: clauses, rows and errata of a made-up spec, the page written from it, and the shipped spec."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from goldformer.spec import ROOT, Spec, load_spec
from goldformer.spec.making.coverage import Proofs, cites_row, cover
from goldformer.spec.making.readme import anchor, join_first, numbers, readme
from goldformer.spec.markdown import escape


@pytest.fixture
def small(small_spec: Path) -> Spec:
    return load_spec.__wrapped__(small_spec)


def spoilt(root: Path, file: str, old: str, new: str) -> Spec:
    text = (root / file).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (root / file).write_text(text.replace(old, new), encoding="utf-8")
    return load_spec.__wrapped__(root)


def gaps(spec: Spec) -> list[str]:
    return [str(problem).removeprefix(f"{spec.root}/") for problem in cover(spec).problems()]


# ── clauses, rows, errata ──


def test_a_clause_is_shown_by_cases_refusals_and_properties_each_in_its_place(small: Spec):
    proofs = {id_: covered.proofs for id_, covered in cover(small).clauses.items()}
    assert proofs == {
        "SM-1": Proofs(("sm-five", "sm-shape"), (), ()),
        "SM-2": Proofs((), ("sm-empty",), ()),
        "SM-3": Proofs((), (), ("sm-shift",)),
        "SM-4": Proofs((), (), ()),
        "CALL-1": Proofs((), (), ("any-shape",)),
    }


def test_a_row_is_shown_by_its_own_cases_first_then_by_its_clauses_and_errata(small: Spec):
    rows = {covered.row.id: covered for covered in cover(small).rows}
    assert rows["R1"].clauses == ("SM-1",)
    assert rows["R1"].proofs == Proofs(("sm-shape", "sm-five"), (), ())
    assert rows["R2"].proofs == Proofs((), ("sm-empty",), ())
    assert (rows["R3"].clauses, rows["R3"].errata) == ((), ("notes-mean",))
    assert rows["R3"].proofs == Proofs(("sm-shape",), (), ())
    assert rows["L1"].proofs == Proofs((), (), ("sm-shift",))


def test_the_sections_of_the_paper_that_are_cited_are_rows_in_its_order(small: Spec):
    paper = [covered for covered in cover(small).rows if covered.document == "paper"]
    assert [covered.row.id for covered in paper] == ["3.2", "3.2.1", "3.10"]
    assert [covered.proofs.ids for covered in paper] == [("sm-five", "sm-shape"), ("sm-shift",), ("sm-empty",)]


def test_a_section_of_the_paper_that_a_case_alone_cites_is_a_row(small_spec: Path):
    spec = spoilt(small_spec, "cases/softmax.yaml", "{document: notes, rows: [R1]}", "{document: paper, rows: ['4']}")
    [row] = [covered for covered in cover(spec).rows if covered.row.id == "4"]
    assert (row.clauses, row.proofs.ids) == ((), ("sm-shape",))


def test_where_everything_is_covered_there_is_no_gap(small: Spec):
    assert gaps(small) == []


ROW = "is shown by no case, no property and no proof of an erratum; it is cited by"


@pytest.mark.parametrize(
    ("file", "old", "new", "found"),
    [
        ("properties.yaml", "clauses: [SM-3]", "clauses: [SM-1]", [
            "transformer.md:15: SM-3: is a MUST that no case and no property shows",
            f"documents.yaml:17: letters L1: {ROW} only SM-3",
            f"transformer.md:15: paper 3.2.1: {ROW} only SM-3",
        ]),
        ("transformer.md", "Source: notes R2; paper 3.10.", "Source: this spec.",
         [f"documents.yaml:9: notes R2: {ROW} nothing"]),
        ("errata.yaml", "rows: [R3]", "rows: []", [f"documents.yaml:10: notes R3: {ROW} nothing"]),
        ("errata.yaml", "proof: [sm-shape]", "proof: [sm-shape, sm-lost]",
         ["errata.yaml:2: notes-mean: is proven by 'sm-lost', which is no case and no property"]),
        ("errata.yaml", "proof: [sm-shape]", "proof: [sm-shift, sm-empty]",
         ["errata.yaml:2: notes-mean: its proofs (sm-empty, sm-shift) show no clause of it (SM-1)"]),
        ("errata.yaml", "proof: [sm-shape]", "proof: [sm-lost]", [
            f"documents.yaml:10: notes R3: {ROW} nothing",
            "errata.yaml:2: notes-mean: is proven by 'sm-lost', which is no case and no property",
        ]),
    ],
    ids=["a clause and its rows", "a row of no clause", "a row of no erratum", "a lost proof",
         "a proof of something else", "no proof"],
)  # fmt: skip
def test_what_nothing_shows_is_a_gap(small_spec: Path, file, old, new, found):
    assert gaps(spoilt(small_spec, file, old, new)) == found


def test_totals_count_clauses_by_level_and_cases_by_what_they_ask_for(small: Spec, spec: Spec):
    clauses, cases, *_, others = numbers(small)
    assert clauses == "5 clauses: 4 MUST, 0 SHOULD, 1 CONVENTION"
    refused = "0 with golden values, 0 with golden gradients, 2 with only shapes, 1 refusals"
    assert cases == f"3 cases: {refused}; 0 golden numbers in all"
    assert others == "2 properties, 1 conventions, 1 errata, 0 known mistakes"
    # 16 truth values; weights (3, 3) and so on of the gradient; under each of three options 4 × 4 numbers.
    some = {id_: spec.cases[id_] for id_ in ("mask-causal-4", "sm-gradient", "pe-walkthrough-4x4")}
    gradient = some["sm-gradient"].golden.options[""]["scores"].values.size
    asked = "2 with golden values, 1 with golden gradients, 0 with only shapes, 0 refusals"
    _, cases, *_ = numbers(replace(spec, cases=some))
    assert cases == f"3 cases: {asked}; {16 + gradient + 3 * 16} golden numbers in all"


# ── the page ──


# GitHub's own answers; those that do not come from transformer.md are among the fixtures of github-slugger.
ANCHORS = {
    "SDPA-1 · MUST · Scores are dot products of queries with keys":
        "sdpa-1--must--scores-are-dot-products-of-queries-with-keys",
    "SDPA-2 · MUST · Scores are divided by √d_k": "sdpa-2--must--scores-are-divided-by-d_k",
    "LOSS-2 · MUST · Cross-entropy is −log softmax(logits)[target], and the loss its mean":
        "loss-2--must--cross-entropy-is-log-softmaxlogitstarget-and-the-loss-its-mean",
    "heading with a - dash": "heading-with-a---dash",
    "exchange.bind_headers(exchange, routing [, bindCallback])": "exchangebind_headersexchange-routing--bindcallback",
    "apostrophe’s should be trimmed": "apostrophes-should-be-trimmed",
    "I ♥ unicode": "i--unicode",
    "en–dash": "endash",
    "Привет non-latin 你好": "привет-non-latin-你好",
}  # fmt: skip


@pytest.mark.parametrize(("heading", "fragment"), ANCHORS.items())
def test_the_anchor_of_a_heading_is_the_one_that_github_gives_it(heading, fragment):
    assert anchor(heading) == fragment


def links(page: str) -> set[tuple[str, str]]:
    """(file, fragment) of every link."""
    return {(file, fragment) for file, _, fragment in (to.partition("#") for to in re.findall(r"\]\(([^)]*)\)", page))}


@pytest.mark.parametrize("which", ["small", "shipped"])
def test_every_link_leads_to_a_file_or_to_a_heading(which, small: Spec, spec: Spec):
    given = small if which == "small" else spec
    texts = {
        edition.text: (given.root / edition.text).read_text(encoding="utf-8") for edition in given.editions.values()
    }
    # Letters, digits and underscores as Python sees them: for these headings the same as GitHub's.
    headings = {
        (name, re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-"))
        for name, text in texts.items()
        for line in text.splitlines()
        if line[:1] == "#"
    }
    found = links(readme(given))
    fragments = {(file, fragment) for file, fragment in found if fragment}
    assert fragments <= headings
    assert len(fragments) >= (4 if which == "small" else 90)
    assert {file for file, _ in fragments} == texts.keys()
    files = {file for file, _ in found} - (
        set()
        if which == "shipped"
        else {"making", "oracle", "golden", "out_of_scope.yaml", "edges.yaml", "ids.json", "schemas", "decoder_only.md"}
    )
    assert [file for file in sorted(files) if not (given.root / file).exists()] == []


@pytest.mark.parametrize("which", ["small", "shipped"])
def test_every_line_of_a_table_has_the_cells_of_its_heading(which, small: Spec, spec: Spec):
    cells = 0
    for line in readme(small if which == "small" else spec).splitlines():
        if not line.startswith("|"):
            cells = 0
            continue
        assert line.endswith(" |") or set(line) == set("|-")
        count = len(re.findall(r"(?<!\\)\|", line)) - 1
        cells = cells or count
        assert count == cells, line


def test_the_rows_of_the_page(small: Spec):
    page = readme(small)
    for line in (
        "### notes\n\n笔记 (Notes). Softmax in brief.\n",
        "| R1 | 1 | [SM-1](transformer.md#sm-1--must--the-formula-ex-over-σ-ex-of-n) | 2 | – | – | sm-shape, sm-five |",
        "| R2 | 2 \\| 3 | [SM-2](transformer.md#sm-2--must--empty-rows--none-at-all--are-refused) | – | 1 | – | sm-",
        "| R3 | last | – | 1 | – | – | sm-shape |",
        "### paper\n\nOn Softmax. Cited by section.\n",
        "| 3.10 |  | [SM-2]",
        "| [softmax](contracts/softmax.yaml) | Softmax | 3 | [2](cases/softmax.yaml) | 1 | 1 |",
        "For every component that takes arrays also: any-shape.",
        "| notes-mean | notes R3 | the mean is 1 | the sum is 1 | sm-shape |",
        "| root | Which root | [SM-4](transformer.md#sm-4--convention--n) | `none`: n<br>`square`: √n \\| n |",
        "- 5 clauses: 4 MUST, 0 SHOULD, 1 CONVENTION\n",
        "- 3 cases: 0 with golden values, 0 with golden gradients, 2 with only shapes, 1 refusals; 0 golden numbers",
    ):
        assert f"\n{line}" in page


def test_a_row_that_nothing_shows_stands_out_on_the_page(small_spec: Path):
    page = readme(spoilt(small_spec, "errata.yaml", "rows: [R3]", "rows: []"))
    assert "\n| R3 | last | – | – | – | – | **nothing** |\n" in page
    assert "\n| notes-mean | notes last | " in page


@pytest.mark.parametrize(
    ("ids", "text"),
    [("", ""), ("a", "a"), ("a b c d", "a, b, c, d"), ("a b c d e", "a, b, c and 2 more")],
)
def test_long_lists_of_ids_are_folded(ids, text):
    assert join_first(ids.split()) == text


def test_words_are_safe_from_markdown():
    assert escape("[x](https://example.org) ![y](z.png) w[0]") == r"[x\](https://example.org) ![y\](z.png) w[0]"
    assert escape("a | b <eos> 2*i*\n $x$ `y` \\z") == r"a \| b \<eos> 2\*i\* \$x\$ \`y\` \\z"


def test_the_page_is_the_same_in_every_run(small_spec: Path):
    code = f"""if True:
        from pathlib import Path
        from goldformer.spec import load_spec
        from goldformer.spec.making.readme import readme
        print(readme(load_spec(Path({str(small_spec)!r}))))"""
    pages = [
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True,
                       check=True, timeout=60).stdout
        for seed in ("1", "2")
    ]  # fmt: skip
    assert pages[0] == pages[1] != b""


# ── the shipped spec ──


def test_every_row_of_the_five_documents_is_there(spec: Spec):
    rows: dict[str, list[str]] = {}
    for covered in cover(spec).rows:
        rows.setdefault(covered.document, []).append(covered.row.id)
    sizes = {"walkthrough": ("W", 11), "primer": ("P", 6), "n9": ("N", 7), "java": ("J", 4), "illustrated": ("I", 12)}
    for document, (letter, number) in sizes.items():
        assert rows[document] == [f"{letter}{i}" for i in range(1, number + 1)]
    assert {"3.2.1", "3.5"} < set(rows["paper"])


def test_the_whole_spec_is_covered(spec: Spec):
    coverage = cover(spec)
    assert [str(problem) for problem in coverage.problems()] == []
    # And more: every row of a document has a case or an erratum that names it.
    named = {(r.document, r.row.id): r.errata or [c for c in spec.cases.values() if cites_row(c, r.document, r.row)]
             for r in coverage.rows if spec.documents[r.document].kind != "paper"}  # fmt: skip
    assert [row for row, by in named.items() if not by] == []


def test_the_page_of_the_shipped_spec_lies_beside_it():
    assert (ROOT / "README.md").read_text(encoding="utf-8").startswith("<!-- Written by `goldformer coverage --write`")

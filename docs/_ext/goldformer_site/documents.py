"""The source documents, row by row, with what covers each; and what they get wrong."""

from __future__ import annotations

from goldformer.spec import Spec
from goldformer.spec.making.coverage import ErratumCoverage, RowCoverage, cover
from goldformer.spec.tables import Document, Erratum
from goldformer_site.markdown import Words, fields, link, links, render_term, target

_DOCUMENTS = """\
(the-documents)=
# The documents

The spec rests on these. A row is one thing that a document defines; of the paper, a cited section. Under
each row are the clauses that say the same, the cases and properties that show it, and its errata.
"""

_ERRATA = """\
(the-errata)=
# Errata

The documents are wrong in {number} places. Each entry says what is right, why, and which cases and properties prove it.

<div class="filter" data-of="errata" data-such="softmax"></div>
"""


def documents(spec: Spec) -> str:
    """Return the page of all documents with their rows."""
    words, coverage = Words(spec), cover(spec)
    parts = [_DOCUMENTS]
    for document in spec.documents.values():
        rows = [_row(covered, words) for covered in coverage.rows if covered.document == document.id]
        parts += [f"{target('document', document.id)}## {document.id}\n\n{_title(document, words)}\n", *rows]
    return "\n".join(parts)


def errata(spec: Spec) -> str:
    """Return the page of all errata with their proofs, by document."""
    words, coverage = Words(spec), cover(spec)
    parts = [_ERRATA.format(number=len(spec.errata))]
    for document in spec.documents.values():
        own = [covered for covered in coverage.errata if covered.erratum.document == document.id]
        if own:
            parts += [f"## {document.id}\n\n{_title(document, words)}\n", *(_erratum(e, words) for e in own)]
    return "\n".join(parts)


def _title(document: Document, words: Words) -> str:
    name = document.title if document.title == document.english else f"{document.title} ({document.english})"
    return f"{words.plain(name)}. {words.plain(document.about)} {words.plain(document.origin)}"


def _row(covered: RowCoverage, words: Words) -> str:
    row = covered.row
    section = "" if row.section == row.id else f", section {words.plain(row.section)}"
    facts = [
        ("clauses", links("clause", covered.clauses)),
        ("shown by", words.checks(covered.proofs.ids)),
        ("errata", links("erratum", covered.errata)),
    ]
    return target("row", f"{covered.document}-{row.id}") + render_term(
        f"{row.id}{section}", words.plain(row.says), "; ".join(f"{name} {text}" for name, text in facts if text) + "."
    )


def _erratum(covered: ErratumCoverage, words: Words) -> str:
    erratum = covered.erratum
    facts = fields(
        [
            ("Where", _where(erratum, words)),
            ("Printed", words.plain(erratum.printed)),
            ("Correct", words.plain(erratum.correct)),
            ("Why", words.plain(erratum.why)),
            ("Clauses", links("clause", erratum.clauses)),
            ("Proven by", words.checks(covered.proofs.ids)),
            (
                "Wrong digits",
                "; ".join(f"{len(d.indices)} of `{d.output}` in {words.check(d.case)}" for d in erratum.digits),
            ),
        ]
    )
    return f"{target('erratum', erratum.id)}### {erratum.id}\n\n{facts}"


def _where(erratum: Erratum, words: Words) -> str:
    rows = " ".join(link("row", f"{erratum.document}-{row}", row) for row in erratum.rows)
    return f"{rows}, section {words.plain(erratum.section)}" if rows else f"section {words.plain(erratum.section)}"

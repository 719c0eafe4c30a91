"""goldformer coverage: the checks that cover each row of the documents, each clause and erratum; spec/README.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import FAILS, OK, CannotRun, plain_table, print_table, require_known, say
from goldformer.spec import ROOT, Spec, load_spec
from goldformer.spec.coverage import Coverage, Proofs, RowCoverage, cites_row, count_totals, cover
from goldformer.spec.files import replace_file
from goldformer.spec.promises import list_stale_stamps, write_stamps
from goldformer.spec.readme import document_table, errata_table, escape, join_first, numbers, readme


@click.command(epilog=options.list_statuses(fails="something is not covered, or README.md is out of date"))
@click.option("--document", help="Only this document, such as java.")
@click.option("--row", help="One row in full, such as J3: every clause, case, refusal, property and erratum.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "json"]),
    default="text",
    show_default=True,
    help="How to print it.",
)
@click.option("--write", is_flag=True, help="Write the spec's README.md and version.json, and nothing else.")
@click.option("--check", "only_check", is_flag=True, help="Fail if one of these two is out of date.")
@options.SPEC
def coverage(
    *, document: str | None, row: str | None, form: str, write: bool, only_check: bool, root: Path | None
) -> int:
    """Show which checks cover each row of the documents.

    Cases, refusals and properties cover a row, and prove an erratum. Exit status 1 means that nothing covers a row, a
    MUST or an erratum; with --check, that README.md or version.json is out of date.
    """
    spec = load_spec((root or ROOT).resolve(), whole=True)
    if not (write or only_check):
        return _show(spec, document, row, form)
    if (write and only_check) or document or row or form != "text":
        raise CannotRun("--write and --check take no other option than --spec")
    return _write_page(spec) if write else _check_page(spec)


def _show(spec: Spec, document: str | None, row: str | None, form: str) -> int:
    if document is not None:
        require_known((document,), tuple(spec.documents), "--document", every=True)
    whole = cover(spec)
    part = whole if document is None else whole.of(document)
    if row is not None:
        return _show_row(spec, part, row, form)
    problems = part.problems()
    if form == "json":
        say(json.dumps(_as_json(part, spec), ensure_ascii=False))
        return FAILS if problems else OK
    if form == "markdown":
        shown = spec.documents.values() if document is None else [spec.documents[document]]
        say("\n".join([*(document_table(d, whole) for d in shown), "### Errata\n", errata_table(part)]))
    else:
        _print_tables(part)
    for line in numbers(spec) if document is None else ():
        say(f"- {line}")
    say(f"- {len(problems) or 'no'} gap{'s' * (len(problems) != 1)}{':' if problems else ''}")
    for problem in problems:
        say(f"  - {problem}")
    return FAILS if problems else OK


# ── the page ──


def _write_page(spec: Spec) -> int:
    path, page = spec.root / "README.md", readme(spec)
    try:
        changed = write_stamps(spec)
        if _read_page(path) != page:
            replace_file(path, page)
            changed.append(path)
    except OSError as error:
        raise CannotRun(f"{error.filename or path} cannot be written: {error.strerror}") from error
    for file in changed:
        say(f"wrote {file}")
    if not changed:
        say(f"nothing changed: {path}")
    return OK


def _check_page(spec: Spec) -> int:
    path, page = spec.root / "README.md", readme(spec)
    try:
        written = _read_page(path)
    except OSError as error:
        raise CannotRun(f"{path} cannot be read: {error.strerror}") from error
    stale = list(list_stale_stamps(spec))
    for problem in stale:
        say(str(problem))
    if written == page:
        say(f"{path} says what the spec says")
        return FAILS if stale else OK
    line = 1
    if written is not None:
        lines, wanted = written.splitlines(), page.splitlines()
        same = (a == b for a, b in zip(lines, wanted, strict=False))
        line += next((i for i, equal in enumerate(same) if not equal), min(len(lines), len(wanted)))
    state = "is missing" if written is None else "is not what the spec says now"
    elsewhere = "" if spec.root == ROOT else f" --spec {spec.root}"
    say(f"{path}:{line}: {state}: run goldformer coverage --write{elsewhere}")
    return FAILS


def _read_page(path: Path) -> str | None:
    """Return the page as it is, with plain line breaks; None if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


# ── everything, or one document ──


#: The columns of numbers.
_COUNTS: Final = ("cases", "refusals", "properties")


def _print_tables(part: Coverage) -> None:
    rows = plain_table("row", "clauses", *_COUNTS, "shown by", right=_COUNTS)
    for covered in part.rows:
        counts = (str(len(ids) or "–") for ids in asdict(covered.proofs).values())
        shown = join_first(covered.proofs.ids) or "nothing"
        name = f"{covered.document} {covered.row.id}"
        rows.add_row(name, " ".join(covered.clauses) or "–", *counts, shown, style=_choose_style(covered.proofs))
    errata = plain_table("erratum", "in", "proven by")
    for item in part.errata:
        where = f"{item.erratum.document} {' '.join(item.erratum.rows) or item.erratum.section}"
        errata.add_row(
            item.erratum.id, where, ", ".join(item.proofs.ids) or "nothing", style=_choose_style(item.proofs)
        )
    for table in (rows, errata):
        if table.row_count:
            print_table(table)
            say("")


def _choose_style(proofs: Proofs) -> str | None:
    return None if proofs.ids else "red"


def _as_json(part: Coverage, spec: Spec) -> dict[str, Any]:
    return {
        "rows": [_row_as_json(covered) for covered in part.rows],
        "clauses": [
            {"clause": c.clause.id, "level": c.clause.level.value, **asdict(c.proofs)} for c in part.clauses.values()
        ],
        "errata": [
            {"erratum": e.erratum.id, "document": e.erratum.document, "rows": e.erratum.rows, **asdict(e.proofs)}
            for e in part.errata
        ],
        "totals": asdict(count_totals(spec)),
        "gaps": [str(problem) for problem in part.problems()],
    }


def _row_as_json(covered: RowCoverage) -> dict[str, Any]:
    return {
        "document": covered.document, "row": covered.row.id, "section": covered.row.section,
        "clauses": covered.clauses, **asdict(covered.proofs), "errata": covered.errata,
    }  # fmt: skip


# ── one row ──


def _show_row(spec: Spec, part: Coverage, row: str, form: str) -> int:
    rows = [covered for covered in part.rows if covered.row.id == row.upper()]
    if not rows:
        known = tuple(covered.row.id for covered in part.rows)
        require_known((row,), known, "--row", every=True)
    if len(rows) > 1:
        found = " and ".join(covered.document for covered in rows)
        raise CannotRun(f"--row {row} stands in {found}: add --document")
    covered = rows[0]
    match form:
        case "json":
            say(json.dumps(_row_as_json(covered), ensure_ascii=False))
        case "markdown":
            about = covered.row.says or spec.documents[covered.document].about
            say(f"### {escape(_format_heading(covered))}\n\n{escape(about)}")
            for heading, members in _group_members(covered, spec).items():
                say(f"\n{heading} ({len(members)}):\n")
                for id_, title in members:
                    say(f"- **{id_}** {escape(title)}")
        case _:
            _print_row(covered, spec)
    return FAILS if list(covered.problems()) else OK


def _group_members(covered: RowCoverage, spec: Spec) -> dict[str, list[tuple[str, str]]]:
    """Return what belongs to a row, each with its title; groups without members are left out."""
    proofs = covered.proofs
    own = {
        id_ for id_ in (*proofs.cases, *proofs.refusals) if cites_row(spec.cases[id_], covered.document, covered.row)
    }

    def cases(ids: Iterable[str], *, named: bool) -> list[tuple[str, str]]:
        return [(id_, spec.cases[id_].title) for id_ in ids if (id_ in own) is named]

    levels = {id_: f"{spec.clauses[id_].level.value}: {spec.clauses[id_].title}" for id_ in covered.clauses}
    errata = {id_: f"{spec.errata[id_].printed} → {spec.errata[id_].correct}" for id_ in covered.errata}
    groups = {
        "clauses that cite it": list(levels.items()),
        "cases whose source it is": cases(proofs.cases, named=True),
        "cases of its clauses and errata": cases(proofs.cases, named=False),
        "refusals whose source it is": cases(proofs.refusals, named=True),
        "refusals of its clauses and errata": cases(proofs.refusals, named=False),
        "properties": [(id_, spec.properties[id_].title) for id_ in proofs.properties],
        "errata": list(errata.items()),
    }
    return {heading: members for heading, members in groups.items() if members}


def _format_heading(covered: RowCoverage) -> str:
    section = f" · {covered.row.section}" if covered.row.section != covered.row.id else ""
    return f"{covered.document} {covered.row.id}{section}"


def _print_row(covered: RowCoverage, spec: Spec) -> None:
    say(_format_heading(covered), "bold")
    say(f"  {covered.row.says.strip() or spec.documents[covered.document].about}")
    for heading, members in _group_members(covered, spec).items():
        say(f"{heading} ({len(members)})", "bold")
        width = max(len(id_) for id_, _ in members)
        for id_, title in members:
            say(f"  {id_:<{width}}  {title}")
    for problem in covered.problems():
        say(str(problem), "red")

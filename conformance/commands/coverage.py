"""goldformer coverage: the checks that cover each row of the documents, each clause and erratum; spec/README.md."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import FAILS, OK, CannotRun, plain_table, print_table, say
from goldformer.spec import ROOT, Spec, load_spec
from goldformer.spec.files import replace_file
from goldformer.spec.making.coverage import Coverage, Proofs, cover
from goldformer.spec.making.promises import list_stale_stamps, write_stamps
from goldformer.spec.making.readme import join_first, numbers, readme


@click.command(epilog=options.list_statuses(fails="something is not covered, or README.md is out of date"))
@click.option("--write", is_flag=True, help="Write the spec's README.md and version.json, and nothing else.")
@click.option("--check", "only_check", is_flag=True, help="Fail if one of these two is out of date.")
@options.SPEC
def coverage(*, write: bool, only_check: bool, root: Path | None) -> int:
    """Show which checks cover each row of the documents.

    Cases, refusals and properties cover a row, and prove an erratum. Exit status 1 means that nothing covers a row, a
    MUST or an erratum; with --check, that README.md or version.json is out of date. `goldformer explain W2` names all
    that covers one row.
    """
    spec = load_spec((root or ROOT).resolve(), whole=True)
    if write and only_check:
        raise CannotRun("--write and --check exclude each other: leave out one of them")
    return _write_page(spec) if write else _check_page(spec) if only_check else _show(spec)


def _show(spec: Spec) -> int:
    whole = cover(spec)
    problems = whole.problems()
    _print_tables(whole)
    for line in numbers(spec):
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


# ── the tables ──


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

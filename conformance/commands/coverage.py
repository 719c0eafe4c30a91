"""goldformer coverage: what no check covers, and spec/README.md, which says what covers each row and clause."""

from __future__ import annotations

from pathlib import Path

import click

from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import FAILS, OK, CannotRun, say
from goldformer.spec import ROOT, Spec, load_spec
from goldformer.spec.files import replace_file
from goldformer.spec.making.coverage import cover
from goldformer.spec.making.promises import list_stale_stamps, write_stamps
from goldformer.spec.making.readme import numbers, readme


@click.command(epilog=options.list_statuses(fails="something is not covered, or README.md is out of date"))
@click.option("--write", is_flag=True, help="Write the spec's README.md and version.json, and nothing else.")
@click.option("--check", "only_check", is_flag=True, help="Fail if one of these two is out of date.")
@options.SPEC
def coverage(*, write: bool, only_check: bool, root: Path | None) -> int:
    """Show which rows of the documents no check covers.

    Cases, refusals and properties cover a row, and prove an erratum; spec/README.md lists them. Exit status 1 means
    that nothing covers a row, a MUST or an erratum; with --check, that README.md or version.json is out of date.
    `goldformer explain W2` names all that covers one row.
    """
    spec = load_spec((root or ROOT).resolve(), whole=True)
    if write and only_check:
        raise CannotRun("--write and --check exclude each other: leave out one of them")
    return _write_page(spec) if write else _check_page(spec) if only_check else _show(spec)


def _show(spec: Spec) -> int:
    problems = cover(spec).problems()
    for line in numbers(spec):
        say(f"- {line}")
    say(f"- {len(problems) or 'no'} gap{'s' * (len(problems) != 1)}{':' if problems else ''}")
    for problem in problems:
        say(f"  - {problem}")
    return FAILS if problems else OK


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
    path = spec.root / "README.md"
    try:
        is_current = _read_page(path) == readme(spec)
    except OSError as error:
        raise CannotRun(f"{path} cannot be read: {error.strerror}") from error
    stale = list(list_stale_stamps(spec))
    for problem in stale:
        say(str(problem))
    elsewhere = "" if spec.root == ROOT else f" --spec {spec.root}"
    advice = f"is missing, or not what the spec says now: run goldformer coverage --write{elsewhere}"
    say(f"{path} says what the spec says" if is_current else f"{path}: {advice}")
    return OK if is_current and not stale else FAILS


def _read_page(path: Path) -> str | None:
    """Return the page as it is, with plain line breaks; None if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None

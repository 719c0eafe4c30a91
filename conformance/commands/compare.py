"""goldformer compare: implementations side by side."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track
from rich.text import Text

from goldformer.adapters import DTYPES
from goldformer.conformance.commands._console import (
    FAILS,
    OK,
    UNUSABLE,
    err,
    no_folder,
    out,
    plain_table,
    print_table,
    save,
    save_json,
    say,
    say_diagnosis,
    unusable,
    words,
)
from goldformer.conformance.reports.comparison import Cell, Comparison, Implementation, Request, compared
from goldformer.conformance.reports.comparison_text import as_json, badge, ends, in_brief, markdown
from goldformer.conformance.reports.did_you_mean import unknown
from goldformer.spec import Spec, SpecError, load_spec


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of `goldformer compare`."""

    adapters: tuple[str, ...]
    component: tuple[str, ...]
    dtypes: tuple[str, ...]
    device: str
    threads: int
    timeout: float
    jobs: int | None
    html: Path | None
    json: Path | None
    markdown: Path | None
    badge: Path | None

    @property
    def request(self) -> Request:
        """What to run, with the default dtypes."""
        dtypes = words(self.dtypes) or ("float64", "float32")
        return Request(dtypes, words(self.component), self.device, self.threads, self.timeout)


def run(options: Options) -> int:
    """Compare, print and save; the exit status."""
    try:
        spec = load_spec()
    except SpecError as error:
        return unusable(str(error))
    request = options.request
    saved = {"--html": options.html, "--json": options.json, "--markdown": options.markdown, "--badge": options.badge}
    message = (
        unknown(request.dtypes, DTYPES, "--dtype")
        or unknown(request.components, spec.components, "--component")
        or _twice(options.adapters)
        or no_folder(saved)
    )
    if message:
        return unusable(message)
    comparison = compared(options.adapters, request, spec, options.jobs or os.cpu_count() or 1, _shown)
    _report(comparison, spec)
    _save(comparison, options, spec)
    for found in comparison.implementations:
        if found.problem:
            unusable(f"{found.given}: {found.problem}")
    return {"conforms": OK, "fails": FAILS, "unusable": UNUSABLE}[comparison.outcome]


def _twice(given: Sequence[str]) -> str | None:
    return next((f"{name} is named twice: compare it once" for name in given if given.count(name) > 1), None)


def _shown(found: Iterator[Implementation], total: int) -> Iterable[Implementation]:
    """The same under a progress bar, where there is a terminal to draw it on."""
    return track(found, "comparing", total=total, console=err, transient=True, disable=not err.is_terminal)


def _report(comparison: Comparison, spec: Spec) -> None:
    table = plain_table("component", *comparison.names)
    cells = [found.cells(spec) for found in comparison.implementations]
    for component in comparison.components(spec):
        table.add_row(component, *(_drawn(mine.get(component)) for mine in cells))
    if table.row_count:
        print_table(table)
        out.print("✓ conforms · ✗ fails: checks that pass, of those judged · the worst error ÷ tolerance", style="dim")
    for name, found in zip(comparison.names, comparison.implementations, strict=True):
        title = f"{name} {found.version}".strip()
        took = f" ({found.seconds:.1f} s)" if found.verdicts else ""
        say(f"\n{title}: {ends(found, spec)}{took}", "bold")
        say_diagnosis(found.verdicts, found.conventions, found.hints, spec)


def _drawn(cell: Cell | None) -> Text:
    style = "red" if cell is not None and cell.tally.bad else "" if cell is not None and cell.tally.judged else "dim"
    return Text(in_brief(cell), style=style)


def _save(comparison: Comparison, options: Options, spec: Spec) -> None:
    if options.html:
        from goldformer.conformance.reports.comparison_page import page  # Jinja2, which few commands need

        save(options.html, page(comparison, spec))
    if options.json:
        save_json(options.json, as_json(comparison, spec))
    if options.markdown:
        save(options.markdown, markdown(comparison, spec))
    if options.badge:
        save_json(options.badge, badge(comparison.implementations[0], spec))

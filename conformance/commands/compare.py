"""goldformer compare: implementations side by side."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import click
from rich.text import Text

from goldformer.adapters import DTYPES
from goldformer.adapters.protocol import DEFAULT_DTYPE
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import (
    CannotRun,
    expand_patterns,
    find_status,
    out,
    plain_table,
    print_error,
    print_table,
    require_known,
    require_outputs,
    save,
    save_json,
    say,
    show_progress,
)
from goldformer.conformance.reports.comparison import Comparison, ComparisonRequest
from goldformer.conformance.reports.comparison_page import page
from goldformer.conformance.reports.markdown import describe_outcome, summarize_result
from goldformer.conformance.reports.markdown import markdown as write_markdown
from goldformer.conformance.reports.record_json import comparison_as_json
from goldformer.conformance.reports.results import ComponentResult
from goldformer.conformance.reports.summary import list_declarations, list_remarks, make_edition_line
from goldformer.conformance.runner import run_comparison
from goldformer.spec import Spec, load_spec


@click.command(epilog=options.JUDGED)
@click.argument("adapters", metavar="ADAPTER…", nargs=-1, required=True, shell_complete=options.complete_adapter)
@options.COMPONENTS
@options.DTYPES
@options.DEVICE
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Threads on the CPU, of each implementation.",
)
@options.TIMEOUT
@options.JOBS
@click.option("--html", type=options.FILE, help="Save it all as one HTML page, with every failing check.")
@options.JSON
@options.MARKDOWN
@options.ALLOW_PARTIAL
def compare(
    *,
    adapters: tuple[str, ...],
    components: tuple[str, ...],
    dtypes: tuple[str, ...],
    device: str,
    threads: int,
    timeout: float,
    jobs: int | None,
    html: Path | None,
    json: Path | None,
    markdown: Path | None,
    allow_partial: bool,
) -> int:
    """Run the same checks on several implementations.

    Each ADAPTER is a column: its results by component and by clause. One that cannot be loaded is a column that says
    why. Exit status 0 means that all of them conform, 2 that one is unusable, 3 that none fails and one is partial.
    """
    spec = load_spec()
    dtypes = DTYPES if dtypes == (options.ALL,) else dtypes or (DEFAULT_DTYPE,)
    require_known(dtypes, DTYPES, "--dtype")
    components = expand_patterns(components, spec.components, "--component")
    if twice := [name for name in adapters if adapters.count(name) > 1]:
        raise CannotRun(f"{twice[0]} is named twice: compare it once")
    require_outputs({"--html": html, "--json": json, "--markdown": markdown}, *adapters)
    request = ComparisonRequest(dtypes, components, device, threads, timeout)
    watch = partial(show_progress, what="comparing")
    comparison = run_comparison(adapters, request, spec, jobs or os.cpu_count() or 1, watch)
    _print_comparison(comparison, spec)
    if html:
        save(html, page(comparison, spec))
    if json:
        save_json(json, comparison_as_json(comparison, spec))
    if markdown:
        save(markdown, write_markdown(comparison, spec))
    for found in comparison.records:
        if found.problem:
            print_error(f"{found.given}: {found.problem}")
    return find_status(comparison.outcome, comparison.records, allow_partial=allow_partial)


def _print_comparison(comparison: Comparison, spec: Spec) -> None:
    table = plain_table("component", *comparison.names)
    for component in comparison.components(spec):
        table.add_row(component, *(_format_cell(found.results.get(component)) for found in comparison.records))
    if table.row_count:
        print_table(table)
        out.print(
            "✓ conforms · ◐ partial · ✗ fails: checks that pass, of those judged · the worst error ÷ tolerance",
            style="dim",
        )
    for name, found in zip(comparison.names, comparison.records, strict=True):
        title = f"{name} {found.version}".strip()
        took = f" ({found.seconds:.1f} s)" if found.verdicts else ""
        say(f"\n{title}: {describe_outcome(found)}{took}", "bold")
        for line in (*list_remarks(found.brief), *list_declarations(found, spec)):
            say(line.text, line.style)
    edition = make_edition_line(comparison.editions(spec))
    say(f"\n{edition.text}", edition.style)


def _format_cell(result: ComponentResult | None) -> Text:
    counts = result.counts if result is not None else None
    style = "red" if counts is not None and counts.bad else "" if counts is not None and counts.number_judged else "dim"
    return Text(summarize_result(result), style=style)

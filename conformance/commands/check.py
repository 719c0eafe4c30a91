"""goldformer check: the suite's verdicts without pytest, live."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import click

from goldformer.adapters import DTYPES, Adapter, find_adapter
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import (
    FAILS,
    OK,
    STOPPED,
    UNUSABLE,
    CannotRun,
    err,
    print_error,
    require_folders,
    require_known,
    save,
    say,
    say_json,
    say_remarks,
)
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.comparison import Comparison, ComparisonRequest, Implementation
from goldformer.conformance.reports.comparison_text import badge, coverage_as_json
from goldformer.conformance.reports.comparison_text import markdown as comparison_markdown
from goldformer.conformance.reports.results import NOT_IMPLEMENTED
from goldformer.conformance.reports.text import explain_verdict, headline, select_rows, table
from goldformer.conformance.run import Check, Numerics, Selection, checks, list_absent
from goldformer.spec import Case, Spec, load_spec
from goldformer.spec.files import replace_file, resolve_path
from goldformer.spec.load import load_own_cases

#: How many failures of a component are explained in full; the others are lines, unless --verbose.
EXPLAINED: Final = 2
#: How many failures of a component with the same message are lines, unless --verbose.
ALIKE: Final = 5
#: The most numbers that the arguments of a case may have whose golden values are derived.
_MOST_DERIVED: Final = 1 << 20


@click.command(epilog=options.STATUSES)
@click.argument("adapter")
@options.COMPONENTS
@click.option("--case", "cases", multiple=True, callback=options.split_words(), help="Only this golden case.")
@click.option(
    "--cases",
    "files",
    multiple=True,
    type=options.FILE,
    help="Only the cases of this YAML file of your own; missing golden values are derived.",
)
@click.option("--property", "properties", multiple=True, callback=options.split_words(), help="Only this property.")
@options.DTYPES
@options.DEVICE
@options.TF32
@options.THREADS
@options.TIMEOUT
@click.option("--strict", is_flag=True, help="Fail everything that is tolerated or not implemented.")
@options.JSON_OUT
@options.MARKDOWN
@click.option("--html", type=options.FILE, help="Save a report as one HTML page, with every failing check.")
@click.option("--junit", type=options.FILE, help="Save every check as JUnit XML, which build servers list as tests.")
@click.option("--badge", "badge_file", type=options.FILE, help="Save the JSON for a badge of shields.io.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the summary.")
@click.option("-v", "--verbose", is_flag=True, help="Explain every failure, and what is tolerated.")
def check(
    *,
    adapter: str,
    components: tuple[str, ...],
    cases: tuple[str, ...],
    files: tuple[Path, ...],
    properties: tuple[str, ...],
    dtypes: tuple[str, ...],
    device: str,
    tf32: bool,
    threads: int,
    timeout: float,
    strict: bool,
    as_json: bool,
    markdown: Path | None,
    html: Path | None,
    junit: Path | None,
    badge_file: Path | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Check an implementation.

    ADAPTER is a file, a dotted module, or a built-in name such as reference.
    "cmd: java -cp build MyAttention" is a process that speaks the protocol of docs/protocol.md, in any language.
    """
    spec = load_spec()
    with contextlib.closing(find_adapter(adapter, spec, timeout)) as found:
        own = _read_own_cases(files, spec)
        spec = spec.with_cases(own)
        dtypes = found.dtypes if dtypes == (options.ALL,) else dtypes
        selection = Selection(dtypes, components, cases or tuple(own), properties)
        require_known(selection.dtypes, DTYPES, "--dtype")
        require_known(selection.components, spec.components, "--component")
        require_known(selection.cases, spec.cases, "--case")
        require_known(selection.properties, spec.properties, "--property")
        require_folders({"--markdown": markdown, "--html": html, "--junit": junit, "--badge": badge_file})
        Numerics(tf32, threads).apply(found.arrays)
        bench = Bench(spec, found, dtypes[0], device, strict)
        start = time.perf_counter()
        todo = checks(bench, selection)
        verdicts, stopped = _judge(todo, spec, visible=not as_json)
        seconds = time.perf_counter() - start
        implementation = Implementation.of(
            bench, verdicts, seconds, list_absent(bench, selection), stopped=stopped,
            with_pictures=html is not None and not stopped,
        )  # fmt: skip
        if as_json:
            say_json(_as_json(implementation, found, device, spec))
        else:
            if not quiet:
                _print_failures(verdicts, spec, verbose=verbose)
            _print_summary(implementation, spec, verbose=verbose)
    comparison = Comparison(ComparisonRequest(dtypes, components, device, threads, timeout), (implementation,))
    # Standard output is for JSON only.
    save_file = replace_file if as_json else save
    if markdown:
        save_file(markdown, comparison_markdown(comparison, spec))
    if html:
        from goldformer.conformance.reports.comparison_page import page  # pictures, which no other check needs

        save_file(html, page(comparison, spec))
    if junit:
        from goldformer.conformance.reports.junit import junit_xml  # XML, which no other check needs

        save_file(junit, junit_xml(implementation, spec))
    if badge_file:
        save_file(badge_file, json.dumps(badge(implementation, spec), ensure_ascii=False) + "\n")
    if implementation.problem:
        print_error(implementation.problem)
        return STOPPED if stopped else UNUSABLE
    return FAILS if implementation.bad else OK


def _read_own_cases(files: Iterable[Path], spec: Spec) -> dict[str, Case]:
    """Return the cases of the user's files by their ids, with golden values."""
    cases: dict[str, Case] = {}
    for path in files:
        # With the cases of the files before, so that no id is used twice.
        for case in load_own_cases(resolve_path(path), spec.with_cases(cases)):
            needs_values = case.error is None and not case.shape_only and case.golden is None
            cases[case.id] = _derive(case, spec) if needs_values else case
    return cases


def _derive(case: Case, spec: Spec) -> Case:
    """Return a case with golden values; CannotRun if nothing here can derive them."""
    count = sum(math.prod(recipe.shape) for recipe in (*case.inputs.values(), *case.params.values()))
    if count > _MOST_DERIVED:
        what = f"{case.id} has no golden values, and {count} numbers, more than the {_MOST_DERIVED} that are derived"
        raise CannotRun(f"{what}: write smaller sizes, or expect only shapes")
    try:
        from goldformer.spec.oracle.balls import Unproven  # fails if python-flint is missing
        from goldformer.spec.oracle.run import derive_golden
    except ImportError as error:
        raise CannotRun(f"{case.id} has no golden values, and {error}") from error
    try:
        return derive_golden(case, spec)
    except Unproven as error:
        raise CannotRun(str(error)) from error


def _judge(todo: Sequence[Check], spec: Spec, *, visible: bool) -> tuple[list[Verdict], str]:
    """Return the verdicts, and where Ctrl-C or SIGTERM stopped the run: what was judged before is kept."""
    judgements: list[Judgement] = []
    stopped = ""
    try:
        for judgement in _run_checks(todo, visible=visible):
            judgements.append(judgement)  # noqa: PERF402 - what was judged must survive the interrupt
    except KeyboardInterrupt:
        stopped = f"stopped after {len(judgements)} of {len(todo)} checks"
    try:
        return Diagnosis(spec).explain_all(judgements), stopped
    except KeyboardInterrupt:
        stopped = stopped or "stopped before all failures were explained"
        return [judgement.verdict for judgement in judgements], stopped


def _run_checks(todo: Sequence[Check], *, visible: bool) -> Iterator[Judgement]:
    """Yield each judgement as it is made, under a progress bar if there is a terminal to draw it on."""
    if not (visible and err.is_terminal):
        yield from (check() for check in todo)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("checking", total=len(todo))
        for check in todo:
            judgement = check()
            verdict = judgement.verdict
            progress.update(task, advance=1, description=f"{verdict.component} {verdict.dtype}")
            yield judgement


def _print_failures(verdicts: Iterable[Verdict], spec: Spec, *, verbose: bool) -> None:
    """Print what fails: the first ones of a component in full, and equal messages by their count.

    The one that isolates a mistake is in full too: it has the smallest wrong call as a case. With `verbose`, everything
    is in full, also what is tolerated.
    """
    printed: Counter[str] = Counter()
    alike: Counter[tuple[str, str]] = Counter()
    for verdict in verdicts:
        if not (verdict.bad or verdict.is_fault or (verbose and verdict.is_tolerated)):
            continue
        message = verdict.component, verdict.message
        printed[verdict.component] += 1
        alike[message] += 1
        if verbose or verdict.isolated or printed[verdict.component] <= EXPLAINED:
            say(explain_verdict(verdict, spec) + "\n")
        elif alike[message] <= ALIKE:
            say(headline(verdict))
    for (component, message_), count in alike.items():
        if count > ALIKE and not verbose:
            say(f"… {count - ALIKE} more of {component} (-v lists them): {message_}")


def _print_summary(implementation: Implementation, spec: Spec, *, verbose: bool) -> None:
    rows = select_rows(implementation.results(spec).values())
    say(implementation.title, "bold")
    heading, *lines = table(rows).splitlines() if rows else [""]
    if heading:
        say(heading, "bold")
    for row, line in zip(rows, lines, strict=True):
        say(line, "red" if row.counts.bad else None)
    say_remarks(implementation.remarks(spec, whole=verbose), implementation.conventions, implementation.hints)


def _as_json(implementation: Implementation, adapter: Adapter, device: str, spec: Spec) -> dict[str, Any]:
    results = implementation.results(spec).values()
    return {
        "goldformer": version("goldformer"),
        "python": platform.python_version(),
        "adapter": {
            "name": adapter.name, "version": adapter.version, "origin": adapter.origin,
            "arrays": adapter.arrays, "conventions": dict(adapter.conventions), "hints": list(adapter.hints),
        },
        "device": device,
        "components": [
            {
                "component": row.component, "passed": row.counts.passed, "failed": row.counts.bad,
                "not_implemented": row.counts.absent,
                "skipped": sum(row.counts.skipped.values()) - row.counts.absent,
                "worst_ratio": row.counts.worst, "state": row.state,
                "refused": row.counts.refused, "bad_inputs": row.counts.refusals, **coverage_as_json(row),
            }
            for row in select_rows(results)
        ],
        "not_implemented": [result.component for result in results if result.state == NOT_IMPLEMENTED],
        "problem": implementation.problem,
        "verdicts": [verdict.as_json() for verdict in implementation.verdicts],
    }  # fmt: skip

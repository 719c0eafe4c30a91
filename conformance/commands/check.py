"""goldformer check: the suite's verdicts without pytest, live."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from goldformer.adapters import DTYPES
from goldformer.adapters.find import join_bridge
from goldformer.adapters.wrapping import wrap_adapter
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import (
    STOPPED,
    UNUSABLE,
    CannotRun,
    err,
    expand_patterns,
    find_status,
    print_error,
    require_known,
    require_outputs,
    save,
    save_json,
    say,
)
from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.derivation import CannotDerive, derive_values
from goldformer.conformance.loading import Reading, list_own, load_implementation
from goldformer.conformance.reports.comparison import Comparison, ComparisonRequest
from goldformer.conformance.reports.markdown import markdown as write_markdown
from goldformer.conformance.reports.record_json import as_json
from goldformer.conformance.reports.summary import explain_all, summarise
from goldformer.conformance.runner import choose_dtypes, judge_implementation
from goldformer.conformance.selection import Check, Numerics, Selection, add_declared_cases
from goldformer.spec import Case, Spec, load_spec
from goldformer.spec.files import resolve_path
from goldformer.spec.load import load_own_cases


@click.command(epilog=options.JUDGED)
@options.ADAPTER
@options.COMPONENTS
@options.CASES
@click.option(
    "--cases",
    "files",
    multiple=True,
    type=options.FILE,
    help="Only the cases of your own YAML file; missing golden values are derived.",
)
@options.PROPERTIES
@options.DTYPES
@options.DEVICE
@options.TF32
@options.THREADS
@options.WRAP
@options.BITWISE
@options.TIMEOUT
@options.FAMILY
@options.CONVENTIONS
@options.ARRAYS
@options.BRIDGE
@options.ACCEPT
@click.option("--strict", is_flag=True, help="Fail everything that is tolerated or not implemented.")
@options.ALLOW_PARTIAL
@options.JSON
@options.MARKDOWN
@click.option("--html", type=options.FILE, help="Save a report as one HTML page, with every failing check.")
@click.option("--junit", type=options.FILE, help="Save every check as JUnit XML, which build servers list as tests.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the summary.")
@click.option("-v", "--verbose", is_flag=True, help="Explain every failure, and everything that is tolerated.")
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
    wrapper: str | None,
    bitwise: bool,
    timeout: float,
    family: str | None,
    conventions: dict[str, str],
    arrays: str | None,
    bridge: str | None,
    accept: tuple[str, ...],
    strict: bool,
    allow_partial: bool,
    json: Path | None,
    markdown: Path | None,
    html: Path | None,
    junit: Path | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Check an record.

    ADAPTER is what you have: model.py:MultiHeadAttention, model.py or lab.ipynb (its classes and functions), an
    adapter file, a dotted module, or a built-in name such as reference. How a class is called is inferred.
    "cmd: java -cp build MyAttention" is a process that speaks the protocol of docs/protocol.md, in any language.
    Without --dtype, code that names half types is judged in bfloat16 too.
    """
    spec = load_spec()
    adapter = join_bridge(bridge, adapter) if bridge else adapter
    reading = Reading(components[0] if len(components) == 1 else None, arrays, accept, timeout)
    with contextlib.closing(load_implementation(adapter, spec, reading)) as loaded:
        found = (loaded.declare_family(family, spec) if family else loaded).declare(conventions, spec)
        own = _read_own_cases(files, spec)
        spec = spec.with_cases(own)
        dtypes = found.dtypes if dtypes == (options.ALL,) else dtypes
        require_known(dtypes, DTYPES, "--dtype")
        selection = Selection(
            dtypes,
            expand_patterns(components, spec.components, "--component") or list_own(adapter, found, spec),
            cases or tuple(own),
            expand_patterns(properties, spec.properties, "--property"),
        )
        bench = Bench(spec, found, found.default_dtype, device, Policy(strict=strict, bitwise=bitwise, tf32=tf32))
        bench = bench if own else add_declared_cases(bench, selection)
        if wrapper:
            bench = _wrap(bench, wrapper, properties)
        spec = bench.spec
        selection = replace(selection, cases=expand_patterns(selection.cases, spec.cases, "--case"))
        saved = {"--json": json, "--markdown": markdown, "--html": html, "--junit": junit}
        require_outputs(saved, adapter, *files)
        Numerics(tf32, threads).apply(found.arrays)
        if not dtypes:
            bench, selection = choose_dtypes(bench, selection)
        record = judge_implementation(bench, selection, _run_checks, keep_stopped=True, with_pictures=html is not None)
        in_full = verbose and not quiet
        for line in explain_all(record, spec) if in_full else summarise(record, spec, brief=quiet):
            say(line.text, line.style)
    comparison = Comparison(
        ComparisonRequest(selection.dtypes, selection.components, device, threads, timeout), (record,)
    )
    if json:
        save_json(json, as_json(record))
    if markdown:
        save(markdown, write_markdown(comparison, spec))
    if html:
        from goldformer.conformance.reports.comparison_page import page  # pictures, which no other check needs

        save(html, page(comparison, spec))
    if junit:
        from goldformer.conformance.reports.junit import junit_xml  # XML, which no other check needs

        save(junit, junit_xml(record, spec))
    if record.problem:
        print_error(record.problem)
        return STOPPED if record.stopped else UNUSABLE
    return find_status(record.outcome, [record], allow_partial=allow_partial)


def _wrap(bench: Bench, wrapper: str, properties: Collection[str]) -> Bench:
    """Return the bench with wrapped functions; CannotRun for options about properties, which are not wrapped."""
    if properties:
        raise CannotRun("--wrap judges golden cases only: leave out --property")
    if bench.policy.bitwise:
        raise CannotRun("--wrap judges golden cases, and --bitwise is about properties: leave out one of them")
    return replace(bench, wrapper=wrapper, wrapped=wrap_adapter(bench.adapter, wrapper, bench.spec))


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
    try:
        return derive_values(case, spec)
    except CannotDerive as error:
        raise CannotRun(str(error)) from error


def _run_checks(todo: Sequence[Check]) -> Iterator[Judgement]:
    """Yield each judgement as it is made, under a progress bar if there is a terminal to draw it on."""
    if not err.is_terminal:
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

"""goldformer check: the suite's verdicts without pytest, live."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from goldformer.adapters import DTYPES, Adapter, AdapterError
from goldformer.adapters.find import join_bridge
from goldformer.adapters.wrapping import wrap_adapter
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import (
    STOPPED,
    CannotRun,
    expand_patterns,
    find_status,
    print_error,
    require_known,
    require_outputs,
    save,
    save_json,
    say,
    show_progress,
)
from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.derivation import CannotDerive, derive_values
from goldformer.conformance.judging.running import describe_interrupted
from goldformer.conformance.loading import Reading, list_own, load_implementation
from goldformer.conformance.reports.comparison import Comparison, ComparisonRequest
from goldformer.conformance.reports.markdown import markdown as write_markdown
from goldformer.conformance.reports.record import RunRecord
from goldformer.conformance.reports.record_json import as_json, comparison_as_json
from goldformer.conformance.reports.summary import explain_all, summarise
from goldformer.conformance.runner import choose_dtypes, judge_implementation
from goldformer.conformance.selection import CheckCall, Numerics, Selection, add_declared_cases
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
def check(**given: Any) -> int:
    """Check an implementation.

    ADAPTER is what you have: model.py:MultiHeadAttention, model.py or lab.ipynb (its classes and functions), an
    adapter file, a dotted module, or a built-in name such as reference. How a class is called is inferred.
    "cmd: java -cp build MyAttention" is a process that speaks the protocol of docs/protocol.md, in any language.
    Without --dtype, code that names half types is judged in bfloat16 too.
    """
    asked = _Asked(**given)
    spec = load_spec()
    require_outputs(asked.outputs, asked.adapter, *asked.files)
    with contextlib.closing(_load(asked, spec)) as adapter:
        bench, selection = _select(asked, adapter, spec)
        doubled = _list_doubled(asked, bench, selection)
        if doubled:
            bench = replace(bench, adapter=replace(bench.adapter, doubled={}))
        records = [_judge(bench, selection, asked)]
    for one in doubled:
        if records[-1].stopped:
            break
        records.append(_judge_doubled(one, spec))
    request = ComparisonRequest(selection.dtypes, selection.components, asked.device, asked.threads, asked.timeout)
    comparison = Comparison(request, tuple(records))
    _write_reports(comparison, asked, bench.spec)
    for record in records:
        if record.problem:
            print_error(record.problem)
        if record.stopped:
            return STOPPED
    return find_status(comparison.outcome, records, allow_partial=asked.allow_partial)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The options of the command line, by name."""

    adapter: str
    components: tuple[str, ...]
    cases: tuple[str, ...]
    files: tuple[Path, ...]
    properties: tuple[str, ...]
    dtypes: tuple[str, ...]
    device: str
    tf32: bool
    threads: int
    wrapper: str | None
    bitwise: bool
    timeout: float
    family: str | None
    conventions: dict[str, str]
    arrays: str | None
    bridge: str | None
    accept: tuple[str, ...]
    strict: bool
    allow_partial: bool
    json: Path | None
    markdown: Path | None
    html: Path | None
    junit: Path | None
    quiet: bool
    verbose: bool

    @property
    def name(self) -> str:
        """The name of the implementation, with that of its bridge."""
        return join_bridge(self.bridge, self.adapter) if self.bridge else self.adapter

    @property
    def outputs(self) -> dict[str, Path | None]:
        """The files to write, by option."""
        return {"--json": self.json, "--markdown": self.markdown, "--html": self.html, "--junit": self.junit}


def _load(asked: _Asked, spec: Spec) -> Adapter:
    """Load the implementation, with the options that the command line declares."""
    component = asked.components[0] if len(asked.components) == 1 else None
    found = load_implementation(asked.name, spec, Reading(component, asked.arrays, asked.accept, asked.timeout))
    return (found.declare_family(asked.family, spec) if asked.family else found).declare(asked.conventions, spec)


def _select(asked: _Asked, adapter: Adapter, spec: Spec) -> tuple[Bench, Selection]:
    """Return the bench and the checks to run on it; CannotRun for words that name nothing."""
    own = _read_own_cases(asked.files, spec)
    spec = spec.with_cases(own)
    dtypes = adapter.dtypes if asked.dtypes == (options.ALL,) else asked.dtypes
    require_known(dtypes, DTYPES, "--dtype")
    selection = Selection(
        dtypes,
        expand_patterns(asked.components, spec.components, "--component") or list_own(asked.name, adapter, spec),
        asked.cases or tuple(own),
        expand_patterns(asked.properties, spec.properties, "--property"),
    )
    policy = Policy(strict=asked.strict, bitwise=asked.bitwise, tf32=asked.tf32)
    bench = Bench(spec, adapter, adapter.default_dtype, asked.device, policy)
    bench = bench if own else add_declared_cases(bench, selection)
    bench = _wrap(bench, asked.wrapper, asked.properties) if asked.wrapper else bench
    selection = replace(selection, cases=expand_patterns(selection.cases, bench.spec.cases, "--case"))
    Numerics(asked.tf32, asked.threads).apply(adapter.arrays)
    return (bench, selection) if selection.dtypes else choose_dtypes(bench, selection)


def _list_doubled(asked: _Asked, bench: Bench, selection: Selection) -> list[_Asked]:
    """Return what is asked of classes whose components another one of the file has too; of single checks nothing."""
    if selection.cases or selection.properties:
        return []
    wanted = selection.components or bench.spec.components
    doubled = {
        name: tuple(component for component in owned if component in wanted)
        for name, owned in bench.adapter.doubled.items()
    }
    return [replace(asked, adapter=name, components=owned) for name, owned in doubled.items() if owned]


def _judge(bench: Bench, selection: Selection, asked: _Asked, *, is_first: bool = True) -> RunRecord:
    """Run the checks on a bench, and print the record, below a blank line unless it is the first."""
    with_pictures = asked.html is not None
    record = judge_implementation(bench, selection, _run_checks, keep_stopped=True, with_pictures=with_pictures)
    if not is_first:
        say("")
    _print_record(record, asked, bench.spec)
    return record


def _judge_doubled(asked: _Asked, spec: Spec) -> RunRecord:
    """Judge a class by itself; one that no call fits is partial, as it is in a file, and Ctrl-C keeps those before."""
    name = asked.adapter.rpartition(":")[2]
    try:
        with contextlib.closing(_load(asked, spec)) as adapter:
            return _judge(*_select(asked, adapter, spec), asked, is_first=False)
    except AdapterError as error:
        problem = f"{asked.adapter} is not checked: {error}"
        return RunRecord(asked.adapter, name, outcome="partial", problem=problem, partial=(name,))
    except KeyboardInterrupt as stop:
        return RunRecord(asked.adapter, name, problem=f"stopped{describe_interrupted(stop)}", stopped=True)


def _print_record(record: RunRecord, asked: _Asked, spec: Spec) -> None:
    in_full = asked.verbose and not asked.quiet
    for line in explain_all(record, spec) if in_full else summarise(record, spec, brief=asked.quiet):
        say(line.text, line.style)


def _write_reports(comparison: Comparison, asked: _Asked, spec: Spec) -> None:
    """Write the files that were asked for; what only some of them need is imported for these."""
    records = comparison.records
    if asked.json:
        several = len(records) > 1
        save_json(asked.json, comparison_as_json(comparison, spec) if several else as_json(records[0]))
    if asked.markdown:
        save(asked.markdown, write_markdown(comparison, spec))
    if asked.html:
        from goldformer.conformance.reports.comparison_page import page

        save(asked.html, page(comparison, spec))
    if asked.junit:
        from goldformer.conformance.reports.junit import junit_xml

        save(asked.junit, junit_xml(records, spec))


def _wrap(bench: Bench, wrapper: str, properties: Collection[str]) -> Bench:
    """Return the bench with wrapped functions; CannotRun for options about properties, which are not wrapped."""
    if properties:
        raise CannotRun("--wrap judges golden cases only: leave out --property")
    if bench.policy.bitwise:
        raise CannotRun("--wrap judges golden cases, and --bitwise is about properties: leave out one of them")
    return replace(bench, wrapper=wrapper, wrapped=wrap_adapter(bench.adapter, wrapper, bench.spec))


def _read_own_cases(files: Iterable[Path], spec: Spec) -> dict[str, Case]:
    """Return the cases of the user's files by their ids, with golden values; CannotRun if nothing derives them."""
    cases: dict[str, Case] = {}
    for path in files:
        # With the cases of the files before, so that no id is used twice.
        for case in load_own_cases(resolve_path(path), spec.with_cases(cases)):
            needs_values = case.error is None and not case.shape_only and case.golden is None
            try:
                cases[case.id] = derive_values(case, spec) if needs_values else case
            except CannotDerive as error:
                raise CannotRun(str(error)) from error
    return cases


def _run_checks(todo: Sequence[CheckCall]) -> Iterator[Judgement]:
    """Yield each judgement as it is made, under a progress bar."""
    return (check() for check in show_progress(todo, len(todo), "checking"))

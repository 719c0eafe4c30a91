"""goldformer check: the suite's verdicts without pytest, live."""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from goldformer.adapters import DTYPES, Adapter, AdapterError, find_adapter
from goldformer.conformance.commands._console import (
    FAILS,
    OK,
    err,
    no_folder,
    out,
    save,
    say_diagnosis,
    say_json,
    unusable,
    words,
)
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.comparison import Comparison, Implementation, Request
from goldformer.conformance.reports.comparison_text import badge, markdown
from goldformer.conformance.reports.did_you_mean import unknown
from goldformer.conformance.reports.json_data import finite
from goldformer.conformance.reports.text import explain_verdict, headline, summary, table
from goldformer.conformance.run import Numerics, Selection, checks
from goldformer.spec import Case, Spec, SpecError, load_spec
from goldformer.spec.files import replace_file
from goldformer.spec.load import load_own_cases

#: How many failures of a component are explained in full; the others are lines, unless --verbose.
EXPLAINED: Final = 2
#: How many failures of a component with the very same message are lines, unless --verbose.
ALIKE: Final = 5


@dataclass(frozen=True, slots=True)
class Options:
    """The command line of `goldformer check`."""

    adapter: str
    component: tuple[str, ...]
    cases: tuple[str, ...]
    files: tuple[Path, ...]
    properties: tuple[str, ...]
    dtypes: tuple[str, ...]
    device: str
    tf32: bool
    threads: int
    timeout: float
    strict: bool
    as_json: bool
    markdown: Path | None
    html: Path | None
    badge: Path | None
    quiet: bool
    verbose: bool

    def selection(self, own: Iterable[str]) -> Selection:
        """What to run, with the default dtypes; `own` are the cases of the user's files."""
        dtypes = words(self.dtypes) or ("float64", "float32")
        return Selection(dtypes, words(self.component), words(self.cases) or tuple(own), words(self.properties))


def run(options: Options) -> int:
    """Check an adapter and report; the exit status."""
    try:
        spec = load_spec()
        found = find_adapter(options.adapter, spec, options.timeout)
    except (AdapterError, SpecError) as error:
        return unusable(str(error))
    with contextlib.closing(found):
        return _check(options, spec, found)


def _check(options: Options, spec: Spec, found: Adapter) -> int:
    try:
        own = _own_cases(options.files, spec)
    except (SpecError, Underivable) as error:
        return unusable(str(error))
    spec = spec.with_cases(own)
    selection = options.selection(own)
    for given, known, option in (
        (selection.dtypes, DTYPES, "--dtype"),
        (selection.components, spec.components, "--component"),
        (selection.cases, spec.cases, "--case"),
        (selection.properties, spec.properties, "--property"),
    ):
        if message := unknown(given, known, option):
            return unusable(message)
    if message := no_folder({"--markdown": options.markdown, "--html": options.html, "--badge": options.badge}):
        return unusable(message)
    Numerics(options.tf32, options.threads).apply(found.arrays)
    bench = Bench(spec, found, selection.dtypes[0], options.device, options.strict)
    start = time.perf_counter()
    judgements = list(_live(bench, selection, visible=not options.as_json))
    verdicts = Diagnosis(spec).explain_all(judgements)
    if not options.as_json and not options.quiet:
        _Failures(spec, verbose=options.verbose).tell_all(verdicts)
    if options.as_json:
        say_json(json.dumps(finite(_as_json(verdicts, found, bench, spec)), ensure_ascii=False))
    else:
        _report(verdicts, found, spec)
    seconds, first = time.perf_counter() - start, replace(bench, dtype=selection.dtypes[0])
    implementation = Implementation.of(first, verdicts, seconds, drawn=options.html is not None)
    _save(implementation, options, selection, spec)
    if implementation.problem:
        return unusable(implementation.problem)
    return FAILS if implementation.bad else OK


class _Failures:
    """Prints what fails: the first ones of a component in full, and like messages by their count."""

    def __init__(self, spec: Spec, *, verbose: bool) -> None:
        self._spec = spec
        self._verbose = verbose
        self._told: Counter[str] = Counter()
        self._alike: Counter[tuple[str, str]] = Counter()

    def tell_all(self, verdicts: Iterable[Verdict]) -> None:
        """Print every verdict that is bad, or that a fault of goldformer lost."""
        for verdict in verdicts:
            if verdict.bad or verdict.is_fault:
                self._tell(verdict)
        self._tell_the_rest()

    def _tell(self, verdict: Verdict) -> None:
        self._told[verdict.component] += 1
        self._alike[verdict.component, verdict.message] += 1
        if self._verbose or self._told[verdict.component] <= EXPLAINED:
            out.print(explain_verdict(verdict, self._spec) + "\n", markup=False)
        elif self._alike[verdict.component, verdict.message] <= ALIKE:
            out.print(headline(verdict), markup=False)

    def _tell_the_rest(self) -> None:
        for (component, message), count in self._alike.items():
            if count > ALIKE and not self._verbose:
                out.print(f"… {count - ALIKE} more of {component} (-v lists them): {message}", markup=False)


class Underivable(Exception):
    """A case without golden values that nothing here can derive."""


def _own_cases(files: Iterable[Path], spec: Spec) -> dict[str, Case]:
    """The cases of the user's files by their ids, with golden values; SpecError, or Underivable without a proof."""
    cases: dict[str, Case] = {}
    for path in files:
        # As the spec with those of the files before, so that ids are taken once.
        for case in load_own_cases(path.resolve(), spec.with_cases(cases)):
            asks = case.error is None and not case.shape_only and case.golden is None
            cases[case.id] = _derived(case, spec) if asks else case
    return cases


def _derived(case: Case, spec: Spec) -> Case:
    try:
        from goldformer.spec.oracle.balls import Unproven  # fails where python-flint is missing
        from goldformer.spec.oracle.run import with_golden
    except ImportError as error:
        raise Underivable(f"{case.id} has no golden values, and {error}") from error
    try:
        return with_golden(case, spec)
    except Unproven as error:
        raise Underivable(str(error)) from error


def _live(bench: Bench, selection: Selection, *, visible: bool) -> Iterator[Judgement]:
    """Yield each judgement as it is made, under a progress bar if there is a terminal to draw it on."""
    todo = checks(bench, selection)
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


def _report(verdicts: Sequence[Verdict], adapter: Adapter, spec: Spec) -> None:
    rows = summary(verdicts, spec, adapter.functions)
    out.print(f"{adapter.name} {adapter.version}".strip(), style="bold", markup=False)
    heading, *lines = table(rows).splitlines()
    out.print(heading, style="bold", markup=False)
    for row, line in zip(rows, lines, strict=True):
        out.print(line, style="red" if row.failed else "dim" if row.state == "not implemented" else None, markup=False)
    say_diagnosis(verdicts, adapter.conventions, adapter.hints, spec)


def _save(implementation: Implementation, options: Options, selection: Selection, spec: Spec) -> None:
    # Not said where standard output is for JSON alone.
    how = replace_file if options.as_json else save
    request = Request(selection.dtypes, selection.components, options.device, options.threads, options.timeout)
    if options.markdown:
        how(options.markdown, markdown(Comparison(request, (implementation,)), spec))
    if options.html:
        from goldformer.conformance.reports.comparison_page import page

        how(options.html, page(Comparison(request, (implementation,)), spec))
    if options.badge:
        how(options.badge, json.dumps(badge(implementation, spec), ensure_ascii=False) + "\n")


def _as_json(verdicts: Sequence[Verdict], adapter: Adapter, bench: Bench, spec: Spec) -> dict[str, Any]:
    return {
        "goldformer": version("goldformer"),
        "python": platform.python_version(),
        "adapter": {
            "name": adapter.name, "version": adapter.version, "origin": adapter.origin,
            "arrays": adapter.arrays, "conventions": dict(adapter.conventions), "hints": list(adapter.hints),
        },
        "device": bench.device,
        "components": [
            dict(zip(("component", "passed", "failed", "not_implemented", "skipped", "worst_ratio", "state"),
                     (r.component, r.passed, r.failed, r.absent, r.skipped, r.worst, r.state), strict=True))
            for r in summary(verdicts, spec, adapter.functions)
        ],
        "verdicts": [v.as_json() for v in verdicts],
    }  # fmt: skip

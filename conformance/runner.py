"""Check one or several implementations: run the checks, explain the failures together, collect the results."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from goldformer.adapters import AdapterError
from goldformer.adapters.executed import Recorder
from goldformer.adapters.identifiers import is_made_for_half_types, list_identifiers
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun, Explained
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import list_few
from goldformer.conformance.judging.applicability import find_working_case, select_plain_cases
from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.invoke import CallProblem
from goldformer.conformance.judging.running import describe_interrupted
from goldformer.conformance.loading import Reading, load_implementation
from goldformer.conformance.reports.comparison import Comparison, ComparisonRequest
from goldformer.conformance.reports.record import IN_PYTHON, RunRecord, record_run
from goldformer.conformance.selection import (
    CheckCall,
    Numerics,
    Selection,
    add_declared_cases,
    checks,
    list_absent,
    list_present,
)
from goldformer.spec import Spec, load_spec
from goldformer.spec.load import FEWEST_CASES
from goldformer.spec.oracle.rounding import is_half

#: The dtype in which code that is made for half types is judged too if a run names no dtype.
_HALF: Final = "bfloat16"

#: Runs checks one after the other: a progress bar.
RunChecks = Callable[[Sequence[CheckCall]], Iterator[Judgement]]


def run_each(todo: Sequence[CheckCall]) -> Iterator[Judgement]:
    """Run checks without a progress bar."""
    return (check() for check in todo)


def choose_dtypes(bench: Bench, selection: Selection, every: str = "--dtype all") -> tuple[Bench, Selection]:
    """Return the bench and the selection of a run that names no dtype; a hint of the adapter says what is judged.

    Components whose own code names a half type are judged in bfloat16 too, if they can be called there: code that
    raises or that returns another dtype was not made for it. `every` asks for all dtypes, in the user's words.
    """
    adapter, plain = bench.adapter, bench.adapter.default_dtype
    bench, selection = replace(bench, dtype=plain), replace(selection, dtypes=(plain,))
    has_half = not is_half(plain) and any(map(is_half, adapter.dtypes))
    if selection.cases or selection.properties or bench.wrapper or not has_half or bench.explain_unusable():
        return bench, selection
    in_half, hints, named = replace(bench, dtype=_HALF), [*adapter.hints], list[str]()
    for component in [name for name in list_present(bench, selection) if name in adapter.functions]:
        if in_half.explain_unusable(component) or not is_made_for_half_types(adapter.functions[component]):
            continue
        # A cast of the whole module would round its tables, and code that loads weights in a half type keeps them.
        if "register_buffer" in list_identifiers(adapter.functions[component]):
            hints.append(f"{component} is judged in {plain} only: in {_HALF} the buffers of its module are rounded too")
            continue
        # Few cases would only be partial.
        if len(cases := [*select_plain_cases(component, in_half)]) < FEWEST_CASES:
            continue
        try:
            find_working_case(component, in_half, cases)
            named.append(component)
        except CallProblem as problem:
            hints.append(f"{component} names half types and is judged in {plain} only; in {_HALF}: {problem}")
    others = {name: adapter.own_dtypes.get(name, adapter.dtypes) for name in adapter.functions if name not in named}
    own = {name: tuple(dtype for dtype in dtypes if dtype != _HALF) for name, dtypes in others.items()}
    too = f", and {list_few(named)} in {_HALF} too" if named else ""
    hints.append(f"judged in {plain}{too}; {every} for half types")
    adapter = replace(
        adapter, own_dtypes={**adapter.own_dtypes, **own} if named else adapter.own_dtypes, hints=tuple(hints)
    )
    return replace(bench, adapter=adapter), replace(selection, dtypes=(plain, _HALF) if named else (plain,))


def judge_implementation(
    bench: Bench,
    selection: Selection,
    run: RunChecks = run_each,
    *,
    keep_stopped: bool = False,
    with_pictures: bool = False,
    describe_call: Callable[[Explained], str] | None = None,
    more: str = "-v",
) -> RunRecord:
    """Run the checks of a selection on a bench, explain the failures together, and record the run.

    With `keep_stopped`, Ctrl-C or SIGTERM ends the run, and what was judged until then is kept. Pictures take a few
    more calls. `describe_call` writes the call of Python that repeats a check, if such a call asked for the run; `more`
    is what shows all remarks.
    """
    start = time.perf_counter()
    recorder = Recorder()
    todo = checks(replace(bench, recorder=recorder), selection)
    with recorder.monitor():
        found, stopped = _judge(todo, run, bench.spec, keep_stopped=keep_stopped)
    # Who asks for single checks sees what they give.
    if bench.adapter.guesses and not (selection.cases or selection.properties):
        from goldformer.conformance.guesses import leave_out_guesses  # few runs need it

        found, adapter = leave_out_guesses(found, bench.adapter, bench.spec)
        bench = replace(bench, adapter=adapter)
    seconds, absent = time.perf_counter() - start, list_absent(bench, selection)
    return record_run(
        bench, found.repeat_with(describe_call) if describe_call else found, seconds, absent, recorder.executed,
        stopped=stopped, with_pictures=with_pictures and not stopped,
        chosen=bool(selection.cases or selection.properties), more=IN_PYTHON if describe_call else more,
    )  # fmt: skip


def _judge(todo: Sequence[CheckCall], run: RunChecks, spec: Spec, *, keep_stopped: bool) -> tuple[DiagnosedRun, str]:
    """Return the diagnosed verdicts, and where Ctrl-C or SIGTERM stopped the run."""
    judgements: list[Judgement] = []
    stopped = ""
    try:
        for judgement in run(todo):
            judgements.append(judgement.drop_large_arrays())  # noqa: PERF401 - what was judged must survive the interrupt
    except KeyboardInterrupt as stop:
        if not keep_stopped:
            raise
        stopped = f"stopped after {len(judgements)} of {len(todo)} checks{describe_interrupted(stop)}"
    try:
        return Diagnosis(spec).explain_all(judgements), stopped
    except KeyboardInterrupt:
        if not keep_stopped:
            raise
        stopped = stopped or "stopped before all failures were explained"
        return DiagnosedRun(tuple(judgement.verdict for judgement in judgements)), stopped


#: Gets the records as they are done and their number, and passes them on: a progress bar.
Watch = Callable[[Iterable[RunRecord], int], Iterable[RunRecord]]


def run_comparison(
    given: Sequence[str], request: ComparisonRequest, spec: Spec, jobs: int, watch: Watch = lambda found, _: found
) -> Comparison:
    """Run the same checks on every adapter, `jobs` at once.

    Each has a process of its own: modules next to an adapter are imported by their bare names, so two adapters would
    share modules of one name, and a crash would end all of them.
    """
    from concurrent.futures import ThreadPoolExecutor  # one implementation needs no pool

    with ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda name: _check_in_process(name, request, spec.root), given)
        return Comparison(request, tuple(watch(found, len(given))))


def _check_in_process(given: str, request: ComparisonRequest, root: Path) -> RunRecord:
    from concurrent.futures.process import BrokenProcessPool  # one implementation needs no process of its own

    from goldformer.spec.processes import make_pool

    try:
        with make_pool(1) as pool:
            return pool.submit(_load_and_check, given, request, root).result()
    except BrokenProcessPool:
        return RunRecord(given, given, problem="its process ended in the middle of a check")


def _load_and_check(given: str, request: ComparisonRequest, root: Path) -> RunRecord:
    return check_implementation(given, request, load_spec(root))


def check_implementation(given: Any, request: ComparisonRequest, spec: Spec) -> RunRecord:
    """Run the checks on one adapter, a class or a function, in this process."""
    try:
        adapter = load_implementation(given, spec, Reading(timeout=request.timeout))
    except AdapterError as error:
        # The name is printed next to the problem anyway.
        name = str(given)
        return RunRecord(name, name, problem=str(error).removeprefix(name).lstrip(": "))
    with contextlib.closing(adapter):
        Numerics(threads=request.threads).apply(adapter.arrays)
        selection = Selection(request.dtypes, request.components)
        bench = add_declared_cases(Bench(spec, adapter, request.dtypes[0], request.device), selection)
        return judge_implementation(bench, selection, with_pictures=True, more="check -v")

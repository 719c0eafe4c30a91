"""goldformer smoke: a first call of each component, before the suite judges results."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Final

import click

from goldformer.adapters import find_adapter
from goldformer.adapters.process.faults import NoSuchMethod
from goldformer.adapters.untrusted_text import join_lines
from goldformer.conformance.commands import _options as options
from goldformer.conformance.commands._console import FAILS, OK, CannotRun, say
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.gradient import invoke_gradient
from goldformer.conformance.judging.invoke import BadResult, NotCheckable, NotImplementedHere, read_arguments
from goldformer.conformance.selection import Numerics
from goldformer.spec import Case, load_spec

_STYLES: Final = {"ok": None, "not implemented": "dim", "problem": "red"}


@click.command(epilog=options.list_statuses(fails="a component raised"))
@options.ADAPTER
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=10, show_default=True, help="Seconds for each call."
)
def smoke(*, adapter: str, timeout: float) -> int:
    """Call every component of an implementation once.

    It shows whether the calls work; the results are not judged.
    """
    start = time.perf_counter()
    spec = load_spec()
    loaded = time.perf_counter()
    found = find_adapter(adapter, spec, timeout)
    with contextlib.closing(found):
        ready = time.perf_counter()
        Numerics().apply(found.arrays)
        bench = Bench(spec, found, found.default_dtype, "cpu")
        if unusable := bench.explain_unusable():
            raise CannotRun(
                f"{unusable[1]}, where smoke makes its calls: use goldformer check with --device {found.devices[0]}"
            )
        say(f"{found.name} {found.version}".strip(), "bold")
        states: list[str] = []
        for method, call in _list_calls(bench):
            state, text = _try_call(call)
            states.append(state)
            say(f"{method:36} {text}", _STYLES[state])
        called = time.perf_counter()
    for hint in found.hints:
        say(f"Note: {hint}")
    count = {state: states.count(state) for state in _STYLES}
    absent = len(spec.contracts) - len(found.functions)
    say(
        f"{count['ok']} ok, {count['problem']} with a problem, {count['not implemented'] + absent} not implemented; "
        f"spec {loaded - start:.2f} s, start {ready - loaded:.2f} s, calls {called - ready:.2f} s, "
        f"end {time.perf_counter() - called:.2f} s"
    )
    if not count["problem"] and not count["ok"]:
        raise CannotRun(f"{adapter} implements nothing that could be called")
    return FAILS if count["problem"] else OK


def _list_calls(bench: Bench) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the name and the call of each component and each gradient of the implementation, on its smallest case."""
    spec, adapter = bench.spec, bench.adapter
    for component in spec.components:
        if component in adapter.functions:
            case = _find_smallest(component, bench, gradient=False)
            if case is not None:
                yield component, lambda case=case: bench.call(case.component, read_arguments(case))  # type: ignore[misc]
        if component in adapter.gradients:
            case = _find_smallest(component, bench, gradient=True)
            if case is not None:
                yield f"{component}_gradient", lambda case=case: _call_gradient(case, bench)  # type: ignore[misc]


def _find_smallest(component: str, bench: Bench, *, gradient: bool) -> Case | None:
    """Return the case with the fewest numbers that the adapter's conventions let it run."""
    fitting = [
        case.under(bench.options(case))
        for case in bench.spec.cases_of(component)
        if case.error is None
        and (case.cotangent is not None) == gradient
        and not case.explain_unfit(bench.options(case))
        and (case.golden is None or all(outputs is not None for outputs in case.golden.options.values()))
    ]
    return min(fitting, key=_count_elements, default=None)


def _count_elements(case: Case) -> int:
    return sum(math.prod(recipe.shape) for recipe in (*case.inputs.values(), *case.params.values()))


def _call_gradient(case: Case, bench: Bench) -> object:
    contract = bench.spec.contracts[case.component]
    assert case.cotangent_array is not None, "it was chosen for its cotangent"
    wanted = contract.results_of(case)
    return invoke_gradient(
        bench.adapter, contract, read_arguments(case), case.cotangent_array, wanted, bench.dtype, bench.device
    )


def _try_call(call: Callable[[], object]) -> tuple[str, str]:
    """Make a call, and return its outcome in a word of _STYLES and in full."""
    try:
        call()
    except (NotImplementedHere, NotCheckable) as absent:
        if isinstance(absent.__cause__, NoSuchMethod):
            return (
                "problem",
                f"problem: initialize lists it, and the process has no such method (-32601): {join_lines(str(absent))}",
            )
        return "not implemented", f"not implemented: {join_lines(str(absent))}"
    except BadResult as bad:
        stderr = "".join(f"\n    {line}" for line in bad.detail.splitlines()[-10:])
        return "problem", f"problem: {join_lines(str(bad))}{stderr}"
    return "ok", "ok"

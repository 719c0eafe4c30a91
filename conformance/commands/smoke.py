"""goldformer smoke: whether an implementation can be called at all, before the suite says whether it is right."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import Final

from goldformer.adapters import Adapter, AdapterError, find_adapter
from goldformer.adapters.process.faults import NoSuchMethod
from goldformer.conformance.commands.console import FAILS, OK, out, unusable
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.gradient import invoke_gradient
from goldformer.conformance.judging.invoke import BadResult, NotCheckable, NotImplementedHere, read_arguments
from goldformer.conformance.run import Numerics
from goldformer.spec import Case, Spec, SpecError, load_spec

_STYLES: Final = {"ok": None, "not implemented": "dim", "problem": "red"}


def run(name: str, timeout: float) -> int:
    """Call each component once and report; the exit status."""
    start = time.perf_counter()
    try:
        spec = load_spec()
        loaded = time.perf_counter()
        adapter = find_adapter(name, spec, timeout)
    except (AdapterError, SpecError) as error:
        return unusable(str(error))
    with contextlib.closing(adapter):
        ready = time.perf_counter()
        Numerics().apply(adapter.arrays)
        dtype = "float32" if "float32" in adapter.dtypes else adapter.dtypes[0]
        bench = Bench(spec, adapter, dtype, "cpu")
        out.print(f"{adapter.name} {adapter.version}".strip(), style="bold", markup=False)
        states: list[str] = []
        for method, call in _calls(bench):
            state, text = _outcome(call)
            states.append(state)
            out.print(f"{method:36} {text}", style=_STYLES[state], markup=False)
        called = time.perf_counter()
    for hint in adapter.hints:
        out.print(f"Note: {hint}", markup=False)
    count = {state: states.count(state) for state in _STYLES}
    absent = len(spec.contracts) - len(adapter.functions)
    out.print(
        f"{count['ok']} ok, {count['problem']} with a problem, {count['not implemented'] + absent} not implemented; "
        f"spec {loaded - start:.2f} s, start {ready - loaded:.2f} s, calls {called - ready:.2f} s, "
        f"end {time.perf_counter() - called:.2f} s",
        markup=False,
    )
    if count["problem"]:
        return FAILS
    return OK if count["ok"] else unusable(f"{name} implements nothing that could be called")


def _calls(bench: Bench) -> Iterator[tuple[str, Callable[[], object]]]:
    """A call of each component and of each gradient of the implementation, of its smallest case."""
    spec, adapter = bench.spec, bench.adapter
    for component in spec.components:
        if component in adapter.functions:
            case = _smallest(component, adapter, spec, gradient=False)
            if case is not None:
                yield component, lambda case=case: bench.call(case.component, read_arguments(case))  # type: ignore[misc]
        if component in adapter.gradients:
            case = _smallest(component, adapter, spec, gradient=True)
            if case is not None:
                yield f"{component}_gradient", lambda case=case: _gradient(case, bench)  # type: ignore[misc]


def _smallest(component: str, adapter: Adapter, spec: Spec, *, gradient: bool) -> Case | None:
    """The case with the fewest numbers that the adapter's conventions let it run."""
    fitting = [
        case
        for case in spec.cases_of(component)
        if case.error is None
        and (case.cotangent is not None) == gradient
        and all(adapter.convention(name, component, spec) == option for name, option in case.only_with.items())
        and (case.golden is None or all(outputs is not None for outputs in case.golden.options.values()))
    ]
    return min(fitting, key=_size, default=None)


def _size(case: Case) -> int:
    return sum(math.prod(recipe.shape) for recipe in (*case.inputs.values(), *case.params.values()))


def _gradient(case: Case, bench: Bench) -> object:
    contract = bench.spec.contracts[case.component]
    assert case.cotangent_array is not None  # by _smallest
    wanted = contract.results_of(case)
    return invoke_gradient(
        bench.adapter, contract, read_arguments(case), case.cotangent_array, wanted, bench.dtype, bench.device
    )


def _outcome(call: Callable[[], object]) -> tuple[str, str]:
    """How a call went, in a word of _STYLES and in full."""
    try:
        call()
    except (NotImplementedHere, NotCheckable) as absent:
        if isinstance(absent.__cause__, NoSuchMethod):
            return "problem", f"problem: initialize lists it, and the process has no such method (-32601): {absent}"
        return "not implemented", f"not implemented: {absent}"
    except BadResult as bad:
        told = "".join(f"\n    {line}" for line in bad.detail.splitlines()[-10:])
        return "problem", f"problem: {bad}{told}"
    return "ok", "ok"

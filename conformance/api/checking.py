"""Check an implementation that is in memory: `goldformer.check`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.find import COMMAND, find_folder
from goldformer.adapters.find_arrays import find_library
from goldformer.adapters.imports import forget_modules, set_errors_aside
from goldformer.adapters.process import TIMEOUT
from goldformer.adapters.protocol import DTYPES
from goldformer.conformance.api.arguments import read_words, require_component, require_type
from goldformer.conformance.api.printed import keep_printed
from goldformer.conformance.api.report import Report
from goldformer.conformance.choices import CHOICES
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.did_you_mean import describe_unknown
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.collector import sparing_collector
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.host import call_apart
from goldformer.conformance.judging.running import trace_crash
from goldformer.conformance.loading import Reading, find_name, list_own, load_implementation
from goldformer.conformance.reports.comparison import Comparison, ComparisonRequest
from goldformer.conformance.runner import choose_dtypes, judge_implementation
from goldformer.conformance.selection import Numerics, Selection, add_declared_cases
from goldformer.spec import load_spec

#: The word for every dtype that an implementation has.
ALL: Final = "all"
#: The hint that a check on a GPU is made in the caller's own process.
_CALLED_HERE: Final = (
    "called in this process, because an object in memory cannot be loaded in another one: if a call ends the device, "
    "start Python again; pass the path of a file, and its calls are made in a process of their own"
)

Words = str | Iterable[str]


@sparing_collector()
def check(
    what: Any,
    component: str | None = None,
    *,
    dtypes: Words | None = None,
    device: str = "cpu",
    conventions: Mapping[str, str] | None = None,
    cases: Words = (),
    properties: Words = (),
    arrays: str | None = None,
    accept: Words = (),
    strict: bool = False,
    timeout: float = TIMEOUT,
) -> Report:
    """Check an implementation against the golden cases and properties, and return a report.

    `what` is a function, a mapping of component names to functions, an nn.Module class or object, whose adapter is
    inferred, a module or another object with ARRAYS, the path of an adapter or of a notebook, the name of a built-in
    adapter, "cs336:PATH", a solution of an exercise by the name of its bridge, or "cmd: …", a process. A function is
    the component of its name unless `component` names it; for all others `component` narrows the check to that one.
    `dtypes` are one or several of float64, float32, float16 and bfloat16, or "all"; without, float32 if it has it, and
    bfloat16 for code that names half types.
    `conventions` declare the options that the implementation has, `arrays` ("torch", "numpy" or "jax") what it works
    on, which is found out if it is not given. `accept` are choices that a class makes on purpose although its code does
    not say so (`goldformer infer`). `cases` and `properties` are the ids of the only ones to run; `strict` and
    `timeout` are those of `goldformer check`.

    ValueError for a name that is unknown, AdapterError for an adapter that cannot be used or inferred. The
    implementation's own exceptions are failures in the report.
    """
    require_type("device", device, str, 'give its name as text, such as "cuda"')
    require_type("timeout", timeout, (int, float), "give seconds")
    if not timeout > 0:
        raise ValueError(f"timeout is {timeout}: give more than 0 seconds")
    require_type("strict", strict, bool, "give True or False")
    filters = Selection((), (), read_words("cases", cases), read_words("properties", properties))
    named = None if dtypes is None else read_words("dtypes", dtypes)
    reading = _read_reading(what, component, arrays, accept, timeout)
    spec = load_spec()
    with (
        keep_printed() as printed,
        _forget_modules(what),
        trace_crash(),
        set_errors_aside(),
        closing(load_implementation(what, spec, reading)) as loaded,
    ):
        adapter = loaded.declare(conventions or {}, spec)
        listed = (adapter.default_dtype,) if named is None else named
        components = (component,) if component else list_own(what, adapter, spec)
        selection = replace(filters, dtypes=adapter.dtypes if listed == (ALL,) else listed, components=components)
        if not selection.dtypes:
            raise ValueError(f"dtypes is empty: name one of {', '.join(DTYPES)}")
        _require_known(selection.dtypes, DTYPES, "dtypes")
        _require_known(selection.components, spec.components, "component")
        _require_known(selection.properties, spec.properties, "properties")
        bench = add_declared_cases(Bench(spec, adapter, selection.dtypes[0], device, Policy(strict=strict)), selection)
        if not bench.computes_on_cpu and not call_apart(adapter):
            # A notebook goes on after a check, and a call that ends the device would take it from the notebook too.
            bench = replace(bench, adapter=replace(bench.adapter, hints=(*bench.adapter.hints, _CALLED_HERE)))
        spec = bench.spec
        _require_known(selection.cases, spec.cases, "cases")
        with Numerics().hold(adapter.arrays):
            if named is None:
                bench, selection = choose_dtypes(bench, selection, 'dtypes="all"')
            options = {"conventions": dict(conventions or {}), "device": device, "arrays": arrays, "strict": strict}
            describe_call = partial(_describe_call, what, component, options)
            record = judge_implementation(bench, selection, with_pictures=True, describe_call=describe_call)
    request = ComparisonRequest(selection.dtypes, selection.components, device, timeout=timeout)
    return Report(Comparison(request, (record,)), spec, printed.text)


def _read_reading(what: Any, component: Any, arrays: Any, accept: Any, timeout: float) -> Reading:
    """Return how to read an implementation; TypeError or ValueError for an argument that nothing can be."""
    if component is not None:
        require_component(component, what, 'check(function, "softmax")')
    if find_library(what) is not None:
        judged = 'give the function that computes it; assert_correct(result, "softmax", …) judges one result'
        raise TypeError(f"what is {type(what).__name__}, a result: {judged}")
    accepted = read_words("accept", accept)
    unknown = describe_unknown(accepted, CHOICES, "accept", every=True)
    if arrays is not None:
        unknown = unknown or describe_unknown([arrays], [*LIBRARIES][:-1], "arrays", every=True)
    if unknown:
        raise ValueError(unknown)
    return Reading(component, arrays, accepted, timeout)


def _require_known(words: Iterable[str], known: Collection[str], name: str) -> None:
    """Raise ValueError for the first word that is unknown, with a guess."""
    if message := describe_unknown(words, known, name):
        raise ValueError(message)


#: The values of options that need not be said.
_DEFAULTS: Final[Mapping[str, Any]] = {"cases": (), "conventions": {}, "device": "cpu", "arrays": None, "strict": False}


def _describe_call(what: Any, component: str | None, options: Mapping[str, Any], explained: Explained) -> str:
    """Return the call that repeats one check."""
    verdict, state = explained.verdict, explained.diagnosis.state
    if isinstance(what, Mapping):
        what, component = what.get(verdict.component, what), verdict.component
    shown = repr(str(what)) if isinstance(what, str | Path) else find_name(what)
    named = f", {component!r}" if component not in (None, shown) else ""
    only = "cases" if verdict.kind == "case" else "properties"
    arguments: dict[str, Any] = {only: verdict.check, "dtypes": verdict.dtype}
    if state is not None and state.is_proven:
        # The whole component shows it where no few cases do.
        arguments[only] = (*state.after, verdict.check) if state.after else ()
        named = named if state.after else f", {verdict.component!r}"
    arguments |= options
    said = [f"{name}={value!r}" for name, value in arguments.items() if value != _DEFAULTS.get(name)]
    return f"goldformer.check({shown}{named}, {', '.join(said)})"


def _forget_modules(what: Any) -> AbstractContextManager[None]:
    """Forget the modules of a file's folder that checking it imports."""
    if not isinstance(what, str | Path) or str(what).startswith(COMMAND):
        return nullcontext()
    return forget_modules(find_folder(str(what)) or Path(what).resolve().parent)

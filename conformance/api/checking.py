"""Check an implementation that is in memory: `goldformer.check`."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from goldformer.adapters.arrays import LIBRARIES
from goldformer.adapters.find import COMMAND, find_adapter, load_object, load_with_reload, require_arrays
from goldformer.adapters.find_arrays import add_arrays
from goldformer.adapters.imports import forget_modules
from goldformer.adapters.inference import ChoiceError, InferenceError
from goldformer.adapters.process import TIMEOUT
from goldformer.adapters.protocol import DTYPES, Adapter
from goldformer.conformance.api.printed import Printed
from goldformer.conformance.api.report import Report
from goldformer.conformance.inference import describe_fit, infer_adapter
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.collector import sparing_collector
from goldformer.conformance.judging.host import call_apart
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.comparison import Comparison, ComparisonRequest
from goldformer.conformance.reports.did_you_mean import describe_unknown
from goldformer.conformance.runner import judge_implementation
from goldformer.conformance.selection import Numerics, Selection, add_declared_cases
from goldformer.spec import Spec, load_spec

#: The word for every dtype that an implementation has.
ALL: Final = "all"
#: The hint that a check on a GPU is made in the caller's own process.
_CALLED_HERE: Final = (
    "called in this process, because an object in memory cannot be loaded in another one: if a call ends the device, "
    "start Python again; pass the path of a file, and its calls are made in a process of their own"
)
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

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
    adapter, or "cmd: …", a process. A function is the component of its name unless `component` names it; for all others
    `component` narrows the check to that one. `dtypes` are one or several of float64, float32, float16 and bfloat16, or
    "all"; without, float32 if it has it. `conventions` declare the options that the implementation has, `arrays`
    ("torch", "numpy" or "jax") what it works on, which is found out if it is not given. `accept` are choices that a
    class makes on purpose although its code does not say so (`goldformer infer`). `cases` and `properties` are the ids
    of the only ones to run; `strict` and `timeout` are those of `goldformer check`.

    ValueError for a name that is unknown, AdapterError for an adapter that cannot be used or inferred. The
    implementation's own exceptions are failures in the report.
    """
    spec = load_spec()
    with Printed() as printed, _forget_modules(what):
        load = functools.partial(_load, what, component, arrays, accept, timeout)
        loaded = load_with_reload(load, str(what), spec) if isinstance(what, str | Path) else load(spec)
        with closing(loaded):
            adapter = loaded.declare(conventions or {}, spec)
            listed = (adapter.default_dtype,) if dtypes is None else _split(dtypes)
            # Only what is in memory is asked for; a file may be asked for everything.
            own = () if isinstance(what, str | Path | types.ModuleType) else _list_own(adapter, spec)
            selection = Selection(
                adapter.dtypes if listed == (ALL,) else listed, _split(component or own), _split(cases),
                _split(properties),
            )  # fmt: skip
            _require_known(selection, spec)
            bench = add_declared_cases(Bench(spec, adapter, selection.dtypes[0], device, strict), selection)
            if not bench.computes_on_cpu and not call_apart(adapter):
                # A notebook goes on after a check, and a call that ends the device would take it from the notebook too.
                bench = replace(bench, adapter=replace(bench.adapter, hints=(*bench.adapter.hints, _CALLED_HERE)))
            spec = bench.spec
            _require_cases(selection, spec)
            with Numerics().hold(adapter.arrays):
                found = judge_implementation(bench, selection, with_pictures=True)
    options = {"conventions": dict(conventions or {}), "device": device, "arrays": arrays, "strict": strict}
    verdicts = tuple(replace(v, reproduce=_describe_call(what, component, v, options)) for v in found.verdicts)
    request = ComparisonRequest(selection.dtypes, selection.components, device, timeout=timeout)
    return Report(Comparison(request, (replace(found, verdicts=verdicts),)), spec, printed.text)


def _load(what: Any, component: str | None, arrays: str | None, accept: Words, timeout: float, spec: Spec) -> Adapter:
    """Return the adapter of what is to be checked."""
    if isinstance(what, str | Path):
        name = str(what)
        if name.startswith(COMMAND):
            return find_adapter(name, spec, timeout)
        return _read(load_object(name), name, arrays, spec)
    if isinstance(what, types.ModuleType) or hasattr(what, "ARRAYS"):
        return _read(what, _find_name(what), arrays, spec)
    if isinstance(what, Mapping):
        if message := describe_unknown(map(str, what), _list_names(spec), "the mapping has"):
            raise ValueError(message)
        return _read(types.SimpleNamespace(**what), "a mapping", arrays, spec)
    if _is_function(what):
        return _read_function(what, component, arrays, accept, spec)
    return _infer(what, component, accept, spec)


def _read_function(what: Any, component: str | None, arrays: str | None, accept: Words, spec: Spec) -> Adapter:
    """Return the adapter of a function; if it or its arguments have other names, calls show which is which."""
    name = _find_name(what)
    if message := describe_unknown([component or name], spec.components, "component"):
        if component:
            raise ValueError(message)
        if adapter := _infer_function(what, None, accept, spec):
            return adapter
        end = "" if message.endswith(("?", "…")) else "."
        raise ValueError(f'{message}{end} Name the component: check({name}, "scaled_dot_product_attention")')
    renamed = not _takes(what, component or name, spec)
    if renamed and (adapter := _infer_function(what, component or name, accept, spec)):
        return adapter
    return _read(types.SimpleNamespace(**{component or name: what}), name, arrays, spec)


def _infer_function(what: Any, component: str | None, accept: Words, spec: Spec) -> Adapter | None:
    """Return the adapter of a function; None if it cannot be inferred, which other messages say better."""
    try:
        return _infer(what, component, accept, spec)
    except ChoiceError:
        raise
    except InferenceError:
        return None


def _list_own(adapter: Adapter, spec: Spec) -> tuple[str, ...]:
    """Return the components that an adapter has, or their gradients."""
    return tuple(name for name in spec.components if name in adapter.functions or name in adapter.gradients)


def _infer(what: Any, component: str | None, accept: Words, spec: Spec) -> Adapter:
    """Return the adapter of a class, an object or a function, with what was inferred as hints."""
    found = infer_adapter(what, component, spec, accept=_split(accept))
    if not (found.is_proven or found.mistakes):
        raise InferenceError(describe_fit(found, spec))
    facts = "; ".join(found.wiring.facts)
    hints = (f"called as {found.component}, inferred: {facts}", *([] if found.fits else [describe_fit(found, spec)]))
    return replace(found.adapter, hints=(*found.adapter.hints, *hints))


def _takes(what: Any, component: str, spec: Spec) -> bool:
    """Return True if a function can be called with the arguments of a component by their names."""
    contract = spec.contracts[component]
    known = {*contract.inputs, *contract.attributes, "params"}
    return all(name in known for name in _list_required(what))


def _list_required(what: Any) -> list[str]:
    """Return the arguments that a function needs; nothing for a builtin, whose calls will show them."""
    try:
        parameters = inspect.signature(what).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.default is p.empty and p.kind not in _VARIADIC]


def _rename_only_arguments(thing: Any, spec: Spec) -> Any:
    """Return an object whose functions of one argument take it by our name; an adapter with ARRAYS as it is."""
    if hasattr(thing, "ARRAYS"):
        return thing
    functions = Adapter.from_trusted(thing, "", spec).functions
    renamed = {n: _rename_only_argument(f, n, spec) for n, f in functions.items() if not _takes(f, n, spec)}
    own = {name: getattr(thing, name) for name in dir(thing) if not name.startswith("__")}
    return types.SimpleNamespace(**{**own, **renamed}) if renamed else thing


def _rename_only_argument(what: Any, component: str, spec: Spec) -> Any:
    """Return a function of one argument under the name that the only argument of its component has."""
    contract = spec.contracts[component]
    needed = [name for name, array in contract.inputs.items() if not array.optional]
    needed += [name for name, attribute in contract.attributes.items() if not attribute.optional]
    if len(needed) != 1 or contract.takes_params or len(_list_required(what)) != 1:
        return what

    @functools.wraps(what)
    def renamed(**given: Any) -> Any:
        return what(given.pop(needed[0]), **given)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    # Functions have no such attribute by their type, but `inspect.signature` asks for it first.
    renamed.__signature__ = inspect.Signature([inspect.Parameter(needed[0], kind)])  # type: ignore[attr-defined]
    return renamed


def _is_function(what: Any) -> bool:
    """Return True for functions, also compiled or wrapped ones, and for partial calls of them."""
    return isinstance(what, functools.partial) or (
        callable(what) and not isinstance(what, type) and hasattr(what, "__name__")
    )


def _find_name(what: Any) -> str:
    while isinstance(what, functools.partial):
        what = what.func
    return str(getattr(what, "__name__", type(what).__name__))


def _list_names(spec: Spec) -> list[str]:
    """Return the names that a mapping may have: components, and their gradients."""
    return [*spec.components, *(f"{name}_gradient" for name in spec.components)]


def _read(thing: Any, origin: str, arrays: str | None, spec: Spec) -> Adapter:
    """Read an object with functions named as components; find its array library unless it is declared or given."""
    if arrays is not None and (message := describe_unknown([arrays], [*LIBRARIES][:-1], "arrays", every=True)):
        raise ValueError(message)
    adapter = Adapter.from_object(add_arrays(_rename_only_arguments(thing, spec), spec, arrays), origin, spec)
    require_arrays(adapter.arrays, origin)
    return adapter


def _split(words: Words) -> tuple[str, ...]:
    return (words,) if isinstance(words, str) else tuple(dict.fromkeys(words))


def _require_known(selection: Selection, spec: Spec) -> None:
    """Raise ValueError for the first word that is unknown, with a guess."""
    if not selection.dtypes:
        raise ValueError(f"dtypes is empty: name one of {', '.join(DTYPES)}")
    filters = (
        (selection.dtypes, DTYPES, "dtypes"),
        (selection.components, spec.components, "component"),
        (selection.properties, spec.properties, "properties"),
    )
    for words, known, name in filters:
        if message := describe_unknown(words, known, name):
            raise ValueError(message)


def _require_cases(selection: Selection, spec: Spec) -> None:
    """Raise ValueError for the first case that is unknown, those included that were derived for an adapter."""
    if message := describe_unknown(selection.cases, spec.cases, "cases"):
        raise ValueError(message)


#: The values of options that need not be said.
_DEFAULTS: Final[Mapping[str, Any]] = {"cases": (), "conventions": {}, "device": "cpu", "arrays": None, "strict": False}


def _describe_call(what: Any, component: str | None, verdict: Verdict, options: Mapping[str, Any]) -> str:
    """Return the call that repeats one check."""
    if isinstance(what, Mapping):
        what, component = what.get(verdict.component, what), verdict.component
    shown = repr(str(what)) if isinstance(what, str | Path) else _find_name(what)
    named = f", {component!r}" if component not in (None, shown) else ""
    only = "cases" if verdict.kind == "case" else "properties"
    arguments: dict[str, Any] = {only: verdict.check, "dtypes": verdict.dtype}
    if verdict.state is not None and verdict.state.is_proven:
        # The whole component shows it where no few cases do.
        arguments[only] = (*verdict.state.after, verdict.check) if verdict.state.after else ()
        named = named if verdict.state.after else f", {verdict.component!r}"
    arguments |= options
    said = [f"{name}={value!r}" for name, value in arguments.items() if value != _DEFAULTS.get(name)]
    return f"goldformer.check({shown}{named}, {', '.join(said)})"


def _forget_modules(what: Any) -> AbstractContextManager[None]:
    """Forget the modules of a file's folder that checking it imports."""
    if not isinstance(what, str | Path) or str(what).startswith(COMMAND):
        return nullcontext()
    return forget_modules(Path(what).resolve().parent)

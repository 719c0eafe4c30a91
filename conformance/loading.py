"""Load the implementation that a command, pytest or Python names: an adapter, or code whose calls are inferred."""

from __future__ import annotations

import difflib
import functools
import inspect
import types
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from goldformer.adapters.find import (
    COMMAND,
    find_adapter,
    is_named_adapter,
    load_object,
    load_with_reload,
    read_object,
    require_arrays,
    split_bridge,
)
from goldformer.adapters.find_arrays import add_arrays
from goldformer.adapters.identifiers import list_identifiers
from goldformer.adapters.inference import (
    ChoiceError,
    InferenceError,
    MisfitError,
    Target,
    explain_others,
    import_target,
    is_causal_switch,
    is_inferable,
    list_targets,
    read_target,
    split_target,
)
from goldformer.adapters.process import TIMEOUT
from goldformer.adapters.protocol import DTYPES, HINTS, INFERRED_FUNCTIONS, Adapter, AdapterError, read_signature
from goldformer.adapters.untrusted_text import abbreviate
from goldformer.conformance.did_you_mean import describe_unknown
from goldformer.conformance.judging.running import LOADING, run_step
from goldformer.spec import Spec

_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)

#: The number of arrays that an attention takes: a query, keys and values.
_OF_ATTENTION: Final = 3

#: The most reasons of classes that are not checked in one message.
_MOST_REASONS: Final = 6


@dataclass(frozen=True, slots=True)
class Reading:
    """The reading of an implementation that does not say itself what it is.

    `component` is the component of a function or a class, `arrays` the library that it works on. `accept` are the
    choices that are meant although the code does not say them. `timeout` is for each call of a process, in seconds.
    """

    component: str | None = None
    arrays: str | None = None
    accept: Collection[str] = ()
    timeout: float = TIMEOUT


def load_implementation(what: Any, spec: Spec, reading: Reading = Reading()) -> Adapter:
    """Return the adapter of an implementation.

    `what` is the name of a built-in adapter, "cmd: …", "cs336:PATH" with the name of a bridge, the path of a Python
    file or a notebook, with or without ":NAME", a dotted module, or an object: a function, a class, a module, a mapping
    of functions by component. Whatever is no adapter itself is inferred.

    AdapterError says what could not be read, and what to give instead.
    """
    if not isinstance(what, str | Path):
        return _load(what, reading, spec)
    return run_step(f"{LOADING}{what}", lambda: _load_by_name(what, reading, spec))


def _load_by_name(what: str | Path, reading: Reading, spec: Spec) -> Adapter:
    if str(what).startswith(COMMAND) or is_named_adapter(str(what)):
        return find_adapter(str(what), spec, reading.timeout)
    return load_with_reload(functools.partial(_load, what, reading), split_target(str(what))[0], spec)


def list_own(what: Any, adapter: Adapter, spec: Spec) -> tuple[str, ...]:
    """Return the components to judge if none are named; () for a whole file, all.

    For a class, a function and the solution of an exercise they are those that it can have.
    """
    if isinstance(what, types.ModuleType) or (isinstance(what, str | Path) and not _names_part(str(what))):
        return ()
    return tuple(name for name in spec.components if name in adapter.functions or name in adapter.gradients)


def _names_part(name: str) -> bool:
    """Return True for the name of a class or a function in a file, and for the solution of an exercise."""
    if name.startswith(COMMAND) or is_named_adapter(name):
        return bool(split_bridge(name)[0])
    return bool(split_target(name)[1])


def _load(what: Any, reading: Reading, spec: Spec) -> Adapter:
    if isinstance(what, str | Path):
        return _load_named(str(what), reading, spec)
    thing = what.thing if isinstance(what, Target) else what
    if isinstance(thing, types.ModuleType) or hasattr(thing, "ARRAYS"):
        return _read(thing, find_name(thing), reading.arrays, spec)
    if isinstance(thing, Mapping):
        if message := describe_unknown(map(str, thing), _list_names(spec), "the mapping has"):
            raise ValueError(message)
        for name, function in thing.items():
            if not callable(function):
                raise AdapterError(f"the mapping's {name} is {abbreviate(function)}: give a function")
        return _read(types.SimpleNamespace(**thing), "a mapping", reading.arrays, spec)
    return _read_function(what, reading, spec) if _is_function(thing) else _infer(what, reading, spec)


# By name


def _load_named(name: str, reading: Reading, spec: Spec) -> Adapter:
    """Return the adapter of a file, of a notebook, of a module, or of one name in it."""
    place, attribute = split_target(name)
    if not attribute:
        module = import_target(Path(place)).module if place.endswith(".py") else load_object(place)
        declares = hasattr(module, "ARRAYS") or not isinstance(module, types.ModuleType)
        return read_object(module, name, spec) if declares else _read_module(module, name, reading, spec)
    if place.endswith((".py", ".ipynb")):
        target = read_target(name)
        return replace(_load(target if is_inferable(target.thing) else target.thing, reading, spec), origin=name)
    thing = load_object(name)
    return replace(_load(read_target(name) if is_inferable(thing) else thing, reading, spec), origin=name)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A class or a function of a module: its adapter, or the reason why it has none."""

    name: str
    adapter: Adapter | None = None
    reason: str = ""
    #: True if it looks like a component all the same.
    is_open: bool = False


def _read_module(module: types.ModuleType, name: str, reading: Reading, spec: Spec) -> Adapter:
    """Return one adapter for the functions and the classes of a module that declares no ARRAYS.

    A function that has the name of a component is that component. Every other function and every class is inferred.
    """
    targets = list_targets(module, Path(name))
    known = _list_names(spec)
    named = {n: t for n, t in targets.items() if n in known and (n not in spec.components or _fits(t, n, spec))}
    # A gradient is read with the function of its component.
    switched = [n for n, target in named.items() if _has_switch(target, n) and f"{n}_gradient" not in named]
    # Another name of a class, as `BertLayerNorm = LayerNorm`, is no second class.
    first_names = {id(target.thing): n for n, target in reversed([*named.items(), *targets.items()])}
    inferred = [n for n, target in targets.items() if first_names[id(target.thing)] == n]
    others = {n: _try_to_infer(targets[n], reading, spec) for n in inferred if n not in named or n in switched}
    named = {n: target for n, target in named.items() if n not in others or others[n].adapter is None}
    parts = [_read_named_functions(named, name, reading, spec)] if named else []
    parts += [part for n, part in others.items() if n not in named]
    # Of two that are one component, golden values prefer the proven one.
    parts.sort(key=lambda part: part.adapter is not None and bool(part.adapter.guesses))
    found: dict[str, _Part] = {}
    notes = []
    doubled: dict[str, tuple[str, ...]] = {}
    others_of: defaultdict[str, list[str]] = defaultdict(list)
    for part in parts:
        owned = part.adapter.functions if part.adapter else {}
        if both := [component for component in owned if component in found]:
            doubled[f"{name}:{part.name}"] = tuple(owned)
            others_of[both[0]].append(part.name)
        elif part.adapter:
            found |= dict.fromkeys(owned, part)
        elif part.reason:
            notes.append(f"{part.name} is not checked: {part.reason}")
    for component, names in others_of.items():
        more = f"is another {component}, not judged here but as {name}:{names[0]}"
        more = f"are {component} too, not judged here but as {name}:NAME" if len(names) > 1 else more
        notes.append(f"{', '.join(names)} {more}")
    # What a notebook's cells lack may be why a class is wrong.
    left_out_of_cells = inspect.getattr_static(module, HINTS, ())
    if not found:
        left_out = explain_others(module)
        reasons = [*left_out_of_cells, *notes, *left_out]
        listed = "".join(f"\n  {reason}" for reason in reasons[:_MOST_REASONS])
        has_any = targets or left_out
        has = "none of its functions and classes could be checked" if has_any else "it defines no function and no class"
        raise AdapterError(f"{name}: {has}{listed}")
    parts = [_look_for_whole(part, targets, found) if part.is_open else part for part in parts]
    joined = _join([part.adapter for part in dict.fromkeys(found.values()) if part.adapter], name)
    # Nobody looked at these: a file in which one is wrong must not pass.
    unmatched = () if reading.component else tuple(part.name for part in parts if part.is_open)
    return replace(joined, hints=(*left_out_of_cells, *joined.hints, *notes), unmatched=unmatched, doubled=doubled)


def _fits(target: Target, component: str, spec: Spec) -> bool:
    """Return True for a function that can be called with the arguments of a component, or that cannot be inferred."""
    return not target.is_class and (_takes(target.thing, component, spec) or component not in INFERRED_FUNCTIONS)


def _read_named_functions(named: Mapping[str, Target], name: str, reading: Reading, spec: Spec) -> _Part:
    """Return the functions of a module that have the names of components."""
    functions = {n: target.thing for n, target in named.items()}
    return _Part(name, _read(types.SimpleNamespace(**functions), name, reading.arrays, spec))


def _try_to_infer(target: Target, reading: Reading, spec: Spec) -> _Part:
    """Return the part of a class or a function.

    A function that fits nothing is a helper, and needs no reason, unless it takes as much as an attention does.
    """
    is_part = target.is_class or len(_list_required(target.thing)) >= _OF_ATTENTION
    try:
        return _Part(target.name, _infer(target, replace(reading, component=None), spec))
    except (ChoiceError, MisfitError) as error:
        return _Part(target.name, reason=str(error) if is_part else "", is_open=is_part)
    except AdapterError as error:
        return _Part(target.name, reason=str(error) if is_part else "")


def _look_for_whole(part: _Part, targets: Mapping[str, Target], found: Mapping[str, _Part]) -> _Part:
    """Return a part as no longer open if no component is such a part, and one that was found is built of it.

    The layers of a Llama are judged with their rotary positions, which no attention of the spec has.
    """
    target = targets[part.name]
    is_judged = any(
        part.name in list_identifiers(targets[whole.name].thing) and not target.explain_scope(component)
        for component, whole in found.items()
        if whole.name in targets
    )
    return replace(part, is_open=not (is_judged and target.explain_scope()))


def _join(adapters: Sequence[Adapter], origin: str) -> Adapter:
    """Return one adapter of several, each with the options that it declares for its own components."""
    libraries = {adapter.arrays for adapter in adapters}
    if len(libraries) > 1:
        raise AdapterError(
            f"{origin}: its parts work on {' and '.join(sorted(libraries))}: check each by {origin}:NAME"
        )
    first, *others = adapters
    for other in others:
        first = replace(
            first,
            functions={**first.functions, **other.functions},
            gradients={**first.gradients, **other.gradients},
            broken={**first.broken, **other.broken},
            conventions=_scope_conventions(first) | _scope_conventions(other),
            hints=(*first.hints, *other.hints),
            guesses={**first.guesses, **other.guesses},
        )
    dtypes = tuple(dtype for dtype in DTYPES if any(dtype in adapter.dtypes for adapter in adapters))
    own = {component: adapter.dtypes for adapter in adapters for component in adapter.functions}
    return replace(first, origin=origin, name=origin, dtypes=dtypes, own_dtypes=own)


def _scope_conventions(adapter: Adapter) -> dict[str, str]:
    """Return the declared options of an adapter under the names of its components."""
    whole = {name: option for name, option in adapter.conventions.items() if "." not in name}
    own = {name: option for name, option in adapter.conventions.items() if "." in name}
    return {f"{component}.{name}": option for component in adapter.functions for name, option in whole.items()} | own


# In memory


def _read_function(what: Any, reading: Reading, spec: Spec) -> Adapter:
    """Return the adapter of a function; if it or its arguments have other names, calls show which is which."""
    function, component = what.thing if isinstance(what, Target) else what, reading.component
    name = find_name(function)
    if component is None and name not in spec.components:
        return _infer_unnamed(what, name, reading, spec)
    if message := describe_unknown([component or name], spec.components, "component"):
        raise ValueError(message)
    renamed = not _takes(function, component or name, spec) or _has_switch(what, component or name)
    if renamed and (adapter := _infer_function(what, replace(reading, component=component or name), spec)):
        return adapter
    return _read(types.SimpleNamespace(**{component or name: function}), name, reading.arrays, spec)


def _infer_unnamed(what: Any, name: str, reading: Reading, spec: Spec) -> Adapter:
    """Return the adapter of a function that has not the name of a component; InferenceError has a guess."""
    try:
        return _infer(what, reading, spec)
    except ChoiceError:
        raise
    except InferenceError as error:
        if "pass --component" in str(error):
            raise
        close = difflib.get_close_matches(name, spec.components, n=1)
        asked = (
            f"If {name} is {close[0]}, pass --component {close[0]}, or component={close[0]!r} in Python"
            if close
            else f"If {name} is a component of another kind, pass --component, or component= in Python"
        )
        raise InferenceError(f"{str(error).removesuffix('.')}. {asked}") from error


def _infer_function(what: Any, reading: Reading, spec: Spec) -> Adapter | None:
    """Return the adapter of a function; None if it cannot be inferred, which other messages say better."""
    try:
        return _infer(what, reading, spec)
    except ChoiceError:
        raise
    except InferenceError:
        return None


def _infer(what: Any, reading: Reading, spec: Spec) -> Adapter:
    """Return the adapter of a class, an object or a function, with what was inferred as hints."""
    from goldformer.conformance.inference import describe_fit, infer_adapter  # an adapter needs no diagnosis to load

    found = infer_adapter(what, reading.component, spec, accept=reading.accept)
    if found.doubt:
        raise MisfitError(describe_fit(found))
    why = "" if found.is_proven else " by its names: no call gave golden values"
    called = "; ".join((f"{found.component} is called as {found.wiring.call}{why}", *found.wiring.choices))
    if found.session and found.session.cache:
        called += f"; {found.session.component}: {found.session.cache.describe()}"
    name = found.wiring.target.name
    # Code that has the name of a component is that component, whatever it computes.
    guesses = {} if found.is_proven or name == found.component else {found.component: name}
    return replace(found.adapter, hints=(*found.adapter.hints, called), guesses=guesses)


def _takes(what: Any, component: str, spec: Spec) -> bool:
    """Return True if a function can be called with the arguments of a component by their names."""
    contract = spec.contracts[component]
    known = {*contract.names_of_call, "params"}
    return all(name in known for name in _list_required(what))


def _has_switch(what: Any, component: str) -> bool:
    """Return True for a function with a boolean such as is_causal=False: inference sets it where a mask is causal."""
    function = what.thing if isinstance(what, Target) else what
    if component not in INFERRED_FUNCTIONS or not inspect.isfunction(function):
        return False
    return any(is_causal_switch(argument) for argument in Target(function, "", "").list_arguments())


def _list_required(what: Any) -> list[str]:
    """Return the arguments that a function needs; nothing for a builtin, whose calls will show them."""
    try:
        parameters = read_signature(what).parameters.values()
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


def find_name(what: Any) -> str:
    """Return the name of a function, also of one in a partial call, or of the type of an object."""
    while isinstance(what, functools.partial):
        what = what.func
    return str(getattr(what, "__name__", type(what).__name__))


def _list_names(spec: Spec) -> list[str]:
    """Return the names that a mapping may have: components, and their gradients."""
    return [*spec.components, *(f"{name}_gradient" for name in spec.components)]


def _read(thing: Any, origin: str, arrays: str | None, spec: Spec) -> Adapter:
    """Read an object with functions named as components; find its array library unless it is declared or given."""
    adapter = Adapter.from_object(add_arrays(_rename_only_arguments(thing, spec), spec, arrays), origin, spec)
    require_arrays(adapter.arrays, origin)
    return adapter

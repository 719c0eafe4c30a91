"""Find the array library that functions work on, where nothing declares it: by the names in their code, then by a call.

A file declares them itself, in ARRAYS, so that no function need be called.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from goldformer.adapters.arrays import LIBRARIES, ArrayLibrary
from goldformer.adapters.identifiers import list_code
from goldformer.adapters.protocol import Adapter, AdapterError, bind_arguments, explain_wrong_parameters, read_signature
from goldformer.spec import Case, Spec
from goldformer.spec.sessions import STATE, drop_script

#: The array library by the root package of its types and functions, in the order in which it is preferred: code for
#: PyTorch or JAX often uses NumPy too, for a constant or a plot.
_PACKAGES: Final[Mapping[str, str]] = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "numpy": "numpy"}

#: The number of cases that are tried in each library.
_TRIED: Final = 3

_NAMES: Final = re.compile(r"[A-Za-z_]\w*")


def find_library(array: Any) -> ArrayLibrary | None:
    """Return the library whose array this is, or None; no library is imported for it."""
    roots = {kind.__module__.partition(".")[0] for kind in type(array).__mro__}
    name = next((library for package, library in _PACKAGES.items() if package in roots), None)
    return LIBRARIES[name] if name is not None and LIBRARIES[name].is_array(array) else None


def find_named_library(function: Callable[..., Any]) -> str | None:
    """Return the name of the array library that a function's code names; None if it names no or several libraries."""
    named = _list_named(function)
    return next(iter(named)) if len(named) == 1 else None


def find_arrays(functions: Mapping[str, Callable[..., Any]], spec: Spec, *, on_cpu: bool = True) -> str:
    """Return the name of the array library of some components; AdapterError if they differ or nothing shows them.

    Where their code names no or several libraries, the first decides in which a component returns arrays when it is
    called with its first golden cases; nothing is called that does not run on the CPU.
    """
    named = {component: _list_named(function) for component, function in functions.items()}
    certain = {component: next(iter(libraries)) for component, libraries in named.items() if len(libraries) == 1}
    found = {library: component for component, library in certain.items()}
    if len(found) > 1:
        (one, first), (other, second), *_ = found.items()
        raise AdapterError(
            f"{first} works on arrays of {one}, {second} on arrays of {other}: check them one after the other"
        )
    if found:
        return next(iter(found))
    likely = set().union(*named.values()) or {name for name in ("torch", "jax") if name in sys.modules} | {"numpy"}
    ordered = [name for name in dict.fromkeys(_PACKAGES.values()) if name in likely]
    for component, function in functions.items() if on_cpu else ():
        for name in ordered:
            if _returns_arrays(component, function, LIBRARIES[name], spec):
                return name
    if len(ordered) > 1 and any(not explain_wrong_parameters(f, spec.contracts[c]) for c, f in functions.items()):
        names = " or ".join(f'"{name}"' for name in ordered)
        raise AdapterError(f"nothing shows which arrays {', '.join(functions)} works on: pass arrays={names}")
    return ordered[0]


def add_arrays(thing: Any, spec: Spec, arrays: str | None = None) -> Any:
    """Return an object of functions with ARRAYS: those given, its own, or else those of its functions."""
    functions = Adapter.from_trusted(thing, "", spec).functions
    if arrays is None and hasattr(thing, "ARRAYS"):
        return thing
    if arrays is None:
        # Without any component no arrays are made; the adapter says what is missing.
        on_cpu = "cpu" in getattr(thing, "DEVICES", ("cpu",))
        arrays = find_arrays(functions, spec, on_cpu=on_cpu) if functions else LIBRARIES["numpy"].name
    names = (name for name in dir(thing) if not name.startswith("__"))
    return types.SimpleNamespace(**{**{name: getattr(thing, name) for name in names}, "ARRAYS": arrays})


def _list_named(function: Callable[..., Any]) -> set[str]:
    """Return the array libraries that a function's annotations and code name, and those of its helpers."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting: list[Any] = [function]
    while waiting:
        thing = inspect.unwrap(waiting.pop())
        while isinstance(thing, functools.partial):
            thing = inspect.unwrap(thing.func)
        thing = getattr(thing, "__func__", thing)
        library = _PACKAGES.get(find_package(thing))
        if library is not None:
            found.add(library)
        elif isinstance(thing, types.FunctionType) and id(thing) not in seen:
            seen.add(id(thing))
            waiting += _list_values(thing)
    return found


def _list_values(function: types.FunctionType) -> Iterator[Any]:
    """Yield the values of the names in a function's annotations and code, and the modules that it imports itself."""
    signature = read_signature(function)
    notes = [signature.return_annotation, *(parameter.annotation for parameter in signature.parameters.values())]
    annotations = " ".join(f"{note.__module__} " if isinstance(note, type) else str(note) for note in notes)
    names = {*_NAMES.findall(annotations), *(name for code in list_code(function.__code__) for name in code.co_names)}
    closed = inspect.getclosurevars(function).nonlocals
    for name in names:
        if name in closed or name in function.__globals__:
            yield closed.get(name, function.__globals__.get(name))
        elif name in _PACKAGES and name in sys.modules:
            yield sys.modules[name]
    yield from closed.values()


def find_package(thing: Any) -> str:
    """Return the root package of a module, of a function or a class, or of the type of any other value."""
    if isinstance(thing, types.ModuleType):
        return thing.__name__.partition(".")[0]
    own = getattr(thing, "__module__", None)
    homes = [own] if isinstance(own, str) else []
    homes += [kind.__module__ for kind in (thing if isinstance(thing, type) else type(thing)).__mro__]
    roots = [home.partition(".")[0] for home in homes]
    return next((root for root in roots if root in _PACKAGES), roots[0])


def _returns_arrays(component: str, function: Callable[..., Any], library: ArrayLibrary, spec: Spec) -> bool:
    """Return True if a component returns arrays of a library for one of its first cases in that library."""
    plain = (case for case in spec.cases_of(component) if case.error is None and not case.shape_only)
    with library.keep_settings():
        return any(_is_answered(function, case, library, spec) for case in islice(plain, _TRIED))


def _is_answered(function: Callable[..., Any], case: Case, library: ArrayLibrary, spec: Spec) -> bool:
    case = case.under({name: spec.conventions[name].default for name in case.conventions})

    def make(arrays: Mapping[str, Any]) -> dict[str, Any]:
        return {name: library.make(array, "float32", "cpu") for name, array in arrays.items()}

    contract = spec.contracts[case.component]
    given = {**make(case.input_arrays), **case.attributes}
    if contract.session is not None:
        _, first = next(contract.split_session(case.input_arrays, case.attributes))
        given = {**make(first), **drop_script(case.attributes), STATE: None}
    given |= {"params": make(case.param_arrays)} if contract.takes_params else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            returned = function(**bind_arguments(function, contract, given))
    except Exception:
        # It works on other arrays, or it is wrong: the judgement will show which.
        return False
    outputs = tuple(returned.values()) if isinstance(returned, Mapping) else returned
    first = outputs[0] if isinstance(outputs, tuple | list) and outputs else outputs
    return library.is_array(first)

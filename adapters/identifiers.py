"""The names in a function's own code, and in the functions and classes that it uses."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from goldformer.adapters.imports import INSTALLED

#: The packages of goldformer and of Python, whose code is nobody's own.
_FOREIGN: Final = frozenset({"goldformer", *sys.stdlib_module_names}) - {"__main__"}


def list_identifiers(thing: Any, *, switched_off: bool = True) -> frozenset[str]:
    """Return the names of functions, classes, attributes and variables in a function's or a class's own code.

    What it uses of the same author is read too; libraries are not, nor class methods: they make objects, as from a
    model of another library, whose names say nothing of this one. Without `switched_off`, an argument of a function
    that is None by default has no name: most calls leave it out.
    """
    names: set[str] = set()
    seen: set[int] = set()
    waiting = [thing]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or not _is_own(one):
            continue
        seen.add(id(one))
        if isinstance(one, FunctionType):
            names.add(one.__name__)
            used = frozenset(_list_names(one.__code__))
            names |= used if switched_off else used - _list_switched_off(one)
            waiting += _find_used(one.__globals__, used)
            waiting += map(_read_cell, one.__closure__ or ())
        elif isinstance(one, type):
            names.add(one.__name__)
            waiting += [*one.__bases__, *(_unwrap(a) for a in vars(one).values() if not isinstance(a, classmethod))]
        elif isinstance(one, MethodType):
            waiting += [one.__func__, type(one.__self__)]
        elif isinstance(one, partial):
            waiting.append(one.func)
        else:
            waiting.append(type(one))
    return frozenset(names)


def _list_switched_off(function: FunctionType) -> frozenset[str]:
    """Return the arguments of a function that are None by default."""
    code, defaults = function.__code__, function.__defaults__ or ()
    last = code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]
    given = dict(zip(last, defaults, strict=True)) | (function.__kwdefaults__ or {})
    return frozenset(name for name, value in given.items() if value is None)


def _find_used(names: Mapping[str, Any], used: Collection[str]) -> Iterator[Any]:
    """Yield what code uses of the names around it, and of modules among them."""
    for name in used:
        if isinstance(thing := names.get(name), ModuleType):
            yield from (vars(thing)[inner] for inner in used if inner in vars(thing))
        elif name in names:
            yield thing


def _list_names(code: CodeType) -> Iterator[str]:
    """Yield the names in code, and in the functions that are written inside it."""
    yield from (*code.co_names, *code.co_varnames, *code.co_freevars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _list_names(constant)


def _read_cell(cell: CellType) -> Any:
    """Return a variable of an enclosing function; None if it has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _unwrap(attribute: Any) -> Any:
    """Return the function of a method of any kind."""
    if isinstance(attribute, staticmethod):
        return attribute.__func__
    return attribute.fget if isinstance(attribute, property) else attribute


def _is_own(thing: Any) -> bool:
    """Return True for code outside Python, its libraries and goldformer."""
    if isinstance(thing, (ModuleType, CodeType)):
        return False
    if isinstance(thing, partial):
        return True
    kind = thing if isinstance(thing, (type, FunctionType, MethodType)) else type(thing)
    name = getattr(kind, "__module__", None) or ""
    if name.partition(".")[0] in _FOREIGN:
        return False
    try:
        file = inspect.getfile(kind)
    except (TypeError, OSError):
        return True
    return not any(f"{folder}/" in file.replace("\\", "/") for folder in INSTALLED)

"""The names in a function's own code, and in the functions and classes that it uses."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Iterator, Mapping
from dis import Instruction, get_instructions
from functools import partial
from itertools import pairwise
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from goldformer.adapters.imports import INSTALLED

#: The names of code that is made for half types: these types, torch.autocast, and modules in which kernels are written.
_OF_HALF_TYPES: Final = frozenset({"bfloat16", "float16", "autocast", "triton", "tl", "load_inline"})
#: The functions that cast to a dtype, the names of float32, and functions that make a new array.
_CASTS: Final = ("to", "type", "astype", "softmax", "log_softmax")
_WIDE: Final = ("float32", "float")
_MADE: Final = ("arange", "linspace", "ones", "zeros", "full", "tril", "triu", "eye", "tensor", "ne", "eq")

#: The packages of goldformer and of Python, whose code is nobody's own.
_FOREIGN: Final = frozenset({"goldformer", *sys.stdlib_module_names}) - {"__main__"}


def list_identifiers(thing: Any, *, switched_off: bool = True) -> frozenset[str]:
    """Return the names of functions, classes, attributes and variables in a function's or a class's own code.

    What it uses of the same author is read too; libraries are not, nor class methods: they make objects, as from a
    model of another library, whose names say nothing of this one. Without `switched_off`, an argument of a function
    that is None by default has no name: most calls leave it out.
    """
    names: set[str] = set()
    for one in _list_own(thing):
        if isinstance(one, FunctionType):
            used = frozenset(_list_names(one.__code__))
            names |= {one.__name__} | (used if switched_off else used - _list_switched_off(one))
        elif isinstance(one, type):
            names.add(one.__name__)
    return frozenset(names)


def is_made_for_half_types(thing: Any) -> bool:
    """Return True if the own code of a function or class names a half type, casts to float32 or calls a kernel."""
    functions = [one for one in _list_own(thing) if isinstance(one, FunctionType)]
    return any(_names_half_type(code) for one in functions for code in list_code(one.__code__))


def _names_half_type(code: CodeType) -> bool:
    if not _OF_HALF_TYPES.isdisjoint(code.co_names):
        return True
    loaded = [(i.argval, _is_method(i)) for i in get_instructions(code) if i.opname in ("LOAD_ATTR", "LOAD_METHOD")]
    for (before, _), (name, called) in pairwise([("", False), *loaded]):
        # What was made a moment ago, such as a table of positions, is no input of a half type.
        if (name in ("float", "half") and called and before not in _MADE) or (name in _WIDE and before in _CASTS):
            return True
    return False


def _is_method(loaded: Instruction) -> bool:
    """Return True if an attribute is loaded to be called."""
    return loaded.opname == "LOAD_METHOD" or loaded.argrepr.endswith("NULL|self")


def _list_own(thing: Any) -> Iterator[Any]:
    """Yield a function or a class and what it uses of the same author, each once."""
    seen: set[int] = set()
    waiting = [inspect.unwrap(thing)]
    while waiting:
        one = waiting.pop()
        if id(one) in seen or not _is_own(one):
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, FunctionType):
            waiting += _find_used(one.__globals__, frozenset(_list_names(one.__code__)))
            waiting += map(_read_cell, one.__closure__ or ())
        elif isinstance(one, type):
            waiting += [*one.__bases__, *(_unwrap(a) for a in vars(one).values() if not isinstance(a, classmethod))]
        elif isinstance(one, MethodType):
            waiting += [one.__func__, type(one.__self__)]
        elif isinstance(one, partial):
            waiting.append(one.func)
        else:
            waiting.append(type(one))


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
    for one in list_code(code):
        yield from (*one.co_names, *one.co_varnames, *one.co_freevars)


def list_code(code: CodeType) -> Iterator[CodeType]:
    """Yield code, and that of the functions that are written inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from list_code(constant)


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

"""Read and replace an argument of a step by its name, whether it was given by place or by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache
from inspect import signature
from typing import Any, Final

from goldformer.spec.formulas.arrays import as_array
from goldformer.spec.formulas.steps import Replacement, Step, around, hold

#: The positional arguments of a call, and those by name.
Given = tuple[tuple[Any, ...], Mapping[str, Any]]


@cache
def _find_index(step: Step, name: str) -> int:
    return list(signature(step).parameters).index(name)


def read_argument(step: Step, name: str, given: Given) -> Any:
    """Return an argument of a call of a step."""
    args, named = given
    if name in named:
        return named[name]
    index = _find_index(step, name)
    return args[index] if index < len(args) else signature(step).parameters[name].default


def replace_argument(step: Step, name: str, value: Any, given: Given) -> Given:
    """Return the arguments of a call with one of them replaced."""
    args, named = given
    index = _find_index(step, name)
    if index < len(args):
        return (*args[:index], value, *args[index + 1 :]), named
    return args, {**named, name: value}


def change_argument(step: Step, name: str, change: Callable[[Any, Given], Any]) -> Replacement:
    """Return the replacement of a step that runs it with one argument changed: `change` gets it and the whole call."""

    def run(original: Step, *args: Any, **named: Any) -> Any:
        given = (args, named)
        args, named_ = replace_argument(step, name, change(read_argument(step, name, given), given), given)
        return original(*args, **named_)

    return around(run)


def change_array(change: Callable[[Any], Any]) -> Replacement:
    """Return the replacement of a step that changes its result, an array."""
    return change_result(lambda result: as_array(change(result)))


def change_result(change: Callable[[Any], Any]) -> Replacement:
    """Return the replacement of a step that changes its result."""

    def run(original: Step, *args: Any, **named: Any) -> Any:
        return change(original(*args, **named))

    return around(run)


#: The names of the inputs that the implementation was given; None inside of its call. The textbook may have a mask that
#: the implementation makes itself.
_given_inputs: Final[ContextVar[Collection[str] | None]] = ContextVar("given_inputs", default=None)


def giving(names: Collection[str] | None) -> AbstractContextManager[None]:
    """Note inside a context which inputs the implementation was given."""
    return hold(_given_inputs, names)


def was_left_out(name: str) -> bool:
    """Return True if the implementation was not given an input, or no input whose name ends like that."""
    names = _given_inputs.get()
    return names is not None and not any(given.endswith(name) for given in names)

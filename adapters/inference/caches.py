"""The way in which a class keeps keys and values between calls, by its names and by what it returns."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Final, Literal

from goldformer.adapters.inference.inputs import OF_CALL, ForwardArguments
from goldformer.adapters.inference.names import ARGUMENTS, SIZES, list_roles, says
from goldformer.adapters.inference.target import Argument, Made, Target, resolve

#: The numbers of tokens that a call takes: any, one in all calls but the first, or one in each.
Tokens = Literal["any", "one_after", "one"]

#: The names of methods that make room for a cache, of the outputs of a call, and of the cache in what it returns.
_SETUP: Final = re.compile(r"(setup|init|initialize|allocate|make|create|build|enable)_(kv_?)?caches?")
_OUTPUTS: Final = ("logits", "last_hidden_state", "hidden_states", "output")
_SWITCH: Final = re.compile(r"use_(kv_?)?cache|return_(kv|cache|present)s?")


@dataclass(frozen=True)
class Cache:
    """The way in which a class keeps keys and values between calls.

    `argument` takes what an earlier call returned, or is "" where the object itself keeps it. `first` is what the first
    call gets: None, `Made`, or a list of one of them for each layer. `setup` is a method that makes room, with sizes by
    its arguments. `tokens` are the tokens that a call takes.
    """

    argument: str = ""
    first: Any = None
    setup: str = ""
    room: Mapping[str, Any] | None = None
    tokens: Tokens = "any"

    def describe(self) -> str:
        """Return it in words."""
        kept = f"what {self.argument} of the call takes" if self.argument else "the object"
        made = f", {self.setup}() makes room" if self.setup else ""
        few = {"any": "", "one_after": ", one token a call after the first", "one": ", one token a call"}
        return f"keys and values of earlier calls: in {kept}{made}{few[self.tokens]}"


def list_made(cache: Cache | None) -> list[Made]:
    """Return the object that a cache is made as."""
    first = cache.first if cache else None
    return [one for one in (first if isinstance(first, list) else [first]) if isinstance(one, Made)]


def make_first(first: Any, find_size: Callable[[str], Any]) -> Any:
    """Return the cache of the first call."""
    if isinstance(first, list):
        return [resolve(one, find_size) for one in first * find_size("layers")]
    return resolve(first, find_size)


def find_output(returned: Any) -> Any:
    """Return the first of several values that a call returns, or its logits; one that is no array as it is."""
    if isinstance(returned, tuple | list):
        return next(iter(returned), None)
    named = returned if isinstance(returned, Mapping) else getattr(returned, "__dict__", {})
    return returned if _is_array(returned) else next((named[name] for name in _OUTPUTS if name in named), returned)


def find_cache(returned: Any, given: Any) -> Any:
    """Return the cache that a call returned, or the one that it was given and wrote to."""
    if isinstance(returned, tuple | list):
        others = [value for value in returned[1:] if value is not None]
        return next(
            (value for value in reversed(others) if not _is_array(value)),
            others[-1] if others and given is None else given,
        )
    named = returned if isinstance(returned, Mapping) else getattr(returned, "__dict__", {})
    says_cache = (name for name in named if says(name, ARGUMENTS["cache"]) or name.startswith("present"))
    return given if _is_array(returned) else next((named[name] for name in says_cache), given)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape")


def use_cache(arguments: ForwardArguments, target: Target) -> ForwardArguments:
    """Return the arguments of a call with the switches on that make it return its cache."""
    switches = [a.name for a in target.list_arguments() if _SWITCH.fullmatch(a.name)]
    return replace(arguments, call={**arguments.call, **dict.fromkeys(switches, True)})


def keeps_cache(target: Target) -> bool:
    """Return True if an argument of the call, or a method, says that keys and values of earlier calls are kept."""
    said = (*(ARGUMENTS[role] for role in ("cache", "start")), OF_CALL.pattern, _SWITCH.pattern)
    names = [argument.name for argument in target.list_arguments()]
    return any(says(name, pattern) for name in names for pattern in said) or bool(_find_setup(target))


def propose_caches(target: Target, component: str) -> Iterator[Cache]:
    """Yield the ways in which a class may keep keys and values between calls, as its names say."""
    own = [a for a in target.list_arguments() if says(a.name, ARGUMENTS["cache"]) and not a.is_boolean]
    own = [a for a in own if not _SWITCH.fullmatch(a.name)]
    rooms: list[tuple[str, dict[str, Any] | None]] = [*_find_setup(target), ("", None)]
    for setup, room in rooms:
        for argument in own[:1]:
            yield from (Cache(argument.name, first, setup, room) for first in _list_first(argument, target, component))
        if not own:
            yield Cache("", None, setup, room)


def _list_first(argument: Argument, target: Target, component: str) -> list[Any]:
    """Return what a cache may be in the first call: nothing, an object of a class next to the target, or a list."""
    made = [Made(kind, sizes) for kind, sizes in _list_cache_classes(target)]
    every: list[Any] = [*made, None] if argument.is_required or made else [None]
    return [*every, *([one] for one in every)] if component == "decoder_only_model" else every


def _list_cache_classes(target: Target) -> Iterator[tuple[type, dict[str, Any]]]:
    """Yield the classes of caches in the module of a target, with the sizes that their constructors take."""
    module = sys.modules.get(target.thing.__module__, ModuleType(""))
    for name, kind in vars(module).items():
        if inspect.isclass(kind) and "cache" in name.lower() and kind is not target.thing:
            sizes = _read_sizes(kind.__init__)
            if sizes is not None:
                yield kind, sizes


def _find_setup(target: Target) -> list[tuple[str, dict[str, Any]]]:
    """Return the method that makes room for a cache, with the sizes that it takes; [] if there is none."""
    methods = [(n, vars(target.thing)[n]) for n in vars(target.thing) if _SETUP.fullmatch(n)] if target.is_class else []
    found = [(name, _read_sizes(method)) for name, method in methods if inspect.isfunction(method)]
    return [(name, sizes) for name, sizes in found if sizes is not None][:1]


def _read_sizes(function: Any) -> dict[str, Any] | None:
    """Return the sizes that the arguments of a method stand for; None if a name says none."""
    sizes: dict[str, Any] = {}
    for parameter in [*inspect.signature(function).parameters.values()][1:]:
        role = next(iter(list_roles(parameter.name, SIZES)), None)
        is_required = parameter.default is parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.name.lower() in ("device", "dtype"):
            sizes |= {parameter.name: parameter.name}
        elif role is not None and (is_required or role == "batch"):
            sizes[parameter.name] = role
        elif is_required:
            return None
    return sizes

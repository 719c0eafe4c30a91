"""Calls of modules in train(), and calls by objects of earlier calls, for code that builds its objects in each call."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from goldformer.adapters.arrays import ArrayLibrary

#: The attributes of a module that are rates of dropout.
_RATE: Final = re.compile(r"p|p_?drop(out)?|(\w+_)?drop(out)?(_?(p|prob|rate|ratio|probability))?")


@contextmanager
def train_modules() -> Iterator[None]:
    """Let modules be called in train() with all rates of dropout at 0, and restore both afterwards."""
    from torch import nn  # seconds, and an optional dependency

    modes: list[tuple[nn.Module, bool]] = []
    rates: list[tuple[dict[str, Any], str, float]] = []

    def prepare(module: nn.Module, _given: object) -> None:
        if module.training:
            return
        for part in module.modules():
            modes.append((part, part.training))
            own = vars(part)
            rates.extend((own, name, rate) for name, rate in own.items() if _RATE.fullmatch(name) and _is_rate(rate))
        module.train()
        for own, name, _ in rates:
            own[name] = 0.0

    hook = nn.modules.module.register_module_forward_pre_hook(prepare)
    try:
        yield
    finally:
        hook.remove()
        for part, mode in reversed(modes):
            part.training = mode
        for own, name, rate in reversed(rates):
            own[name] = rate


def _is_rate(value: object) -> bool:
    return type(value) is float or (type(value) is int and value in (0, 1))


def find_classes(function: Callable[..., Any]) -> dict[str, type]:
    """Return the classes of modules among the global names of a function."""
    names = getattr(inspect.unwrap(function), "__globals__", {})
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        name: thing for name, thing in names.items() if isinstance(thing, type) and issubclass(thing, torch.nn.Module)
    }


@contextmanager
def keep_objects(function: Callable[..., Any], library: ArrayLibrary) -> Iterator[Callable[[], None]]:
    """Let a function build each object once: after the call of what is yielded it gets those of before."""
    names, classes = getattr(inspect.unwrap(function), "__globals__", {}), find_classes(function)
    building: list[Any] = []
    kept = {name: _KeptClass(cls, library, building) for name, cls in classes.items()}
    names |= kept

    def begin_again() -> None:
        for each in kept.values():
            each.next = 0

    try:
        yield begin_again
    finally:
        names |= classes


@dataclass(eq=False)
class _KeptClass:
    """A class in the place of one: it gives the object that an earlier call built with the same arguments."""

    cls: type
    library: ArrayLibrary
    building: list[Any]
    made: list[tuple[Any, Any]] = field(default_factory=list)
    next: int = 0

    def __call__(self, *given: Any, **named: Any) -> Any:
        if self.building:  # a part of a larger object
            return self.cls(*given, **named)
        place, self.next = self.next, self.next + 1
        if place < len(self.made) and self._is_equal(self.made[place][0], (given, named)):
            return self.made[place][1]
        self.building.append(self.cls)
        try:
            built = self.cls(*given, **named)
        finally:
            self.building.pop()
        self.made[place:] = [((given, named), built)]
        return built

    def __instancecheck__(self, thing: object) -> bool:
        return isinstance(thing, self.cls)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cls, name)

    def _is_equal(self, one: Any, other: Any) -> bool:
        if one is other:
            return True
        if type(one) is not type(other):
            return False
        if isinstance(one, tuple | list):
            return len(one) == len(other) and all(map(self._is_equal, one, other))
        if isinstance(one, Mapping):
            return one.keys() == other.keys() and all(self._is_equal(value, other[name]) for name, value in one.items())
        if self.library.is_array(one):
            return bool(one.shape == other.shape) and self.library.same(one, other)
        return bool(one == other) or (hasattr(one, "__dict__") and self._is_equal(vars(one), vars(other)))

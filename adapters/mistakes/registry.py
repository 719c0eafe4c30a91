"""Who makes which mistake: a class registers itself under the mistake's id in spec/mistakes.yaml."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

#: What the mistake was made on.
Kind = Literal["textbook", "reference"]

#: The modules in which mistakes on the textbook register themselves, and those in which mistakes on the reference do.
_MODULES: Final[Mapping[Kind, tuple[str, ...]]] = {
    "textbook": ("attention", "positions", "heads", "layers", "model", "losses", "decoding", "randomness", "backward"),
    "reference": ("torch_only",),
}

Class = TypeVar("Class", bound=type)


@dataclass(frozen=True, slots=True)
class Mistaken:
    """An implementation that makes one mistake, or several at once: an adapter object is made by calling `make`."""

    id: str
    kind: Kind
    make: type[Any]


_REGISTERED: dict[str, Mistaken] = {}


def mistake(id_: str, kind: Kind = "textbook") -> Callable[[Class], Class]:
    """Register a class as the implementation that makes the mistake `id_`; ValueError when there is one already."""

    def register(made: Class) -> Class:
        if id_ in _REGISTERED:
            raise ValueError(f"{id_} is implemented twice: {_REGISTERED[id_].make} and {made}")
        _REGISTERED[id_] = Mistaken(id_, kind, made)
        return made

    return register


@cache
def implementations(kind: Kind | None = None) -> Mapping[str, Mistaken]:
    """All implementations by their mistake's id, or those of one kind; those on the reference need PyTorch."""
    kinds: tuple[Kind, ...] = (kind,) if kind else ("textbook", "reference")
    for each in kinds:
        for module in _MODULES[each]:
            importlib.import_module(f"goldformer.adapters.mistakes.{module}")
    return MappingProxyType({id_: m for id_, m in _REGISTERED.items() if m.kind in kinds})


def together(*mistakes: Mistaken) -> Mistaken:
    """One implementation that makes several mistakes of the textbook at once; TypeError where they collide."""
    classes = [m.make for m in mistakes]
    overridden = [name for made in classes for name in vars(made) if not name.startswith("__")]
    if len(set(overridden)) < len(overridden):
        raise TypeError(f"{' and '.join(m.id for m in mistakes)} override the same step")
    ids = "+".join(m.id for m in mistakes)
    return Mistaken(ids, "textbook", type(ids, tuple(classes), {}))

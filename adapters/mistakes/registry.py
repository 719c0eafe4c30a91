"""Who makes which mistake: a class registers itself under the mistake's id in spec/mistakes.yaml."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, Final, TypeVar

#: The modules in which mistakes register themselves.
_ON_NUMPY: Final = (
    "attention",
    "positions",
    "heads",
    "layers",
    "model",
    "losses",
    "decoding",
    "randomness",
    "gradients",
)
_ON_TORCH: Final = ("on_torch",)

Class = TypeVar("Class", bound=type)


@dataclass(frozen=True, slots=True)
class Mistaken:
    """An implementation that makes one mistake, or several at once: an adapter object is made by calling `make`.

    `shows_in` are the dtypes in which it is a mistake; empty where it is one in every dtype.
    """

    id: str
    make: type[Any]
    shows_in: tuple[str, ...] = ()

    def shown_in(self, dtype: str) -> str:
        """The dtype to look for it in when `dtype` is asked for: that one, or else the first in which it shows."""
        return dtype if not self.shows_in or dtype in self.shows_in else self.shows_in[0]


_REGISTERED: dict[str, Mistaken] = {}


def mistake(id_: str, *, shows_in: tuple[str, ...] = ()) -> Callable[[Class], Class]:
    """Register a class as the implementation that makes the mistake `id_`; ValueError when there is one already.

    `shows_in` are the dtypes in which it is a mistake, where it is none in the others.
    """

    def register(made: Class) -> Class:
        if id_ in _REGISTERED:
            raise ValueError(f"{id_} is implemented twice: {_REGISTERED[id_].make} and {made}")
        _REGISTERED[id_] = Mistaken(id_, made, shows_in)
        return made

    return register


@cache
def implementations() -> Mapping[str, Mistaken]:
    """The implementations on NumPy by their mistake's id: all that can be told from results."""
    return _registered_in(_ON_NUMPY)


@cache
def torch_implementations() -> Mapping[str, Mistaken]:
    """The implementations on torch, of what can go wrong with tensors alone; this imports torch."""
    return _registered_in(_ON_TORCH)


@cache
def all_implementations() -> Mapping[str, Mistaken]:
    """Those on NumPy, and those on torch where torch is installed."""
    there = importlib.util.find_spec("torch") is not None
    return MappingProxyType({**implementations(), **(torch_implementations() if there else {})})


def _registered_in(modules: tuple[str, ...]) -> Mapping[str, Mistaken]:
    names = {importlib.import_module(f"goldformer.adapters.mistakes.{module}").__name__ for module in modules}
    return MappingProxyType({id_: made for id_, made in _REGISTERED.items() if made.make.__module__ in names})

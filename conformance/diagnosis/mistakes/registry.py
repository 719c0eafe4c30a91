"""The registry of mistakes: functions register under an id of spec/mistakes.yaml, each in the place of one step."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType, SimpleNamespace
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, overload

from goldformer.adapters.textbook.build import build_textbook
from goldformer.spec.formulas.steps import Instead, Replacement, Replacements, Step, around, instead

P = ParamSpec("P")
R = TypeVar("R")
Function = TypeVar("Function", bound=Callable[..., Any])

#: The modules whose mistakes are in forward passes, and so in the gradients of these as a framework forms them.
_FORWARD: Final = (
    "attention",
    "positions",
    "heads",
    "layers",
    "norms",
    "rope",
    "gated",
    "groups",
    "qk_norm",
    "distance",
    "caches",
    "blocks",
    "language_model",
    "cached_models",
    "generation",
    "transformer",
    "losses",
    "decoding",
    "sampling",
    "experts",
    "randomness",
    "half_types",
)
#: The module of mistakes in backward passes that are written by hand.
_BY_HAND: Final = ("gradients",)
_ON_TORCH: Final = ("on_torch",)
#: The module of mistakes that only lose digits: they show where numbers have many.
_LOSES_DIGITS: Final = "half_types"

#: The mistakes that published models make on purpose: often several at once, and with options that differ too.
ON_PURPOSE: Final = ("ln-unbiased", "ln-eps-outside")


@dataclass(frozen=True, slots=True)
class Mistaken:
    """An implementation that makes one mistake: `make` returns an adapter object, which shares no state with another.

    `shows_in` are the dtypes in which it shows; empty if it shows in every dtype. `steps` are the steps of the
    textbook that it replaces; empty if it is made on torch.
    """

    id: str
    make: Callable[[], Any]
    shows_in: tuple[str, ...] = ()
    steps: Replacements = field(default_factory=dict)
    module: str = ""

    def find_dtype(self, dtype: str) -> str:
        """Return the dtype to look for it in when `dtype` is asked for: that one, or the first in which it shows."""
        return dtype if self.shows(dtype) else self.shows_in[0]

    def shows(self, dtype: str) -> bool:
        """Return True if it shows in a dtype."""
        return not self.shows_in or dtype in self.shows_in

    def can_be_made_with(self, other: Mistaken) -> bool:
        """Return True if both mistakes can show at once: no step that both replace is replaced as a whole."""
        both = self.steps.keys() & other.steps.keys()
        return not any(isinstance(made.steps[step], Instead) for step in both for made in (self, other))

    @property
    def by_hand(self) -> bool:
        """Return True if it is made in backward passes: only those that are written by hand have it."""
        return self.module in _BY_HAND

    @property
    def loses_digits(self) -> bool:
        """Return True if it changes nothing but the digits of numbers that a half type does not hold."""
        return self.module == _LOSES_DIGITS


@dataclass(frozen=True, slots=True)
class _Entry:
    """The functions registered under one id."""

    module: str
    shows_in: tuple[str, ...]
    conventions: Mapping[str, str]
    steps: dict[Step, Replacement] = field(default_factory=dict)

    def finish(self, id_: str) -> Mistaken:
        def make() -> SimpleNamespace:
            declared: dict[str, Any] = {"CONVENTIONS": self.conventions} if self.conventions else {}
            return build_textbook(made.steps, **declared)

        made = Mistaken(id_, make, self.shows_in, self.steps, self.module)
        return made


_REGISTERED: dict[str, _Entry] = {}
_REGISTERED_ON_TORCH: dict[str, Mistaken] = {}


@overload
def mistake(
    id_: str, *, instead_of: Callable[P, R], shows_in: tuple[str, ...] = ..., conventions: Mapping[str, str] = ...
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
@overload
def mistake(
    id_: str, *, around: Callable[P, R], shows_in: tuple[str, ...] = ..., conventions: Mapping[str, str] = ...
) -> Callable[[Callable[Concatenate[Callable[P, R], P], R]], Callable[Concatenate[Callable[P, R], P], R]]: ...
@overload
def mistake(
    id_: str, *, decorating: Callable[P, R], shows_in: tuple[str, ...] = ..., conventions: Mapping[str, str] = ...
) -> Callable[[Callable[[Callable[P, R]], Callable[P, R]]], Callable[[Callable[P, R]], Callable[P, R]]]: ...
def mistake(
    id_: str,
    *,
    instead_of: Step | None = None,
    around: Step | None = None,
    decorating: Step | None = None,
    shows_in: tuple[str, ...] = (),
    conventions: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Function], Function]:
    """Register a function that makes the mistake `id_` in the place of a step; a mistake of several steps has several.

    The function has the step's parameters (`instead_of`), takes the original before them (`around`), or is given the
    original once and returns what takes its place (`decorating`), so that each implementation has a memory of its own.
    `shows_in` are the dtypes in which it is a mistake, and `conventions` the options under which it is one.
    """
    # The module that registers it: some functions make several mistakes, and are elsewhere.
    module = sys._getframe(1).f_globals["__name__"].rpartition(".")[2]

    def register(function: Function) -> Function:
        replaced, replacement = _read_form(function, instead_of, around, decorating)
        entry = _REGISTERED.setdefault(id_, _Entry(module, shows_in, conventions))
        if entry.module != module or replaced in entry.steps:
            raise ValueError(f"{id_} replaces {replaced.__name__} twice: in {entry.module} and in {module}")
        entry.steps[replaced] = replacement
        return function

    return register


def _read_form(
    function: Step, instead_of: Step | None, around_step: Step | None, decorating: Step | None
) -> tuple[Step, Replacement]:
    """Return the step and its replacement, of whichever of the three forms is given."""
    if instead_of is not None:
        return instead_of, instead(function)
    if around_step is not None:
        return around_step, around(function)
    if decorating is None:
        raise TypeError("write which step the mistake is made in: instead_of, around or decorating")
    return decorating, function


def mistake_on_torch(id_: str, make: Callable[[], Any]) -> None:
    """Register `make`, which returns an adapter object with the mistake `id_`, one that only tensors can show."""
    if id_ in _REGISTERED_ON_TORCH:
        raise ValueError(f"{id_} is implemented twice: {_REGISTERED_ON_TORCH[id_].make} and {make}")
    _REGISTERED_ON_TORCH[id_] = Mistaken(id_, make, module=make.__module__.rpartition(".")[2])


@cache
def implementations() -> Mapping[str, Mistaken]:
    """Return the implementations on NumPy by their mistake's id: all that show in results."""
    modules = _FORWARD + _BY_HAND
    _import_modules(modules)
    # The diagnosis tries them in this order, whichever module was imported first.
    ordered = sorted(_REGISTERED.items(), key=lambda item: modules.index(item[1].module))
    return MappingProxyType({id_: entry.finish(id_) for id_, entry in ordered})


@cache
def torch_implementations() -> Mapping[str, Mistaken]:
    """Return the implementations on torch, of mistakes that only tensors can show; this imports torch."""
    _import_modules(_ON_TORCH)
    return MappingProxyType(_REGISTERED_ON_TORCH)


@cache
def all_implementations() -> Mapping[str, Mistaken]:
    """Return those on NumPy, and those on torch where torch is installed."""
    has_torch = importlib.util.find_spec("torch") is not None
    return MappingProxyType({**implementations(), **(torch_implementations() if has_torch else {})})


def _import_modules(modules: tuple[str, ...]) -> None:
    for module in modules:
        importlib.import_module(f"goldformer.conformance.diagnosis.mistakes.{module}")

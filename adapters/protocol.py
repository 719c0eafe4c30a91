"""What an adapter is, once loaded: named functions and what they declare.

AdapterError
└── raised for whatever makes an adapter unusable as a whole; one broken function is not that
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Final, get_args

from goldformer.adapters.arrays import LIBRARIES, DType
from goldformer.adapters.process.arrays import Wire
from goldformer.spec import Contract, Spec
from goldformer.spec.model import UNSPECIFIED

#: The four dtypes in which the suite can run.
DTYPES: Final[tuple[DType, ...]] = get_args(DType)

DEVICES: Final = ("cpu", "cuda")

#: How the message of a function ends that `goldformer new` wrote and nobody has filled in.
TO_BE_WRITTEN: Final = "call yours here"

#: Libraries whose functions stand in an adapter to be used there, and happen to be called like a component.
_TOOLS: Final = frozenset(
    {"cupy", "flax", "jax", "jaxlib", "keras", "mlx", "numpy", "scipy", "tensorflow", "tinygrad", "torch"}
)


class AdapterError(Exception):
    """An adapter that cannot be used at all; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """An implementation under test.

    `functions` holds what is implemented, `gradients` hand-written backward functions; `broken` says, by
    component, why a function there cannot be called as the contract calls it; `hints` are remarks for a
    reader, such as a misspelt component; `close` ends what it started, such as a process; `timeout` is what each
    call of that process may take, in seconds, and None of an adapter that is none.
    """

    origin: str
    name: str
    version: str
    arrays: str
    functions: Mapping[str, Callable[..., Any]]
    conventions: Mapping[str, str]
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]
    gradients: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    close: Callable[[], None] = lambda: None
    timeout: float | None = None

    def convention(self, name: str, component: str, spec: Spec) -> str:
        """The option it declares for a component, or the documents' choice, also where it leaves it open."""
        return declared_option(self.conventions, name, component, spec)

    def leaves_open(self, name: str, component: str) -> bool:
        """Whether it declares that what depends on a convention is not to be compared."""
        return _declared(self.conventions, name, component) == UNSPECIFIED

    def options(self, component: str, spec: Spec) -> dict[str, str]:
        """The options it declares for all conventions of a component, or the documents' choices."""
        return declared_options(self.conventions, component, spec)

    @classmethod
    def from_object(cls, thing: Any, origin: str, spec: Spec) -> Adapter:
        """Read the names an adapter module (or any object) defines; AdapterError on a bad declaration."""
        arrays = str(getattr(thing, "ARRAYS", ""))
        if arrays not in LIBRARIES:
            got = f"is {arrays!r}" if arrays else "is missing"
            raise AdapterError(
                f"{origin}: ARRAYS {got}: write ARRAYS = " + " or ".join(f'"{n}"' for n in LIBRARIES if n != Wire.name)
            )
        library = LIBRARIES[arrays]
        taken = cls.of_our_own(thing, origin, spec, arrays=arrays)
        names = taken.functions
        return replace(
            taken,
            name=str(getattr(thing, "NAME", origin)),
            version=str(getattr(thing, "VERSION", "")),
            conventions=_conventions(getattr(thing, "CONVENTIONS", {}), origin, spec),
            dtypes=_choice(getattr(thing, "DTYPES", library.dtypes), library.dtypes, f"{origin}: DTYPES"),
            devices=_choice(getattr(thing, "DEVICES", library.devices), DEVICES, f"{origin}: DEVICES"),
            broken={name: why for name, f in names.items() if (why := _wrong_parameters(f, spec.contracts[name]))},
            hints=(*_misspelt(thing, names, spec), *_undeclared(thing), *_imported(names)),
            close=getattr(thing, "CLOSE", lambda: None),
        )

    @classmethod
    def of_our_own(cls, thing: Any, origin: str, spec: Spec, *, arrays: str = "numpy") -> Adapter:
        """Take an object's components as they are, with all that its array library has: of what nobody need check."""
        return cls(
            origin=origin,
            name=origin,
            version="",
            arrays=arrays,
            functions={name: f for name in spec.contracts if callable(f := getattr(thing, name, None))},
            gradients={name: f for name in spec.contracts if callable(f := getattr(thing, f"{name}_gradient", None))},
            conventions={},
            dtypes=LIBRARIES[arrays].dtypes,
            devices=LIBRARIES[arrays].devices,
        )


def declared_option(conventions: Mapping[str, str], name: str, component: str, spec: Spec) -> str:
    """The option that CONVENTIONS declare for a component, or the documents' choice, also where they leave it open."""
    said = _declared(conventions, name, component)
    return spec.conventions[name].default if said in (None, UNSPECIFIED) else said


def _declared(conventions: Mapping[str, str], name: str, component: str) -> str | None:
    return conventions.get(f"{component}.{name}", conventions.get(name))


def declared_options(conventions: Mapping[str, str], component: str, spec: Spec) -> dict[str, str]:
    """The options that CONVENTIONS declare for all conventions of a component, or the documents' choices."""
    contract = spec.contracts[component]
    return {name: declared_option(conventions, name, component, spec) for name in contract.conventions}


def _choice(given: Any, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        got = f"has {unknown[0]!r}" if unknown else "is empty"
        raise AdapterError(f"{what} {got}; known are " + ", ".join(f'"{name}"' for name in known))
    return names


def _conventions(given: Any, origin: str, spec: Spec) -> Mapping[str, str]:
    if not isinstance(given, Mapping):
        raise AdapterError(f'{origin}: CONVENTIONS is {given!r}: write a mapping such as {{"empty_row": "zeros"}}')
    for key, option in given.items():
        component, _, name = str(key).rpartition(".")
        if name not in spec.conventions:
            raise AdapterError(f"{origin}: CONVENTIONS has {key!r}; conventions are {', '.join(spec.conventions)}")
        if component and component not in spec.contracts:
            close = difflib.get_close_matches(component, spec.contracts, n=1)
            guess = f": did you mean {close[0]}?" if close else f"; components are {', '.join(spec.contracts)}"
            raise AdapterError(f"{origin}: CONVENTIONS has {key!r}, but {component} is no component{guess}")
        if component and name not in spec.contracts[component].conventions:
            raise AdapterError(f"{origin}: CONVENTIONS has {key!r}, but {component} does not depend on {name}")
        convention = spec.conventions[name]
        known = [*convention.options, *([UNSPECIFIED] if convention.left_open else [])]
        if option not in known:
            options = ", ".join(known)
            raise AdapterError(f"{origin}: CONVENTIONS has {key!r}: {option!r}; its options are {options}")
    return dict(given)


def _wrong_parameters(function: Callable[..., Any], contract: Contract) -> str | None:
    """Why a function cannot be called with the contract's names, or None."""
    names = [*contract.inputs, *contract.attributes, *(["params"] if contract.takes_params else [])]
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None  # a builtin does not tell; calling it will
    if any(p.kind is p.POSITIONAL_ONLY for p in parameters):
        return f"takes positional-only parameters; the suite calls it by name: {', '.join(names)}"
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    taken = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    required = {p.name for p in parameters if p.default is p.empty and p.name in taken}
    unknown = sorted(required - set(names))
    missing = [name for name in names if name not in taken and name not in contract.optional and not takes_any]
    # An input that a call has not is None; an attribute is not passed.
    bare = [name for name in contract.attributes if name in contract.optional and name in required]
    wrong = {"requires": unknown, "does not take": missing, "gives no default to": bare}
    parts = [f"{what} {', '.join(which)}" for what, which in wrong.items() if which]
    return f"{' and '.join(parts)}; the suite calls it with {', '.join(names)}" if parts else None


@cache
def accepted(function: Callable[..., Any]) -> frozenset[str] | None:
    """The names of the parameters that a function takes; None when it takes any, or does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)


def fitted(function: Callable[..., Any], contract: Contract, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The arguments of a call as a function takes them; NotImplementedError for what the function has not.

    An optional input that the call has not is None; an optional attribute is not passed: its default is the
    function's own.
    """
    names = accepted(function)
    if names is None:
        return given
    for name in given:
        if name in contract.optional and name not in names:
            raise NotImplementedError(f"{contract.component} takes no {name}")
    left_out = contract.optional & contract.inputs.keys() & names - given.keys()
    return {**given, **dict.fromkeys(left_out)}


def _misspelt(thing: Any, found: Mapping[str, Any], spec: Spec) -> list[str]:
    """Public functions whose name is nearly a component that is not there."""
    absent = [name for name in spec.contracts if name not in found]
    hints = []
    for name in dir(thing):
        value = inspect.getattr_static(thing, name, None)
        # A class called Decoder is what a component is built with, and no component.
        if name.startswith("_") or name in spec.contracts or inspect.isclass(value) or not callable(value):
            continue
        if close := difflib.get_close_matches(name, absent, n=1, cutoff=0.85):
            hints.append(f"{name} is no component: did you mean {close[0]}?")
    return hints if found or hints else [f"nothing in it is named as a component, such as {absent[0]}"]


def _undeclared(thing: Any) -> list[str]:
    """Constants whose name is nearly that of a declaration that is not there, and whose value could be one."""
    absent = [name for name in ("CONVENTIONS", "DTYPES") if not hasattr(thing, name)]
    hints = []
    for name in dir(thing):
        close = difflib.get_close_matches(name, absent, n=1, cutoff=0.85)
        if close and isinstance(inspect.getattr_static(thing, name, None), str | tuple | list | Mapping):
            hints.append(f"{name} declares nothing: did you mean {close[0]}?")
    return hints


def _imported(found: Mapping[str, Any]) -> list[str]:
    """Components that are the very function of an array library, as an import by name leaves them there."""
    hints = []
    for name, function in found.items():
        # Of what is no function, such as a compiled one, the module is that of its class.
        source = str(function.__module__) if inspect.isroutine(function) else ""
        if source.partition(".")[0] in _TOOLS:
            told = f"{name} comes from {source} and is judged as yours"
            hints.append(f"{told}: if that is not meant, import the module and not the name")
    return hints

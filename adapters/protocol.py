"""The adapter of an implementation: its functions by component, and its declarations.

AdapterError is raised for an adapter that is unusable as a whole. One broken function does not raise it.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, get_args
from weakref import WeakKeyDictionary

from goldformer.adapters.arrays import DEVICES, LIBRARIES, DType, Wire
from goldformer.spec import Contract, Family, Spec
from goldformer.spec.model import UNSPECIFIED
from goldformer.spec.sessions import STATE

#: The four dtypes in which the suite can run.
DTYPES: Final[tuple[DType, ...]] = get_args(DType)


#: The end of the message that a function written by `goldformer new` raises until someone fills it in.
TO_BE_WRITTEN: Final = "call yours here"
#: The end of the message for a NotImplementedError without one, as starters raise it.
RAISES_NOT_IMPLEMENTED: Final = "raises NotImplementedError"

#: The attribute of an object with hints of what made it, such as what a notebook needs and is left out.
HINTS: Final = "_goldformer_hints"

#: The words with which a function declines an optional argument that it does not have.
TAKES_NO: Final = " takes no "
#: The words that follow if that is a setting, such as a scale: code without it is right about all other calls.
NEED_NOT: Final = ", and need not"

#: The most characters of a declared name in a message.
_LONGEST: Final = 100

#: The components whose functions `goldformer infer` reads: they have no parameters, or take them one by one.
INFERRED_FUNCTIONS: Final = (
    "grouped_query_attention", "layer_norm", "rms_norm", "rotary_embedding", "scaled_dot_product_attention", "softmax",
)  # fmt: skip

#: Array libraries; an adapter may import one of their functions that happens to have the name of a component.
_TOOLS: Final = frozenset(
    {"cupy", "flax", "jax", "jaxlib", "keras", "mlx", "numpy", "scipy", "tensorflow", "tinygrad", "torch"}
)


#: The dtype of a run that names no dtype, if the adapter has it.
DEFAULT_DTYPE: Final = "float32"


class AdapterError(Exception):
    """The adapter cannot be used at all; the message says what to do."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: a notebook needs no traceback of goldformer to answer a question."""
        return [f"{type(self).__name__}: {self}"]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Loader:
    """Loads an adapter in another process; `load` is None for an object in memory, which no other process has.

    `load` can be pickled. All adapters that are made of one another share one loader.
    """

    load: Callable[[Spec], Adapter] | None = None


@dataclass(frozen=True, slots=True)
class Adapter:
    """An implementation under test.

    `functions` holds the implemented components, `gradients` the hand-written backward functions.
    `broken` gives, by component, the reason why a function cannot be called with the contract's arguments.
    `hints` are remarks for a reader, such as a misspelt component. `close` ends what the adapter started, such as a
    process. `reload` loads it again without anything that its calls have left; None for an object in memory.
    `timeout` is the longest that a call of that process may take, in seconds; None without a process.
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
    reload: Callable[[], Adapter] | None = None
    loader: Loader = field(default_factory=Loader, compare=False)
    #: The classes and functions of a file that look like a component and that no call fits: they are not judged.
    unmatched: tuple[str, ...] = ()
    #: Its classes and functions whose components another one has too, by the names that load them: they are judged by
    #: themselves.
    doubled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: The components whose call only names decide, because no call gave golden values, each with what it is called.
    guesses: Mapping[str, str] = field(default_factory=dict)
    #: True if DEVICES is declared: without it, `devices` are those of the array library.
    declares_devices: bool = False
    #: The components whose function in `gradients` differentiates the forward pass in another process: not by hand.
    differentiated: frozenset[str] = frozenset()
    #: True if the adapter declares GRADIENTS = False: its functions have no backward pass.
    forward_only: bool = False
    #: The dtypes of components that work in fewer than `dtypes`.
    own_dtypes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: The words of a command line that declare a family and conventions in addition to those of the adapter itself.
    declared: tuple[str, ...] = ()

    @property
    def default_dtype(self) -> str:
        """Return the dtype of a run that names no dtype: float32 if it is declared, else the first declared dtype."""
        return DEFAULT_DTYPE if DEFAULT_DTYPE in self.dtypes else self.dtypes[0]

    @property
    def is_device_agnostic(self) -> bool:
        """Return True if it may be called on the pretend and the meta device, which are neither a CPU nor a GPU.

        A kernel for one kind of device reads memory that tensors there do not have, which ends the process.
        """
        return {"cpu", "cuda"}.issubset(self.devices)

    def convention(self, name: str, component: str, spec: Spec) -> str:
        """Return the option declared for a component, or the documents' choice if it is not declared or left open."""
        return find_option(self.conventions, name, component, spec)

    def leaves_open(self, name: str, component: str) -> bool:
        """Return True if outputs that depend on the convention must not be compared."""
        return find_declaration(self.conventions, name, component) == UNSPECIFIED

    def options(self, component: str, spec: Spec) -> dict[str, str]:
        """Return the option for each convention of a component, as `convention` does for one."""
        return find_options(self.conventions, component, spec)

    def declare(self, conventions: Mapping[str, str], spec: Spec) -> Adapter:
        """Return the adapter with further conventions declared; AdapterError for one that is unknown."""
        added = _read_conventions(conventions, self.origin, spec)
        words = [word for name, option in added.items() for word in ("--convention", f"{name}={option}")]
        # What is declared for one component would win, and each part of a file declares so.
        kept = {name: option for name, option in self.conventions.items() if name.partition(".")[2] not in added}
        return replace(self, conventions={**kept, **added}, declared=(*self.declared, *words))

    def declare_family(self, name: str, spec: Spec) -> Adapter:
        """Return the adapter with the options of a family; AdapterError for one that is unknown.

        What it declares stays where usual code of the family has it too.
        """
        chosen = _read_family(name, self.origin, spec).choose(self.conventions)
        return replace(self, conventions=chosen, declared=("--family", name))

    @classmethod
    def from_object(cls, thing: Any, origin: str, spec: Spec) -> Adapter:
        """Read the names that an adapter module (or any object) defines; AdapterError for a bad declaration."""
        arrays = str(getattr(thing, "ARRAYS", ""))
        if arrays not in LIBRARIES:
            actual = f"is {arrays!r}" if arrays else "is missing"
            known = " or ".join(f'"{name}"' for name in LIBRARIES if name != Wire.name)
            near = "".join(f". {hint}" for hint in _find_misspelt_declarations(thing) if "ARRAYS" in hint)
            raise AdapterError(f"{origin}: ARRAYS {actual}: write ARRAYS = {known}{near}")
        library = LIBRARIES[arrays]
        try:
            unchecked = cls.from_trusted(thing, origin, spec, arrays=arrays)
        except Exception as error:  # whatever its __getattr__ raises
            raise AdapterError(
                f"{origin}: its __getattr__ raises {type(error).__name__} for a name that it does not have: raise "
                "AttributeError, or remove it"
            ) from error
        found = unchecked.functions
        return replace(
            unchecked,
            name=str(getattr(thing, "NAME", origin)),
            version=str(getattr(thing, "VERSION", "")),
            conventions=_read_options(thing, origin, spec),
            dtypes=_read_choice(getattr(thing, "DTYPES", library.dtypes), library.dtypes, f"{origin}: DTYPES"),
            devices=_read_choice(getattr(thing, "DEVICES", library.devices), DEVICES, f"{origin}: DEVICES"),
            declares_devices=hasattr(thing, "DEVICES"),
            forward_only=not _read_switch(getattr(thing, "GRADIENTS", True), f"{origin}: GRADIENTS"),
            broken={
                name: why for name, f in found.items() if (why := explain_wrong_parameters(f, spec.contracts[name]))
            },
            hints=(
                *inspect.getattr_static(thing, HINTS, ()),
                *_find_misspelt_components(thing, found, spec),
                *_find_misspelt_declarations(thing),
                *_find_library_functions(found),
            ),
            close=getattr(thing, "CLOSE", lambda: None),
        )

    @classmethod
    def from_trusted(cls, thing: Any, origin: str, spec: Spec, *, arrays: str = "numpy") -> Adapter:
        """Read the components of an object that needs no checks; it supports all that its array library supports."""
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


def find_options(conventions: Mapping[str, str], component: str, spec: Spec) -> dict[str, str]:
    """Return the option that CONVENTIONS declare, or the documents' choice, for each convention of a component."""
    contract = spec.contracts[component]
    return {name: find_option(conventions, name, component, spec) for name in contract.conventions}


def find_option(conventions: Mapping[str, str], name: str, component: str, spec: Spec) -> str:
    """Return the option of one convention that CONVENTIONS declare for a component, or the documents' choice."""
    declared = find_declaration(conventions, name, component)
    return spec.conventions[name].default if declared in (None, UNSPECIFIED) else declared


def find_declaration(conventions: Mapping[str, str], name: str, component: str) -> str | None:
    """Return what CONVENTIONS declare of one convention for a component, or None."""
    return conventions.get(f"{component}.{name}", conventions.get(name))


def _read_choice(declared: Any, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    names = tuple(declared) if isinstance(declared, Iterable) and not isinstance(declared, str) else (declared,)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        actual = f"has {unknown[0]!r}" if unknown else "is empty"
        raise AdapterError(f"{what} {actual}; known are " + ", ".join(f'"{name}"' for name in known))
    return names


def _read_switch(declared: Any, what: str) -> bool:
    if not isinstance(declared, bool):
        raise AdapterError(f"{what} is {_quote(declared)}: write True or False; False if there is no backward pass")
    return declared


def _quote(declared: Any) -> str:
    """Return a short representation: another process may declare names of any length."""
    text = repr(declared)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _read_options(thing: Any, origin: str, spec: Spec) -> Mapping[str, str]:
    """Return the options that FAMILY and CONVENTIONS declare; AdapterError for an unknown one."""
    declared, family = _read_conventions(getattr(thing, "CONVENTIONS", {}), origin, spec), getattr(thing, "FAMILY", "")
    return {**(_read_family(family, origin, spec).own if family else {}), **declared}


def _read_family(declared: Any, origin: str, spec: Spec) -> Family:
    if not isinstance(declared, str) or declared not in spec.families:
        raise AdapterError(f"{origin}: FAMILY is {_quote(declared)}; families are {', '.join(spec.families)}")
    return spec.families[declared]


def _read_conventions(declared: Any, origin: str, spec: Spec) -> Mapping[str, str]:
    if not isinstance(declared, Mapping):
        raise AdapterError(f'{origin}: CONVENTIONS is {declared!r}: write a mapping such as {{"empty_row": "zeros"}}')
    read = {}
    for key, option in declared.items():
        component, _, name = str(key).rpartition(".")
        if name not in spec.conventions:
            raise AdapterError(
                f"{origin}: CONVENTIONS has {_quote(key)}; conventions are {', '.join(spec.conventions)}"
            )
        if component and component not in spec.contracts:
            close = difflib.get_close_matches(component, spec.contracts, n=1)
            guess = f": did you mean {close[0]}?" if close else f"; components are {', '.join(spec.contracts)}"
            raise AdapterError(
                f"{origin}: CONVENTIONS has {_quote(key)}, but {_quote(component)[1:-1]} is no component{guess}"
            )
        if component and name not in spec.contracts[component].conventions:
            raise AdapterError(f"{origin}: CONVENTIONS has {key!r}, but {component} does not depend on {name}")
        convention = spec.conventions[name]
        found = UNSPECIFIED if convention.left_open and option == UNSPECIFIED else convention.read_option(option)
        if found is None:
            options = ", ".join([*convention.options, *([UNSPECIFIED] if convention.left_open else [])])
            options += f", or a number {convention.number}" if convention.number else ""
            raise AdapterError(f"{origin}: CONVENTIONS has {_quote(key)}: {_quote(option)}; its options are {options}")
        read[str(key)] = found
    return read


def explain_wrong_parameters(function: Callable[..., Any], contract: Contract) -> str | None:
    """Return the reason why a function cannot be called with the contract's names, or None."""
    names = contract.names_of_call
    try:
        parameters = read_signature(function).parameters.values()
    except (TypeError, ValueError):
        return None  # a builtin has no signature; the call will show it
    if any(p.kind is p.POSITIONAL_ONLY for p in parameters):
        return f"takes positional-only parameters; the suite calls it by name: {', '.join(names)}"
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    own = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = [p.name for p in parameters if p.default is p.empty and p.name in own]
    unknown = [name for name in required if name not in names]
    missing = [name for name in names if name not in own and name not in contract.optional and not takes_any]
    # An absent optional input is passed as None; an absent optional attribute is not passed.
    no_default = [name for name in contract.attributes if name in contract.optional and name in required]
    wrong = {"requires": unknown, "does not take": missing, "gives no default to": no_default}
    parts = [f"{what} {', '.join(which)}" for what, which in wrong.items() if which]
    if not parts:
        return None
    fixes = []
    if unknown and len(unknown) == len(missing) and "params" not in missing:  # params is a mapping, not an array
        fixes.append(f"rename {', '.join(unknown)} to {', '.join(missing)}")
    apart = [*(set(missing) - {"params"}), *(contract.params if "params" in missing else ())]
    if unknown and len(unknown) == len(apart) and (place := _find_place(function, contract.component)):
        fixes.append(f"`goldformer infer {place}` writes an adapter that does so")
    fix = f": {', or '.join(fixes)}" if fixes else ""
    if unknown:
        fix += f". If it is only a helper of yours, rename it, such as to _{contract.component}"
    return f"{' and '.join(parts)}; the suite calls it with {', '.join(names)}{fix}"


def _find_place(function: Callable[..., Any], component: str) -> str:
    """Return FILE.py:NAME for a function whose adapter can be inferred, or ""."""
    if component not in INFERRED_FUNCTIONS or not inspect.isfunction(function):
        return ""
    file, name = Path(function.__code__.co_filename), function.__qualname__
    return f"{file.name}:{name}" if file.suffix == ".py" and name.isidentifier() else ""


def read_signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, whose annotations need not be evaluable: names may be for type checkers only.

    TypeError or ValueError if it has none.
    """
    if sys.version_info >= (3, 14):  # before, annotations are evaluated by `def`, or they are strings
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


#: The names of each function's parameters, as long as it lives: a diagnosis makes thousands.
_PARAMETERS: Final[WeakKeyDictionary[Callable[..., Any], frozenset[str] | None]] = WeakKeyDictionary()


def list_parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    """Return the names of a function's parameters; None if it takes any name or has no signature."""
    try:
        if function not in _PARAMETERS:
            _PARAMETERS[function] = _read_parameters(function)
        return _PARAMETERS[function]
    except TypeError:  # some callables have no weak references, or no hash
        return _read_parameters(function)


def _read_parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    try:
        parameters = read_signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return frozenset(p.name for p in parameters)


def bind_arguments(function: Callable[..., Any], contract: Contract, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments to call a function with; NotImplementedError if it does not take an optional one of these.

    An absent optional input is passed as None. An absent optional attribute is not passed: the function's own default
    holds.
    """
    names = list_parameters(function)
    if names is None:
        return arguments
    optional = contract.optional  # computed at each access
    for name in arguments:
        if name in optional and name not in names:
            need_not = NEED_NOT if name in contract.attributes else ""
            raise NotImplementedError(f"{contract.component}{TAKES_NO}{name}{need_not}")
    absent = optional & contract.inputs.keys() & names - arguments.keys()
    return {**arguments, **dict.fromkeys(absent)}


def split_state(returned: Any) -> tuple[Any, Any]:
    """Return the outputs that a call of a session returned, and its state, None if it returned none.

    The state is the last of several values, or has its name in a mapping.
    """
    if isinstance(returned, Mapping):
        return {name: value for name, value in returned.items() if name != STATE}, returned.get(STATE)
    if isinstance(returned, tuple | list) and len(returned) > 1:
        return tuple(returned[:-1]), returned[-1]
    return returned, None


def list_other_functions(thing: Any, spec: Spec) -> list[str]:
    """Return the names of public functions that are no components."""
    found = []
    for name in dir(thing):
        value = inspect.getattr_static(thing, name, None)
        # A class Decoder builds a component; it is not one.
        if not (name.startswith("_") or name in spec.contracts or inspect.isclass(value)) and callable(value):
            found.append(name)
    return found


def _find_misspelt_components(thing: Any, found: Mapping[str, Any], spec: Spec) -> list[str]:
    """Return hints on public functions whose name is close to that of a missing component."""
    absent = [name for name in spec.contracts if name not in found]
    hints = [
        f"{name} is no component: did you mean {close[0]}?"
        for name in list_other_functions(thing, spec)
        if (close := difflib.get_close_matches(name, absent, n=1, cutoff=0.85))
    ]
    return hints if found or hints else ["nothing in it is named as a component, such as softmax"]


def _find_misspelt_declarations(thing: Any) -> list[str]:
    """Return hints on constants whose name is close to that of a missing declaration and whose value could be one."""
    absent = [name for name in _DECLARED_VALUES if not hasattr(thing, name)]
    return [
        f"{name} declares nothing: did you mean {meant}?"
        for name in dir(thing)
        for meant in difflib.get_close_matches(name, absent, n=1, cutoff=0.83)
        if _DECLARED_VALUES[meant](inspect.getattr_static(thing, name))
    ]


def _is_mapping_of_words(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(word, str | float) for item in value.items() for word in item)


#: By declaration: what a constant must be to be a misspelt one. A single dtype or device, such as DEVICE = "cpu", is a
#: constant of many implementations, so DEVICES is not here, and DTYPES is a list of names.
_DECLARED_VALUES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "ARRAYS": lambda value: isinstance(value, str) and value in LIBRARIES,
    "CONVENTIONS": _is_mapping_of_words,
    "DTYPES": lambda value: isinstance(value, tuple | list) and bool(value) and set(map(str, value)) <= {*DTYPES},
    "FAMILY": lambda value: isinstance(value, str),
}


def _find_library_functions(found: Mapping[str, Any]) -> list[str]:
    """Return hints on components that are a function of an array library, imported by its name."""
    hints = []
    for name, function in found.items():
        # The __module__ of a callable that is not a function, such as a compiled one, is that of its class.
        source = str(function.__module__) if inspect.isroutine(function) else ""
        if source.partition(".")[0] in _TOOLS:
            advice = "if that is not meant, import the module and not the name"
            hints.append(f"{name} comes from {source} and is judged as yours: {advice}")
    return hints

"""The class or function that an adapter is inferred for: how it is loaded, built and called.

InferenceError says what was asked for, what it was, and what to give instead.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib
import inspect
import keyword
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from goldformer.adapters.find import explain_hidden
from goldformer.adapters.find_arrays import find_named_library
from goldformer.adapters.identifiers import list_identifiers
from goldformer.adapters.inference.names import SIZES, list_roles
from goldformer.adapters.inference.numpy_classes import is_numpy_class, make_module_class
from goldformer.adapters.inference.packages import Imported, import_target
from goldformer.adapters.protocol import AdapterError, read_signature
from goldformer.adapters.untrusted_text import abbreviate
from goldformer.spec.scope import explain_scope


class InferenceError(AdapterError):
    """No adapter can be inferred; the message says what is missing."""


class MisfitError(InferenceError):
    """The arguments and parameters are those of a component, and no call that was tried gives its golden values."""


class ChoiceError(InferenceError):
    """Golden values fit, and a choice is left that only the author can make; the message asks."""


#: A number for each size, all different, also times the heads, so that a shape shows which sizes it has.
PROBE: Final[Mapping[str, Any]] = {
    "width": 12, "heads": 3, "kv_heads": 1, "head_width": 5, "value_width": 7, "input_width": 14, "inner": 22,
    "expansion": 5, "vocab": 17, "source_vocab": 17, "target_vocab": 17, "layers": 5, "encoder_layers": 5,
    "decoder_layers": 5, "positions": 64, "capacity": 64, "pad": 0, "temperature": 2, "width_by_heads": 4, "batch": 11,
    "width_of_heads": 12, "word_width": 12, "base": 100, "rotary_width": 4, "device": "cpu", "dtype": None,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Leaf:
    """A parameter of a module: its name, its shape, and the kind of layer that it belongs to.

    `kind` is "linear" for a weight (out, in), "gain" for that of nn.LayerNorm or nn.RMSNorm, "table" for that of
    nn.Embedding, and "raw" for a parameter that the class made itself. `first` is the first name of a parameter that
    has several.
    """

    path: str
    shape: tuple[int, ...]
    kind: str
    first: str

    @property
    def owner(self) -> str:
        """The path without its last name."""
        return self.path.rpartition(".")[0]

    @property
    def stem(self) -> str:
        """The name that says its role: that of the layer, or its own if the class made it itself."""
        *_, layer, name = ("", *self.path.split("."))
        is_plain = re.fullmatch(r"weights?|w|kernel|matrix", name.lower()) is not None
        return name if self.kind == "raw" and not (layer and is_plain) else layer


def is_device(name: str) -> bool:
    """Return True if an argument of a constructor is the device of its tables."""
    return name.lower() == "device"


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a constructor or of a forward pass."""

    name: str
    default: Any
    annotation: Any = inspect.Parameter.empty

    @property
    def is_required(self) -> bool:
        """Return True if it has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def is_boolean(self) -> bool:
        """Return True if its default or its annotation is that of a switch."""
        return isinstance(self.default, bool) or self.says_boolean

    @property
    def says_boolean(self) -> bool:
        """Return True if its annotation says so. It may be any value, such as an array, which has no truth."""
        return self.annotation is bool or (isinstance(self.annotation, str) and self.annotation == "bool")

    @property
    def constant(self) -> Any:
        """The value for a required argument that is no size; None if nothing says what it is."""
        lowered = self.name.lower()
        if re.fullmatch(r".*drop.*|p|pdrop|p_drop", lowered):
            return 0.0
        if re.fullmatch(r"(.*_)?eps|.*epsilon", lowered):
            return 1e-5
        # The place of a layer in a stack.
        if re.fullmatch(r"layer_?(id|idx|index|number|num)", lowered):
            return 0
        if re.fullmatch(r".*bias", lowered):
            return True
        # A switch such as causal: what it adds to the documents' form is off.
        if self.says_boolean or re.fullmatch(r"(is_)?(causal|masked)|(use_)?mask", lowered):
            return False
        return lowered if lowered in ("device", "dtype") else None


@dataclass(frozen=True, slots=True)
class Construction:
    """A way to call a constructor: each argument is a size by its role, a constant, or `Made`."""

    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def has(self, *roles: str) -> bool:
        """Return True if an argument stands for one of these sizes, here or in what is made for it."""
        return any(role in roles for role in self.list_roles())

    def list_roles(self) -> Iterator[str]:
        """Yield the sizes that arguments stand for."""
        yield from (role for _, role in self.list_sizes())

    def list_sizes(self) -> Iterator[tuple[str, str]]:
        """Yield the arguments that are sizes, each with its role, here and in what is made."""
        for name, value in self.arguments.items():
            if isinstance(value, Made):
                yield from Construction(value.arguments).list_sizes()
            elif is_role(value):
                yield name, value

    def list_made(self) -> Iterator[Made]:
        """Yield the objects that are made for its arguments, and those that are made for theirs."""
        for value in self.arguments.values():
            if isinstance(value, Made):
                yield value
                yield from Construction(value.arguments).list_made()

    @property
    def constants(self) -> dict[str, Any]:
        """Its arguments that are constants."""
        return {n: v for n, v in self.arguments.items() if not (is_role(v) or isinstance(v, Made))}


@dataclass(frozen=True, slots=True)
class Made:
    """An object that a constructor takes, a ready module or a config: its class, and the arguments to make it of."""

    kind: type
    arguments: Mapping[str, Any]


def is_role(value: Any) -> bool:
    """Return True for the name of a size, and False for a constant."""
    return isinstance(value, str) and value in PROBE


def construct(kind: Any, construction: Construction, find_size: Callable[[str], Any]) -> Any:
    """Return an object of a class; the constructor's own exceptions are passed on."""
    return kind(**{name: resolve(value, find_size) for name, value in construction.arguments.items()})


def resolve(value: Any, find_size: Callable[[str], Any]) -> Any:
    """Return what an argument gets: the number of a size, a new object for `Made`, and a constant as it is."""
    if isinstance(value, Made):
        return construct(value.kind, Construction(value.arguments), find_size)
    return find_size(value) if is_role(value) else value


@dataclass(frozen=True, slots=True)
class Config:
    """A config object: the argument that takes it, its class, its fields, and the other arguments."""

    argument: str
    kind: type
    fields: Sequence[Argument]
    others: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A class or function, and the import line by which an adapter file finds it.

    `kept` are the arguments, other than sizes, with which an object was made: its class is built with them. `file` is
    the file that it was loaded from, and `folder` the folder from which the import line finds it. A class that is no
    nn.Module is made one: `thing` is that.
    """

    thing: Any
    name: str
    import_line: str
    kept: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    file: Path | None = None
    folder: Path | None = None

    @property
    def is_class(self) -> bool:
        """Return True for an nn.Module class."""
        return inspect.isclass(self.thing)

    @property
    def is_importable(self) -> bool:
        """Return True if an import statement finds it; not in a notebook, in 2-norms.py, or in types.py."""
        first, *_ = parts = self.import_line.split()[1].split(".")
        is_named = all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
        is_python = self.file is None or (self.file.suffix == ".py" and first not in sys.stdlib_module_names)
        return is_named and is_python

    @property
    def called(self) -> Callable[..., Any]:
        """The function that takes the inputs."""
        return typing.cast("Callable[..., Any]", self.thing.forward if self.is_class else self.thing)

    @property
    def text(self) -> str:
        """The source of the class or function and of the classes that it is built of, as far as it is available."""
        return "".join(_list_sources(self.thing))

    def list_nodes(self) -> list[ast.AST]:
        """Return the syntax of its source and of the classes that it is built of, as far as it can be read."""
        nodes: list[ast.AST] = []
        for text in _list_sources(self.thing):
            with contextlib.suppress(SyntaxError):
                nodes += ast.walk(ast.parse(textwrap.dedent(text)))
        return nodes

    @property
    def arrays(self) -> str:
        """The array library that it works on: that of its code, PyTorch if the code does not say."""
        return (None if self.is_class else find_named_library(self.thing)) or "torch"

    def list_arguments(self) -> list[Argument]:
        """Return the arguments of the call, without self."""
        return _list_arguments(self.called, skip_self=self.is_class)

    def explain_scope(self, *components: str) -> str:
        """Return what goldformer does not judge of what its own code uses, as a sentence, or ""."""
        return explain_scope(list_identifiers(self.thing), components)

    def list_sizes(self) -> list[Argument]:
        """Return the arguments of the constructor, without self."""
        return _list_arguments(self.thing.__init__, skip_self=True)

    def has(self, kind: type) -> bool:
        """Return True if the module of a class has another class under that class's name."""
        return vars(sys.modules.get(self.thing.__module__, ModuleType(""))).get(kind.__name__) is kind

    def list_neighbours(self) -> list[Target]:
        """Return the other nn.Module classes that the module of a class has, its own and those that it imports."""
        from torch import nn

        known = vars(sys.modules.get(self.thing.__module__, ModuleType("")))
        others = {
            name: thing
            for name, thing in known.items()
            if inspect.isclass(thing) and issubclass(thing, nn.Module) and thing is not self.thing
        }
        line = self.import_line.rpartition(" import ")[0]
        return [Target(thing, name, f"{line} import {name}") for name, thing in others.items()]

    def list_constructions(
        self,
        roles: Collection[str],
        parts: Mapping[str, Made] | None = None,
        *,
        guesses: bool = True,
        shared: bool = False,
    ) -> Iterator[Construction]:
        """Yield the ways to call the constructor with sizes of these roles, the likeliest by their names first.

        `parts` are ready modules by argument. Without `guesses`, yield nothing if a name does not say its size. With
        `shared`, the heads share the width of the model.
        """
        arguments = [a for a in self.list_sizes() if a.name not in (parts or {})]
        config = None if parts else _read_config(self)
        fields = config.fields if config else arguments
        for chosen in _choose_sizes(fields, self, roles, guesses=guesses, shared=shared):
            made = (
                {config.argument: Made(config.kind, chosen), **config.others} if config else {**chosen, **(parts or {})}
            )
            yield Construction(made)

    def list_silent(self) -> list[str]:
        """Return the required arguments of the constructor, or of its config, that no name explains."""
        config = _read_config(self)
        arguments = config.fields if config else self.list_sizes()
        required = [a for a in arguments if a.is_required and a.name not in self.kept]
        return [a.name for a in required if not list_roles(a.name, SIZES) and a.constant is None]

    def build(self, construction: Construction, sizes: Mapping[str, Any]) -> Any:
        """Return a module of these sizes; the constructor's own exceptions are passed on."""
        with _refuse_large():
            return construct(self.thing, construction, sizes.__getitem__)


@contextlib.contextmanager
def _refuse_large() -> Iterator[None]:
    """Raise ValueError for a module of more parameters than a search can build, as with the sizes of its defaults.

    A layer registers a parameter before it draws its values, so that a large one costs nothing.
    """
    from torch import nn

    count = 0

    def add(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        nonlocal count
        count += parameter.numel() if parameter is not None and not nn.parameter.is_lazy(parameter) else 0
        if count > _MOST_PARAMETERS:
            raise ValueError(
                f"more than {_MOST_PARAMETERS:,} parameters: give it arguments, or smaller defaults, for its sizes"
            )

    hook = nn.modules.module.register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        hook.remove()


def read_target(what: Any) -> Target:
    """Return the target for an nn.Module class, an object of one, a function or "FILE.py:NAME".

    InferenceError for anything else.
    """
    if isinstance(what, Target):
        return what
    if isinstance(what, str | Path):
        return _load(str(what))
    try:
        from torch import nn
    except ImportError as error:
        needs = f"inference needs torch ({error}): pip install torch, or write an adapter"
        raise InferenceError(explain_hidden("torch") or needs) from error
    if getattr(what, "__name__", "") == "<lambda>":
        raise InferenceError("a lambda has no name that an adapter could import: give it one with def")
    if isinstance(what, nn.Module) or (hasattr(type(what), "forward") and not inspect.isclass(what)):
        kind = as_module(type(what))
        own = {
            a.name: getattr(what, a.name)
            for a in _list_arguments(kind.__init__, skip_self=True)
            if hasattr(what, a.name)
        }
        kept = {name: value for name, value in own.items() if isinstance(value, bool | str | float)}
        return Target(kind, kind.__name__, _write_import(kind), kept)
    if inspect.isclass(what) and is_inferable(what):
        return Target(as_module(what), what.__name__, _write_import(what))
    if inspect.isfunction(what):
        return Target(what, what.__name__, _write_import(what))
    got = f"{what.__name__}, a class without forward or __call__" if inspect.isclass(what) else abbreviate(what)
    raise InferenceError(
        f"an adapter is inferred for an nn.Module class, an object of one, or a function, not for {got}"
    )


def as_module(kind: type) -> Any:
    """Return a class as a subclass of nn.Module, so that the layers it makes are found; an nn.Module as it is.

    A class without forward is called by its own __call__.
    """
    from torch import nn

    if issubclass(kind, nn.Module):
        return kind
    if is_numpy_class(kind):
        return make_module_class(kind)

    original: Callable[..., None] = vars(kind).get("__init__", object.__init__)

    @functools.wraps(original)
    def initialise(self: Any, *arguments: Any, **keywords: Any) -> None:
        nn.Module.__init__(self)
        original(self, *arguments, **keywords)

    own = {"__init__": initialise, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    call = {} if hasattr(kind, "forward") else {"forward": kind.__call__}
    return type(kind.__name__, (kind, nn.Module), own | call)


def list_leaves(module: Any) -> list[Leaf]:
    """Return the trained parameters of a module under all of their names, each with the kind of its layer."""
    from torch import nn

    kinds = {}
    for path, layer in module.named_modules(remove_duplicate=False):
        kind = "raw"
        if isinstance(layer, nn.Linear | nn.Conv1d):
            kind = "linear"
        elif isinstance(layer, nn.LayerNorm | nn.RMSNorm):
            kind = "gain"
        elif isinstance(layer, nn.Embedding):
            kind = "table"
        kinds[path] = kind
    named = [(path, p) for path, p in module.named_parameters(remove_duplicate=False) if p.requires_grad]
    first: dict[int, str] = {}
    for path, p in named:
        first.setdefault(id(p), path)
    return [Leaf(path, tuple(p.shape), _find_kind(path, kinds), first[id(p)]) for path, p in named]


@functools.lru_cache(maxsize=64)
def _list_sources(thing: Any) -> tuple[str, ...]:
    """Return the sources of `_read_sources`; a search asks for them hundreds of times."""
    return tuple(_read_sources(thing, seen=set()))


def _read_sources(thing: Any, seen: set[Any]) -> Iterator[str]:
    """Yield the source of a class or function, and those of the modules that it names."""
    seen.add(thing)
    text = _read_source(thing)
    yield text
    known = vars(sys.modules[thing.__module__]) if thing.__module__ in sys.modules else {}
    for name in _list_names(text):
        named = known.get(name)
        if inspect.isclass(named) and hasattr(named, "forward") and named not in seen:
            yield from _read_sources(named, seen)


def _read_source(thing: Any) -> str:
    """Return the source of a class or a function, with methods that the class got later; "" if there is none.

    Of a class in a notebook it is the source of its methods. Class methods are left out: they make objects, as from a
    model of another library, whose names say nothing of this one.
    """
    methods = [a for a in vars(thing).values() if inspect.isfunction(a)] if inspect.isclass(thing) else []
    try:
        text = inspect.getsource(thing)
    except (OSError, TypeError):
        return "".join(map(_read_source, methods))
    for maker in vars(thing).values() if inspect.isclass(thing) else ():
        text = text.replace(_read_source(maker.__func__), "") if isinstance(maker, classmethod) else text
    later = (method for method in methods if not method.__qualname__.startswith(f"{thing.__qualname__}."))
    return "\n".join([text, *map(_read_source, later)])


def _list_names(text: str) -> set[str]:
    """Return the names that a source uses; comments and docstrings may speak of classes that it does not use."""
    try:
        tree = ast.parse(textwrap.dedent(text))
    except SyntaxError:  # a string of several lines within a nested class keeps its indentation
        return set(re.findall(r"[A-Za-z_]\w*", text))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _find_kind(path: str, kinds: Mapping[str, str]) -> str:
    # nn.MultiheadAttention keeps in_proj_weight itself, (out, in) as nn.Linear does.
    return "linear" if path.endswith("in_proj_weight") else kinds.get(path.rpartition(".")[0], "raw")


def _list_arguments(function: Callable[..., Any], *, skip_self: bool) -> list[Argument]:
    parameters = list(read_signature(function).parameters.values())[skip_self:]
    return [
        Argument(p.name, p.default, p.annotation) for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]


#: The most parameters of a module that is built in a search.
_MOST_PARAMETERS: Final = 10_000_000

#: The names of files from which a class or a function is loaded.
_FILES: Final = (".py", ".ipynb")

#: The length of the longest sequence that a positional encoding is asked for.
_LONGEST: Final = 5000


def _read_length(argument: Argument, target: Target, *, has_heads: bool) -> list[str]:
    """Return what an argument for a length gets, if its default is too small for some case; else it keeps its default.

    A table of positions gets the length of the call. Attention gets room for more: code that uses all of a mask, or the
    last place of it, is right only where the call fills it. A length that is the step of a loop is that of a tile.
    """
    if not isinstance(argument.default, int) or argument.default >= _LONGEST:
        return []
    is_step = re.search(rf"range\([^\n]*\b{argument.name}\b", target.text)
    return [] if is_step and has_heads else ["capacity" if has_heads else "positions"]


def _choose_sizes(
    arguments: Sequence[Argument], target: Target, roles: Collection[str], *, guesses: bool, shared: bool
) -> Iterator[dict[str, Any]]:
    """Yield the sizes that the arguments may stand for: those that names say, then guesses for the names left."""
    constants = {a.name: target.kept[a.name] for a in arguments if a.name in target.kept}
    # A table that is made where the caller says belongs where the inputs are.
    constants |= {a.name: "device" for a in arguments if is_device(a.name) and a.name not in constants}
    roles_of: dict[str, list[str]] = {}
    for argument in arguments:
        own = [role for role in list_roles(argument.name, SIZES) if role in roles]
        own = _share_width(argument.name, own) if shared and "heads" in roles else own
        if own and not isinstance(argument.default, bool | str) and argument.name not in constants:
            # A default says enough of what merely limits the length.
            if own[0] == "positions" and not argument.is_required:
                own = _read_length(argument, target, has_heads="heads" in roles)
            if own and (argument.is_required or own[0] not in ("pad", "expansion")):
                roles_of[argument.name] = own
        elif argument.is_required and argument.name not in constants:
            if argument.constant is not None:
                constants[argument.name] = argument.constant
            else:
                roles_of[argument.name] = []
    ways = list(_assign(roles_of, [role for role in _UNNAMED if role in roles] if guesses else []))
    yield from ({**sizes, **constants} for sizes in ways)
    # A switch that nothing explains may turn on what the documents have.
    for switch in (a.name for a in arguments if constants.get(a.name) is False and a.says_boolean):
        yield from ({**sizes, **constants, switch: True} for sizes in ways)


def _share_width(name: str, roles: list[str]) -> list[str]:
    """Return the sizes that a name may say where all heads together are as wide as the model."""
    if not roles and re.fullmatch(r"\w*(dim|size|width)", name.lower()):
        return ["width_of_heads"]
    return ["width_by_heads" if role in ("head_width", "value_width") else role for role in roles]


#: The sizes that two arguments may stand for: the source and the target have one each, and so have keys and values.
_SHARED: Final = ("positions", "capacity", "pad", "width_by_heads", "width_of_heads")

#: The sizes that a name without a meaning may stand for.
_UNNAMED: Final = ("width", "heads", "inner", "vocab", "layers", "head_width")


def _assign(roles_of: Mapping[str, list[str]], unnamed: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield a role for every name: the first ones that names say and that differ; other names get what is left."""
    fixed: dict[str, str] = {}
    silent = []
    for name, roles in sorted(roles_of.items(), key=lambda item: len(item[1]) or 99):
        free = [role for role in roles if role in _SHARED or role not in fixed.values()]
        if free:
            fixed[name] = free[0]
        else:
            silent.append(name)
    ways = [fixed]
    if "input_width" in fixed.values() and "width" not in fixed.values():
        read = {name: "width" if role == "input_width" else role for name, role in fixed.items()}
        ways = [fixed, read] if silent else [read]
    for way in ways:
        left = [role for role in unnamed if role not in way.values()]
        for chosen in permutations(left, len(silent)):
            guessed = dict(zip(silent, chosen, strict=True))
            # The output of a head is as wide as the head; no other name may stand for that width.
            if all(role != "head_width" or "out" in name for name, role in guessed.items()):
                yield {name: (way | guessed)[name] for name in roles_of}
    # Some code calls the number of heads a size of them.
    for name, role in fixed.items() if "heads" in unnamed and "heads" not in fixed.values() else ():
        if role in ("head_width", "width_by_heads") and re.fullmatch(r"head_?size", name.lower()):
            yield {**fixed, name: "heads"}
    # A network's only "hidden" width may be that of the model.
    if not silent and "inner" in ways[-1].values() and "width" not in ways[-1].values():
        yield {name: "width" if role == "inner" else role for name, role in ways[-1].items()}


def _read_config(target: Target) -> Config | None:
    """Return the config object that a constructor takes, alone or next to constants such as a layer_idx, or None."""
    arguments = target.list_sizes()
    required = [a for a in arguments if a.is_required]
    others = {a.name: a.constant for a in required if a.constant is not None}
    silent = [a for a in required if a.name not in others] or arguments
    if len(silent) != 1 or list_roles(silent[0].name, SIZES):
        return None
    argument = silent[0]
    kind = _evaluate_annotation(argument, target.thing.__init__)
    if isinstance(kind, type) and "__init__" in vars(kind):
        fields = _list_arguments(vars(kind)["__init__"], skip_self=True)
        if dataclasses.is_dataclass(kind) or any(list_roles(field.name, SIZES) for field in fields):
            return Config(argument.name, kind, fields, others)
    # A value that is read from a dict with get() has a default.
    for wrapper, pattern in ((SimpleNamespace, r"\.([a-z_]\w*)\b(?!\()"), (dict, r"\[[\"'](\w+)[\"']\]")):
        if names := dict.fromkeys(re.findall(rf"\b{argument.name}{pattern}", target.text)):
            read = [Argument(name, inspect.Parameter.empty) for name in names]
            return Config(argument.name, wrapper, read, others)
    return None


def _evaluate_annotation(argument: Argument, function: Callable[..., Any]) -> Any:
    """Return the value of an argument's annotation; None if it has none, as for names that only type checkers import.

    The other annotations of the function are not evaluated.
    """
    only = SimpleNamespace(__annotations__={argument.name: argument.annotation})
    with contextlib.suppress(Exception):
        return typing.get_type_hints(only, inspect.unwrap(function).__globals__)[argument.name]
    return None


def _load(name: str) -> Target:
    place, attribute = split_target(name)
    path = Path(place) if place.endswith(_FILES) else None
    imported = import_target(path) if path is not None else None
    module = imported.module if imported else _import_module(place)
    own = _list_own(module)
    if not attribute:
        if len(own) != 1:
            listed = ", ".join(own) or "none"
            raise InferenceError(f"{name}: name one of its classes or functions, as {place}:NAME; it has {listed}")
        attribute = next(iter(own))
    thing = getattr(module, attribute, None)
    if thing is None:
        raise InferenceError(
            f"{place} has no {attribute}; it has {', '.join(own) or 'no class or function of its own'}"
        )
    return _place(thing, attribute, place, imported)


def split_target(name: str) -> tuple[str, str]:
    """Return the file or the module of "FILE.py:NAME", "FILE.ipynb:NAME" or "package.module:NAME", and NAME or ""."""
    place, _, attribute = name.rpartition(":")
    return (place, attribute) if place and "/" not in attribute else (name, "")


def list_targets(module: ModuleType, path: Path) -> dict[str, Target]:
    """Return the public classes with a forward pass and the functions that a file or a notebook itself defines."""
    imported = Imported(module, path.stem, path.resolve().parent)
    return {name: _place(thing, name, str(path), imported) for name, thing in _list_own(module).items()}


def _place(thing: Any, name: str, place: str, imported: Imported | None) -> Target:
    """Return the target of a thing with the line that imports it from its file or its module."""
    line = f"from {imported.name if imported else place} import {name}"
    # A lambda has the name that its file gives it.
    is_lambda = getattr(thing, "__name__", "") == "<lambda>"
    target = Target(thing, name, line) if is_lambda else read_target(thing)
    found = dataclasses.replace(target, name=name, import_line=line)
    return dataclasses.replace(found, file=Path(place), folder=imported.folder) if imported else found


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InferenceError(f"{name}: give FILE.py:NAME or package.module:NAME ({error})") from error


def _list_own(module: ModuleType) -> dict[str, Any]:
    """Return the public classes with a forward pass and the functions of a module that it defines itself.

    A function that takes `self` is none of them: it becomes a method, by `Layer.forward = forward`.
    """
    own = {n: v for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__ and n[0] != "_"}
    return {n: v for n, v in own.items() if is_inferable(v) and not _takes_self(v)}


def is_inferable(thing: Any) -> bool:
    """Return True for a function, and for a class whose objects are called: by forward, or as they are."""
    if inspect.isclass(thing):
        return hasattr(thing, "forward") or "__call__" in vars(thing)
    return inspect.isfunction(thing) and not hasattr(thing, "ARRAYS")


def explain_others(module: ModuleType) -> list[str]:
    """Return the classes and functions of a module that `list_targets` leaves out, each with the reason."""
    own = {n: v for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__}
    reasons = []
    for name, thing in own.items():
        if inspect.isclass(thing) and not is_inferable(thing):
            reasons.append(f"{name} is not checked: it is a class without forward or __call__")
        elif _takes_self(thing):
            reasons.append(f"{name} is not checked: it takes self, as a method does")
        elif name[0] == "_" and is_inferable(thing):
            reasons.append(f"{name} is not checked: its name begins with _, as a helper's does. FILE:{name} checks it")
    return reasons


def _takes_self(thing: Any) -> bool:
    return inspect.isfunction(thing) and thing.__code__.co_varnames[:1] == ("self",)


def _write_import(thing: Any) -> str:
    return f"from {thing.__module__} import {thing.__name__}"

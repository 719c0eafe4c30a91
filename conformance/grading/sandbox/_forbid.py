"""Replace forbidden functions and classes by ones that raise an error, wherever loaded modules have them.

This is an aid for honest students and no wall: code in the same process can undo it, or compute the same differently.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

#: The end of the message of a forbidden name.
_ADVICE: Final = "is forbidden in this assignment: write it yourself"


def forbid_names(names: Sequence[str]) -> list[str]:
    """Forbid functions, classes, methods and modules by their dotted names; return the names that do not exist."""
    missing = []
    for name in names:
        owner, attribute = _find_owner(name)
        if owner is None or not hasattr(owner, attribute):
            if owner is None and "." not in name:
                _forbid_module(name)
            else:
                missing.append(name)
            continue
        found = getattr(owner, attribute)
        if isinstance(found, ModuleType):
            _forbid_module(name)
        elif isinstance(found, type):
            _forbid_class(name, found)
        else:
            _replace(owner, attribute, found, _make_refusal(name))
    return missing


def _find_owner(name: str) -> tuple[Any, str]:
    """Return the module or class that holds a name, and the last part of the name; None if it cannot be imported."""
    *parts, attribute = name.split(".")
    if not parts:
        return (sys.modules["builtins"], attribute) if hasattr(sys.modules["builtins"], name) else (None, name)
    owner: Any = None
    for place, part in enumerate(parts):
        module = ".".join(parts[: place + 1])
        if owner is None or isinstance(owner, ModuleType):
            with contextlib.suppress(ImportError):
                owner = importlib.import_module(module)
                continue
        owner = getattr(owner, part, None)
        if owner is None:
            return None, name
    with contextlib.suppress(ImportError):
        importlib.import_module(name)  # a module that nobody has imported yet
    return owner, attribute


def _make_refusal(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{name} {_ADVICE}")

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    return refuse


def _replace(owner: Any, attribute: str, old: Any, new: Any) -> None:
    """Replace a function in its owner, and in every loaded module that has it under any name."""
    with contextlib.suppress(AttributeError, TypeError):  # a type of the interpreter cannot be changed
        setattr(owner, attribute, new)
    if isinstance(owner, type):
        return  # a method is found by its class
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})  # anything may be in the place of a module
        for key, value in list(names.items()):
            if value is old:
                names[key] = new


def _forbid_class(name: str, found: type) -> None:
    """Forbid to make objects of a class; the class itself stays, because libraries compare with it."""
    try:
        found.__init__ = _make_refusal(name)  # type: ignore[misc]
    except TypeError:
        owner, attribute = _find_owner(name)
        _replace(owner, attribute, found, _make_refusal(name))


def _forbid_module(name: str) -> None:
    """Forbid to import a module; libraries that have imported it already keep it."""
    parent, _, attribute = name.rpartition(".")
    if parent in sys.modules:
        vars(sys.modules[parent]).pop(attribute, None)
    for loaded in [key for key in sys.modules if key == name or key.startswith(f"{name}.")]:
        del sys.modules[loaded]
    sys.meta_path.insert(0, _Refuser(name))


class _Refuser:
    """Refuses to import a module, and those below it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Raise ImportError for the module; leave every other one to the next finder."""
        if name == self._name or name.startswith(f"{self._name}."):
            raise ImportError(f"{self._name} {_ADVICE}")
        return None

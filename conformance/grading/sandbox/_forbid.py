"""Replace forbidden functions and classes by ones that raise an error, wherever loaded modules have them.

This is an aid for honest students and no wall: code in the same process can undo it, or compute the same differently.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import gc
import importlib
import pkgutil
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import BuiltinFunctionType, MethodDescriptorType, ModuleType
from typing import Any, Final

#: The end of the message of a forbidden name.
_ADVICE: Final = "is forbidden in this assignment: write it yourself"


def forbid_names(names: Sequence[str]) -> None:
    """Forbid functions, classes, methods and modules by their dotted names; ignore names that do not exist."""
    for name in names:
        holder, _, attribute = name.rpartition(".")
        if not holder and not hasattr(builtins, name):
            _forbid_module(name)
            continue
        try:
            owner = pkgutil.resolve_name(holder or "builtins")
        except (ImportError, AttributeError):
            continue
        if holder:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)  # a module that nobody has imported yet
        if hasattr(owner, attribute):
            _forbid(name, owner, attribute)


def _forbid(name: str, owner: Any, attribute: str) -> None:
    """Forbid a name by the module or class that holds it, and the last part of the name."""
    found = getattr(owner, attribute)
    if isinstance(found, ModuleType):
        _forbid_module(name)
        return
    refusal = _make_refusal(name)
    if isinstance(found, type):
        # The class itself stays, because libraries compare with it; a type of the interpreter cannot be changed.
        with contextlib.suppress(TypeError):
            found.__init__ = refusal  # type: ignore[misc]  # mypy: a class must not lose its own signature
            return
    _replace(owner, attribute, found, refusal)


def _make_refusal(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"{name} {_ADVICE}")

    refuse.__name__ = refuse.__qualname__ = name.rpartition(".")[2]
    return refuse


def _replace(owner: Any, attribute: str, old: Any, new: Any) -> None:
    """Replace a function in its owner, and in every loaded module that has it under any name."""
    with contextlib.suppress(AttributeError, TypeError):  # a type of the interpreter cannot be changed
        setattr(owner, attribute, new)
    if isinstance(old, BuiltinFunctionType | MethodDescriptorType):
        _replace_in_library(owner, attribute, old, new)
    if isinstance(owner, type):
        return  # a method is found by its class
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", {})  # anything may be in the place of a module
        for key, value in list(names.items()):
            if value is old:
                names[key] = new


def _replace_in_library(
    owner: Any, attribute: str, old: BuiltinFunctionType | MethodDescriptorType, new: Callable[..., Any]
) -> None:
    """Replace a function of a C library in the class that has it, and in PyTorch's operators of its name.

    `torch.softmax` is a static method of a class that PyTorch reaches by several names, and `torch.Tensor.softmax` is
    a method of a base class, which `super()` finds.
    """
    classes = owner.__mro__[1:] if isinstance(owner, type) else gc.get_referents(old)
    for holder in classes:
        # Without a method of its own types, the interpreter itself would fail.
        if not isinstance(holder, type) or holder.__module__ == "builtins":
            continue
        if attribute in vars(holder) and getattr(holder, attribute) is old:
            static = isinstance(vars(holder)[attribute], staticmethod)
            # Neither the class nor the view of its names can be changed, only what lies below.
            for names in gc.get_referents(vars(holder)):
                names[attribute] = staticmethod(new) if static else new
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(holder))
    module = getattr(old, "__objclass__", old).__module__ or ""
    if module.partition(".")[0] == "torch" and (packet := getattr(sys.modules["torch"].ops.aten, old.__name__, None)):
        # The objects stay, because PyTorch finds operators by them.
        for operator in (packet, *(getattr(packet, overload) for overload in packet.overloads())):
            operator._op = new


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

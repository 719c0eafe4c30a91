"""Baselines: the recorded results of an implementation, and what moved since: by how much, and why."""

from importlib import import_module
from typing import Any, Final

#: The public names and their modules, which are imported when they are asked for.
_MODULES: Final = {
    "Baseline": "model",
    "BaselineError": "model",
    "BaselineRequest": "model",
    "Drift": "drift",
    "Guard": "guard",
    "Judge": "judge",
    "Kind": "moves",
    "Move": "moves",
    "load": "store",
    "read_history": "history",
    "record": "record",
    "save": "store",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

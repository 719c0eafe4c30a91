"""The laws that hold for every input, one module a component, and the search that draws inputs for them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from goldformer.conformance.properties.judge import check_property, judge_property
    from goldformer.conformance.properties.registry import components_of, find_property, load_properties
    from goldformer.conformance.properties.subject import Subject, Violation

__all__ = [
    "Subject",
    "Violation",
    "check_property",
    "components_of",
    "find_property",
    "judge_property",
    "load_properties",
]

#: The module of each name. It is imported when the name is used, because some import NumPy or all mistakes.
_MODULES: Final = {
    "judge": ("check_property", "judge_property"),
    "registry": ("components_of", "find_property", "load_properties"),
    "subject": ("Subject", "Violation"),
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name on its first use."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

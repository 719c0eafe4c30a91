"""Diagnosis: explain failures, after judging, over all of them together."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from goldformer.conformance.diagnosis.explain import Diagnosis
    from goldformer.conformance.diagnosis.findings import Finding, diagnose
    from goldformer.conformance.diagnosis.imitation import Imitations, Imitator
    from goldformer.conformance.diagnosis.kill import Kill, KillMatrix, build_kill_matrix

__all__ = [
    "Diagnosis",
    "Finding",
    "Imitations",
    "Imitator",
    "Kill",
    "KillMatrix",
    "build_kill_matrix",
    "diagnose",
]

#: The module of each name. It is imported when the name is used, because some import NumPy or all mistakes.
_MODULES: Final = {
    "explain": ("Diagnosis",),
    "findings": ("Finding", "diagnose"),
    "imitation": ("Imitations", "Imitator"),
    "kill": ("Kill", "KillMatrix", "build_kill_matrix"),
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name on its first use."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

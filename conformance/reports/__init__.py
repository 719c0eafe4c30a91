"""The report model of checks, and its renderers: text, Markdown, JSON and HTML."""

from importlib import import_module
from typing import Any, Final

#: The public names and their modules, which are imported when they are asked for: grading starts many processes.
_MODULES: Final = {
    "Comparison": "comparison",
    "ComparisonRequest": "comparison",
    "ComponentResult": "comparison",
    "Counts": "comparison",
    "Implementation": "comparison",
    "check_implementation": "comparison",
    "closing": "text",
    "explain_verdict": "text",
    "run_comparison": "comparison",
    "summary": "text",
    "table": "text",
    "unknown": "did_you_mean",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

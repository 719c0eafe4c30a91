"""The report model of checks, and its renderers: text, Markdown, JSON and HTML."""

from __future__ import annotations

from goldformer.exports import load_on_use

__all__ = [
    "Comparison",
    "ComparisonRequest",
    "ComponentResult",
    "Counts",
    "Implementation",
    "check_implementation",
    "closing",
    "explain_verdict",
    "run_comparison",
    "summary",
    "table",
    "unknown",
]

__getattr__ = load_on_use(
    __name__,
    {
        "comparison": (
            "Comparison",
            "ComparisonRequest",
            "ComponentResult",
            "Counts",
            "Implementation",
            "check_implementation",
            "run_comparison",
        ),
        "did_you_mean": ("unknown",),
        "text": ("closing", "explain_verdict", "summary", "table"),
    },
)

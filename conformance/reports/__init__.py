"""The report model of checks, and its renderers: text, Markdown, JSON and HTML."""

from __future__ import annotations

from goldformer.exports import load_on_use

__all__ = [
    "CaseCoverage",
    "Comparison",
    "ComparisonRequest",
    "ComponentResult",
    "Counts",
    "Implementation",
    "closing",
    "explain_verdict",
    "summarize",
    "table",
    "unknown",
]

__getattr__ = load_on_use(
    __name__,
    {
        "comparison": ("Comparison", "ComparisonRequest", "Implementation"),
        "did_you_mean": ("unknown",),
        "results": ("ComponentResult", "Counts", "CaseCoverage", "summarize"),
        "text": ("closing", "explain_verdict", "table"),
    },
)

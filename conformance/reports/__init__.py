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
    "describe_unknown",
    "explain_verdict",
    "format_table",
    "summarize",
]

__getattr__, __dir__ = load_on_use(
    __name__,
    {
        "comparison": ("Comparison", "ComparisonRequest", "Implementation"),
        "did_you_mean": ("describe_unknown",),
        "results": ("ComponentResult", "Counts", "CaseCoverage", "summarize"),
        "text": ("explain_verdict", "format_table"),
    },
)

"""Two models, layer by layer: where a port differs from the original, and why."""

from __future__ import annotations

from goldformer.exports import load_on_use

__all__ = ["NotComparable", "Trace", "trace", "trace_arrays"]

__getattr__, __dir__ = load_on_use(
    __name__,
    {
        "arrays": ("trace_arrays",),
        "models": ("trace",),
        "passes": ("NotComparable",),
        "report": ("Trace",),
    },
)

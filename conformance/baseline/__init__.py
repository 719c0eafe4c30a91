"""Baselines: the recorded results of an implementation, and what moved since: by how much, and why."""

from __future__ import annotations

from goldformer.exports import load_on_use

__all__ = [
    "Baseline",
    "BaselineError",
    "BaselineRequest",
    "Classifier",
    "Drift",
    "Kind",
    "Move",
    "load",
    "record",
    "save",
]

__getattr__, __dir__ = load_on_use(
    __name__,
    {
        "drift": ("Drift",),
        "classify": ("Classifier",),
        "model": ("Baseline", "BaselineError", "BaselineRequest"),
        "moves": ("Kind", "Move"),
        "record": ("record",),
        "store": ("load", "save"),
    },
)

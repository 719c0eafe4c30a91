"""Diagnosis: explain failures, after judging, over all of them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goldformer.exports import load_on_use

if TYPE_CHECKING:
    from goldformer.conformance.diagnosis.candidates import Imitations
    from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
    from goldformer.conformance.diagnosis.evidence import Evidence, Match
    from goldformer.conformance.diagnosis.explain import Diagnosis
    from goldformer.conformance.diagnosis.finding import Finding
    from goldformer.conformance.diagnosis.findings import diagnose
    from goldformer.conformance.diagnosis.imitation import Imitator

__all__ = [
    "DiagnosedRun",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Imitations",
    "Imitator",
    "Match",
    "diagnose",
]

__getattr__, __dir__ = load_on_use(
    __name__,
    {
        "diagnosed": ("DiagnosedRun",),
        "evidence": ("Evidence", "Match"),
        "explain": ("Diagnosis",),
        "finding": ("Finding",),
        "findings": ("diagnose",),
        "candidates": ("Imitations",),
        "imitation": ("Imitator",),
    },
)

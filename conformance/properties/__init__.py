"""The laws that hold for every input, one module a component, and the search that draws inputs for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from goldformer.exports import load_on_use

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

__getattr__, __dir__ = load_on_use(
    __name__,
    {
        "judge": ("check_property", "judge_property"),
        "registry": ("components_of", "find_property", "load_properties"),
        "subject": ("Subject", "Violation"),
    },
)

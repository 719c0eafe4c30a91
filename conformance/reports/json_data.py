"""Data for JSON, which has no infinity and no NaN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def replace_nonfinite(value: Any) -> Any:
    """Return plain data of a value, dataclasses in it too, in which infinities and NaN are words."""
    if is_dataclass(value):
        return {field.name: replace_nonfinite(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {k: replace_nonfinite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_nonfinite(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124
        return str(value)
    return value

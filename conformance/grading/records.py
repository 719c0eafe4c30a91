"""Grades as JSON, byte for byte the same for the same grade, and back."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, Final

import pydantic

from goldformer.conformance.commands.console import finite
from goldformer.conformance.grading.model import Grade

_ADAPTER: Final = pydantic.TypeAdapter(Grade)


class BadRecord(ValueError):
    """What was read is no grade; the text says what does not fit."""


def to_json(grade: Grade) -> str:
    """A grade as one JSON object, its keys in order; infinities are "inf" and "-inf", and no number is "nan"."""
    told = json.dumps(
        _plain(grade), default=_plain, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    return f"{told}\n"


def _plain(value: Any) -> Any:
    """What JSON has in the place of a dataclass or an enumeration."""
    if isinstance(value, Enum):
        return value.value
    if not is_dataclass(value):
        raise TypeError(f"{type(value).__name__} is no part of a grade")
    return {field.name: finite(getattr(value, field.name)) for field in fields(value)}


def from_json(text: str | bytes) -> Grade:
    """The grade that to_json wrote; BadRecord when it is none."""
    try:
        return _ADAPTER.validate_json(text)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = ".".join(map(str, first["loc"])) or "the record"
        raise BadRecord(f"{at}: {first['msg']}") from error

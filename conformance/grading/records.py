"""Grades as JSON, byte for byte the same for the same grade, and back."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Final

import pydantic

from goldformer.conformance.grading.model import Grade
from goldformer.conformance.reports.json_data import finite

_ADAPTER: Final = pydantic.TypeAdapter(Grade)


class BadRecord(ValueError):
    """What was read is no grade; the text says what does not fit."""


def to_json(grade: Grade) -> str:
    """A grade as one JSON object, its keys in order; infinities are "inf" and "-inf", and no number is "nan"."""
    plain = _ADAPTER.dump_python(grade)
    try:
        return _text(plain)
    except ValueError:  # there is such a number, which is looked for only then
        return _text(finite(plain))


def _text(plain: Any) -> str:
    told = json.dumps(plain, default=_value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"{told}\n"


def _value(item: Any) -> Any:
    if isinstance(item, Enum):
        return item.value
    raise TypeError(f"{type(item).__name__} is no part of a grade")


def from_json(text: str | bytes) -> Grade:
    """The grade that to_json wrote; BadRecord when it is none."""
    try:
        return _ADAPTER.validate_json(text)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = ".".join(map(str, first["loc"])) or "the record"
        raise BadRecord(f"{at}: {first['msg']}") from error

"""Summarize the grades of a class, as a table for spreadsheets and as data."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from typing import Any, Final

from goldformer.conformance.grading.model import (
    Assignment,
    Grade,
)
from goldformer.conformance.grading.results import words

#: The beginnings of a formula for spreadsheets, which accept full-width forms too.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")

_HEAD: Final = ("id", "points", "earned")
_TAIL: Final = ("outcome", "mistakes", "diagnosis", "message")

#: The longest sentence that is kept.
_LONGEST: Final = 400


def to_csv(grades: Iterable[Grade], assignment: Assignment) -> str:
    """Return a table (RFC 4180) with one row for each student and one column for each component.

    No field begins a formula.
    """
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\r\n")
    components = [part.component for part in assignment.parts]
    writer.writerow([*_HEAD, *components, *_TAIL])
    for student in make_gradebook(grades, assignment)["students"]:
        earned = [student["components"].get(name, 0.0) for name in components]
        numbers = [words.points(value) for value in (student["points"], student["earned"], *earned)]
        texts = (student["outcome"], " ".join(student["mistakes"]), student["diagnosis"], student["message"])
        writer.writerow([escape_formula(student["id"]), *numbers, *map(escape_formula, texts)])
    return file.getvalue()


def escape_formula(text: str) -> str:
    """Return a text that a spreadsheet shows and does not compute."""
    line = words.shorten_to_line(text, 2000)
    # Spreadsheets themselves mark text like this and do not show the quote.
    return f"'{line}" if line.startswith(_FORMULA) else line


def make_gradebook(grades: Iterable[Grade], assignment: Assignment) -> dict[str, Any]:
    """Return the grades as data for JSON, in the order of the students' ids."""
    return {
        "assignment": assignment.title,
        "points": assignment.points,
        "components": {part.component: part.points for part in assignment.parts},
        "questions": {title: list(components) for title, components in assignment.questions.items()},
        "students": [_make_entry(grade) for grade in sort_by_id(grades)],
    }


def _make_entry(grade: Grade) -> dict[str, Any]:
    return {
        "id": words.shorten_to_line(grade.submission),
        "points": grade.points,
        "earned": grade.earned,
        "outcome": grade.outcome,
        "components": {part.component: part.earned for part in grade.parts},
        "mistakes": list(grade.mistakes),
        "could_be": list(grade.maybe),
        "diagnosis": words.shorten_to_line(grade.diagnosis, _LONGEST),
        "message": words.shorten_to_line(grade.message, _LONGEST),
        "isolation": grade.isolation.level,
        "key": grade.key,
    }


def sort_by_id(grades: Iterable[Grade]) -> list[Grade]:
    """Sort by the students' ids, so that nothing depends on the order of grading."""
    return sorted(grades, key=lambda grade: grade.submission)


def to_json(grades: Iterable[Grade], assignment: Assignment) -> str:
    """Return the grades as JSON."""
    return json.dumps(make_gradebook(grades, assignment), ensure_ascii=False, indent=2) + "\n"

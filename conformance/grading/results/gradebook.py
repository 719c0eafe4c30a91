"""The grades of a class as a table for spreadsheets and as data."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from goldformer.conformance.grading.model import Assignment, Outcome
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.summaries import Line

#: What a spreadsheet takes for the beginning of a formula; full-width forms are taken for it too.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")

_HEAD: Final = ("id", "name", "email", "points", "earned")
_TAIL: Final = ("outcome", "mistakes", "diagnosis", "message")


class Person(BaseModel):
    """Who handed in a submission, as far as that is known."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    email: str = ""


class Student(BaseModel):
    """One student's grade."""

    model_config = ConfigDict(extra="forbid")

    id: str
    name: str = ""
    email: str = ""
    points: float = Field(description="what a correct submission earns")
    earned: float
    outcome: Outcome
    components: dict[str, float] = Field(description="what each component earned")
    mistakes: list[str] = Field(description="mistakes that explain what was got, by their ids")
    could_be: list[str] = Field(description="mistakes that fit without being certain")
    diagnosis: str
    message: str
    isolation: str = Field(description="the level at which it was kept apart")
    key: str = Field(description="the digest of all that the grade was made of")


class Book(BaseModel):
    """The grades of a class."""

    model_config = ConfigDict(extra="forbid")

    assignment: str
    points: float
    components: dict[str, float] = Field(description="what each component is worth")
    students: list[Student]


def to_csv(lines: Iterable[Line], assignment: Assignment, people: Mapping[str, Person] | None = None) -> str:
    """A table as RFC 4180 has it, of one row for each student; no cell begins a formula.

    A component has a column of its own; its name is that of the component.
    """
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\r\n")
    components = [part.component for part in assignment.parts]
    writer.writerow([*_HEAD, *components, *_TAIL])
    for student in book(lines, assignment, people).students:
        texts = (student.id, student.name, student.email)
        earned = [student.components.get(name, 0.0) for name in components]
        said = (student.outcome, " ".join(student.mistakes), student.diagnosis, student.message)
        numbers = [words.points(value) for value in (student.points, student.earned, *earned)]
        writer.writerow([*map(_cell, texts), *numbers, *map(_cell, said)])
    return file.getvalue()


def _cell(text: str) -> str:
    """Text that a spreadsheet shows and does not compute."""
    shown = words.line(text, 2000)
    # As spreadsheets do it themselves, so that it is text and not part of it.
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


def book(lines: Iterable[Line], assignment: Assignment, people: Mapping[str, Person] | None = None) -> Book:
    """The grades as data, in the order of the students' ids."""
    known = people or {}
    return Book(
        assignment=assignment.title,
        points=assignment.points,
        components={part.component: part.points for part in assignment.parts},
        students=[_student(line, known.get(line.submission, Person())) for line in by_id(lines)],
    )


def _student(line: Line, person: Person) -> Student:
    return Student(
        id=words.line(line.submission), name=words.line(person.name), email=words.line(person.email),
        points=line.points, earned=line.earned, outcome=line.outcome,
        components={part.component: part.earned for part in line.parts},
        mistakes=list(line.mistakes), could_be=list(line.maybe), diagnosis=line.diagnosis, message=line.message,
        isolation=line.isolation.level, key=line.key,
    )  # fmt: skip


def by_id(lines: Iterable[Line]) -> list[Line]:
    """In the order of the students' ids, so that nothing depends on who was graded first."""
    return sorted(lines, key=lambda line: line.submission)


def to_json(lines: Iterable[Line], assignment: Assignment, people: Mapping[str, Person] | None = None) -> str:
    """The grades as JSON, as `schema` describes it."""
    return json.dumps(book(lines, assignment, people).model_dump(), ensure_ascii=False, indent=2) + "\n"


def schema() -> dict[str, Any]:
    """The JSON Schema of the grades."""
    return Book.model_json_schema(mode="serialization")

"""A grade as Gradescope reads it: results.json, in which scores are numbers and nothing was timed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from goldformer.conformance.grading.model import Assignment, Grade
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.feedback import AT_HOME, remarks, section
from goldformer.conformance.grading.results.student import Row, Told, told
from goldformer.conformance.grading.results.words import block, code, escaped
from goldformer.spec import Spec

#: What stands there from the start, for the platform may stop everything at its own limit.
_PENDING: Final = (
    "Your submission is being graded. If this does not change, grading was stopped before it had an end: it took "
    "longer than the platform allows, or it broke down. Nothing has been decided about your submission; tell whoever "
    "gave you the assignment."
)


def results(grade: Grade, assignment: Assignment, spec: Spec) -> str:
    """results.json of a grade: a test for each component, its feedback in Markdown."""
    found = told(grade, assignment, spec)
    mistakes = sorted({mistake for said in grade.said for mistake in said.mistakes})
    return _text(
        {
            "score": grade.earned,
            "output": "\n\n".join(_summary(found)),
            "tests": [_test(row) for row in found.rows],
            "extra_data": {"key": grade.key, "outcome": grade.outcome, "mistakes": mistakes},
        }
    )


def pending(assignment: Assignment) -> str:
    """results.json for as long as nothing is known: no points, and why."""
    parts = [(part.component, part.points) for part in assignment.parts]
    tests = [{"name": name, "score": 0.0, "max_score": points, "visibility": "visible"} for name, points in parts]
    return _text({"score": 0.0, "output": _PENDING, "tests": tests, "extra_data": {"outcome": "pending"}})


def _text(content: dict[str, Any]) -> str:
    shown = {"output_format": "md", "visibility": "visible", "stdout_visibility": "hidden"}
    return json.dumps({**content, **shown}, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _summary(found: Told) -> Iterator[str]:
    yield f"**{found.headline}**"
    if found.message:
        yield code(found.message)
    if found.advice:
        yield escaped(found.advice)
    if found.stderr:
        yield block(found.stderr)
    if found.remarks:
        yield "\n".join(remarks(found.remarks))
    if found.command:
        yield AT_HOME
        yield block(f"$ {found.command}", "console")
    if found.isolation:
        yield escaped(found.isolation)


def _test(row: Row) -> dict[str, Any]:
    checks = [f"{row.share(origin)} {name}" for origin, name in words.ORIGINS.items() if row.share(origin)]
    return {
        "name": row.component,
        "score": row.grade.earned,
        "max_score": row.grade.points,
        "status": "passed" if row.full else "failed",
        "output": "\n\n".join([", ".join([row.brief, *checks]), *section(row)]),
        "output_format": "md",
        "visibility": "visible",
    }

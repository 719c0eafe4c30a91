"""A grade as GitHub Classroom's autograding reporter reads it: a result of one runner, in base64."""

from __future__ import annotations

import base64
import json
from typing import Any

from goldformer.conformance.grading.model import Assignment, Grade
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.student import Row, told
from goldformer.spec import Spec


def result(grade: Grade, assignment: Assignment, spec: Spec) -> dict[str, Any]:
    """A test for each component, whose scores add up; `status` is pass, fail, or error where grading broke down."""
    found = told(grade, assignment, spec)
    status = "error" if grade.outcome == "grader-error" else "pass" if found.passing else "fail"
    return {
        "version": 1,
        "status": status,
        "max_score": grade.points,
        "tests": [_test(row) for row in found.rows],
    }


def encoded(grade: Grade, assignment: Assignment, spec: Spec) -> str:
    """The result as the reporter takes it from a variable of the environment: one line."""
    text = json.dumps(result(grade, assignment, spec), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(text.encode()).decode("ascii")


def output(grade: Grade, assignment: Assignment, spec: Spec) -> str:
    """The line for the file that $GITHUB_OUTPUT names: it sets the step's output `result`."""
    return f"result={encoded(grade, assignment, spec)}\n"


def _test(row: Row) -> dict[str, Any]:
    # It is printed to a log in which a line of its own may be a command to the runner.
    said = [row.brief, row.note, row.first_wrong, *(f.said for f in row.failures[:1])]
    return {
        "name": row.component,
        "status": "pass" if row.full else "fail",
        "score": row.grade.earned,
        "max_score": row.grade.points,
        "message": "" if row.full else words.line("; ".join(text.rstrip(".") for text in said if text)),
    }

"""Write grades for other platforms: Gradescope, GitHub Classroom and JUnit XML."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final
from xml.etree import ElementTree as ET

from goldformer.conformance.grading.model import Assignment, Grade
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.feedback import AT_HOME, describe_component, list_notes, list_remarks
from goldformer.conformance.grading.results.gradebook import ComponentSummary, GradeSummary, sort_by_id
from goldformer.conformance.grading.results.student import ComponentFeedback, StudentFeedback, build_feedback
from goldformer.conformance.grading.results.words import block, escape
from goldformer.conformance.reports.junit import serialise
from goldformer.spec import Spec

#: The first results.json: the platform may stop grading at its own time limit.
_PENDING: Final = (
    "Your submission is being graded. If this does not change, grading was stopped before its end: it took longer than "
    "the platform allows, or it broke down. Nothing has been decided about your submission; tell whoever gave you the "
    "assignment."
)


def gradescope_results(grade: Grade, assignment: Assignment, spec: Spec) -> str:
    """Return Gradescope's results.json of a grade: a test for each component, with its feedback in Markdown."""
    feedback = build_feedback(grade, assignment, spec)
    mistakes = sorted({mistake for line in grade.said for mistake in line.mistakes})
    return _format_gradescope(
        {
            "score": grade.earned,
            "output": "\n\n".join(_summarize(feedback)),
            "tests": [_make_gradescope_test(row) for row in feedback.rows],
            "extra_data": {"key": grade.key, "outcome": grade.outcome, "mistakes": mistakes},
        }
    )


def gradescope_pending(assignment: Assignment) -> str:
    """Return Gradescope's results.json while nothing is known: no points, and why."""
    parts = [(part.component, part.points) for part in assignment.parts]
    tests = [{"name": name, "score": 0.0, "max_score": points, "visibility": "visible"} for name, points in parts]
    return _format_gradescope({"score": 0.0, "output": _PENDING, "tests": tests, "extra_data": {"outcome": "pending"}})


def _format_gradescope(content: dict[str, Any]) -> str:
    options = {"output_format": "md", "visibility": "visible", "stdout_visibility": "hidden"}
    return json.dumps({**content, **options}, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _summarize(feedback: StudentFeedback) -> Iterator[str]:
    yield f"**{feedback.headline}**"
    yield from list_notes(feedback)
    if feedback.remarks:
        yield "\n".join(list_remarks(feedback.remarks))
    if feedback.command:
        yield AT_HOME
        yield block(f"$ {feedback.command}", "console")
    if feedback.isolation:
        yield escape(feedback.isolation)


def _make_gradescope_test(row: ComponentFeedback) -> dict[str, Any]:
    checks = [f"{row.share(origin)} {name}" for origin, name in words.ORIGINS.items() if row.share(origin)]
    return {
        "name": row.component,
        "score": row.grade.earned,
        "max_score": row.grade.points,
        "status": "passed" if row.earns_everything else "failed",
        "output": "\n\n".join([", ".join([row.brief, *checks]), *describe_component(row)]),
        "output_format": "md",
        "visibility": "visible",
    }


def github_output(grade: Grade, assignment: Assignment, spec: Spec) -> str:
    """Return the line for $GITHUB_OUTPUT that sets `result` for GitHub Classroom's autograding reporter.

    The result has a test for each component, whose scores add up, in base64; its status is pass, fail, or error if
    grading broke down.
    """
    feedback = build_feedback(grade, assignment, spec)
    result = {
        "version": 1,
        "status": "error" if grade.outcome == "grader-error" else "pass" if feedback.passing else "fail",
        "max_score": grade.points,
        "tests": [_make_github_test(row) for row in feedback.rows],
    }
    text = json.dumps(result, ensure_ascii=False, allow_nan=False)
    return f"result={base64.b64encode(text.encode()).decode('ascii')}\n"


def _make_github_test(row: ComponentFeedback) -> dict[str, Any]:
    # One line: in the log to which it is printed, a further line could be a command to the runner.
    texts = [row.brief, row.note, row.first_wrong, *(f.said for f in row.failures[:1])]
    return {
        "name": row.component,
        "status": "pass" if row.earns_everything else "fail",
        "score": row.grade.earned,
        "max_score": row.grade.points,
        "message": ""
        if row.earns_everything
        else words.shorten_to_line("; ".join(text.rstrip(".") for text in texts if text)),
    }


def junit_xml(summaries: Iterable[GradeSummary], assignment: Assignment) -> str:
    """Return a class as JUnit XML: a suite for each student, a case for each component.

    A component without all its points is a failure, and one that could not be graded an error.
    """
    root = ET.Element("testsuites", name=words.shorten_to_line(assignment.title))
    for summary in sort_by_id(summaries):
        suite = ET.SubElement(root, "testsuite", name=words.shorten_to_line(summary.submission))
        for part in summary.parts:
            _add_case(suite, part, summary)
        for name, tag in (("failures", "failure"), ("errors", "error")):
            suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
        suite.set("tests", str(len(summary.parts)))
    return serialise(root)


def _add_case(suite: ET.Element, part: ComponentSummary, summary: GradeSummary) -> None:
    case = ET.SubElement(suite, "testcase", classname=words.shorten_to_line(summary.submission), name=part.component)
    if part.outcome == "grader-error":
        problem = ET.SubElement(case, "error", message=words.shorten_to_line(part.said), type=part.outcome)
    elif part.earned < part.points or part.outcome != "correct":
        text = f"{words.points(part.earned)} of {words.points(part.points)} points: {part.said}"
        problem = ET.SubElement(case, "failure", message=words.shorten_to_line(text), type=part.outcome)
    else:
        return
    problem.text = words.shorten_to_line("; ".join(text for text in (summary.message, summary.diagnosis) if text))

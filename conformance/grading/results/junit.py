"""Write the grades of a class as JUnit XML, which build servers show as a list of tests."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree as ET

from goldformer.conformance.grading.model import Assignment
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.gradebook import ComponentSummary, GradeSummary, sort_by_id
from goldformer.conformance.reports.junit import serialise


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

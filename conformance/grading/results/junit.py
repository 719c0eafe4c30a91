"""A class as JUnit XML: a suite for each student, a case for each component."""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree import ElementTree as ET

from goldformer.conformance.grading.model import Assignment
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.results.gradebook import by_id
from goldformer.conformance.grading.results.summaries import Line, PartLine


def junit(lines: Iterable[Line], assignment: Assignment) -> str:
    """The file; what did not get all its points is a failure, and what could not be graded an error."""
    root = ET.Element("testsuites", name=words.line(assignment.title))
    for line in by_id(lines):
        suite = ET.SubElement(root, "testsuite", name=words.line(line.submission))
        for part in line.parts:
            _case(suite, part, line)
        for name, tag in (("failures", "failure"), ("errors", "error")):
            suite.set(name, str(len(suite.findall(f"testcase/{tag}"))))
        suite.set("tests", str(len(line.parts)))
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _case(suite: ET.Element, part: PartLine, line: Line) -> None:
    case = ET.SubElement(suite, "testcase", classname=words.line(line.submission), name=part.component)
    if part.outcome == "grader-error":
        problem = ET.SubElement(case, "error", message=words.line(part.said), type=part.outcome)
    elif part.earned < part.points or part.outcome != "correct":
        said = f"{words.points(part.earned)} of {words.points(part.points)} points: {part.said}"
        problem = ET.SubElement(case, "failure", message=words.line(said), type=part.outcome)
    else:
        return
    problem.text = words.line("; ".join(text for text in (line.message, line.diagnosis) if text))

"""One implementation as JUnit XML, which build servers show as a list of tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree import ElementTree as ET

from goldformer.adapters.untrusted_text import printable
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.reports.record import RunRecord
from goldformer.conformance.reports.results import PARTIAL
from goldformer.conformance.reports.text import explain_verdict
from goldformer.spec import Spec

#: The suite of what is no check: a run that says nothing, or that was stopped.
_RUN = "goldformer"


def junit_xml(records: Sequence[RunRecord], spec: Spec) -> str:
    """Return a suite for each component, and a test for each check; what says nothing of the code is skipped.

    A component of which too few cases were judged has a skipped test that says so. The suites of all records but the
    first begin with its name: build servers tell tests apart by the names of suite and test.
    """
    root = ET.Element("testsuites", name=f"goldformer: {printable(records[0].title)}")
    for record in records:
        _add_record(root, record, spec, "" if record is records[0] else f"{printable(record.name)}.")
    return count_and_serialise(root)


def _add_record(root: ET.Element, record: RunRecord, spec: Spec, prefix: str) -> None:
    for component in spec.components:
        mine = [verdict for verdict in record.verdicts if verdict.component == component]
        if mine:
            name = f"{prefix}{component}"
            suite = ET.SubElement(root, "testsuite", name=name)
            edition = str(spec.edition_of(component))
            ET.SubElement(ET.SubElement(suite, "properties"), "property", name="spec", value=edition)
            for verdict in mine:
                _add_check(suite, record.run.explain(verdict), name, spec)
            if record.results[component].state == PARTIAL:
                case = ET.SubElement(suite, "testcase", classname=name, name="enough cases", time="0.000")
                ET.SubElement(case, "skipped", message=record.results[component].verdict)
    if record.problem:
        name = f"{prefix}{_RUN}"
        suite = ET.SubElement(root, "testsuite", name=name)
        case = ET.SubElement(suite, "testcase", classname=name, name="run", time="0.000")
        tag = "skipped" if record.outcome == "partial" else "error"
        ET.SubElement(case, tag, message=printable(record.problem), type=record.outcome)


def count_and_serialise(root: ET.Element) -> str:
    """Return an indented document in which every suite, and the whole, says how many tests there are of each kind."""
    for element in (*root, root):
        _count_tests(element, element.iter("testcase"))
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _add_check(suite: ET.Element, explained: Explained, classname: str, spec: Spec) -> None:
    verdict = explained.verdict
    name = f"{verdict.check}[{verdict.dtype}, {verdict.device}]"
    case = ET.SubElement(suite, "testcase", classname=classname, name=name, time=f"{verdict.seconds:.3f}")
    message = printable(verdict.message)
    if verdict.bad or verdict.is_fault:
        tag = "failure" if verdict.status is Status.FAILED else "error"
        problem = ET.SubElement(case, tag, message=message, type=verdict.reason)
        problem.text = printable(explain_verdict(explained, spec))
    elif verdict.status is Status.SKIPPED:
        ET.SubElement(case, "skipped", message=f"{verdict.reason}: {message}")


def _count_tests(element: ET.Element, cases: Iterator[ET.Element]) -> None:
    listed = list(cases)
    element.set("tests", str(len(listed)))
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        element.set(name, str(sum(case.find(tag) is not None for case in listed)))
    element.set("time", f"{sum(float(case.get('time', 0)) for case in listed):.3f}")

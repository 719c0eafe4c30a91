"""A drift as JUnit XML, which build servers show as a list of tests."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from goldformer.adapters.untrusted_text import printable
from goldformer.conformance.baseline.drift import Drift, describe_move
from goldformer.conformance.baseline.moves import Kind, Move, group_by_component
from goldformer.conformance.reports.junit import count_and_serialise


def junit_xml(drift: Drift, allowed: Kind) -> str:
    """Return a suite for each component, and a test for each output; those that moved too far are failures."""
    root = ET.Element("testsuites", name=f"goldformer baseline: {printable(drift.new.recordings[-1].title)}")
    for component, moves in group_by_component(drift.moves, drift.spec.components):
        suite = ET.SubElement(root, "testsuite", name=component)
        for move in moves:
            _add_move(suite, move, drift, allowed)
    return count_and_serialise(root)


def _add_move(suite: ET.Element, move: Move, drift: Drift, allowed: Kind) -> None:
    key = move.key
    name = f"{key.case}{f': {move.output}' if move.output else ''} [{key.dtype}, {key.device}]"
    case = ET.SubElement(suite, "testcase", classname=move.component, name=printable(name), time="0.000")
    if move.kind > allowed:
        message = printable(describe_move(move, drift.spec))
        problem = ET.SubElement(case, "failure", message=message, type=str(move.kind))
        problem.text = printable("\n".join(filter(None, (message, drift.repeat(key)))))

"""JUnit XML of a check: every check is a test, with what failed, and any text is text."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from comparisons import FAILING, RIGHT, made, verdict
from goldformer.conformance.reports.junit import junit_xml


def suites(implementation, spec):
    """Return the report, and the tests of each suite: name, outcome, and what is said of it."""
    root = ET.fromstring(junit_xml([implementation], spec))
    return root, {suite.get("name"): [read_test(case) for case in suite.iter("testcase")] for suite in root}


def read_test(case):
    for problem in case:
        return case.get("name"), problem.tag, (problem.get("message"), problem.text)
    return case.get("name"), "passed", None


def counts(element):
    return {name: int(element.get(name)) for name in ("tests", "failures", "errors", "skipped")}


def test_every_check_is_a_test_of_the_suite_of_its_component(spec):
    root, found = suites(RIGHT, spec)
    assert {name: [(test, outcome) for test, outcome, _ in tests] for name, tests in found.items()} == {
        "layer_norm": [("ln-one[float32, cpu]", "skipped")],
        "softmax": [
            ("sm-one[float32, cpu]", "passed"),
            ("sm-one[float64, cpu]", "passed"),
            ("sm-other[float32, cpu]", "skipped"),
        ],
    }
    assert found["layer_norm"][0][2] == ("not-implemented: ", None)
    assert counts(root) == {"tests": 4, "failures": 0, "errors": 0, "skipped": 2}
    assert [counts(suite)["tests"] for suite in root] == [1, 3]


def test_each_suite_names_the_spec(spec):
    root, _ = suites(RIGHT, spec)
    named = {(p.get("name"), p.get("value")) for suite in root for p in suite.iter("property")}
    assert named == {("spec", str(spec.editions["2017"]))}


def test_what_fails_says_it_in_full_and_as_text(spec):
    root, found = suites(FAILING, spec)
    assert root.get("name") == "goldformer: a | <b>*bad*</b> 7"
    assert counts(root) == {"tests": 3, "failures": 1, "errors": 1, "skipped": 0}
    ((_, failed, (message, text)), _) = found["softmax"]
    assert (failed, message) == ("failure", "output: 3 of 9 values are wrong (sm-one)")
    assert "worst at [2, 0]: expected 0.13547101, actual 0.0883140191" in text
    assert "Repeat      goldformer check mine.py --case sm-one" in text
    ((_, errored, (message, _)),) = found["scaled_dot_product_attention"]
    assert (errored, message) == ("error", 'raised <X> & "y"')
    times = [float(suite.get("time")) for suite in root]
    assert float(root.get("time")) == sum(times)


def test_too_few_cases_are_a_skipped_test_that_says_so(spec):
    few = [verdict("sm-one", "softmax"), verdict("sm-other", "softmax", "skipped", "not-implemented")]
    root, found = suites(made("mine", *few, implemented=frozenset({"softmax"})), spec)
    said = "partial: nothing wrong was found in 1 of 2 cases"
    assert found["softmax"][-1] == ("enough cases", "skipped", (said, None))
    assert counts(root) == {"tests": 3, "failures": 0, "errors": 0, "skipped": 2}
    assert "enough cases" not in junit_xml([RIGHT], spec)


def test_a_fault_of_goldformer_and_a_run_that_says_nothing_are_errors(spec):
    fault = verdict("sm-one", "softmax", "errored", "fault", message="a fault in goldformer")
    root, found = suites(made("mine", fault, problem="stopped after 1 of 9 checks"), spec)
    assert found["softmax"][0][1] == "error"
    assert found["goldformer"] == [("run", "error", ("stopped after 1 of 9 checks", None))]
    assert counts(root) == {"tests": 2, "failures": 0, "errors": 2, "skipped": 0}


def test_characters_that_xml_has_not_are_escaped(spec):
    odd = "\x00\x1b[31m\ud800\ufffe\r\tü\n\U0001f600"
    bad = verdict("sm-one", "softmax", "errored", "raised", message=odd, title=odd)
    _, found = suites(made(odd, bad, problem=odd), spec)
    escaped = "\\x00\\x1b[31m\\ud800\\ufffe\\r\tü\n\U0001f600"
    assert found["softmax"][0][2][0] == escaped
    assert found["goldformer"][0][2][0] == escaped

"""No name is lost: of bugs in many styles, and the edits of the listed mistakes of three components."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from goldformer.adapters import find_adapter
from goldformer.conformance.diagnosis.candidates import Candidate, Textbooks
from goldformer.conformance.diagnosis.edits.generate import list_edits
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.failure import FailingCase
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.diagnosis.neighbours.results import Call
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.conformance.judging.invoke import Result

SUPPORT = Path(__file__).parents[3] / "support"
NAMES = yaml.safe_load((SUPPORT / "bugs.yaml").read_text(encoding="utf-8"))
BUGS, EDITS = NAMES["bugs"], NAMES["edits"]
#: The calls of each component, all sizes different, in which an edit must equal a mistake.
CALLS = {
    "layer_norm": ["ln-distinct-sizes", "ln-two-channels", "ln-four-axes"],
    "rms_norm": ["rms-distinct-sizes", "rms-thousandths", "rms-four-axes"],
    "gated_feed_forward": ["glu-distinct-sizes", "glu-a-vector-at-three-places", "glu-narrow"],
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_bug_keeps_its_name(name, spec):
    adapter = find_adapter(str(SUPPORT / "bugs" / f"{name}.py"), spec)
    ((component, function),) = adapter.functions.items()
    bench = Bench(spec, replace(adapter, functions={component: function}), "float32", "cpu")
    cases = [case for case in spec.cases_of(component) if case.size < 5000 and not case.random]
    verdicts = Diagnosis(spec).explain_all(judge_case(case, bench) for case in cases)
    findings = [finding for finding in diagnose(verdicts, spec) if finding.mistakes]
    assert [(finding.label, sorted(finding.mistakes)) for finding in findings] == [(MISTAKE_FOUND, BUGS[name])] * bool(
        BUGS[name]
    )


def find_edit(mistake, component, spec):
    """Return the first edit that gives the same as a mistake in all calls; None without one, "" if it is silent."""
    textbooks, contract = Textbooks(spec, None), spec.contracts[component]
    options = {name: spec.conventions[name].default for name in contract.conventions}
    calls = [
        FailingCase(spec.cases[id_], contract, Result({}, 0.0), {}, "float64", options) for id_ in CALLS[component]
    ]
    made = [textbooks.run(Candidate((mistake,)), call) for call in calls]
    right = [textbooks.run(Candidate(), call) for call in calls]
    if not all(isinstance(result, Result) for result in made) or all(map(are_close, made, right)):
        return ""
    graphs = [textbooks.record(Candidate(), call) for call in calls]
    for edit in list_edits(graphs[0], Call.of(calls[0].case, contract).axes):
        given = (edit.give_outputs(graph, None) for graph in graphs)
        if all(are_close(wanted, Result(outputs or {}, 0.0)) for wanted, outputs in zip(made, given, strict=True)):
            return edit.id
    return None


def are_close(one, other):
    return one.outputs.keys() == other.outputs.keys() and all(
        one.outputs[name].shape == value.shape and np.allclose(one.outputs[name], value, rtol=1e-9, equal_nan=True)
        for name, value in other.outputs.items()
    )


@pytest.mark.parametrize("component", sorted(CALLS))
def test_a_listed_mistake_keeps_its_edit(component, spec):
    listed = [id_ for id_, made in implementations().items() if spec.mistakes[id_].component == component]
    forward = [id_ for id_ in listed if not implementations()[id_].by_hand]
    found = {id_: edit for id_ in forward if (edit := find_edit(id_, component, spec)) != ""}
    assert found == EDITS[component]

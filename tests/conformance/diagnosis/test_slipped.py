"""Slips in code of two styles: each is named, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from goldformer.adapters import find_adapter
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.spec import Spec

FOLDER = Path(__file__).parents[2] / "support" / "slipped"
SLIPS = yaml.safe_load(FOLDER.with_suffix(".yaml").read_text(encoding="utf-8"))


def write(path: Path, file: str, edits=()) -> Path:
    source = (FOLDER / f"{file}.py").read_text(encoding="utf-8")
    for old, new in ([text.replace("\\n", "\n") for text in edit] for edit in edits):
        assert source.count(old) == 1, f"{file}: {old!r} is there {source.count(old)} times"
        source = source.replace(old, new)
    path.write_text(source, encoding="utf-8")
    return path


def judge(path: Path, component: str, spec: Spec, declared=()):
    adapter = find_adapter(str(path), spec)
    only = {component: adapter.functions[component]}
    bench = Bench(spec, replace(adapter, functions=only, conventions=dict(declared)), "float32", "cpu")
    cases = [case for case in spec.cases_of(component) if not case.full_size and "dropout" not in case.id]
    return Diagnosis(spec).explain_all(judge_case(case, bench) for case in cases)


@pytest.mark.parametrize("file", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_what_the_slips_are_put_into_is_right(file, tmp_path, spec: Spec):
    path = write(tmp_path / "mine.py", file)
    components = find_adapter(str(path), spec).functions
    assert [v.check for component in components for v in judge(path, component, spec) if v.bad] == []


@pytest.mark.sample(10)
@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: f"{slip['named'][0]}-{slip['file']}")
def test_a_slip_is_named(slip, tmp_path, spec: Spec):
    path = write(tmp_path / "mine.py", slip["file"], slip["edits"])
    verdicts = judge(path, slip["component"], spec, slip.get("declares", {}))
    findings = [finding for finding in diagnose(verdicts, spec) if finding.mistakes]
    assert [(finding.label, list(finding.mistakes)) for finding in findings] == [(MISTAKE_FOUND, slip["named"])]

"""Run what a finding tells a reader to run: a command, and a call that is a case; both show the mistake."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.support.named import Entry

from goldformer.adapters import find_adapter
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import HOLDS, MISTAKE_FOUND, PLACE, REPEAT, SMALLEST
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.spec import Spec

#: A norm that keeps the statistics of the first call of each shape.
KEEPING = """
import numpy as np

ARRAYS = "numpy"
kept = {}

def layer_norm(x, params):
    if x.shape not in kept:
        kept[x.shape] = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    mean, variance = kept[x.shape]
    return params["gamma"] * (x - mean) / np.sqrt(variance + 1e-5) + params["beta"]
"""
RELU = 'np.maximum(linear(x, p, "1"), 0)'
CLIPPED = Entry(
    ("encoder_layer",), file="functions", edits=((RELU, f"np.minimum({RELU}, x.dtype.type(0.5))"),)
)  # fmt: skip


CLIPPED_VALUES = Entry(
    ("encoder_layer",),
    file="functions",
    edits=(("joined(w @ v)", "joined(w @ np.clip(v, -0.4, 0.3).astype(v.dtype))"),),
)


def run_command(command: str, folder: Path) -> int:
    """Return the exit status of a command that a report prints, in a new process."""
    name, *options = shlex.split(command)
    assert name == "goldformer"
    arguments = [sys.executable, "-m", "goldformer", *options]
    return subprocess.run(arguments, cwd=folder, capture_output=True, timeout=300, check=False).returncode


def test_the_printed_command_shows_state_between_calls(adapter_file, spec: Spec, tmp_path):
    path = adapter_file(KEEPING)
    bench = Bench(spec, find_adapter(path, spec), "float32", "cpu")
    cases = [case for case in spec.cases_of("layer_norm") if not case.full_size]
    found = list(diagnose(Diagnosis(spec).explain_all(judge_case(case, bench) for case in cases), spec))
    said = {finding.label: finding.text for finding in found}
    shown, after = re.search(
        r"(\S+) is right when it is called first, and wrong after (\S+)\. ", said[MISTAKE_FOUND]
    ).groups()
    assert said[REPEAT] == f"goldformer check {path} --case {after},{shown} --dtype float32"
    assert run_command(said[REPEAT], tmp_path) == 1
    assert run_command(f"goldformer check {path} --case {shown} --dtype float32", tmp_path) == 0


def test_the_place_of_an_unknown_mistake_is_the_part_that_is_wrong_by_itself(spec: Spec):
    found = find_place(CLIPPED, spec)
    assert found[PLACE] == "the feed-forward network, or the normalisation that it reads"
    assert found[HOLDS] == "the residuals and normalisations and the self-attention"
    assert "with self_attention silent (last weights and biases 0): output[0, 0, 0]: expected " in found[SMALLEST]


def test_of_an_attention_the_steps_that_are_wrong_are_told(spec: Spec):
    found = find_place(CLIPPED_VALUES, spec)
    assert found[PLACE] == ("the values, the heads or the output of the self-attention, or the normalisation before it")


def find_place(entry: Entry, spec: Spec) -> dict[str, str]:
    return {f.label: f.text for f in diagnose(Diagnosis(spec).explain_all(entry.run_checks(spec)), spec)}

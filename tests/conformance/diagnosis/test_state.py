"""State between calls: what an earlier call left makes a case wrong that is right when it is called first."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import goldformer
from goldformer.adapters import find_adapter
from goldformer.adapters.protocol import Adapter
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND, NOTHING_KNOWN, POSSIBLE_CAUSES, REPEAT
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.judging.cases import Bench, judge_case

NORM = """
import numpy as np

ARRAYS = "numpy"
kept = {{}}

def layer_norm(x, params):
    key = {key}
    if key not in kept:
        kept[key] = {value}
    mean, variance = {statistics}
    return params["gamma"] * (x - mean) / np.sqrt(variance + 1e-5) + params["beta"]
"""
BY_SHAPE = NORM.format(
    key="x.shape", value="x.mean(-1, keepdims=True), x.var(-1, keepdims=True)", statistics="kept[key]"
)
#: A table for the first width: others raise.
RAISING = NORM.format(
    key="'ones'", value="np.ones(x.shape[-1], x.dtype)",
    statistics="x.mean(-1, keepdims=True) * kept[key][0], (x * kept[key]).var(-1, keepdims=True)",
)  # fmt: skip
COUNTING = """
import numpy as np

ARRAYS = "numpy"
calls = []

def softmax(scores):
    calls.append(scores.shape)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    weights = powers / powers.sum(-1, keepdims=True)
    # A number that no change of the formula gives.
    extra = np.arange(weights.shape[-1]) % 2 * (0.003 + 0.01 * scores.std())
    return weights + (len(calls) > {most}) * extra.astype(weights.dtype)
"""
UNKNOWN = COUNTING.format(most=-1)
MASKS = """
kept = {}

def choose(mask, shape):
    return kept.setdefault(shape, mask)
"""
ATTENTION = """
import torch
from masks import choose

ARRAYS = "torch"
CONVENTIONS = {"empty_row": "unspecified"}

def scaled_dot_product_attention(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~choose(mask, scores.shape), torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1)
    return weights @ value, weights
"""


@pytest.fixture
def explain(spec):
    """Judge the cases of one component, explain the failures, and return the verdicts with the findings."""

    def run(adapter, component, dtypes=("float32",)):
        benches = [Bench(spec, adapter, dtype, "cpu") for dtype in dtypes]
        cases = [case for case in spec.cases_of(component) if not case.full_size]
        verdicts = Diagnosis(spec).explain_all(judge_case(case, bench) for bench in benches for case in cases)
        return verdicts, [*diagnose(verdicts, spec)]

    return run


def find_text(found, label):
    return next(finding.text for finding in found if finding.label == label)


def exit_status(command, folder):
    """Run a command that a report prints, in a new process."""
    program = "from goldformer.conformance.cli import main; main()"
    name, *options = shlex.split(command)
    assert name == "goldformer"
    return subprocess.run(
        [sys.executable, "-c", program, *options], cwd=folder, capture_output=True, timeout=120, check=False
    ).returncode


@pytest.mark.sample(1)
@pytest.mark.parametrize(("source", "component"), [(BY_SHAPE, "layer_norm"), (RAISING, "layer_norm")])
def test_the_case_after_which_it_is_wrong_is_named_and_the_command_shows_it(
    source, component, explain, adapter_file, spec, tmp_path
):
    verdicts, found = explain(find_adapter(adapter_file(source), spec), component)
    text = find_text(found, MISTAKE_FOUND)
    assert text.startswith("nondeterminism, the same call gives different results: state between calls. ")
    shown, after = re.search(r"calls\. (\S+) is right when it is called first, and wrong after (\S+)\. ", text).groups()
    failing = [v for v in verdicts if v.bad]
    assert f"It is so in {len(failing)} of {len(failing)} failing cases. Keep nothing from one call" in text
    assert find_text(found, REPEAT) == f"goldformer check {tmp_path / 'mine.py'} --case {after},{shown} --dtype float32"
    assert {verdicts.explain(v).reproduce for v in failing if v.check == shown} == {find_text(found, REPEAT)}
    assert exit_status(find_text(found, REPEAT), tmp_path) == 1
    alone = f"goldformer check {tmp_path / 'mine.py'} --case {shown} --dtype float32"
    assert exit_status(alone, tmp_path) == 0


def test_every_failing_case_has_a_command_that_fails(explain, adapter_file, spec):
    path = adapter_file(BY_SHAPE)
    verdicts, _ = explain(find_adapter(path, spec), "layer_norm")
    failing = [v for v in verdicts if v.bad]
    assert len(failing) > 2
    for verdict in failing:
        (cases,) = re.findall(r"--case (\S+)", verdicts.explain(verdict).reproduce)
        bench = Bench(spec, find_adapter(path, spec), "float32", "cpu")
        *_, last = [judge_case(spec.cases[id_], bench).verdict for id_ in cases.split(",")]
        assert last.check == verdict.check
        assert last.bad
        assert verdicts.about(verdict).state.after == tuple(cases.split(",")[:-1])


def test_state_in_a_module_next_to_the_adapter_is_found(explain, adapter_file, spec):
    adapter_file(MASKS, "masks.py")
    adapter = find_adapter(adapter_file(ATTENTION), spec)
    kept = sys.modules["masks"]
    _, found = explain(adapter, "scaled_dot_product_attention")
    assert "state between calls. sdpa-" in find_text(found, MISTAKE_FOUND)
    assert sys.modules["masks"] is kept
    del sys.modules["masks"]


def test_a_counter_is_shown_by_the_whole_component(explain, adapter_file, spec, tmp_path):
    verdicts, found = explain(find_adapter(adapter_file(COUNTING.format(most=6)), spec), "softmax")
    assert "is right when it is called first, and wrong after the cases before it. " in find_text(found, MISTAKE_FOUND)
    whole = f"goldformer check {tmp_path / 'mine.py'} --component softmax --dtype float32"
    assert {verdicts.explain(v).reproduce for v in verdicts if v.bad} == {whole}
    assert exit_status(whole, tmp_path) == 1


def test_few_calls_are_named_in_their_order(explain, adapter_file, spec):
    # Further calls of a case in other ways have its numbers too.
    source = COUNTING.format(most=2).replace("calls = []", "calls = set()")
    source = source.replace("calls.append(scores.shape)", "calls.add(scores.tobytes())")
    verdicts, found = explain(find_adapter(adapter_file(source), spec), "softmax")
    cases = [case.id for case in spec.cases_of("softmax")]
    state = next(state for v in verdicts if (state := verdicts.about(v).state))
    assert len(state.after) == 2
    assert sorted(state.after, key=cases.index) == list(state.after)
    assert " and wrong after {} and {}. ".format(*state.after) in find_text(found, MISTAKE_FOUND)


@pytest.mark.parametrize(("source", "loads"), [(UNKNOWN, 3), (UNKNOWN.replace("calls.append", "calls.add"), 0)])
def test_what_is_wrong_when_called_first_is_seldom_loaded_again(source, loads, explain, adapter_file, spec):
    adapter = find_adapter(adapter_file(source), spec)
    loaded = []

    def reload():
        loaded.append(adapter.reload())
        return loaded[-1]

    verdicts, found = explain(replace(adapter, reload=reload), "softmax")
    # Where every call raises, no first one is right.
    assert len(loaded) == loads
    assert (NOTHING_KNOWN in [finding.label for finding in found]) is bool(loads)
    assert not any(verdicts.about(v).state for v in verdicts)
    assert all(f"--case {v.check} " in v.reproduce for v in verdicts if v.bad)


def make_norm(keeps):
    kept = {}

    def layer_norm(x, params):
        key = x.shape if keeps else len(kept)
        mean, variance = kept.setdefault(key, (x.mean(-1, keepdims=True), x.var(-1, keepdims=True)))
        wrong = 1.0 if keeps else 1 + 0.1 * np.sin(np.arange(x.shape[-1], dtype=x.dtype) ** 3)
        return wrong * params["gamma"] * (x - mean) / np.sqrt(variance + x.dtype.type(1e-5)) + params["beta"]

    return layer_norm


def test_of_an_object_in_memory_the_sizes_are_all_that_is_known(explain, spec):
    adapter = Adapter.from_object(SimpleNamespace(ARRAYS="numpy", layer_norm=make_norm(keeps=True)), "mine", spec)
    verdicts, found = explain(adapter, "layer_norm")
    count = sum(v.bad for v in verdicts)
    text = find_text(found, POSSIBLE_CAUSES)
    assert text.startswith("nondeterminism, the same call gives different results: state between calls. ")
    assert f" All {count} failing cases have the sizes of an earlier call, and no call of new sizes fails. " in text
    assert " goldformer check FILE tries that by itself. Keep nothing from one call to the next " in text
    adapter = Adapter.from_object(SimpleNamespace(ARRAYS="numpy", layer_norm=make_norm(keeps=False)), "mine", spec)
    _, found = explain(adapter, "layer_norm")
    assert POSSIBLE_CAUSES not in [finding.label for finding in found]


def test_the_call_that_repeats_it_in_a_notebook_names_both_cases(adapter_file):
    report = goldformer.check(adapter_file(BY_SHAPE), "layer_norm")
    (line,) = re.findall(r"^  Repeat: (goldformer\.check.*)$", str(report), re.MULTILINE)
    assert re.search(r", 'layer_norm', cases=\('ln-[\w-]+', 'ln-[\w-]+'\), dtypes='float32'\)$", line)
    assert not eval(line, {"goldformer": goldformer}).conforms
    counting = goldformer.check(adapter_file(COUNTING.format(most=6), "other.py"))
    (line,) = re.findall(r"^  Repeat: (goldformer\.check.*)$", str(counting), re.MULTILINE)
    assert line.endswith("other.py', 'softmax', dtypes='float32')")


def test_state_survives_json(explain, adapter_file, spec):
    verdicts, _ = explain(find_adapter(adapter_file(BY_SHAPE), spec), "layer_norm")
    kept = next(explained for explained in map(verdicts.explain, verdicts) if explained.diagnosis.state)
    assert Explained.from_json(json.loads(json.dumps(kept.as_json()))).diagnosis.state == kept.diagnosis.state

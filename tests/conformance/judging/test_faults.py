"""After a fault of goldformer itself the check is errored, the run goes on, and the exit status tells it apart."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

import goldformer
from goldformer.conformance.cli import main
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.imitation import Imitator
from goldformer.conformance.judging import measure
from goldformer.conformance.judging.cases import check_case, judge_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties import registry

RIGHT = """
import numpy as np

ARRAYS = "numpy"

def softmax(scores):
    if 0 in scores.shape:
        raise ValueError("scores: empty")
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""
WRONG = RIGHT.replace("return powers", "return 2 * powers")

COMMON_ENCODING = """
import math
import torch

ARRAYS = "torch"
CONVENTIONS = {"odd_d_model": "refused"}

def positional_encoding(x):
    length, d_model = x.shape[1:]
    table = torch.zeros(length, d_model, dtype=torch.float64)
    position = torch.arange(length, dtype=torch.float64).unsqueeze(1)
    steps = torch.arange(0, d_model, 2, dtype=torch.float64)
    angles = position * torch.exp(steps * (-math.log(10000.0) / d_model))
    table[:, 0::2] = torch.sin(angles)
    table[:, 1::2] = torch.cos(angles)
    return x + table.to(x)
"""


def explode(*_args, **_kwargs):
    raise LookupError("of our own")


@pytest.fixture
def judging_explodes(monkeypatch, spec):
    """One case and one property are lost to a fault in the code that compares."""
    right = measure.measure

    def measured(result, expected, case, contract, dtype):
        return explode() if case.id == "sm-several-rows" else right(result, expected, case, contract, dtype)

    monkeypatch.setattr("goldformer.conformance.judging.measure.measure", measured)
    registry.find_property(spec.properties["sm-shift"])  # imports its module, which registers it
    monkeypatch.setitem(registry._REGISTRY, "sm-shift", registry.RegisteredProperty("sm-shift", explode, {}))


@pytest.fixture
def check(adapter_file):
    """Run `goldformer check` on an adapter given by its source."""
    return lambda source, *options: CliRunner().invoke(main, ["check", adapter_file(source), *options])


def test_a_fault_loses_its_own_check_and_no_other(judging_explodes, check):
    result = check(RIGHT, "--json", "-", "--dtype", "float32")
    verdicts = {v["check"]: v for v in json.loads(result.stdout)["verdicts"] if v["component"] == "softmax"}
    lost = {id_ for id_, v in verdicts.items() if v["reason"] == "fault"}
    assert lost == {"sm-several-rows", "sm-shift"}
    assert all(v["status"] in ("passed", "skipped") for id_, v in verdicts.items() if id_ not in lost)
    fault = verdicts["sm-several-rows"]
    assert fault["status"] == "errored"
    assert fault["message"].startswith("a fault in goldformer: LookupError: of our own (test_faults.py:")
    assert fault["message"].endswith(", explode); please report it with the traceback")
    assert "Traceback (most recent call last)" in fault["detail"]


def test_a_fault_alone_is_exit_status_2_and_a_failure_beside_it_is_1(judging_explodes, check):
    alone = check(RIGHT, "--dtype", "float32")
    assert alone.exit_code == 2
    assert "goldformer: sm-several-rows (float32): a fault in goldformer: LookupError: of our own" in alone.stderr
    assert "ERRORED  sm-several-rows  (softmax, float32 on cpu)" in alone.stdout
    assert "Fault in goldformer: a fault in goldformer: LookupError" in alone.stdout
    assert "Fix first" not in alone.stdout
    assert check(WRONG, "--dtype", "float32").exit_code == 1


@pytest.mark.parametrize(
    "phase",
    [
        "imitation.Imitator.find_matches",
        "imitation.Imitator.find_late_matches",
        "explain.advise_option",
        "explain.recheck_causes",
        "explain.note_state",
        "explain.list_unknown",
        "explain.list_unsettled",
        "findings.find_failing_roots",
    ],
)
def test_a_fault_of_the_diagnosis_changes_no_verdict(phase, monkeypatch, check):
    """The sentence says that it failed; only -v prints the traceback."""
    monkeypatch.setattr(f"goldformer.conformance.diagnosis.{phase}", explode)
    broken = check(WRONG, "--dtype", "float32", "--component", "softmax")
    assert broken.exit_code == 1
    assert re.search(r"^softmax +8 +[1-9][0-9]+ .* fails", broken.stdout, re.MULTILINE)
    said = " ".join(broken.stdout.split())
    assert "Diagnosis failed: a fault in goldformer ended the search for the cause of sm-" in said
    assert "LookupError: of our own (test_faults.py:" in said
    assert "Traceback" not in said
    whole = check(WRONG, "--dtype", "float32", "--component", "softmax", "-v")
    assert (whole.exit_code, "Traceback (most recent call last)" in whole.stdout) == (1, True)


def test_a_result_is_judged_although_its_diagnosis_fails(monkeypatch):
    monkeypatch.setattr(Imitator, "find_matches", explode)
    with pytest.raises(goldformer.NonConformance, match=r"(?s)softmax is wrong in .*Diagnosis failed: a fault"):
        goldformer.assert_correct(np.full(3, 0.5), "softmax", scores=np.zeros(3))


def test_what_the_implementation_raises_is_no_fault_of_goldformer(bench, adapter_file):
    raises = bench(adapter_file(RIGHT.replace("return powers", "raise LookupError('of theirs') #")))
    assert check_case(raises.spec.cases["sm-several-rows"], raises).reason == "raised"


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        ("raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})", "raised", "its message cannot be shown"),
        ("raise ValueError('x' * 1_000_000)", "raised", "998000 characters"),
        ("return torch.nested.nested_tensor([scores])", "not-an-array", "output cannot be read: "),
    ],
)
def test_what_cannot_be_shown_or_read_is_a_verdict_about_the_implementation(body, reason, words, bench, adapter_file):
    strange = bench(adapter_file(f'import torch\nARRAYS = "torch"\ndef softmax(scores):\n    {body}\n'))
    verdict = check_case(strange.spec.cases["sm-several-rows"], strange)
    assert (verdict.reason, len(verdict.message + verdict.detail) < 40_000) == (reason, True)
    assert words in verdict.message


def test_a_call_that_is_accepted_in_bfloat16_is_diagnosed(bench, adapter_file):
    """NumPy, in which mistakes are imitated, has no bfloat16."""
    accepting = """
from goldformer.adapters.builtin import reference

ARRAYS = "torch"

def multi_head_attention(query, key, value, params, num_heads, mask=None):
    if params["w_q"].shape[1] % num_heads:
        return query
    return reference.multi_head_attention(query, key, value, params=params, num_heads=num_heads, mask=mask)
"""
    at = replace(bench(adapter_file(accepting), "bfloat16"), policy=Policy(require_refusals=True))
    judgement = judge_case(at.spec.cases["mha-heads-do-not-divide"], at)
    assert judgement.verdict.reason == "no-error"
    (match,) = Diagnosis(at.spec).explain(judgement).diagnosis.matches
    assert match.causes == ("d-model-not-divisible",)


@pytest.mark.parametrize(
    ("declares", "policy", "status", "reason"),
    [
        ("", Policy(), Status.SKIPPED, "convention"),
        ("", Policy(require_refusals=True), Status.ERRORED, "raised"),
        ("", Policy(strict=True), Status.ERRORED, "raised"),
        ('CONVENTIONS = {"odd_d_model": "extra_sine"}', Policy(), Status.ERRORED, "raised"),
    ],
)
def test_a_refusal_that_an_undeclared_option_permits_is_no_failure(
    declares, policy, status, reason, bench, adapter_file
):
    silent = bench(adapter_file(COMMON_ENCODING.replace('CONVENTIONS = {"odd_d_model": "refused"}', declares)))
    at = replace(silent, policy=policy)
    found = check_case(at.spec.cases["pe-odd-5"], at)
    assert (found.status, found.reason) == (status, reason)
    if status is Status.SKIPPED:
        assert found.message.startswith("refused, which is permitted by odd_d_model: refused: raised RuntimeError: ")


def test_the_option_that_permits_all_refusals_is_found_if_all_else_is_right(adapter_file):
    silent = COMMON_ENCODING.replace('CONVENTIONS = {"odd_d_model": "refused"}', "")
    found = {}
    for text in (silent, silent.replace("return x", "if d_model == 6: raise ValueError\n    return x")):
        report = goldformer.check(adapter_file(text))
        found[bool(report.failures)] = [f.text for f in report.findings if f.label == "Option found"]
    assert found[True] == []
    assert "only 2 calls of positional_encoding that it permits to refuse raise, and are not judged" in found[False][0]
    assert 'conventions={"odd_d_model": "refused"}' in found[False][0]


def test_the_commonest_positional_encoding_conforms_where_it_declares_that_it_refuses_odd_widths(bench, adapter_file):
    """Assigned to every second column, the cosines fit neither three nor five nor seven columns, but one."""
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        common = bench(adapter_file(COMMON_ENCODING), dtype)
        odd = {id_: check_case(common.spec.cases[id_], common) for id_ in ("pe-odd-1", "pe-odd-5", "pe-odd-7-added")}
        assert {v.status for v in odd.values()} == {Status.PASSED}

"""Checks that the solution declines are asked of nobody; what only a submission declines costs points."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.conformance.grading.answers import NOTHING_REQUIRED, Answers
from goldformer.conformance.grading.grader import GradedSubmission, Grader
from goldformer.conformance.grading.model import Check, Grade
from goldformer.conformance.grading.results.classroom import anonymous_page, class_page
from goldformer.conformance.grading.score import CheckKinds, find_declined, note_failures
from goldformer.conformance.grading.task import CheckPlan, GradingTask
from goldformer.conformance.judging.verdict import Reason, Status, Verdict
from goldformer.spec import Spec
from homework import OpenSandbox, make_task, submitted

SOFTMAX = "softmax"
#: An adapter that knows scores of at most two axes only.
ADAPTER = """import submission

ARRAYS = "numpy"


def softmax(scores):
    if scores.ndim > 2:
        raise NotImplementedError("scores of more than two axes are not asked for")
    return submission.softmax(scores)
"""
YAML = """title: Softmax
components: {softmax: 10}
dtypes: [float64, float32]
fresh: {cases: 4, seed: a}
"""
SOLUTION = """import numpy as np
def softmax(scores):
    powers = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
    return powers / powers.sum(-1, keepdims=True)
"""
#: It declines what the solution answers: rows of one number.
DECLINES_MORE = SOLUTION.replace(
    "    powers =", "    if scores.ndim == 2:\n        raise NotImplementedError('too hard')\n    powers =", 1
)

KINDS = CheckKinds(refusals=frozenset(), numeric=frozenset({"one", "two"}))


def check(name: str, dtype: str = "float64", reason: Reason = "", component: str = SOFTMAX) -> Check:
    declined = reason == "not-implemented"
    status = Status.SKIPPED if declined else Status.FAILED if reason else Status.PASSED
    verdict = Verdict(name, "case", component, "", status, reason, "", dtype, "cpu", (), "")
    return Check("published", "missing" if declined else "wrong" if reason else "correct", verdict)


# ── what a solution declines ──


def test_a_check_is_declined_if_it_is_so_in_every_dtype() -> None:
    passes = [check("one"), check("one", "float32")]
    both = [check("two", reason="not-implemented"), check("two", "float32", "not-implemented")]
    assert find_declined([*passes, *both], KINDS) == {SOFTMAX: ("two",)}
    assert find_declined([*passes, both[0], check("two", "float32")], KINDS) == {}
    assert find_declined([*passes, both[0], check("two", "float32", "wrong-value")], KINDS) == {}


@pytest.mark.parametrize("reason", ["wrong-value", "raised", "missing-output"])
def test_what_fails_is_not_declined(reason: Reason) -> None:
    assert find_declined([check("one"), check("two", reason=reason)], KINDS) == {}


def test_a_component_that_is_not_written_is_not_declined() -> None:
    unwritten = [check("one", reason="not-implemented"), check("two", reason="not-implemented")]
    assert find_declined(unwritten, KINDS) == {}
    # A call that is refused, and another component, do not show that it is written.
    assert find_declined([*unwritten, check("refused"), check("one", component="layer_norm")], KINDS) == {}


# ── a submission ──


@pytest.fixture(scope="module")
def optional(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> GradingTask:
    """The task before the solution was run."""
    return make_task(tmp_path_factory.mktemp("assignment"), spec, YAML, ADAPTER)


@pytest.fixture(scope="module")
def task(optional: GradingTask, spec: Spec) -> GradingTask:
    """The task that leaves out what the solution declines."""
    solved = grade_for(optional, spec)(SOLUTION)
    assert solved.grade.earned < 10.0
    declined = find_declined(solved.grade.checks, CheckPlan.of(optional, spec).kinds)
    return optional.require_answers(replace(solved.answers, left_out=declined))


def grade_for(task: GradingTask, spec: Spec) -> Callable[[str], GradedSubmission]:
    grader = Grader(task, spec).use_sandbox(OpenSandbox(spec))
    return lambda source: grader.grade(submitted(source))


def list_ids(grade: Grade) -> set[str]:
    return {check.verdict.check for check in grade.checks}


def test_a_right_submission_earns_everything(task, optional, spec):
    grade = grade_for(task, spec)(SOLUTION).grade
    assert (grade.outcome, grade.earned) == ("correct", 10.0)
    every = {check.subject.id for check in CheckPlan.of(optional, spec).checks}
    assert list_ids(grade) == every - {*task.answers.left_out[SOFTMAX]}


def test_what_a_submission_declines_costs_points(task, spec):
    grade = grade_for(task, spec)(DECLINES_MORE).grade
    assert (grade.outcome, grade.earned < 5.0) == ("missing", True)
    assert any(check.outcome == "missing" and check.counts for check in grade.checks)
    # Its own answers decide nothing: the plan is the one of the solution.
    assert list_ids(grade) == {check.subject.id for check in CheckPlan.of(task, spec).checks}


def test_it_decides_about_the_key_and_is_stored_with_the_answers(task, optional):
    answers = task.answers
    assert Answers.read(json.loads(json.dumps(answers.as_json()))) == answers
    assert answers.leaves_out(SOFTMAX, answers.left_out[SOFTMAX][0])
    assert not NOTHING_REQUIRED.leaves_out(SOFTMAX, answers.left_out[SOFTMAX][0])
    alone = optional.require_answers(replace(answers, left_out={}))
    assert alone.key(submitted(SOLUTION)) != task.key(submitted(SOLUTION))


def test_one_line_says_how_much_and_names_no_case(task, optional, spec):
    plan = CheckPlan.of(task, spec)
    left_out = {check.subject.id for check in plan.left_out}
    published = {id_ for id_ in left_out if not id_.startswith("fresh-")} - {*plan.kinds.advised}
    said = plan.describe_left_out()
    assert said.startswith("left out for everybody, because the solution declines it: softmax (")
    assert f"({len(published)} of " in said
    assert not any(id_ in said for id_ in left_out)
    assert CheckPlan.of(optional, spec).describe_left_out() == ""
    lines = [note_failures(grade_for(task, spec)(SOLUTION).grade)]
    assert said in class_page(lines, task.assignment, spec, left_out=said)
    assert said in anonymous_page(lines, task.assignment, spec, said)
    assert "left out for everybody" not in class_page(lines, task.assignment, spec)


def test_a_table_is_warned_of_where_no_fresh_case_of_numbers_is_left(optional, spec):
    plan = CheckPlan.of(optional, spec)
    numeric = (c.subject.id for c in plan.checks if c.origin == "fresh" and c.subject.id in plan.kinds.numeric)
    fresh = tuple(dict.fromkeys(numeric))
    (warning,) = plan.leave_out(Answers(left_out={SOFTMAX: fresh})).warn_of_tables()
    assert warning.startswith("softmax: the solution declines every fresh case of numbers")
    assert not [*plan.leave_out(Answers(left_out={SOFTMAX: fresh[1:]})).warn_of_tables()]


# ── a class of the teacher's own ──

MODULE = """import math

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query, key, value, mask=None):
        def split(x):
            return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

        q, k, v = split(self.w_q(query)), split(self.w_k(key)), split(self.w_v(value))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return self.w_o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
"""


def test_a_right_class_with_an_inferred_adapter_earns_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "submission.py").write_text(MODULE, "utf-8")
    (tmp_path / "solution.py").write_text(MODULE, "utf-8")
    (tmp_path / "assignment.yaml").write_text("title: Attention\ncomponents:\n  multi_head_attention: 100\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    inferred = CliRunner().invoke(main, ["infer", "submission.py:MultiHeadAttention", "--out", "adapter.py"])
    assert inferred.exit_code == 0, inferred.output
    result = CliRunner().invoke(main, ["assignment", "check", "assignment.yaml"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    (left_out,) = (n for n, line in enumerate(lines) if line.startswith("left out for everybody, because the solution"))
    assert "multi_head_attention (" in lines[left_out]
    assert lines[left_out + 1].startswith("- mha-distinct-sizes, ")
    assert ": w_q is not square" in lines[left_out + 1]
    assert lines[-1] == "solution.py earns all points"

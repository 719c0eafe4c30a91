"""An assignment tolerates nothing but departures from advice, as a strict run does."""

from __future__ import annotations

from goldformer.conformance.grading.model import derive_outcome
from goldformer.conformance.grading.task import CheckPlan, PlannedCheck
from goldformer.conformance.judging.cases import check_case
from goldformer.conformance.judging.verdict import Status
from homework import make_task

EMBEDDING = """
import numpy as np

ARRAYS = "numpy"


def token_embedding(ids, params):
    table = params["table"].astype("float16").astype("float32")
    return table[np.clip(ids, 0, len(table) - 1)].astype(params["table"].dtype)


def softmax(scores):
    coarse = scores.astype("float32")
    powers = np.exp(coarse - coarse.max(-1, keepdims=True, initial=-np.inf))
    return (powers / powers.sum(-1, keepdims=True)).astype(scores.dtype)
"""

ASSIGNMENT = """
title: Attention
components:
  scaled_dot_product_attention: 1
fresh:
  cases: 0
"""

ADAPTER = """
ARRAYS = "numpy"
CONVENTIONS = {"empty_row": "unspecified"}

def scaled_dot_product_attention(query, key, value, mask=None): ...
"""


def judge(bench, case, dtype="float64"):
    return PlannedCheck("published", dtype, case, case.component).judge(bench).verdict


def test_a_bad_input_that_is_accepted_costs_points(spec, bench, adapter_file):
    case, at = spec.cases["emb-id-far-too-large"], bench(adapter_file(EMBEDDING), "float64")
    assert check_case(case, at).reason == "robustness"
    assert (judge(at, case).reason, derive_outcome(judge(at, case))) == ("no-error", "wrong")


def test_a_result_of_float32_costs_points_in_float64(spec, bench, adapter_file):
    case, at = spec.cases["sm-several-rows"], bench(adapter_file(EMBEDDING), "float64")
    assert check_case(case, at).reason == "precision"
    assert (judge(at, case).reason, derive_outcome(judge(at, case))) == ("wrong-value", "wrong")
    assert judge(at, case).message.startswith("right to float32, not to float64: ")


def test_what_is_only_advised_costs_nothing(spec, bench, adapter_file):
    verdict = judge(bench(adapter_file(EMBEDDING), "float64"), spec.cases["sm-no-elements"])
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "advice")
    assert derive_outcome(verdict) == "correct"


def test_an_adapter_may_leave_a_convention_open(spec, tmp_path):
    task = make_task(tmp_path, spec, ASSIGNMENT, ADAPTER)
    kinds = CheckPlan.of(task, spec).kinds
    assert "sdpa-empty-row" in kinds.numeric
    assert "sdpa-empty-row" not in kinds.refusals

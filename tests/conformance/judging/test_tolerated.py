"""Two deviations are tolerated unless required: accepted bad inputs, and results of a coarser dtype."""

from __future__ import annotations

from dataclasses import replace

import pytest

from goldformer.conformance.judging.cases import check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property

#: Attention that takes a mask of any shape that broadcasts, and casts its result so that every dtype is kept.
ATTENTION = """
import numpy as np

ARRAYS = "numpy"
CONVENTIONS = {"empty_row": "nan"}


def scaled_dot_product_attention(query, key, value, mask=None):
    own = np.dtype(%s)
    scores = query.astype(own) @ np.swapaxes(key.astype(own), -1, -2) / np.sqrt(own.type(query.shape[-1]))
    if mask is not None:
        scores = np.where(mask, scores, own.type(-np.inf))
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        weights = powers / powers.sum(-1, keepdims=True)
    return (weights @ value.astype(own)).astype(query.dtype), weights.astype(query.dtype)
"""
EXACT, COARSE = ATTENTION % "query.dtype", ATTENTION % "'float32'"
SDPA = "scaled_dot_product_attention"


# Robustness


@pytest.fixture
def accepting(bench, adapter_file):
    """A softmax that gives back what has no elements."""
    source = "import numpy as np\nARRAYS = 'numpy'\ndef softmax(scores):\n    return scores\n"
    return bench(adapter_file(source))


def test_a_bad_input_that_is_accepted_is_tolerated(accepting, spec):
    verdict = check_case(spec.cases["sm-no-elements"], accepting)
    assert (verdict.status, verdict.reason, verdict.asks) == (Status.SKIPPED, "robustness", "refusal")
    assert verdict.message.startswith("accepts a bad scores and returns an array of shape ")
    assert verdict.is_judged
    assert verdict.is_tolerated
    assert not verdict.bad


def test_a_bad_input_that_is_accepted_fails_where_strictness_asks_for_it(accepting, spec):
    verdict = check_case(spec.cases["sm-no-elements"], replace(accepting, policy=Policy(strict=True)))
    assert (verdict.status, verdict.reason) == (Status.FAILED, "no-error")


def test_every_refusal_that_fails_is_tolerated_and_none_is_otherwise(spec, bench, adapter_file):
    """A function that returns its first argument whatever it is given accepts everything that is bad."""
    source = "ARRAYS = 'numpy'\ndef token_embedding(ids, params):\n    return params['table'][ids * 0]\n"
    at = bench(adapter_file(source))
    refusals = [case for case in spec.cases_of("token_embedding") if case.error is not None]
    lax = {case.id: check_case(case, at) for case in refusals}
    required = {case.id: check_case(case, replace(at, policy=Policy(require_refusals=True))) for case in refusals}
    failing = {id_ for id_, verdict in required.items() if verdict.bad}
    assert failing
    assert {id_ for id_, verdict in lax.items() if verdict.is_tolerated} >= failing
    assert not any(verdict.bad for verdict in lax.values())


def test_a_refusal_whose_working_call_fails_says_nothing_of_robustness(bench, adapter_file, spec):
    at = bench(adapter_file("ARRAYS = 'numpy'\ndef softmax(scores):\n    raise ValueError('always')\n"))
    verdict = check_case(spec.cases["sm-no-elements"], at)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-checkable")
    assert verdict.message.startswith("cannot be judged: ")
    assert not verdict.is_judged


# Precision


def test_a_result_of_float32_is_tolerated_in_float64(bench, adapter_file, spec):
    case, coarse = spec.cases["sdpa-causal"], adapter_file(COARSE)
    assert check_case(case, bench(coarse, "float32")).status is Status.PASSED
    verdict = check_case(case, bench(coarse, "float64"))
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "precision")
    assert verdict.message.startswith("right to float32, not to float64: weights: ")
    assert verdict.ratio > 1e5
    assert verdict.differences
    assert verdict.is_judged


@pytest.mark.parametrize("required", [{"strict": True}, {"require_precision": True}])
def test_a_result_of_float32_fails_in_float64_where_precision_is_required(required, bench, adapter_file, spec):
    at = replace(bench(adapter_file(COARSE), "float64"), policy=Policy(**required))
    assert check_case(spec.cases["sdpa-causal"], at).reason == "wrong-value"
    assert check_property(spec.properties["sdpa-key-shift"], SDPA, at).reason == "property"


def test_every_case_and_property_that_float32_breaks_in_float64_is_tolerated(bench, adapter_file, spec):
    at = bench(adapter_file(COARSE), "float64")
    cases = [check_case(case, at) for case in spec.cases_of(SDPA) if case.cotangent is None]
    laws = [check_property(p, SDPA, at) for p in spec.properties.values() if p.component == SDPA and not p.needs]
    assert [v.check for v in (*cases, *laws) if v.bad] == []
    assert sum(v.reason == "precision" for v in cases) > 20
    assert any(v.reason == "precision" for v in laws)


def test_a_wrong_value_of_float64_that_float32_shows_too_fails(bench, adapter_file, spec):
    wrong = adapter_file(EXACT.replace("/ np.sqrt(own.type(query.shape[-1]))", "/ own.type(query.shape[-1])"))
    at = bench(wrong, "float64")
    assert check_case(spec.cases["sdpa-causal"], at).reason == "wrong-value"
    assert check_property(spec.properties["sdpa-key-shift"], SDPA, at).status is Status.PASSED


def test_a_result_that_no_coarser_dtype_excuses_fails_in_float32(bench, adapter_file, spec):
    """The tolerances of half types are so wide that mistakes hide in them."""
    half = adapter_file(ATTENTION % "'float16'")
    assert check_case(spec.cases["sdpa-causal"], bench(half, "float16")).status is Status.PASSED
    assert check_case(spec.cases["sdpa-causal"], bench(half, "float32")).reason == "wrong-value"

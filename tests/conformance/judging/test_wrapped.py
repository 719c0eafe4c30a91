"""Two judgements on one case, of a function and of what a transformation made of it: whose a difference is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.runs import make_run

from goldformer.adapters.protocol import Adapter
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.conformance.judging.verdict import Status, Verdict, Wrapped
from goldformer.conformance.judging.wrapped import judge_wrapped
from goldformer.conformance.reports.remarks import make_remarks

CASE = "sm-several-rows"


def right(scores):
    return scores.softmax(-1)


def rounded(scores):
    """Right, with other digits."""
    return scores.double().softmax(-1).float().nextafter(torch.tensor(0.0))


def wrong(scores):
    return scores.softmax(-1) + 1e-3


def raises(scores):
    raise RuntimeError("cannot trace this:\nbecause of that\nand a long story")


@pytest.fixture
def judge(spec):
    """The judgement on a case with one function, and another one in the place of the wrapped one."""

    def run(plain, wrapped, case=CASE):
        def adapter(softmax):
            return Adapter.from_trusted(
                type("Mine", (), {"softmax": staticmethod(softmax)}), "mine", spec, arrays="torch"
            )

        bench = Bench(spec, adapter(plain), "float32", "cpu", wrapper="compile", wrapped=adapter(wrapped))
        return judge_wrapped(judge_case(spec.cases[case], bench))

    return run


def test_equal_results_pass(judge):
    verdict = judge(right, right).verdict
    assert (verdict.status, verdict.wrapped) == (Status.PASSED, Wrapped("compile", "equal", 0.0))


def test_other_digits_pass_with_their_distance(judge):
    verdict = judge(right, rounded).verdict
    assert verdict.status is Status.PASSED
    assert verdict.wrapped.agreement == "both right"
    assert 0 < verdict.wrapped.distance < 1


def test_what_is_wrong_only_when_wrapped_is_the_wrappers_and_no_mistake_is_looked_for_in_the_code(judge):
    judgement = judge(right, wrong)
    verdict = judgement.verdict
    assert (verdict.status, verdict.reason, verdict.wrapped.agreement) == (Status.FAILED, "wrapper", "wrapped is wrong")
    assert verdict.message.startswith(
        "compile is wrong, the function itself is right: output: 30 of 30 values are wrong"
    )
    assert verdict.differences
    assert judgement.outcome is None


@pytest.mark.parametrize(
    ("wrapped", "agreement"), [(wrong, "both wrong"), (right, "only wrapped is right"), (raises, None)]
)
def test_what_is_wrong_without_the_wrapper_is_the_codes(wrapped, agreement, judge):
    judgement = judge(wrong, wrapped)
    verdict = judgement.verdict
    assert (verdict.status, verdict.reason) == (Status.FAILED, "wrong-value")
    assert (verdict.wrapped.agreement if verdict.wrapped else None) == agreement
    # The diagnosis compares it with known mistakes.
    assert judgement.outcome is not None


def test_what_cannot_be_wrapped_is_skipped_with_a_sentence(judge):
    verdict = judge(right, raises).verdict
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-wrapped")
    assert verdict.message == "not wrapped: raised RuntimeError: cannot trace this: because of that"


def test_a_function_that_raises_by_itself_is_not_called_wrapped(judge):
    judgement = judge(raises, right)
    assert (judgement.verdict.reason, judgement.verdict.wrapped) == ("raised", None)


def test_a_result_of_another_form_is_the_wrappers(judge):
    verdict = judge(right, lambda scores: scores.softmax(-1).double()).verdict
    assert (verdict.reason, verdict.status) == ("wrapper", Status.FAILED)
    assert "output is float64, must be float32" in verdict.message


def test_a_comparison_survives_json(judge):
    verdict = judge(right, rounded).verdict
    assert Verdict.from_json(verdict.as_json()) == verdict


def test_the_line_that_repeats_a_check_has_the_wrapper(judge):
    assert judge(right, right).verdict.reproduce.endswith(" --wrap compile")


def test_the_report_counts_what_agrees_and_says_whose_a_failure_is(judge, spec):
    pairs = [(right, right), (right, rounded), (right, wrong), (wrong, wrong), (wrong, right), (right, raises)]
    verdicts = [replace(judge(*pair).verdict, check=f"case-{n}") for n, pair in enumerate(pairs)]
    said = {remark.label: remark.text for remark in make_remarks(make_run(verdicts), {}, spec)}
    assert said["Wrapped"].startswith("by compile, 5 cases: 1 equal bit for bit, 1 both within tolerance (at most 0.")
    assert said["Wrapped"].endswith(
        "1 right only without compile, 1 wrong with and without it, 1 wrong only without it"
    )
    assert said["compile is wrong"] == "case-2 (float32): the function itself is right"
    assert said["Not wrapped"].startswith(
        "1 case, which are not judged. 1 of softmax: raised RuntimeError: cannot trace"
    )
    assert "case-2" not in said["First seen"]


def test_a_run_without_a_wrapper_says_nothing_of_one(judge, spec):
    verdict = replace(judge(right, right).verdict, wrapped=None)
    assert [r.label for r in make_remarks(make_run([verdict]), {}, spec)] == []

"""Passing cases refute an explanation that would fail them, and of two mistakes that explain as much none is found."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.support.runs import rank_explanations

from goldformer.adapters import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.diagnosed import CheckDiagnosis, Explained
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.findings import describe_explanations, diagnose
from goldformer.conformance.diagnosis.neighbours import find_made
from goldformer.conformance.judging.applicability import plan
from goldformer.conformance.judging.cases import Bench, Judgement, judge_case
from goldformer.conformance.judging.verdict import Status, Verdict

ATTENTION = "scaled_dot_product_attention"


def verdict(check, status=Status.FAILED):
    return Verdict(check, "case", ATTENTION, "", status, "", "", "float32", "cpu", (), "")


def explained(check, status=Status.FAILED, **found):
    return Explained(verdict(check, status), CheckDiagnosis(**found))


class ScaledWithoutMask:
    """Attention that divides its scores by √d_k only where there is no mask, or everywhere but there."""

    ARRAYS = "numpy"

    def __init__(self, everywhere):
        self.everywhere = everywhere

    def scaled_dot_product_attention(self, query, key, value, mask=None):
        scores = query @ key.swapaxes(-1, -2)
        if mask is None and not self.everywhere:
            scores = scores / scores.dtype.type(math.sqrt(query.shape[-1]))
        if mask is not None:
            scores = np.where(mask, scores, scores.dtype.type(-1e9))
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        weights = powers / powers.sum(-1, keepdims=True)
        return weights @ value, weights


@pytest.mark.parametrize(("everywhere", "label"), [(True, "Mistake found"), (False, "Closest known mistake")])
def test_a_mistake_is_found_only_if_it_would_fail_no_case_that_passes(everywhere, label, spec):
    bench = Bench(spec, Adapter.from_object(ScaledWithoutMask(everywhere), "mine.py", spec), "float32", "cpu")
    verdicts = Diagnosis(spec).explain_all(judge_case(case, bench) for case in plan(spec, (ATTENTION,)))
    (said,) = [f for f in diagnose(verdicts, spec) if "scale-missing" in f.mistakes]
    assert said.label == label
    refuting = [v for v in verdicts if verdicts.about(v).rules_out]
    assert all(v.status is Status.PASSED for v in refuting)
    assert all(verdicts.about(v).rules_out == (("scale-missing",),) for v in refuting)
    assert len(refuting) == (not everywhere)
    assert all(f"but it would fail {v.check} too, in which yours is right." in said.text for v in refuting)


def test_a_passing_case_puts_another_explanation_first(spec):
    both = (Match(("scale-missing",), 0.1), Match(("scale-dim-v",), 0.1))
    failing = explained("one", matches=both)
    passing = explained("two", Status.PASSED, rules_out=(("scale-missing",),))
    found = rank_explanations([failing, passing], ATTENTION, spec)
    assert [(e.ids, e.certain, e.passing) for e in found] == [
        (("scale-dim-v",), True, ()), (("scale-missing",), False, ("two",)),
    ]  # fmt: skip


def test_of_two_mistakes_that_explain_as_much_both_are_possible(spec):
    both = (Match(("scale-missing",), 0.1), Match(("scale-dim-v",), 0.1))
    said = describe_explanations(rank_explanations([explained("one", matches=both)], ATTENTION, spec))
    assert [(f.label, f.mistakes) for f in said] == [
        ("Possible causes", ("scale-missing",)), ("Or", ("scale-dim-v",)),
    ]  # fmt: skip


def test_two_mistakes_at_once_do_not_make_a_single_one_less_likely(spec):
    matches = (Match(("scale-missing",), 0.1), Match(("mask-inverted", "scale-dim-v"), 0.1))
    said = describe_explanations(rank_explanations([explained("one", matches=matches)], ATTENTION, spec))
    assert [f.label for f in said if not f.is_code] == ["Mistake found", "Or"]


def test_what_a_case_rules_out_survives_the_way_from_another_process():
    passing = explained("two", Status.PASSED, rules_out=(("scale-missing",), ("mask-inverted", "scale-dim-v")))
    data = passing.as_json()
    assert Explained.from_json({**data, "rules_out": [list(ids) for ids in data["rules_out"]]}) == passing


def test_a_mistake_that_would_raise_where_the_result_is_right_is_not_found(spec):
    # Where keys and values have other sizes, these are not swapped: kv-swap could not be made there.
    steps = find_made("multi_head_attention.projected.k-v").steps
    adapter = Adapter.from_object(build_textbook(steps), "mine.py", spec)
    bench = Bench(spec, adapter, "float32", "cpu")
    verdicts = Diagnosis(spec).explain_all(judge_case(case, bench) for case in plan(spec, ("multi_head_attention",)))
    found = [f.mistakes for f in diagnose(verdicts, spec) if f.label == "Mistake found"]
    assert found == [("multi_head_attention.projected.k-v",)]


class EncodesAnyWidth:
    """Positional encoding with a base of 1000, of odd widths too, though it declares that it refuses them."""

    ARRAYS = "numpy"
    CONVENTIONS = {"odd_d_model": "refused"}  # noqa: RUF012 - as an adapter has it

    def positional_encoding(self, x):
        width = x.shape[-1]
        angles = np.arange(x.shape[1])[:, None] / 1000.0 ** (np.arange(0, width, 2) / width)
        encoding = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(len(angles), -1)[:, :width]
        return x + encoding.astype(x.dtype)


def test_a_case_that_the_declared_option_lets_anyone_refuse_refutes_nothing(spec):
    bench = Bench(spec, Adapter.from_object(EncodesAnyWidth(), "mine.py", spec), "float32", "cpu")
    verdicts = Diagnosis(spec).explain_all(judge_case(case, bench) for case in plan(spec, ("positional_encoding",)))
    assert {v.check: v.status for v in verdicts}["pe-odd-1"] is Status.PASSED
    (said,) = [f for f in diagnose(verdicts, spec) if f.mistakes]
    assert (said.label, said.mistakes) == ("Mistake found", ("pe-base",))


def test_a_failing_property_suggests_no_mistake_that_a_passing_case_rules_out(spec):
    component = "transformer"
    bench = Bench(spec, Adapter.from_object(build_textbook(only=component), "mine.py", spec), "float32", "cpu")
    passing = [judge_case(spec.cases[id_], bench) for id_ in ("tf-distinct-sizes", "tf-ordinary-plain")]
    failed = replace(
        verdict("model-causality"), kind="property", component=component, reason="property",
        catches=("causal-plus-one", "causal-flipped", "greedy-no-eos"),
    )  # fmt: skip
    run = Diagnosis(spec).explain_all([*passing, Judgement(failed, bench)])
    # Greedy decoding is no part of the model.
    assert run.list_catches(failed) == ("greedy-no-eos",)
    assert Diagnosis(spec).explain_all([Judgement(failed, bench)]).list_catches(failed) == failed.catches


@pytest.mark.parametrize(
    ("cause", "label"),
    [("scale-missing", "Closest known mistake"), ("empty_row: zeros", "Closest option")],
)
def test_an_option_is_not_called_a_mistake(cause, label, spec):
    fits, other = explained("one", matches=(Match((cause,), 0.1),)), explained("two", matches=())
    (said,) = describe_explanations(rank_explanations([fits, other], ATTENTION, spec))
    assert said.label == label

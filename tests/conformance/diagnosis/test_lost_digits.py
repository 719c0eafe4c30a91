"""Mistakes that lose digits: in code with another order of operations rounding moves their results by more."""

from __future__ import annotations

from tests.support.wild import make_bench

from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.judging.cases import judge_case


def test_a_variance_of_two_tokens_is_named_although_it_loses_digits(spec, tmp_path):
    bench = make_bench("numpy_from_scratch", "norm-over-tokens", tmp_path, spec)
    # The first is 2.2 times the tolerance away from the textbook with this mistake, the second loses digits.
    cases = ("dec-ordinary-plain", "dec-ordinary-small-input", "dec-ordinary-four-heads-of-one", "tf-one-layer-each")
    verdicts = Diagnosis(spec).explain_all(judge_case(spec.cases[id_], bench) for id_ in cases)
    (found,) = [f for f in diagnose(verdicts, spec) if f.mistakes]
    assert (found.label, found.mistakes) == (MISTAKE_FOUND, ("layer_norm.variance-along-tokens",))
    assert "in 3 of 3 failing cases" in found.text

"""The report of one verdict."""

from __future__ import annotations

from tests.support.runs import change

from goldformer.adapters import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.reports.text import list_facts


def test_a_cause_is_not_told_again_with_an_option_that_makes_no_difference(spec):
    bench = Bench(spec, Adapter.from_object(build_textbook(), "textbook", spec), "float32", "cpu")
    verdict = check_case(spec.cases["sdpa-causal"], bench)
    alone, beside = Match(("scale-missing",), 0.1), Match(("empty_row: nan", "scale-missing"), 0.1)
    equals = [text for label, text in list_facts(change(verdict, matches=(beside, alone)), spec) if label == "Equals"]
    assert equals == ["the scores are not divided by √d_k (scale-missing), within 0.1 of the tolerance"]

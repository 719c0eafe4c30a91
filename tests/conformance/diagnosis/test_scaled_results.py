"""A result that is scaled by a size of the call: the change shows in a case, and it is named with that size."""

from __future__ import annotations

import pytest

from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.neighbours import neighbours
from goldformer.conformance.judging.cases import Bench, judge_case

SDPA, FFN, OUTPUT = "scaled_dot_product_attention", "feed_forward", "output_probabilities"
FORMS = ("over-root", "over", "times-root", "times")
RESULTS = (
    (SDPA, "weigh_keys", ("q_seq", "kv_seq")),
    (SDPA, "sum_values", ("q_seq", "d_v")),
    (FFN, "activation", ("seq", "d_ff")),
    (OUTPUT, "output_logits", ("seq", "vocab")),
)


@pytest.mark.parametrize(
    ("component", "id_"),
    [(c, f"{c}.{step}.{form}.{size}") for c, step, sizes in RESULTS for size in sizes for form in FORMS],
)
def test_it_is_named_with_its_size(spec, component, id_):
    book = build_textbook(neighbours()[id_].steps, only=component)
    bench = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    cases = [c for c in spec.cases_of(component) if c.error is None and c.cotangent is None and c.size < 5000]
    judgements = [judge_case(case, bench) for case in cases]
    said = list(diagnose(Diagnosis(spec).explain_all(judgements), spec))
    (found,) = (finding for finding in said if finding.label == MISTAKE_FOUND)
    assert found.mistakes == (id_,)
    title = neighbours()[id_].title
    assert found.text.startswith(f"{title[0].upper()}{title[1:]}. It reproduces your output in ")

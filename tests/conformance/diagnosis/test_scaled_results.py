"""A result that is scaled by a size of the call: the change shows in a case, and it is named with that size."""

from __future__ import annotations

import math

import pytest

from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.neighbours.arguments import change_array
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.spec.formulas.attention import sum_values, weigh_keys
from goldformer.spec.formulas.layers import activation
from goldformer.spec.formulas.transformer import output_logits

SDPA, FFN, OUTPUT = "scaled_dot_product_attention", "feed_forward", "output_probabilities"
FORMS = (("1/√({})", -0.5), ("1/({})", -1.0), ("the root of {}", 0.5), ("{}", 1.0))
RESULTS = (
    (SDPA, weigh_keys, "weights", ("q_seq", "kv_seq")),
    (SDPA, sum_values, "output", ("q_seq", "d_v")),
    (FFN, activation, "hidden", ("seq", "d_ff")),
    (OUTPUT, output_logits, "logits", ("seq", "vocab")),
)


@pytest.mark.sample(10)
@pytest.mark.parametrize(
    ("component", "step", "name", "axis", "size", "form", "power"),
    [
        (component, step, name, axis, size, form, power)
        for component, step, name, sizes in RESULTS
        for axis, size in enumerate(sizes, -2)
        for form, power in FORMS
    ],
)
def test_it_is_named_with_its_size(spec, component, step, name, axis, size, form, power):
    def scale(result):
        return (result * math.pow(max(result.shape[axis], 1), power)).astype(result.dtype)

    book = build_textbook({step: change_array(scale)}, only=component)
    bench = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    cases = [c for c in spec.cases_of(component) if c.error is None and c.cotangent is None and c.size < 5000]
    judgements = [judge_case(case, bench) for case in cases]
    said = list(diagnose(Diagnosis(spec).explain_all(judgements), spec))
    (found,) = (finding for finding in said if finding.label == MISTAKE_FOUND)
    # The output times a number is that of values times this number.
    names = (name, "`value`") if step is sum_values else (name,)
    wanted = [f"The code uses {one} times {form.format(size)}. It reproduces your output in " for one in names]
    assert found.text.startswith(tuple(wanted)), found.text

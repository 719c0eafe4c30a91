"""New calls, with numbers that no case has, refute what fits the cases by chance, and nothing that is true."""

from __future__ import annotations

import math

import numpy as np
import pytest

from goldformer.adapters import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import CLOSEST, MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.neighbours import find_made
from goldformer.conformance.judging.cases import Bench, judge_case

ATTENTION = "scaled_dot_product_attention"


class ScaledUnlessKnown:
    """Attention that forgets the scale where it was given the queries of a case, or everywhere."""

    ARRAYS = "numpy"
    DTYPES = ("float32",)

    def __init__(self, known):
        self.known = known

    def scaled_dot_product_attention(self, query, key, value, mask=None):
        scores = query @ key.swapaxes(-1, -2)
        if self.known is not None and query.tobytes() not in self.known:
            scores = scores / scores.dtype.type(math.sqrt(query.shape[-1]))
        if mask is not None:
            scores = np.where(mask, scores, scores.dtype.type(-1e9))
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        weights = powers / powers.sum(-1, keepdims=True)
        return weights @ value, weights


@pytest.mark.parametrize(("everywhere", "label"), [(True, MISTAKE_FOUND), (False, CLOSEST)])
def test_a_name_is_found_only_if_it_holds_in_a_new_call(everywhere, label, spec):
    cases = [case for case in spec.cases_of(ATTENTION) if case.error is None and case.cotangent is None]
    known = {case.input_arrays["query"].astype(np.float32).tobytes() for case in cases}
    adapter = Adapter.from_object(ScaledUnlessKnown(None if everywhere else known), "mine.py", spec)
    bench = Bench(spec, adapter, "float32", "cpu")
    verdicts = Diagnosis(spec).explain_all(judge_case(case, bench) for case in cases)
    (said,) = [f for f in diagnose(verdicts, spec) if "scale-missing" in f.mistakes]
    assert said.label == label
    assert ("but not in a new call like " in said.text) == (not everywhere)
    assert sum(bool(verdicts.about(v).refutes) for v in verdicts) == (not everywhere)


def name(spec, *made, left_out=(), component="feed_forward", cases=(), **options):
    """Return the label and the names of the first finding about a component with some slips; "" if nothing is named."""
    book = build_textbook(*(find_made(id_).steps for id_ in made))
    bench = Bench(spec, Adapter.from_object(book, "mine", spec), "float32", "cpu")
    judged = (judge_case(case, bench) for case in spec.cases_of(component) if not cases or case.id in cases)
    verdicts = Diagnosis(spec, left_out, **options).explain_all(judged)
    first = next((f for f in diagnose(verdicts, spec) if f.mistakes), None)
    return (first.label, {*first.mistakes}) if first else ("", set())


SOFTPLUS, HALVED, BATCH = (
    f"feed_forward.{name}" for name in ("activation.softplus", "backward.b_2.halved", "backward.b_2.over-batch")
)


@pytest.mark.parametrize("isolates", [True, False])
def test_of_what_fits_the_smallest_gradient_the_one_that_fits_all_is_named(isolates, spec):
    """The only gradient that differs from that of the forward mistake is that of b_2, for two samples."""
    assert name(spec, SOFTPLUS, BATCH, isolates=isolates) == (MISTAKE_FOUND, {SOFTPLUS, BATCH})


def test_a_backward_pass_is_not_named_where_it_fits_only_some_gradients(spec):
    # What the forward pass shows counts for the mistake in it alone.
    halved, over_batch = (f"feed_forward.backward.the-biases.{name}" for name in ("halved", "over-batch"))
    assert name(spec, SOFTPLUS, halved, left_out=(halved,), isolates=False) == (CLOSEST, {SOFTPLUS, over_batch})


def test_what_only_fits_the_gradients_of_the_cases_is_not_found(spec):
    label, named = name(spec, SOFTPLUS, BATCH, left_out=(HALVED, BATCH))
    assert SOFTPLUS in named
    assert label != MISTAKE_FOUND or named == {SOFTPLUS}


def test_a_number_that_fits_one_case_is_named_if_a_new_call_confirms_it(spec):
    negated = "softmax.backward.all.negated"
    named = {"softmax.gradient.scores=times:-1"}
    one = {"left_out": (negated,), "component": "softmax", "cases": ("sm-gradient",)}
    assert name(spec, negated, **one) == (MISTAKE_FOUND, named)
    assert name(spec, negated, **one, isolates=False) == ("", set())

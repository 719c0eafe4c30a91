"""Explanations that fit equally well in float32 are told apart by calls that raise, and by calls in float64."""

from __future__ import annotations

from typing import Any

import pytest

from goldformer.adapters import Adapter
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import CLOSEST, MISTAKE_FOUND, POSSIBLE_CAUSES
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.neighbours import find_made
from goldformer.conformance.judging.cases import Bench, judge_case

ATTENTION = "scaled_dot_product_attention"


def build(spec, *ids, **declared) -> Adapter:
    from goldformer.adapters.textbook.build import build_textbook

    layers = (find_made(id_).steps for id_ in ids)
    return Adapter.from_object(build_textbook(*layers, **declared), "mine", spec)


def name(spec, adapter, component=ATTENTION, **options: Any):
    """Return the first name of a component's failures in float32, with its label."""
    bench = Bench(spec, adapter, "float32", "cpu")
    verdicts = Diagnosis(spec, **options).explain_all(judge_case(case, bench) for case in spec.cases_of(component))
    named = [f for f in diagnose(verdicts, spec) if f.mistakes]
    return named[0].label, named[0].mistakes


@pytest.mark.parametrize("made", ["mask-bwd", "mask-added-1e9"])
def test_float64_tells_two_mistakes_apart_that_float32_does_not(spec, made):
    assert name(spec, build(spec, made)) == (MISTAKE_FOUND, (made,))


@pytest.mark.parametrize("made", ["mask-bwd", "mask-added-1e9"])
def test_without_a_call_in_float64_both_are_possible(spec, made):
    assert name(spec, build(spec, made, DTYPES=("float32",)))[0] == POSSIBLE_CAUSES
    assert name(spec, build(spec, made), isolates=False)[0] == POSSIBLE_CAUSES


def test_a_mistake_that_float64_refutes_is_not_found(spec):
    label, mistakes = name(spec, build(spec, "mask-bwd"), left_out=("mask-bwd",))
    assert (label, mistakes) == (CLOSEST, ("mask-added-1e9",))


def test_of_two_pairs_the_one_that_fits_in_float64_is_found(spec):
    label, mistakes = name(spec, build(spec, "mask-inverted", "fill-dampens"))
    assert label == MISTAKE_FOUND
    assert set(mistakes) == {"mask-inverted", "fill-dampens"}


@pytest.mark.parametrize("made", ["mask-broadcast-bh", "mask-repeat-order"])
def test_a_call_that_raises_tells_apart_what_raises_there_and_what_does_not(spec, made):
    assert name(spec, build(spec, made), "multi_head_attention") == (MISTAKE_FOUND, (made,))


def test_what_passes_in_another_component_decides_between_equals(spec):
    adapter = build(spec, "final-norm-decoder-only", CONVENTIONS={"final_norm": "after_stack"})
    bench = Bench(spec, adapter, "float32", "cpu")
    cases = [c for component in ("encoder", "decoder") for c in spec.cases_of(component) if not c.full_size]
    verdicts = Diagnosis(spec).explain_all(judge_case(case, bench) for case in cases)
    named = [f for f in diagnose(verdicts, spec) if f.mistakes]
    assert named[0].mistakes == ("final-norm-decoder-only",)


def find(spec, adapter, component):
    bench = Bench(spec, adapter, "float32", "cpu")
    cases = [case for case in spec.cases_of(component) if not case.full_size]
    return list(diagnose(Diagnosis(spec).explain_all(judge_case(case, bench) for case in cases), spec))


def test_two_mistakes_that_no_case_tells_apart_are_one_in_other_words(spec):
    found = find(spec, build(spec, "scale-no-root"), "decoder_layer")
    told = [(f.label, f.mistakes) for f in found if f.mistakes]
    assert told == [(MISTAKE_FOUND, ("scale-twice",)), ("Or", ("scale-no-root",))]
    assert next(f for f in found if f.label == "Or").text.endswith("No case tells the two apart.")


def test_rows_that_no_case_judges_tell_two_mistakes_apart(spec):
    adapter = build(spec, "pad-mask-zeroes-positions", only="transformer", CONVENTIONS={"output_layer": "without_bias"})
    found = find(spec, adapter, "transformer")
    assert [(f.label, f.mistakes) for f in found if f.mistakes] == [(MISTAKE_FOUND, ("pad-mask-zeroes-positions",))]

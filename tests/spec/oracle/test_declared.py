"""Cases derived under what an implementation declares: their number, their values, and what they reveal."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.spec.casefile import read_cases
from goldformer.spec.formulas.options import OPTIONS
from goldformer.spec.oracle import declared
from goldformer.spec.oracle.declared import AS_DECLARED, LEAST, count_missing, derive_declared
from goldformer.spec.oracle.run import derive_golden
from goldformer.spec.yamlfile import YamlFile

LEARNED = {"positions": "learned"}
MODERN = {
    "norm_placement": "pre", "final_norm": "after_stack", "output_layer": "tied", "embedding_scale": "sqrt_d_model",
}  # fmt: skip
BARE = {"biases": "none", "output_layer": "without_bias", "layer_norm_eps": "1e-6"}
TIMING = {"pe_layout": "tensor2tensor", "biases": "not_in_attention", "output_layer": "tied_with_bias"}


def name_all(spec, conventions):
    return {name: convention.default for name, convention in spec.conventions.items()} | conventions


def make_bench(spec, conventions, *mistakes):
    layers = [OPTIONS[item] for item in conventions.items() if item in OPTIONS]
    book = build_textbook(*layers, *mistakes, CONVENTIONS=conventions)
    return Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")


@pytest.mark.sample(2)
@pytest.mark.parametrize("conventions", [{**LEARNED, **MODERN}, {**LEARNED, **BARE}, {**TIMING, **MODERN}, TIMING])
def test_every_combination_of_the_model_has_twenty_right_cases(conventions, spec):
    options = name_all(spec, conventions)
    missing = count_missing("transformer", options, spec)
    derived = derive_declared("transformer", options, spec)
    assert 0 < missing == sum(case.cotangent is None for case in derived.values()) <= LEAST + 1
    bench = make_bench(spec, conventions)
    for id_, case in derived.items():
        verdict = judge_case(case, bench).verdict
        assert id_ == verdict.check == f"{id_.removesuffix(AS_DECLARED)}{AS_DECLARED}"
        assert verdict.status.name == "PASSED", verdict.message
        assert verdict.ratio is not None
        assert verdict.ratio < 0.5


@pytest.mark.sample(1)
@pytest.mark.parametrize("component", ["greedy_decode", "beam_search"])
def test_a_search_has_enough_right_cases_to_conform(component, spec):
    conventions = {**LEARNED, **MODERN}
    derived = derive_declared(component, name_all(spec, conventions), spec)
    verdicts = [judge_case(case, make_bench(spec, conventions)).verdict for case in derived.values()]
    assert [verdict.status.name for verdict in verdicts] == 12 * ["PASSED"]


def test_nothing_is_derived_where_stored_cases_fit(spec):
    for component in ("softmax", "encoder_layer", "decoder", "transformer"):
        for conventions in ({}, MODERN, BARE):
            options = name_all(spec, conventions)
            assert count_missing(component, options, spec) == 0
            assert derive_declared(component, options, spec) == {}


@pytest.mark.sample(4)
@pytest.mark.parametrize("component", ["transformer", "greedy_decode", "beam_search", "encoder_layer", "decoder"])
@pytest.mark.parametrize("conventions", [{}, MODERN, BARE, {**LEARNED, **MODERN}, TIMING, {"norm_placement": "pre"}])
def test_numbers_with_all_bits_are_judged_under_every_combination(component, conventions, spec):
    """Weights that are kept in a half type must not conform because of an option that is declared."""
    options = name_all(spec, conventions)
    stored = [case for case in spec.cases_of(component) if not case.explain_unfit(options)]
    derived = derive_declared(component, options, spec).values()
    (case,) = [case for case in (*stored, *derived) if case.has_all_bits]
    # A search has no margin left in a half type, and is judged in float32.
    assert judge_case(case, make_bench(spec, conventions)).verdict.status.name == "PASSED"
    mistake = implementations()["weights-in-bfloat16"].steps
    assert judge_case(case, make_bench(spec, conventions, mistake)).verdict.bad


def test_a_stored_case_has_the_same_values_when_it_is_declared(spec):
    options = name_all(spec, MODERN)
    stored = [case for case in spec.cases_of("transformer") if "-ordinary-" in case.id and case.conventions]
    file = YamlFile.read(stored[0].place.file)
    entries = {entry["id"]: entry for entry in file.data["cases"]}
    for case in islice(stored, 4):
        entry = declared._declare(case, entries[case.id], options, spec)
        alone = replace(file, data={"component": "transformer", "cases": [entry]})
        (again,) = read_cases(alone, spec.contracts, spec.conventions, underived=True)
        (derived,) = derive_golden(again, spec).golden.options.values()
        expected = case.expects(options)
        assert derived.keys() == expected.keys()
        for name, golden in derived.items():
            np.testing.assert_array_equal(golden.values, expected[name].values)
            # The largest of 64 evaluations, whose roundoffs are other draws: a fraction of the slack apart.
            assert 0.5 < golden.error_scale / expected[name].error_scale < 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("mistake", ["residual-missing", "cross-mask-absent", "tgt-masks-joined-or"])
def test_a_mistake_under_a_rare_combination_is_named(mistake, spec):
    conventions = {**LEARNED, **MODERN}
    derived = derive_declared("transformer", name_all(spec, conventions), spec)
    bench = make_bench(spec.with_cases(derived), conventions, implementations()[mistake].steps)
    judgements = [judge_case(case, bench) for case in derived.values()]
    findings = list(diagnose(Diagnosis(bench.spec).explain_all(judgements), bench.spec))
    assert [finding.mistakes for finding in findings if finding.label == MISTAKE_FOUND] == [(mistake,)]

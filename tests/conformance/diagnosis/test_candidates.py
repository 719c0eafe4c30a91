"""The textbook with a candidate: what one run tells about the next."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from goldformer.conformance.diagnosis import candidates
from goldformer.conformance.diagnosis.candidates import Candidate, Textbooks
from goldformer.conformance.diagnosis.failure import FailingCase
from goldformer.conformance.judging.gradient import invoke_gradient
from goldformer.conformance.judging.invoke import Result

ATTENTION = "scaled_dot_product_attention"
#: Two mistakes that are one in other words, and one that differs from them.
FIRST, TWIN, OTHER = (
    Candidate((id_,))
    for id_ in (f"{ATTENTION}.query.first-row-zeroed", f"{ATTENTION}.score_keys.first-row-zeroed", "scale-missing")
)


@pytest.fixture
def failing(spec):
    """A case that failed with some result, in a dtype."""

    def make(case_id, outputs, dtype="float32"):
        case = spec.cases[case_id]
        contract = spec.contracts[case.component]
        declared = {name: spec.conventions[name].default for name in contract.conventions}
        return FailingCase(case, contract, Result(outputs, 0.0), case.expects(declared), dtype, declared)

    return make


@pytest.fixture
def formed(monkeypatch):
    """The gradients that are formed, in a list."""
    found = []

    def form(*args):
        found.append(invoke_gradient(*args))
        return found[-1]

    monkeypatch.setattr(candidates, "invoke_gradient", form)
    return found


def test_candidates_with_the_same_derivatives_share_a_gradient(spec, failing, formed):
    failure = failing("mha-gradient-one-head", {})
    shared = Textbooks(spec, None)
    results = {candidate: shared.imitate(candidate, failure) for candidate in (FIRST, TWIN, OTHER)}
    assert len(formed) == 2
    for candidate, result in results.items():
        alone = Textbooks(spec, None).imitate(candidate, failure)
        assert isinstance(alone, Result)
        assert isinstance(result, Result)
        assert all(np.allclose(alone.outputs[name], result.outputs[name], rtol=1e-6) for name in alone.outputs)


@pytest.mark.parametrize(
    ("case", "dtype"), [("mha-gradient-one-head", "float64"), ("sdpa-gradient-exactly-zero", "float32")]
)
def test_where_each_digit_counts_each_candidate_has_a_gradient_of_its_own(case, dtype, spec, failing, formed):
    textbooks = Textbooks(spec, None)
    for candidate in (FIRST, TWIN):
        textbooks.imitate(candidate, failing(case, {}, dtype))
    assert len(formed) == 2


def test_one_derivative_rules_out_what_differs_and_nothing_that_fits(spec, failing, formed):
    textbooks = Textbooks(spec, None)
    for case in ("mha-gradient", "sdpa-gradient", "dec-ordinary-gradient"):
        failure = failing(case, {})
        made = textbooks.imitate(FIRST, failure)
        assert isinstance(made, Result)
        # Far from the imitation for honest code, everywhere in the same direction.
        moved = {name: values + 0.5 * bound(failure, name, values) for name, values in made.outputs.items()}
        seen = replace(failure, actual=Result(moved, 0.0))
        assert seen.distance(made) is not None
        formed.clear()
        assert [textbooks.differs_along(one, seen) for one in (FIRST, TWIN, OTHER)] == [False, False, True]
        assert not formed


def bound(failure, name, values):
    """The tolerance of an imitated gradient, which is 1/ratio of a difference of 1."""
    return 1 / failure._measure(name, values + 1.0, failure._use_as_golden(name, failure.expected[name], values))


def test_only_the_gradients_that_are_compared_are_formed(spec, failing):
    failure = failing("dec-ordinary-gradient", {})
    made = Textbooks(spec, None).imitate(FIRST, failure)
    assert isinstance(made, Result)
    assert made.outputs.keys() == failure.expected.keys() < failure.contract.results_of(failure.case).keys()

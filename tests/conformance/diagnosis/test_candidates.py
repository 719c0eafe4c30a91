"""The textbook with a candidate: what one run tells about the next."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis import batches, candidates
from goldformer.conformance.diagnosis.candidates import Candidate, Textbooks
from goldformer.conformance.diagnosis.failure import FailingCase
from goldformer.conformance.judging.gradient import invoke_gradient
from goldformer.conformance.judging.invoke import Result, invoke, read_arguments
from goldformer.spec.formulas.decoding import model_logits
from goldformer.spec.formulas.layers import encoder, run_encoder_layer
from goldformer.spec.formulas.steps import Replacements, around

ATTENTION = "scaled_dot_product_attention"
FIRST = Candidate((f"{ATTENTION}.softmax.not-normalised",))


@pytest.fixture
def failing(spec):
    """A case that failed with some result, in a dtype."""

    def make(case_id, outputs, dtype="float32"):
        case = spec.cases[case_id]
        contract = spec.contracts[case.component]
        declared = {name: spec.conventions[name].default for name in contract.conventions}
        return FailingCase(case, contract, Result(outputs, 0.0), case.expects(declared), dtype, declared)

    return make


def note_results(name, function, monkeypatch):
    """Return the list of the results of a function, which grows with its calls."""
    found = []

    def run(*args, **named):
        found.append(function(*args, **named))
        return found[-1]

    monkeypatch.setattr(candidates, name, run)
    return found


@pytest.fixture
def formed(monkeypatch):
    """The gradients that are formed, in a list."""
    return note_results("invoke_gradient", invoke_gradient, monkeypatch)


@pytest.fixture
def called(monkeypatch):
    """The results of forward passes, in a list."""
    return note_results("invoke", invoke, monkeypatch)


def test_only_the_gradients_that_are_compared_are_formed(spec, failing):
    failure = failing("dec-ordinary-gradient", {})
    made = Textbooks(spec, None).imitate(FIRST, failure)
    assert isinstance(made, Result)
    assert made.outputs.keys() == failure.expected.keys() < failure.contract.results_of(failure.case).keys()


def test_a_mistake_of_a_backward_pass_takes_no_run_of_its_own_where_there_is_none(spec, failing, called):
    textbooks, forward = Textbooks(spec, None), failing("mha-equal-lengths", {})
    both = Candidate(("softmax-bwd", *FIRST.mistakes))
    assert textbooks.imitate(both, forward) is textbooks.imitate(FIRST, forward) is textbooks.imitate(FIRST, forward)
    assert len(called) == 1


def test_an_option_is_not_told_with_a_mistake_that_replaces_all_that_it_changes():
    eps = Candidate(options=(("layer_norm_eps", "1e-12"),))
    placement = Candidate(options=(("norm_placement", "pre"),))
    other = Candidate(("layer_norm.eps.1e-10",))
    assert eps.combine(other) is other.combine(eps) is None
    assert placement.combine(other) == Candidate(other.mistakes, placement.options)


def test_each_cause_of_three_can_be_left_out():
    three = ("pe-double-exp", "pe-cos-exp", "tied-logit-scale")
    assert Candidate(three).leave_one_out() == [Candidate(three[1:]), Candidate(three[::2]), Candidate(three[:2])]
    pre = ("norm_placement", "pre")
    assert set(Candidate(three[:2], (pre,)).leave_one_out()) == {
        Candidate(three[:2]), Candidate(three[:1], (pre,)), Candidate(three[1:2], (pre,)),
    }  # fmt: skip


def test_one_norm_has_no_two_eps():
    one, other, of_next = (
        Candidate((f"encoder_layer.edit@run_sublayer#{number}/layer_norm_eps/result@number:{eps}",))
        for number, eps in ((0, "1e-08"), (0, "1e-12"), (1, "1e-12"))
    )
    assert one.combine(other) is None
    assert one.combine(of_next) is not None
    assert Candidate(("layer_norm.eps.1e-08",)).combine(Candidate(("layer_norm.eps.1e-10",))) is None


def test_the_sentences_of_a_beam_are_read_in_one_call(spec, monkeypatch):
    seen = []

    def note(source, target, task):
        seen.append(len(target))
        return model_logits(source, target, task)

    monkeypatch.setattr(batches, "model_logits", note)
    case = spec.cases["beam-small-four-steps"]
    options = {name: spec.conventions[name].default for name in case.conventions}
    one = FailingCase(case, spec.contracts["beam_search"], Result({}, 0.0), {}, "float64", options)
    together = Textbooks(spec, None).run(Candidate(), one)
    assert max(seen) > 1
    monkeypatch.setattr(candidates, "IN_BATCHES", {})
    alone = Textbooks(spec, None).run(Candidate(), one)
    assert isinstance(together, Result)
    assert isinstance(alone, Result)
    assert np.array_equal(together.outputs["ids"], alone.outputs["ids"])


@pytest.mark.parametrize("id_", ["beam-small-four-steps", "greedy-ordinary-two-sources"])
def test_the_encoder_runs_once_for_the_words_that_follow_one_source(id_, spec, monkeypatch):
    read = []

    def note(original, x, **others):
        read.append(x.tobytes())
        return original(x, **others)

    case = spec.cases[id_]
    options = {name: spec.conventions[name].default for name in case.conventions}
    one = FailingCase(case, spec.contracts[case.component], Result({}, 0.0), {}, "float64", options)
    counting: Replacements = {run_encoder_layer: around(note)}
    monkeypatch.setattr(candidates, "IN_BATCHES", {**batches.IN_BATCHES, **counting})
    once, seen = Textbooks(spec, None).run(Candidate(), one), len(read)
    kept: Replacements = {step: change for step, change in batches.IN_BATCHES.items() if step is not encoder}
    monkeypatch.setattr(candidates, "IN_BATCHES", {**kept, **counting})
    again = Textbooks(spec, None).run(Candidate(), one)
    assert seen == len({*read}) < len(read) - seen
    assert isinstance(once, Result)
    assert isinstance(again, Result)
    assert once.is_identical(again)


def test_greedy_decoding_in_one_batch_gives_what_each_sample_gives(spec):
    """A mistake that mixes samples shows there: the mask of the first sample is that of every sample."""
    cases = [case for case in spec.cases_of("greedy_decode") if case.error is None and case.size < 2000][:12]
    for case in cases:
        options = {name: spec.conventions[name].default for name in case.conventions}
        one = FailingCase(case, spec.contracts["greedy_decode"], Result({}, 0.0), {}, "float64", options)
        textbook = Adapter.from_object(build_textbook(only="greedy_decode"), "textbook", spec)
        alone = invoke(textbook, one.contract, read_arguments(case), "float64", "cpu")
        together = Textbooks(spec, None).run(Candidate(), one)
        assert isinstance(together, Result)
        assert np.array_equal(together.outputs["ids"], alone.outputs["ids"])
        assert np.allclose(together.outputs["scores"], alone.outputs["scores"])
    seen = replace(one, case=spec.cases["greedy-ordinary-two-sources"])
    right, wrong = (Textbooks(spec, None).run(Candidate(ids), seen) for ids in ((), ("mask-first-sample",)))
    assert isinstance(right, Result)
    assert isinstance(wrong, Result)
    assert not right.is_identical(wrong)

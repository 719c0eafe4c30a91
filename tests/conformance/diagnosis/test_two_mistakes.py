"""Two mistakes at once: both are named, also where one of them shows in few cases only, and nothing else is claimed."""

from __future__ import annotations

import importlib
import random
from types import SimpleNamespace

import numpy as np
import pytest

from goldformer.adapters.layouts import require_square_projections
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import BECAUSE, CLOSEST, FIX_FIRST, FIX_TOO, MISTAKE_FOUND, OPTION_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.mistakes.derivatives import keep_right_derivatives
from goldformer.conformance.diagnosis.neighbours import find_made
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.spec.formulas.decoding import model_logits
from goldformer.spec.formulas.options import OPTIONS
from goldformer.spec.formulas.steps import around, replacing
from goldformer.spec.formulas.transformer import memory_mask
from repository import REPOSITORY

OVER_BATCH = "feed_forward.backward.w_2.over-batch"
HALVED = "feed_forward.backward.w_2.halved"
ABSOLUTE = "scaled_dot_product_attention.edit@scaled_dot_product_attention/key@absolute"
OVER_HEADS = "scaled_dot_product_attention.softmax.over-heads"


@pytest.fixture
def truth(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    return importlib.import_module("benchmarks.truth")


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    return importlib.import_module("benchmarks.diagnosis")


def run(spec, code, component, left_out=()):
    """Return the verdicts and the findings of one component's cases."""
    at = Bench(spec, code, "float32", "cpu")
    judgements = [judge_case(case, at) for case in spec.cases_of(component) if not case.full_size]
    verdicts = Diagnosis(spec, left_out).explain_all(judgements)
    return verdicts, list(diagnose(verdicts, spec))


GELU, TANH = ("activation", "gelu"), ("activation", "gelu_tanh")
STD = ("norm_divisor", "std_plus_eps")
PRE, EPS, FINAL = ("norm_placement", "pre"), ("layer_norm_eps", "1e-6"), ("final_norm", "after_stack")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("made", "options", "component"),
    [
        ((), (GELU, PRE, EPS), "encoder_layer"),
        ((), (TANH, STD, EPS, PRE), "decoder_layer"),
        (("ln-unbiased",), (TANH,), "encoder_layer"),
        # Its calls have no parameters of the last norm, which it has all the same.
        ((), (PRE, FINAL), "encoder"),
    ],
)
def test_what_is_done_on_purpose_is_found_with_just_the_undeclared_options(spec, made, options, component):
    layers = [OPTIONS[option] for option in options] + [find_made(id_).steps for id_ in made]
    book = build_textbook(*layers, only=component, CONVENTIONS={})
    at = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    cases = [c for c in spec.cases_of(component) if c.error is None and c.cotangent is None and not c.random]
    some = sorted(cases, key=lambda case: case.size)[:12] + [c for c in cases if "-ordinary-" in c.id][:4]
    verdicts = Diagnosis(spec).explain_all([judge_case(case, at) for case in {case.id: case for case in some}.values()])
    (found,) = (f for f in diagnose(verdicts, spec) if f.label in (MISTAKE_FOUND, OPTION_FOUND))
    assert set(found.mistakes) == set(made)
    assert all(f"{name}: {option} (" in found.text for name, option in options)
    assert ("Declare CONVENTIONS" in found.text) == bool(options)


def test_what_shows_without_the_undeclared_option_is_searched_first(spec):
    """The smallest cases are those of rows without a key, in which two causes at once hide one another."""
    order, zeros = (
        find_made("fused_multi_head_attention.order.v-q-k"),
        ("empty_row", "zeros"),
    )
    book = build_textbook(
        OPTIONS[zeros], keep_right_derivatives(order.steps), only="fused_multi_head_attention", CONVENTIONS={}
    )
    _, said = run(spec, Adapter.from_object(book, "mine.py", spec), "fused_multi_head_attention")
    (found,) = (f for f in said if f.label == MISTAKE_FOUND)
    assert found.mistakes == (order.id, "fused_multi_head_attention.backward.of-right-code")
    assert "also has empty_row: zeros (" in found.text


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("made", "component"),
    [
        # The softmax runs over the heads only where there are heads.
        ((ABSOLUTE, OVER_HEADS), "scaled_dot_product_attention"),
        # The second one shows in gradients only.
        (("ln-square", "layer_norm.backward.x.over-tokens"), "layer_norm"),
        # What is done on purpose in a part that is not judged by itself, and a neighbour of the layer.
        (("ln-unbiased", "encoder_layer.sublayer-1.each-normed"), "encoder_layer"),
        # No case fits one of them by itself.
        (("positional_encoding.positions.from-two", "positional_encoding.frequency-inverted"), "positional_encoding"),
    ],
)
def test_both_are_found(spec, truth, bench, made, component):
    code = truth.build_mistaken(made, spec)
    verdicts, findings = run(spec, code, component)
    (finding,) = [f for f in findings if f.label == MISTAKE_FOUND]
    (claim,) = bench.list_claims(verdicts, findings, spec)
    assert len(finding.mistakes) == 2
    assert truth.is_true(claim, code, made, spec)


def test_slips_of_both_kinds_of_layer_explain_the_model_together(spec):
    # Each kind of layer has a slip of its own, and the model has both.
    made = (
        "encoder_layer.order.feed_forward.self_attention.own-norms",
        "decoder_layer.memory-normed-by.cross_attention",
    )
    components = ("decoder_layer", "encoder_layer", "transformer")
    at = Bench(spec, Adapter.from_object(build_textbook(*(find_made(id_).steps for id_ in made)), "mine.py", spec),
               "float32", "cpu")  # fmt: skip
    chosen = [c for name in components for c in spec.cases_of(name) if "-ordinary-p" in c.id and c.cotangent is None]
    findings = list(diagnose(Diagnosis(spec).explain_all([judge_case(case, at) for case in chosen]), spec))
    assert [(f.label, f.text) for f in findings if f.label in (FIX_FIRST, FIX_TOO, BECAUSE)] == [
        (FIX_FIRST, "decoder_layer"), (FIX_FIRST, "encoder_layer"), (BECAUSE, "transformer"),
    ]  # fmt: skip
    assert sum(f.label == MISTAKE_FOUND for f in findings) == 2


def test_a_model_that_errs_only_while_it_decodes_is_named(spec):
    def forget_mask(original, *given):
        with replacing({memory_mask: around(lambda own, *ids: np.ones_like(own(*ids)))}):
            return original(*given)

    book = build_textbook({model_logits: around(forget_mask)}, only="greedy_decode")
    at = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    chosen = [c for c in spec.cases_of("greedy_decode") if "-ordinary-" in c.id][:10]
    findings = list(diagnose(Diagnosis(spec).explain_all([judge_case(case, at) for case in chosen]), spec))
    assert [f.mistakes for f in findings if f.label == MISTAKE_FOUND] == [("cross-mask-absent",)]


def test_a_passing_gradient_refutes_what_is_written_by_hand(spec, truth):
    # Averaged over two samples, a gradient is halved; where there is one sample, it is right.
    code = truth.build_mistaken((OVER_BATCH,), spec)
    _, findings = run(spec, code, "feed_forward", left_out=(OVER_BATCH,))
    (found,) = [f for f in findings if f.label in (MISTAKE_FOUND, CLOSEST)]
    assert found.label == MISTAKE_FOUND
    assert found.text.startswith("The gradient of w_2 is divided by the size of axis −3 of x (batch).")
    assert found.mistakes != (HALVED,)


def test_a_claim_is_true_if_the_code_does_it(spec, truth):
    made = (ABSOLUTE, OVER_HEADS)
    code = truth.build_mistaken(made, spec)
    component = "scaled_dot_product_attention"
    assert truth.is_true(truth.Claim(component, made), code, made, spec)
    assert not truth.is_true(truth.Claim(component, made[:1]), code, made, spec)
    code = truth.build_mistaken((OVER_BATCH,), spec)
    assert not truth.is_true(truth.Claim("feed_forward", (HALVED,)), code, (OVER_BATCH,), spec)


def test_the_second_of_a_pair_is_made_in_the_same_component_or_in_a_part(spec, bench):
    drawn = bench.draw_pairs(random.Random(0))
    for _ in range(50):
        first, second = map(bench.find_component, next(drawn).made)
        assert second == first or second in spec.list_dependencies(first)


def test_one_change_is_told_before_two_mistakes_that_amount_to_it(spec):
    # Divided by √d_model, and not by √d_k: where all heads are as wide as the model, that is the root of their number.
    id_ = "scaled_dot_product_attention.divisor.root.heads"
    book = build_textbook(find_made(id_).steps, only="multi_head_attention")

    def multi_head_attention(*args, params, **named):
        require_square_projections(params)
        return book.multi_head_attention(*args, params=params, **named)

    code = SimpleNamespace(ARRAYS="numpy", multi_head_attention=multi_head_attention)
    _, findings = run(spec, Adapter.from_object(code, "mine", spec), "multi_head_attention")
    assert [(f.label, f.mistakes) for f in findings if f.mistakes] == [(MISTAKE_FOUND, (id_,))]


def round_otherwise(function, far, one_in):
    """Return a layer whose outputs are moved in one call of some: by so many units of float32's rounding."""
    calls = []

    def run(*args, **named):
        calls.append(None)
        found = function(*args, **named)
        moved = found["output"] * (1 + far * np.finfo(np.float32).eps)
        return {**found, "output": moved.astype(found["output"].dtype)} if len(calls) % one_in == 0 else found

    return run


@pytest.mark.parametrize(("one_in", "label"), [(12, MISTAKE_FOUND), (2, CLOSEST)], ids=["rare", "often"])
def test_what_misses_few_cases_by_rounding_explains_them_too(one_in, label, spec):
    book = build_textbook(find_made("norm-before-add").steps, only="encoder_layer")
    book.encoder_layer = round_otherwise(book.encoder_layer, 40, one_in)
    at = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    chosen = [c for c in spec.cases_of("encoder_layer") if "-ordinary-" in c.id and c.cotangent is None]
    findings = list(diagnose(Diagnosis(spec).explain_all([judge_case(case, at) for case in chosen]), spec))
    assert [f.mistakes for f in findings if f.label == label] == [("norm-before-add",)]


def test_an_option_that_another_component_contradicts_comes_after_a_mistake(spec):
    wrong = build_textbook(find_made("final-norm-missing").steps, only="encoder")
    book = build_textbook(only="decoder", CONVENTIONS={"final_norm": "after_stack"})
    book.encoder = wrong.encoder
    at = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    chosen = [c for name in ("encoder", "decoder") for c in spec.cases_of(name) if "-ordinary-p" in c.id]
    findings = list(diagnose(Diagnosis(spec).explain_all([judge_case(case, at) for case in chosen]), spec))
    assert OPTION_FOUND not in {f.label for f in findings}
    assert [f.mistakes for f in findings if f.label == MISTAKE_FOUND] == [("final-norm-missing",)]


def test_options_of_another_component_are_assumed_for_a_slip_that_no_catalogue_lists(spec):
    slip = "decoder_layer.memory-normed-by.cross_attention"
    options = [OPTIONS[PRE], OPTIONS[EPS]]
    book = build_textbook(*options, only="encoder_layer")
    book.decoder_layer = build_textbook(*options, find_made(slip).steps, only="decoder_layer").decoder_layer
    at = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    names = ("encoder_layer", "decoder_layer")
    chosen = [c for name in names for c in spec.cases_of(name) if "-ordinary-" in c.id and c.cotangent is None]
    findings = list(diagnose(Diagnosis(spec).explain_all([judge_case(case, at) for case in chosen]), spec))
    assert [f.mistakes for f in findings if f.label == MISTAKE_FOUND] == [(slip,)]
    (found,) = [f for f in findings if f.label == MISTAKE_FOUND]
    assert "norm_placement: pre" in found.text


def test_options_show_while_the_parts_are_silent_and_the_slip_is_found_under_them(spec):
    slip = "multi_head_attention.edit@multi_head_attention/w_q@read:multi_head_attention/w_k"
    steps = [OPTIONS[PRE], OPTIONS[FINAL], find_made(slip).steps]
    book = build_textbook(*steps, only="encoder_layer")
    book.encoder = build_textbook(*steps, only="encoder").encoder
    at = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    of_layer, of_stack = (
        [judge_case(c, at) for c in spec.cases_of(name) if "-ordinary-" in c.id and c.cotangent is None]
        for name in ("encoder_layer", "encoder")
    )
    judgements = [*of_layer, *of_stack]
    found = [f for f in diagnose(Diagnosis(spec).explain_all(judgements), spec) if f.label == MISTAKE_FOUND]
    of_layers = ("encoder_layer.edit@encoder_layer/self_attention.w_q@read:encoder_layer/self_attention.w_k",)
    assert len(found) == 2
    assert all(f.mistakes in ((slip,), of_layers) for f in found)
    assert all("norm_placement: pre" in f.text for f in found)
    assert "final_norm: after_stack" in found[1].text
    alone = list(diagnose(Diagnosis(spec, isolates=False).explain_all(of_layer), spec))
    assert MISTAKE_FOUND not in {f.label for f in alone}

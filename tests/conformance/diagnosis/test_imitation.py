"""A failing output is held against the catalogue: one mistake, two at once, or none that is known."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.runs import make_run

from comparisons import remark_lines
from goldformer.adapters import find_adapter
from goldformer.adapters.protocol import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.candidates import Candidate, Textbooks
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.failure import FailingCase
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.imitation import Imitator
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.diagnosis.suspects import rank_explanations
from goldformer.conformance.judging.applicability import plan
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.invoke import Result
from goldformer.conformance.judging.verdict import Difference, Status, Verdict
from goldformer.conformance.reports.text import explain_verdict
from goldformer.conformance.selection import Selection, checks
from goldformer.spec.formulas.heads import project_attention, project_heads
from goldformer.spec.formulas.layers import norm_denominator
from goldformer.spec.formulas.options import OPTIONS
from goldformer.spec.formulas.steps import instead
from goldformer.spec.model import ANY, find_magnitude
from spoiled import spoil

ATTENTION = "scaled_dot_product_attention"


class Attention:
    """Attention in plain NumPy, whose scale and weights a test spoils."""

    ARRAYS = "numpy"

    def __init__(self, scale=math.sqrt, spoil=lambda weights: weights):
        self.scale, self.spoil = scale, spoil

    def scaled_dot_product_attention(self, query, key, value, mask=None):
        scores = query @ key.swapaxes(-1, -2) / self.scale(query.shape[-1])
        if mask is not None:
            scores = np.where(mask, scores, -1e9 if scores.dtype != np.float16 else -6e4)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        weights = self.spoil(powers / powers.sum(-1, keepdims=True)).astype(query.dtype)
        return weights @ value, weights


@pytest.fixture
def judged(spec):
    """The verdicts on an implementation, with a catalogue that may lack some mistakes."""

    def run(thing, *components, dtype="float32", left_out=(), require_refusals=False, most=None):
        adapter = Adapter.from_object(thing, "mine.py", spec)
        bench = Bench(spec, adapter, dtype, "cpu", Policy(require_refusals=require_refusals))
        cases = (case for name in components or (None,) for case in plan(spec, (name,) if name else ())[:most])
        return Diagnosis(spec, left_out).explain_all(judge_case(case, bench) for case in cases)

    return run


class SoftmaxOverAxis:
    """Attention whose hidden scores are −∞, and whose softmax runs over another axis than the keys."""

    ARRAYS = "numpy"

    def __init__(self, axis):
        self.axis = axis

    def scaled_dot_product_attention(self, query, key, value, mask=None):
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]).astype(query.dtype)
        scores = scores if mask is None else np.where(mask, scores, -np.inf).astype(query.dtype)
        with np.errstate(invalid="ignore"):
            powers = np.exp(scores - scores.max(self.axis, keepdims=True))
            weights = powers / powers.sum(self.axis, keepdims=True)
        return weights @ value, weights


@pytest.mark.parametrize(("axis", "mistake"), [(-2, "softmax-query-axis"), (0, "softmax-batch-axis")])
def test_an_option_that_shows_only_beside_a_mistake_is_found(axis, mistake, judged, spec):
    """In right code −∞ shows in empty rows only; here it leaves 0/0 in the column of a hidden key."""
    verdicts = judged(SoftmaxOverAxis(axis), ATTENTION)
    first, *_ = [finding for finding in diagnose(verdicts, spec) if finding.mistakes]
    assert (first.label, first.mistakes) == (MISTAKE_FOUND, (mistake,))
    assert "The code also has empty_row: nan" in first.text


def named(verdicts, component, spec):
    return [" and ".join(c.id for c in e.causes) for e in rank_explanations(verdicts, component, spec)]


def test_a_gradient_is_compared_with_the_fewest_causes_among_equals(judged, spec):
    import torch

    def softmax(scores, axis=-2):
        powers = torch.exp(scores - scores.max(dim=axis, keepdim=True).values)
        return powers / powers.sum(dim=axis, keepdim=True)

    def attend(query, key, value, mask=None):
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        weights = softmax(scores if mask is None else scores.masked_fill(~mask, -math.inf))
        return weights @ value, weights

    def refuse_empty_rows(query, key, value, mask=None):
        if mask is not None and not mask.any(dim=-1).all():
            raise NotImplementedError
        return attend(query, key, value, mask)

    mine = SimpleNamespace(ARRAYS="torch", softmax=softmax, scaled_dot_product_attention=refuse_empty_rows)
    verdicts = judged(mine, "softmax", ATTENTION, dtype="float64")
    best = rank_explanations(verdicts, ATTENTION, spec)[0]
    assert {c.id for c in best.causes} == {"softmax.softmax.over-queries", "empty_row: nan"}
    assert best.certain


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("scale", "mistake"),
    [(lambda _: 1.0, "scale-missing"), (float, "scale-no-root"), (lambda d: 1 / math.sqrt(d), "scale-multiply")],
    ids=["missing", "no root", "multiplied"],
)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_the_mistake_is_named_from_what_was_got(scale, mistake, dtype, judged, spec):
    verdicts = judged(Attention(scale), ATTENTION, dtype=dtype)
    best = rank_explanations(verdicts, ATTENTION, spec)[0]
    assert [c.id for c in best.causes] == [mistake]
    assert best.equals == best.case_count > 20
    assert best.ratio < 1
    text = "\n".join(remark_lines(verdicts, spec))
    assert f"Mistake found: {mistake}, " in text
    assert "Possible causes" not in text
    case = next(e for e in map(verdicts.explain, verdicts) if e.diagnosis.matches)
    assert f"({mistake}), within" in " ".join(explain_verdict(case, spec).split())
    again = Explained.from_json(case.as_json())
    assert (again.verdict, again.diagnosis.matches) == (case.verdict, case.diagnosis.matches)


def test_two_mistakes_at_once_are_named_together(judged, spec):
    layers = [implementations()[id_].steps for id_ in ("scale-missing", "mask-inverted")]
    verdicts = judged(build_textbook(*layers), ATTENTION)
    assert set(named(verdicts, ATTENTION, spec)[0].split(" and ")) == {"scale-missing", "mask-inverted"}


def test_mistakes_of_one_step_and_options_of_one_convention_are_not_made_together():
    scale, product, mask = (Candidate((id_,)) for id_ in ("scale-missing", "scale-multiply", "mask-inverted"))
    pre, post = (Candidate(options=(("norm_placement", option),)) for option in ("pre", "post"))
    assert scale.combine(product) is None
    assert pre.combine(post) is None
    dropped, kept = (Candidate((id_,)) for id_ in ("greedy-no-eos", "decode-score-after-end"))
    assert kept.combine(dropped) is dropped.combine(kept) is None  # one is the other and more
    clipped, left_out = (Candidate((id_,)) for id_ in ("qkv-relu", "wo-missing"))
    assert clipped.combine(left_out).causes == ("qkv-relu", "wo-missing")  # both do something around one step
    assert clipped.combine(clipped) is None
    assert scale.combine(mask).causes == ("scale-missing", "mask-inverted")
    assert pre.combine(scale).causes == ("norm_placement: pre", "scale-missing")


def test_what_is_not_in_the_catalogue_is_said_to_be_unknown_with_the_first_wrong_step(judged, spec):
    verdicts = judged(Attention(spoil=lambda weights: weights**1.1), ATTENTION)
    assert named(verdicts, ATTENTION, spec) == []
    text = " ".join(" ".join(remark_lines(verdicts, spec)).split())
    assert "Mistake found" not in text
    assert "Cause unknown: No known mistake reproduces this output; the first wrong output is weights in" in text


def test_a_mistake_that_is_left_out_is_not_named(judged, spec):
    verdicts = judged(Attention(lambda _: 1.0), ATTENTION, left_out={"scale-missing"})
    assert "scale-missing" not in named(verdicts, ATTENTION, spec)


def test_a_mistake_inside_a_layer_is_named_as_that_of_the_part(judged, spec):
    whole = implementations()["scale-missing"].make()
    verdicts = judged(only(whole, "encoder_layer"), "encoder_layer")
    assert named(verdicts, "encoder_layer", spec)[0] == "scale-missing"


def test_what_differs_from_call_to_call_is_said_to_do_that_and_nothing_else(spec):
    draws = np.random.default_rng(3)
    thing = Attention(spoil=lambda weights: weights * draws.uniform(0.8, 1.2, weights.shape))
    bench = Bench(spec, Adapter.from_object(thing, "m", spec), "float32", "cpu")
    verdicts = Diagnosis(spec).explain_all(check() for check in checks(bench, Selection(("float32",), (ATTENTION,))))
    text = " ".join(" ".join(remark_lines(verdicts, spec)).split())
    assert (
        "Mistake found: nondeterminism, the same call gives different results: a second call with the same inputs"
        in text
    )
    assert "`F.dropout(x, p)` drops in evaluation too, unless it gets `training=self.training`" in text
    assert "No known mistake" not in text
    assert "Possible causes" not in text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise RuntimeError('boom')", "raised RuntimeError: boom"),
        ("return query @ params['w_q']", "raised NameError: name 'params' is not defined"),
        ("assert query.shape[-1] == 0", "raised AssertionError"),
        ("return (query @ key.swapaxes(-1, -2)).astype('float64')", "has shape"),
        ("return np.float64(1) * np.ones_like(query, dtype='float64')[..., :1] * value[..., :1, :]", "is float64"),
    ],
)
def test_what_raises_or_breaks_the_contract_is_never_said_to_differ_from_call_to_call(body, said, spec, adapter_file):
    """Each fails the property that calls twice, which is no sign that the two calls differ."""
    source = f"""
import numpy as np

ARRAYS = "numpy"

def scaled_dot_product_attention(query, key, value, mask=None):
    {body}
"""
    bench = Bench(spec, find_adapter(adapter_file(source), spec), "float32", "cpu")
    verdicts = Diagnosis(spec).explain_all(check() for check in checks(bench, Selection(("float32",), (ATTENTION,))))
    assert next(v for v in verdicts if v.check == "repeat-calls").bad
    text = " ".join(" ".join(remark_lines(verdicts, spec)).split())
    assert said in text
    assert "nondeterminism" not in text
    assert "Possible causes" not in text


def test_what_passes_is_held_against_nothing(judged):
    verdicts = judged(Attention(), ATTENTION)
    assert all(verdicts.about(v).matches is None for v in verdicts if not v.bad)


def test_the_diagnosis_of_a_failing_run_costs_no_more_than_twice_its_judging(spec):
    components = (ATTENTION, "multi_head_attention", "encoder_layer", "decoder_layer")
    bench = Bench(spec, Adapter.from_object(implementations()["scale-missing"].make(), "m", spec), "float32", "cpu")

    def time_both() -> tuple[float, float]:
        start = time.process_time()
        judgements = [judge_case(case, bench) for case in plan(spec, components)]
        judged = time.process_time()
        assert sum(v.bad for v in Diagnosis(spec).explain_all(judgements)) > 100
        return judged - start, time.process_time() - judged

    # The better of two: other processes and a collection of garbage that falls into one of them take time too.
    judging, diagnosis = (min(times) for times in zip(*(time_both() for _ in range(2)), strict=True))
    assert diagnosis < 2 * judging


# Conventions


def under(*options, mistake=None):
    """The textbook under options, and with a mistake."""
    made = (implementations()[mistake].steps,) if mistake else ()
    return build_textbook(*(OPTIONS[option] for option in options), *made)


PRE, EPS, ZEROS = ("norm_placement", "pre"), ("layer_norm_eps", "1e-6"), ("empty_row", "zeros")


def only(book, component, **conventions):
    return SimpleNamespace(ARRAYS="numpy", CONVENTIONS=conventions, **{component: getattr(book, component)})


@pytest.mark.parametrize(
    ("options", "named_first"),
    [
        ([PRE], ["norm_placement: pre"]),
        ([EPS], ["layer_norm_eps: 1e-6"]),
        ([PRE, EPS], ["norm_placement: pre", "layer_norm_eps: 1e-6"]),
    ],
    ids=["pre", "eps", "both"],
)
def test_options_that_were_not_declared_are_named_with_how_to_declare_them(options, named_first, judged, spec):
    verdicts = judged(only(under(*options), "encoder_layer"), "encoder_layer")
    best = rank_explanations(verdicts, "encoder_layer", spec)[0]
    assert {c.id for c in best.causes} == {*named_first}
    assert best.equals == best.case_count > 10
    text = " ".join(" ".join(remark_lines(verdicts, spec)).split())
    assert re.search(r"Option found: (norm_placement: pre|layer_norm_eps: 1e-6) \(", text)
    declared = re.search(r"Declare CONVENTIONS = (\{.*?\}) in the adapter, or fix it\.", text)
    assert json.loads(declared[1]) == dict(options)


def test_a_mistake_under_a_declared_option_is_named_alone(judged, spec):
    mine = only(under(PRE, mistake="scale-missing"), "encoder_layer", norm_placement="pre")
    verdicts = judged(mine, "encoder_layer")
    assert named(verdicts, "encoder_layer", spec)[0] == "scale-missing"


def test_a_declared_option_that_is_not_what_is_computed_is_named_as_what_it_is(judged, spec):
    verdicts = judged(only(build_textbook(), "encoder_layer", norm_placement="pre"), "encoder_layer")
    assert named(verdicts, "encoder_layer", spec)[0] == "norm_placement: post"


def test_a_mistake_beside_an_option_that_was_not_declared(judged, spec):
    verdicts = judged(only(under(PRE, mistake="ffn-leaky-relu"), "encoder_layer"), "encoder_layer")
    assert set(named(verdicts, "encoder_layer", spec)[0].split(" and ")) == {"norm_placement: pre", "ffn-leaky-relu"}
    text = " ".join(" ".join(remark_lines(verdicts, spec)).split())
    # What is to be declared is a sentence of its own.
    assert "in the place of ReLU. The code also has norm_placement: pre (" in text
    assert "), which is not declared. It reproduces your output" in text


def test_nan_in_empty_rows_is_no_mistake_once_declared(judged, spec):
    mine = only(under(("empty_row", "nan"), mistake="scale-missing"), ATTENTION, empty_row="nan")
    best = rank_explanations(judged(mine, ATTENTION), ATTENTION, spec)[0]
    assert [c.id for c in best.causes] == ["scale-missing"]
    assert best.equals == best.case_count


# Several causes at once


def parts(book, *components):
    return SimpleNamespace(ARRAYS="numpy", **{name: getattr(book, name) for name in components})


NAN = ("empty_row", "nan")


def causes_of(verdicts, component, spec):
    """Return the causes of the best explanation, which no failing case refutes."""
    best = rank_explanations(verdicts, component, spec)[0]
    assert best.certain
    return {cause.id for cause in best.causes}


def test_three_options_that_were_not_declared_are_named_in_one_declaration(judged, spec):
    verdicts = judged(only(under(PRE, EPS, NAN), "encoder_layer"), "encoder_layer")
    assert causes_of(verdicts, "encoder_layer", spec) == {
        "empty_row: nan", "layer_norm_eps: 1e-6", "norm_placement: pre",
    }  # fmt: skip
    text = " ".join(" ".join(remark_lines(verdicts, spec)).split())
    assert json.loads(re.search(r"Declare CONVENTIONS = (\{.*?\})", text)[1]) == dict([PRE, EPS, NAN])
    assert "Or: " not in text


def test_a_mistake_is_named_on_top_of_what_explains_a_part(judged, spec):
    book = under(PRE, EPS, mistake="ffn-leaky-relu")
    verdicts = judged(parts(book, "layer_norm", "encoder_layer"), "layer_norm", "encoder_layer")
    assert causes_of(verdicts, "layer_norm", spec) == {"layer_norm_eps: 1e-6"}
    assert causes_of(verdicts, "encoder_layer", spec) == {
        "layer_norm_eps: 1e-6",
        "norm_placement: pre",
        "ffn-leaky-relu",
    }


def test_the_placement_is_named_under_the_annotated_normalisation(judged, spec):
    divisor = ("norm_divisor", "std_plus_eps")
    book = under(PRE, divisor, EPS)
    verdicts = judged(parts(book, "layer_norm", "encoder_layer"), "layer_norm", "encoder_layer")
    norm = {"norm_divisor: std_plus_eps", "layer_norm_eps: 1e-6"}
    assert causes_of(verdicts, "layer_norm", spec) == norm
    assert causes_of(verdicts, "encoder_layer", spec) == {*norm, "norm_placement: pre"}


def test_a_part_that_nothing_known_explains_does_not_stop_the_search(judged, spec):
    # What is added to the variance is no constant.
    book = build_textbook(OPTIONS[PRE], {norm_denominator: instead(lambda v: np.sqrt(v + 3e-7 * np.sqrt(v)))})
    verdicts = judged(parts(book, "layer_norm", "encoder_layer"), "layer_norm", "encoder_layer", most=12)
    assert not [e for e in rank_explanations(verdicts, "layer_norm", spec) if e.certain]
    best = rank_explanations(verdicts, "encoder_layer", spec)[0]
    assert "norm_placement: pre" in {cause.id for cause in best.causes}
    assert 2 * best.equals > best.case_count


def test_a_gradient_that_must_be_0_is_compared_by_where_it_is_not(spec):
    case = spec.cases["sdpa-gradient-exactly-zero"]
    expected = case.golden.options[ANY]
    imitator = Imitator(spec)
    failure = FailingCase(case, spec.contracts[ATTENTION], Result({}, 0.0), expected, "float32", {})
    imitated = imitator._textbooks.imitate(Candidate(("mask-add-0-minus1",)), failure)
    assert isinstance(imitated, Result)
    zeros = {name for name, golden in expected.items() if not golden.values.any()}
    assert any(imitated.outputs[name].any() for name in zeros)
    rounded = {name: values * (1 + 1e-6 * (name in zeros)) for name, values in imitated.outputs.items()}
    assert replace(failure, actual=Result(rounded, 0.0)).distance(imitated) == 0
    for name in zeros:
        rounded[name] = np.zeros_like(rounded[name])
    assert replace(failure, actual=Result(rounded, 0.0)).distance(imitated) is None


def test_an_imitation_of_another_shape_is_no_match(spec):
    case = spec.cases["rope-partial"]
    contract = spec.contracts["rotary_embedding"]
    declared = {name: spec.conventions[name].default for name in contract.conventions}
    expected = case.expects(declared)
    failure = FailingCase(case, contract, Result({}, 0.0), expected, "float32", declared)
    (right,) = expected.values()
    wrong = Result({"output": -right.values}, 0.0)
    assert replace(failure, actual=wrong).distance(wrong) == 0
    assert replace(failure, actual=wrong).distance(Result({"output": -right.values[..., :4]}, 0.0)) is None


def test_an_imitation_has_the_error_scale_of_its_option(spec):
    case = spec.cases["enc-norms-far-apart"]
    expected = case.golden.options["post"]
    declared = {"norm_placement": "post"}
    failure = FailingCase(case, spec.contracts["encoder_layer"], Result({}, 0.0), expected, "float32", declared)
    pre = Textbooks(spec, None).imitate(Candidate(options=(PRE,)), failure)
    assert isinstance(pre, Result)
    scale = failure._find_scale("output", expected["output"], find_magnitude(pre.outputs["output"]))
    assert scale >= case.golden.options["pre"]["output"].error_scale > 10 * expected["output"].error_scale


def test_an_imitation_of_an_exact_result_may_be_rounded(spec):
    case = spec.cases["enc-zero-sublayers"]
    expected = case.golden.options["pre"]
    assert expected["output"].error_scale == 0
    declared = {"norm_placement": "pre"}
    failure = FailingCase(case, spec.contracts["encoder_layer"], Result({}, 0.0), expected, "float32", declared)
    normed = Textbooks(spec, None).imitate(Candidate(("residual-normed",), (PRE,)), failure)
    assert isinstance(normed, Result)
    for error, near in ((2.0**-24, True), (1e-3, False)):
        moved = {name: values * (1 + error) for name, values in normed.outputs.items()}
        distance = replace(failure, actual=Result(moved, 0.0)).distance(normed)
        assert (distance is not None) == near


def test_heads_that_are_cut_wrongly_for_the_keys_only_are_placed(judged, spec):
    @spoil(around=project_heads)
    def viewed(original, x, params, role, num_heads):
        heads = original(x, params, role, num_heads)
        return project_attention(x, params, role).reshape(heads.shape) if role == "k" else heads

    verdicts = judged(only(viewed(), "multi_head_attention"), "multi_head_attention")
    best = rank_explanations(verdicts, "multi_head_attention", spec)[0]
    assert best.certain
    assert [cause.heading for cause in best.causes] == [
        f"head-split-view, {spec.mistakes['head-split-view'].title}, only in the projection of the keys"
    ]


# What breaks the contract


@pytest.mark.parametrize(
    ("mistake", "component"),
    [
        ("d-model-not-divisible", "multi_head_attention"),
        ("input-mutated", "positional_encoding"),
        ("dtype-promote", ATTENTION),
    ],
)
def test_a_mistake_that_gives_no_number_is_named_all_the_same(mistake, component, judged, spec):
    # Only a refusal that is missing shows heads that do not divide the width.
    verdicts = judged(implementations()[mistake].make(), component, require_refusals=True)
    assert named(verdicts, component, spec)[0] == mistake


def test_an_exception_is_shown_and_is_no_evidence_of_a_mistake(judged, spec):
    verdicts = judged(implementations()["pe-max-len"].make(), "positional_encoding")
    assert {v.reason for v in verdicts if v.bad} == {"raised"}
    text = " ".join(" ".join(remark_lines(verdicts, spec)).split())
    assert "First seen: pe-5000: raised ValueError: operands could not be broadcast together" in text
    assert "Possible causes" not in text


def test_a_case_that_passes_in_two_dtypes_refutes_what_it_reveals(spec):
    imitator = Imitator(spec)
    textbook = find_adapter("textbook", spec)
    for dtype in ("float32", "float64"):
        judgement = judge_case(spec.cases["sdpa-causal"], Bench(spec, textbook, dtype, "cpu"))
        imitator.note_passed(FailingCase.of(judgement))
    assert imitator.is_refuted("scale-missing", "scaled_dot_product_attention")


def test_a_change_of_the_callers_array_is_named_where_nothing_else_is_wrong(judged, spec):
    book = build_textbook(only="feed_forward")

    def feed_forward(x, *, params):
        output = book.feed_forward(x, params=params)
        x += 1.0
        return output

    code = SimpleNamespace(ARRAYS="numpy", feed_forward=feed_forward)
    said = list(diagnose(judged(code, "feed_forward"), spec))
    assert [(f.label, f.mistakes) for f in said if f.mistakes] == [(MISTAKE_FOUND, ("input-mutated",))]
    assert "It changed the caller's x in place: work on a copy (CALL-2)." in said[-1].text
    # Wrong numbers have a cause of their own.
    wrong = Verdict("a", "case", "feed_forward", "", Status.FAILED, "wrong-value", "", "float32", "cpu", (), "")
    difference = Difference("output", 1, 1, 0.0, 2.0, None, None)
    both = [*judged(code, "feed_forward"), replace(wrong, differences=(difference,))]
    assert not any("input-mutated" in f.mistakes for f in diagnose(make_run(both), spec))

"""Conventions: what is declared is what is judged by; what is not declared fails, and says what to declare."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.support.named import Entry
from tests.support.runs import change

from comparisons import remark_lines
from goldformer.adapters import Adapter, AdapterError
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging import applicability
from goldformer.conformance.judging.applicability import explain_inapplicable
from goldformer.conformance.judging.cases import Bench, check_case, judge_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import PERMITTED, Status
from goldformer.conformance.reports.results import summarize
from goldformer.conformance.reports.text import explain_verdict
from goldformer.spec import load_spec
from goldformer.spec.formulas.attention import fill_masked, sum_values, weigh_keys
from goldformer.spec.formulas.heads import apply_affine
from goldformer.spec.formulas.layers import encoder_layer
from goldformer.spec.formulas.options import EPS, find_steps
from spoiled import Spoiled, spoil

EMPTY_ROW = "sdpa-empty-row"


#: A case that depends on a convention, for each of them.
CASES = {
    "activation": "ffn-distinct-sizes",
    "gate_activation": "glu-distinct-sizes",
    "layer_norm_eps": "ln-variance-of-five-millionths",
    "norm_divisor": "ln-distinct-sizes",
    "rms_norm_eps": "rms-thousandths",
    "rms_norm_eps_place": "rms-thousandths",
    "rms_norm_weight": "rms-distinct-sizes",
    "rope_pairing": "rope-distinct-sizes",
    "rope_direction": "rope-distinct-sizes",
    "rope_scaling": "rope-scaled-bands",
    "moe_weights": "moe-distinct-sizes",
    "sample_order": "sample-temperature-and-top-p",
    "sample_ties": "sample-ties",
    "temperature_zero": "sample-temperature-of-zero",
    "block_order": "dol-four-heads-two-groups",
    "gqa_groups": "gqa-four-heads-two-groups",
    "window_size": "win-3-2",
    "local_layers": "dom-seven-layers",
    "padded_position": "pos-both-ends",
    "alibi_slopes": "alibi-three-heads",
    "alibi_form": "alibi-four-heads",
    "norm_placement": "enc-distinct-sizes",
    "smoothing_denominator": "ls-four-words",
    "empty_row": EMPTY_ROW,
    "causal_corner": "mask-causal-2x5",
    "embedding_scale": "emb-distinct-sizes",
    "pe_layout": "pe-d-10",
    "odd_d_model": "pe-odd-5",
    "beam_finish": "beam-finish",
    "length_penalty": "beam-length-penalty",
    "pad_row": "tf-pad-row-gradient",
    "target_mask": "tf-target-padding-between-words",
}
#: For each convention that the parameters of a call decide, a case that has one option only, by the option.
CASES_OF_PARAMS = {
    ("final_norm", "none"): "encs-two-layers",
    ("final_norm", "after_stack"): "encs-final-norm",
    ("output_layer", "separate"): "tf-distinct-sizes",
    ("output_layer", "without_bias"): "tf-output-without-bias",
    ("output_layer", "tied"): "tf-tied",
    ("output_layer", "tied_with_bias"): "tf-tied-with-bias",
    ("positions", "sinusoidal"): "tf-distinct-sizes",
    ("positions", "learned"): "tf-learned-positions",
    ("qk_norm", "none"): "dol-padding-every-choice",
    ("qk_norm", "per_head"): "dol-qk-norm",
}
#: The biases of an encoder layer that each option leaves out.
LEFT_OUT = {
    "all": set(),
    "not_in_q_k_v": {"self_attention.b_q", "self_attention.b_k", "self_attention.b_v"},
    "not_in_attention": {f"self_attention.b_{name}" for name in "qkvo"},
    "none": {*(f"self_attention.b_{name}" for name in "qkvo"), "feed_forward.b_1", "feed_forward.b_2"},
}
PLAIN = Spoiled("plain")


def under(convention, option):
    """Return a function that makes a textbook under an option."""
    return Spoiled(option, find_steps(convention, option))


CHOICES = {
    (name, option, CASES[name]): under(name, option)
    for name, convention in load_spec().conventions.items()
    for option in convention.options
    if name in CASES
}
every_choice = pytest.mark.parametrize(
    ("choice", "textbook"), CHOICES.items(), ids=lambda value: ".".join(value[:2]) if isinstance(value, tuple) else ""
)


@pytest.fixture
def bench_of(spec):
    """A bench for a textbook with declarations."""

    def make(textbook, **conventions):
        made = textbook()
        functions = {name: getattr(made, name) for name in spec.contracts}
        functions |= {n: getattr(made, n) for n in ("transformer_gradient", "encoder_gradient")}
        thing = SimpleNamespace(ARRAYS="numpy", NAME="mine", CONVENTIONS=conventions, **functions)
        return Bench(spec, Adapter.from_object(thing, "mine.py", spec), "float32", "cpu")

    return make


def test_every_option_of_every_convention_is_tried_here(spec):
    known = {(c.id, option) for c in spec.conventions.values() for option in c.options}
    of_biases = {("biases", option) for option in LEFT_OUT}
    # tests/spec/test_later.py tries the options that change the mask of a call.
    of_masks = {("later_tokens", option) for option in ("as_masked", "hidden_too", "hidden_only")}
    # tests/conformance/judging/test_sessions.py tries the options that decide which calls are made.
    of_states = {("cache_state", option) for option in ("kept", "consumed")}
    # tests/conformance/diagnosis/test_true_findings.py tries the options that decide which widths a call has.
    of_widths = {("projection_widths", option) for option in ("any", "refused")}
    elsewhere = of_biases | of_masks | of_states | of_widths
    assert known == {key[:2] for key in CHOICES} | CASES_OF_PARAMS.keys() | elsewhere


@pytest.mark.parametrize(("choice", "case"), CASES_OF_PARAMS.items(), ids=[".".join(key) for key in CASES_OF_PARAMS])
def test_a_case_has_the_parameters_of_one_option(choice, case, bench_of, spec):
    convention, option = choice
    for other in spec.conventions[convention].options:
        verdict = check_case(spec.cases[case], bench_of(under(*choice), **{convention: other}))
        assert verdict.status is (Status.PASSED if other == option else Status.SKIPPED)
        assert other == option or verdict.message in (
            f"only for {convention}: {option}; the adapter declares {other}",
            f"only for {convention}: separate or without_bias; the adapter declares {other}",
            f"only for {convention}: separate or tied_with_bias; the adapter declares {other}",
            f"it has no norm.gamma; the adapter declares {convention}: {other}",
            f"it has no position_table; the adapter declares {convention}: {other}",
            f"it has no gamma_q; the adapter declares {convention}: {other}",
        )


@pytest.mark.parametrize("option", LEFT_OUT)
@pytest.mark.parametrize(
    "others", [{}, {"norm_placement": "pre", "layer_norm_eps": "1e-6"}], ids=["alone", "with-others"]
)
def test_an_option_leaves_biases_out_of_every_case(option, others, bench_of, spec):
    called = []

    @spoil(around=encoder_layer)
    def record_biases(original, x, mask=None, *, num_heads, params):
        called.append({name for name in params if ".b_" in name})
        return original(x, mask, num_heads=num_heads, params=params)

    layers = [under(*item).layers for item in others.items()]
    textbook = Spoiled("recording", *(layer for found in layers for layer in found), *record_biases.layers)
    bench = bench_of(textbook, biases=option, **others)
    case = spec.cases["enc-ordinary-plain"]
    assert check_case(case, bench).status is Status.PASSED
    assert called == [LEFT_OUT["none"] - LEFT_OUT[option]]


def test_biases_that_are_ignored_are_told_by_the_declaration_that_leaves_them_out(bench_of, spec):
    @spoil(instead_of=apply_affine)
    def ignore_bias(x, weight, bias):
        return x @ weight

    verdict, found = explained(spec.cases["enc-ordinary-plain"], bench_of(ignore_bias))
    assert verdict.status is Status.FAILED
    assert found.advice.startswith("this is biases: none")


#: Code that has an option, and gets the parameters of the default because it does not declare it.
UNDECLARED = [("final_norm", "after_stack"), ("output_layer", "tied"), ("output_layer", "without_bias")]


@pytest.mark.parametrize("choice", UNDECLARED, ids=".".join)
def test_an_option_that_the_parameters_contradict_is_found(choice, bench_of, spec):
    convention, option = choice
    case = spec.cases[CASES_OF_PARAMS[convention, spec.conventions[convention].default]]
    verdict, found = explained(case, bench_of(under(*choice)))
    assert verdict.status is Status.FAILED
    assert found.matches is not None
    assert [cause for match in found.matches for cause in match.causes] == [f"{convention}: {option}"]


def explained(case, bench):
    """Return the verdict on a case with what the diagnosis adds."""
    return Diagnosis(bench.spec).explain(judge_case(case, bench))


@every_choice
def test_a_declared_option_is_what_is_judged_by(choice, textbook, bench_of, spec):
    convention, option, case = choice
    assert check_case(spec.cases[case], bench_of(textbook, **{convention: option})).status is Status.PASSED


def test_the_conventions_with_numbers_are_those_of_a_step(spec):
    assert {c.id for c in spec.conventions.values() if c.number} == EPS.keys()


@pytest.mark.parametrize("number", ["1.2e-38", "1.0000000000000001e-8", "0.5"])
@pytest.mark.parametrize(
    ("convention", "ids"),
    [
        (
            "layer_norm_eps",
            (
                "ln-variance-of-five-millionths",
                "enc-ordinary-plain",
                "encs-ordinary-gradient",
                "greedy-small-two-steps",
            ),
        ),
        ("rms_norm_eps", ("rms-thousandths", "dol-distinct-sizes", "gen-two-samples")),
    ],
)
def test_any_number_is_an_option_of_an_eps(number, convention, ids, bench_of, spec):
    textbook = under(convention, number)
    bench = bench_of(textbook, **{convention: number})
    assert [check_case(spec.cases[id_], bench).status for id_ in ids] == [Status.PASSED] * len(ids)
    assert check_case(spec.cases[ids[0]], bench_of(textbook)).bad


def test_a_decision_that_a_declared_number_makes_close_is_not_judged(bench_of, spec, monkeypatch):
    case, bench = spec.cases["gen-two-samples"], bench_of(PLAIN, rms_norm_eps="3e-6")
    assert explain_inapplicable(case, bench) is None
    monkeypatch.setattr(applicability, "find_margin", lambda *_: 1e-9)
    assert explain_inapplicable(case, bench)[1].startswith("the best candidates lie too close for float32")
    assert explain_inapplicable(case, bench_of(PLAIN)) is None


@every_choice
def test_the_option_that_is_not_declared_is_the_default(choice, textbook, bench_of, spec):
    convention, option, case = choice
    verdict = check_case(spec.cases[case], bench_of(textbook))
    assert (verdict.status is Status.PASSED) is (option == spec.conventions[convention].default)


@every_choice
def test_a_wrong_declaration_fails(choice, textbook, bench_of, spec):
    convention, option, case = choice
    for other in spec.conventions[convention].options:
        # What may be refused may be computed too, as the default has it.
        if other not in (option, "refused"):
            assert check_case(spec.cases[case], bench_of(textbook, **{convention: other})).bad


#: A refusal has no values to recognise, and the default is accepted where a refusal is declared.
REFUSING = ("odd_d_model", "temperature_zero")
#: They have norms that a case of another order has no parameters of, so that nothing is computed.
UNFIT = (("block_order", "pre"), ("block_order", "sandwich"))
ADVISED = [
    (choice, textbook)
    for choice, textbook in CHOICES.items()
    if choice[:2] not in UNFIT and (choice[0] not in REFUSING or choice[1] == "zero")
]


@pytest.mark.parametrize(("choice", "textbook"), ADVISED, ids=lambda v: ".".join(v[:2]) if isinstance(v, tuple) else "")
def test_a_failure_that_is_another_option_names_it_and_the_declaration(choice, textbook, bench_of, spec):
    convention, option, case = choice
    options = spec.conventions[convention].options
    declared = next(name for name in options if name != option)
    found = explained(spec.cases[case], bench_of(textbook, **{convention: declared}))
    assert found.diagnosis.advice == (
        f"this is {convention}: {option} ({options[option]}); "
        f'declare CONVENTIONS = {{"{convention}": "{option}"}} in the adapter, or fix it'
    )
    assert f"Convention  this is {convention}: {option}" in explain_verdict(found, spec)
    # Where nothing was imitated, the advice is all that there is to say.
    unmatched = change(found, matches=None)
    assert f"Convention: this is {convention}: {option}" in "\n".join(remark_lines([unmatched], spec))


def test_a_failure_that_is_no_option_gives_no_advice(bench_of, spec):
    @spoil(around=weigh_keys)
    def wrong_in_all_rows(original, scaled, mask):
        return np.where(mask.any(-1, keepdims=True), 2 * original(scaled, mask), 1.0).astype(scaled.dtype)

    verdict, found = explained(spec.cases[EMPTY_ROW], bench_of(wrong_in_all_rows))
    assert (verdict.reason, found.advice) == ("wrong-value", "")


def test_nan_that_another_option_would_give_is_still_not_finite(bench_of, spec):
    verdict, found = explained(spec.cases[EMPTY_ROW], bench_of(under("empty_row", "nan")))
    assert verdict.reason == "not-finite"
    assert found.advice.startswith("this is empty_row: nan")


def test_nan_that_is_declared_is_no_fault_beside_a_wrong_value(bench_of, spec):
    @spoil(around=sum_values)
    def off_by_one(original, weights, value):
        return original(weights, value) + 1

    wrong = Spoiled("wrong", *under("empty_row", "nan").layers, *off_by_one.layers)
    verdict = check_case(spec.cases[EMPTY_ROW], bench_of(wrong, empty_row="nan"))
    assert (verdict.status, verdict.reason) == (Status.FAILED, "wrong-value")


def test_a_declaration_may_hold_for_one_component_alone(bench_of, spec):
    bench = bench_of(under("empty_row", "zeros"), **{"scaled_dot_product_attention.empty_row": "zeros"})
    assert check_case(spec.cases[EMPTY_ROW], bench).status is Status.PASSED
    other, found = explained(spec.cases["mha-empty-row"], bench)
    assert (other.reason, found.advice[:27]) == ("wrong-value", "this is empty_row: zeros (e")


def test_the_declaration_for_a_component_comes_before_the_one_for_all(bench_of, spec):
    declared = {"empty_row": "nan", "scaled_dot_product_attention.empty_row": "zeros"}
    bench = bench_of(under("empty_row", "zeros"), **declared)
    assert check_case(spec.cases[EMPTY_ROW], bench).status is Status.PASSED
    assert check_case(spec.cases["fmha-empty-row"], bench).bad


def test_a_case_for_one_option_only_is_skipped_under_another(bench_of, spec):
    verdict = check_case(spec.cases["pe-odd-5"], bench_of(under("pe_layout", "concatenated"), pe_layout="concatenated"))
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "convention")
    assert verdict.message == "only for pe_layout: interleaved; the adapter declares concatenated"


def test_what_may_be_refused_is_refused_or_right(bench_of, spec):
    case = spec.cases["pe-odd-7-added"]
    refuses, computes = (
        bench_of(under("odd_d_model", "refused"), odd_d_model="refused"),
        bench_of(PLAIN, odd_d_model="refused"),
    )
    assert check_case(case, refuses).status is Status.PASSED
    assert check_case(case, computes).status is Status.PASSED
    wrong = Spoiled("wrong", implementations()["pe-base"].steps)
    verdict = check_case(case, bench_of(wrong, odd_d_model="refused"))
    assert (verdict.status, verdict.reason) == (Status.FAILED, "wrong-value")


def commonest_table(x):
    """The table of most tutorials: an odd width has one frequency more than cosine channels, so only 1 works."""
    seq, d_model = x.shape[-2:]
    table = torch.zeros(seq, d_model, dtype=torch.float64)
    position = torch.arange(seq, dtype=torch.float64)[:, None]
    divisor = torch.exp(torch.arange(0, d_model, 2, dtype=torch.float64) * (-math.log(10000.0) / d_model))
    table[:, 0::2] = torch.sin(position * divisor)
    table[:, 1::2] = torch.cos(position * divisor)
    return x + table.to(x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_commonest_table_refuses_odd_widths_but_1(dtype, spec):
    def bench_with(**conventions):
        thing = SimpleNamespace(ARRAYS="torch", CONVENTIONS=conventions, positional_encoding=commonest_table)
        return Bench(spec, Adapter.from_object(thing, "mine.py", spec), dtype, "cpu")

    cases = [spec.cases[id_] for id_ in ("pe-odd-1", "pe-odd-5", "pe-odd-7-added")]
    declared = bench_with(odd_d_model="refused")
    assert [check_case(case, declared).status for case in cases] == [Status.PASSED] * 3
    undeclared = [explained(case, bench_with()) for case in cases]
    assert [verdict.status for verdict, _ in undeclared] == [Status.PASSED, Status.SKIPPED, Status.SKIPPED]
    for verdict, _ in undeclared[1:]:
        assert (verdict.reason, verdict.message.startswith(f"{PERMITTED}odd_d_model: refused: ")) == (
            "convention",
            True,
        )
    undeclared = [explained(case, replace(bench_with(), policy=Policy(strict=True))) for case in cases]
    assert [verdict.status for verdict, _ in undeclared] == [Status.PASSED, Status.ERRORED, Status.ERRORED]
    for _, found in undeclared[1:]:
        assert found.advice.startswith("this is odd_d_model: refused")
        assert 'declare CONVENTIONS = {"odd_d_model": "refused"}' in found.advice


def test_a_refusal_that_another_option_allows_names_it(bench_of, spec):
    bench = bench_of(under("odd_d_model", "refused"))
    verdict, _ = explained(spec.cases["pe-odd-5"], bench)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "convention")
    assert verdict.message.startswith(f"{PERMITTED}odd_d_model: refused: ")
    verdict, found = explained(spec.cases["pe-odd-5"], replace(bench, policy=Policy(strict=True)))
    assert verdict.status is Status.ERRORED
    assert found.advice.startswith("this is odd_d_model: refused")


# What an adapter leaves open


@spoil(instead_of=fill_masked)
def adds_to_empty_rows(scaled, mask):
    """Adds a large number to the scores of masked keys, as many tutorials do: float64 keeps some of their digits."""

    return scaled + np.where(mask, 0.0, -1e9).astype(scaled.dtype)


def test_what_is_none_of_the_options_is_told_how_to_leave_it_open(bench_of, spec):
    bench = replace(bench_of(adds_to_empty_rows), dtype="float64")
    verdict, found = explained(spec.cases[EMPTY_ROW], bench)
    assert verdict.status is Status.FAILED
    assert found.advice == (
        "only what depends on empty_row is wrong, and it is none of the options; "
        'declare CONVENTIONS = {"empty_row": "unspecified"}, and what depends on it is not compared, '
        "for code that adds a large number to the scores"
    )


def test_what_is_left_open_is_not_compared_and_all_else_is(bench_of, spec):
    for case in spec.cases_of("scaled_dot_product_attention"):
        bench = replace(bench_of(adds_to_empty_rows, empty_row="unspecified"), dtype="float64")
        assert not check_case(case, bench).bad, case.id
    wrong = Spoiled("wrong", *adds_to_empty_rows.layers, implementations()["scale-missing"].steps)
    case = spec.cases[EMPTY_ROW]
    verdict, found = explained(case, replace(bench_of(wrong, empty_row="unspecified"), dtype="float64"))
    assert verdict.status is Status.FAILED
    assert found.advice == ""


def test_only_the_rows_without_a_key_are_left_out(spec):
    golden = spec.cases[EMPTY_ROW].golden
    whole, agreed = golden.options["uniform"]["weights"], golden.select_agreed(golden.options)["weights"]
    assert 0 < agreed.values.size < whole.values.size
    assert agreed.select(whole.values).tolist() == agreed.values.tolist()


def test_gradients_through_rows_without_a_key_are_left_out_too(bench, adapter_file, spec):
    """A number added to the scores lets gradients through: right for no option, and left open."""
    source = """
import math
import torch

ARRAYS = "torch"

def scaled_dot_product_attention(query, key, value, mask=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    if mask is not None:
        scores = scores + (~mask) * -1e9
    return torch.softmax(scores, dim=-1) @ value
"""
    closed, left_open = (
        bench(adapter_file(source + declared, name), "float64")
        for name, declared in (("closed.py", ""), ("open.py", 'CONVENTIONS = {"empty_row": "unspecified"}'))
    )
    case = spec.cases["sdpa-gradient-empty-row"]
    assert check_case(case, closed).reason == "wrong-value"
    verdict = check_case(case, left_open)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "convention")
    assert verdict.message == "only for empty_row: uniform; the adapter leaves empty_row open"
    for other in spec.cases_of("scaled_dot_product_attention"):
        assert not check_case(other, left_open).bad, other.id


def test_other_conventions_cannot_be_left_open(bench_of):
    with pytest.raises(
        AdapterError, match=r"CONVENTIONS has 'pe_layout': 'unspecified'; its options are interleaved, "
    ):
        bench_of(PLAIN, pe_layout="unspecified")


# Code of one width may refuse others

ONE_WIDTH = Entry(
    ("multi_head_attention",),
    file="classes",
    edits=(
        (
            ".view(b, query.size(1), self.heads, -1)",
            ".view(b, query.size(1), self.heads, query.size(-1) // self.heads)",
        ),
    ),
)


@pytest.mark.parametrize("refuses_more", [False, True])
def test_code_of_one_width_conforms_with_a_note_if_only_other_widths_raise(refuses_more, spec):
    stop = "        b = query.size(0)\n        if query.size(1) == 3:\n            raise ValueError\n"
    edits = (*ONE_WIDTH.edits, *([("        b = query.size(0)\n", stop)] if refuses_more else []))
    run = Diagnosis(spec).explain_all(replace(ONE_WIDTH, edits=edits, cases="large").run_checks(spec))
    (result,) = summarize(run, spec, ["multi_head_attention"]).values()
    refused = [v for v in run if v.message.startswith(f"{PERMITTED}projection_widths: refused: raised ")]
    note = f"only {len(refused)} calls of multi_head_attention that it permits to refuse raise, and are not judged"
    assert result.conforms is not refuses_more
    assert (note in " ".join(" ".join(remark_lines(run, spec)).split())) is not refuses_more


def test_enough_cases_of_every_component_have_one_width(spec, bench_of):
    bench = bench_of(PLAIN, projection_widths="refused")
    for name in [name for name, contract in spec.contracts.items() if "projection_widths" in contract.conventions]:
        fitting = [case for case in spec.cases_of(name) if not explain_inapplicable(case, bench)]
        assert sum(case.golden is not None for case in fitting) >= 10, name

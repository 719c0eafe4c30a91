"""Conventions: what is declared is what is judged by; what is not declared fails, and says what to declare."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from goldformer.adapters import Adapter
from goldformer.adapters.textbook import Textbook
from goldformer.conformance.engine import Bench, check_case
from goldformer.conformance.text import closing, explain_verdict
from goldformer.conformance.verdict import Status

EMPTY_ROW = "sdpa-empty-row"


class ZerosInEmptyRows(Textbook):
    def weights(self, scaled, mask):
        weights = super().weights(scaled, mask)
        return weights if mask is None else weights * mask.any(-1, keepdims=True).astype(weights.dtype)


class NanInEmptyRows(Textbook):
    def fill(self, dtype):
        return -math.inf


class BottomRight(Textbook):
    def causal_mask(self, *, q_seq, kv_seq):
        return np.tri(q_seq, kv_seq, kv_seq - q_seq, dtype=bool)


class ScaledEmbedding(Textbook):
    def scaled_embedding(self, rows):
        return rows * math.sqrt(rows.shape[-1])


class Concatenated(Textbook):
    def layout(self, d_model):
        half = d_model // 2
        return [(pair, np.sin) for pair in range(half)] + [(pair, np.cos) for pair in range(half)]


class Tensor2Tensor(Concatenated):
    def exponent(self, pair, d_model):
        return 2 * pair / max(d_model - 2, 1)


class RefusesOddWidths(Textbook):
    def positional_encoding(self, x):
        if x.shape[-1] % 2:
            raise ValueError("x: d_model is odd")
        return super().positional_encoding(x)


#: Convention, option and a case that depends on it: who computes it so.
class NormedBefore(Textbook):
    def sublayer(self, x, function, *, number, start, params):
        output, extra = function(self.layer_norm(x, params=self.norm(params, number)))
        return self.residual(x, output, start), extra


class Eps6(Textbook):
    layer_norm_eps = 1e-6


class Eps12(Textbook):
    layer_norm_eps = 1e-12


class SharedAmongOthers(Textbook):
    def shared(self, target, smoothing):
        return (1 - target) * smoothing / (target.shape[-1] - 1)


class SetsAside(Textbook):
    def next_beam(self, beam, grown, task):
        before = [sentence for sentence in beam if self.ended(sentence, task)]
        ranked = self.ranked((s for own in grown for s in own if s not in before), task)
        aside = before + [s for s in ranked[: task.beam_size] if self.ended(s, task)]
        alive = [s for s in ranked if not self.ended(s, task)][: task.beam_size]
        return aside if len(aside) >= task.beam_size else aside + alive


class MeanOfWords(Textbook):
    def length_penalty(self, length):
        return length


class PenaltyOfThePaper(Textbook):
    def length_penalty(self, length):
        return ((5 + length) / 6) ** 0.6


CHOICES = {
    ("layer_norm_eps", "1e-5", "ln-a-thousandth-apart"): Textbook,
    ("layer_norm_eps", "1e-6", "ln-a-thousandth-apart"): Eps6,
    ("layer_norm_eps", "1e-12", "ln-a-thousandth-apart"): Eps12,
    ("norm_placement", "post", "enc-distinct-sizes"): Textbook,
    ("norm_placement", "pre", "enc-distinct-sizes"): NormedBefore,
    ("smoothing_denominator", "vocab", "ls-four-words"): Textbook,
    ("smoothing_denominator", "others", "ls-four-words"): SharedAmongOthers,
    ("empty_row", "uniform", EMPTY_ROW): Textbook,
    ("empty_row", "zeros", EMPTY_ROW): ZerosInEmptyRows,
    ("empty_row", "nan", EMPTY_ROW): NanInEmptyRows,
    ("causal_corner", "top_left", "mask-causal-2x5"): Textbook,
    ("causal_corner", "bottom_right", "mask-causal-2x5"): BottomRight,
    ("embedding_scale", "none", "emb-distinct-sizes"): Textbook,
    ("embedding_scale", "sqrt_d_model", "emb-distinct-sizes"): ScaledEmbedding,
    ("pe_layout", "interleaved", "pe-d-10"): Textbook,
    ("pe_layout", "concatenated", "pe-d-10"): Concatenated,
    ("pe_layout", "tensor2tensor", "pe-d-10"): Tensor2Tensor,
    ("odd_d_model", "extra_sine", "pe-odd-5"): Textbook,
    ("odd_d_model", "refused", "pe-odd-5"): RefusesOddWidths,
    ("beam_finish", "in_beam", "beam-finish"): Textbook,
    ("beam_finish", "set_aside", "beam-finish"): SetsAside,
    ("length_penalty", "none", "beam-length-penalty"): Textbook,
    ("length_penalty", "mean", "beam-length-penalty"): MeanOfWords,
    ("length_penalty", "gnmt", "beam-length-penalty"): PenaltyOfThePaper,
}
every_choice = pytest.mark.parametrize(
    ("choice", "textbook"), CHOICES.items(), ids=lambda value: ".".join(value[:2]) if isinstance(value, tuple) else ""
)


@pytest.fixture
def bench_of(spec):
    """A bench for a textbook with declarations."""

    def make(textbook, **conventions):
        functions = {name: getattr(textbook(), name) for name in spec.contracts}
        thing = SimpleNamespace(ARRAYS="numpy", NAME="mine", CONVENTIONS=conventions, **functions)
        return Bench(spec, Adapter.from_object(thing, "mine.py", spec), "float32", "cpu")

    return make


def test_every_option_of_every_convention_is_tried_here(spec):
    assert {(c.id, option) for c in spec.conventions.values() for option in c.options} == {key[:2] for key in CHOICES}


@every_choice
def test_a_declared_option_is_what_is_judged_by(choice, textbook, bench_of, spec):
    convention, option, case = choice
    assert check_case(spec.cases[case], bench_of(textbook, **{convention: option})).status is Status.PASSED


@every_choice
def test_the_option_that_is_not_declared_is_the_default(choice, textbook, bench_of, spec):
    convention, option, case = choice
    verdict = check_case(spec.cases[case], bench_of(textbook))
    assert (verdict.status is Status.PASSED) is (option == spec.conventions[convention].default)


@every_choice
def test_a_wrong_declaration_fails(choice, textbook, bench_of, spec):
    convention, option, case = choice
    for other in spec.conventions[convention].options:
        if other != option:
            assert check_case(spec.cases[case], bench_of(textbook, **{convention: other})).bad


#: A refusal has no values to recognise.
ADVISED = [(choice, textbook) for choice, textbook in CHOICES.items() if choice[0] != "odd_d_model"]


@pytest.mark.parametrize(("choice", "textbook"), ADVISED, ids=lambda v: ".".join(v[:2]) if isinstance(v, tuple) else "")
def test_a_failure_that_is_another_option_names_it_and_the_declaration(choice, textbook, bench_of, spec):
    convention, option, case = choice
    options = spec.conventions[convention].options
    declared = next(name for name in options if name != option)
    verdict = check_case(spec.cases[case], bench_of(textbook, **{convention: declared}))
    assert verdict.advice == (
        f"this is {convention}: {option} ({options[option]}); "
        f'declare CONVENTIONS = {{"{convention}": "{option}"}} in the adapter, or fix it'
    )
    assert f"Convention  this is {convention}: {option}" in explain_verdict(verdict, spec)
    assert f"Convention: this is {convention}: {option}" in "\n".join(closing([verdict], spec))


def test_a_failure_that_is_no_option_gives_no_advice(bench_of, spec):
    class SumOfEmptyRows(Textbook):
        def weights(self, scaled, mask):
            return np.where(mask.any(-1, keepdims=True), super().weights(scaled, mask), 1.0).astype(scaled.dtype)

    verdict = check_case(spec.cases[EMPTY_ROW], bench_of(SumOfEmptyRows))
    assert (verdict.reason, verdict.advice) == ("wrong-value", "")


def test_nan_that_another_option_would_give_is_still_not_finite(bench_of, spec):
    verdict = check_case(spec.cases[EMPTY_ROW], bench_of(NanInEmptyRows))
    assert verdict.reason == "not-finite"
    assert verdict.advice.startswith("this is empty_row: nan")


def test_nan_that_is_declared_is_no_fault_beside_a_wrong_value(bench_of, spec):
    class OffByOne(NanInEmptyRows):
        def weighted_sum(self, weights, value):
            return super().weighted_sum(weights, value) + 1

    verdict = check_case(spec.cases[EMPTY_ROW], bench_of(OffByOne, empty_row="nan"))
    assert (verdict.status, verdict.reason) == (Status.FAILED, "wrong-value")


def test_a_declaration_may_hold_for_one_component_alone(bench_of, spec):
    bench = bench_of(ZerosInEmptyRows, **{"scaled_dot_product_attention.empty_row": "zeros"})
    assert check_case(spec.cases[EMPTY_ROW], bench).status is Status.PASSED
    other = check_case(spec.cases["mha-empty-row"], bench)
    assert (other.reason, other.advice[:27]) == ("wrong-value", "this is empty_row: zeros (e")


def test_the_declaration_for_a_component_comes_before_the_one_for_all(bench_of, spec):
    declared = {"empty_row": "nan", "scaled_dot_product_attention.empty_row": "zeros"}
    bench = bench_of(ZerosInEmptyRows, **declared)
    assert check_case(spec.cases[EMPTY_ROW], bench).status is Status.PASSED
    assert check_case(spec.cases["fmha-empty-row"], bench).bad


def test_a_case_for_one_option_only_is_skipped_under_another(bench_of, spec):
    verdict = check_case(spec.cases["pe-odd-5"], bench_of(Concatenated, pe_layout="concatenated"))
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "convention")
    assert verdict.message == "only for pe_layout: interleaved; the adapter declares concatenated"


def test_what_is_declared_refused_must_be_refused(bench_of, spec):
    verdict = check_case(spec.cases["pe-odd-7-added"], bench_of(Textbook, odd_d_model="refused"))
    assert (verdict.status, verdict.reason) == (Status.FAILED, "no-error")
    assert verdict.message == (
        "accepts a call that its convention refuses and returns an array of shape (2, 3, 7): "
        "raise an error that names the argument"
    )


def test_a_refusal_that_another_option_allows_names_it(bench_of, spec):
    verdict = check_case(spec.cases["pe-odd-5"], bench_of(RefusesOddWidths))
    assert verdict.status is Status.ERRORED
    assert verdict.advice.startswith("this is odd_d_model: refused")

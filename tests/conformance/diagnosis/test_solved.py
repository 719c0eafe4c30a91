"""Constants that are in no list are solved for, and said only if they explain every failing case."""

from __future__ import annotations

import math

import numpy as np
import pytest

from goldformer.adapters import Adapter
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.diagnosis.mistakes.places import PLACES, TRACKED, restrict_to
from goldformer.conformance.diagnosis.neighbours import find_neighbour
from goldformer.conformance.diagnosis.neighbours.solved import families, fit_number
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.spec.formulas.attention import mask_fill, score_divisor, weigh_keys
from goldformer.spec.formulas.embedding import wavelength_base
from goldformer.spec.formulas.layers import activation, add_residual, layer_norm_eps, norm_denominator
from goldformer.spec.formulas.steps import around, instead


def say(spec, steps, component, most=None):
    book = build_textbook(steps, only=component)
    bench = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    judgements = [judge_case(case, bench) for case in spec.cases_of(component) if not case.full_size][:most]
    return list(diagnose(Diagnosis(spec).explain_all(judgements), spec))


def leak(slope):
    return {activation: instead(lambda x: np.where(x > 0, x, slope * x).astype(x.dtype))}


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("steps", "component", "said"),
    [
        ({layer_norm_eps: instead(lambda: 3e-4)}, "layer_norm", "The normalisation fits eps = 0.0003."),
        ({layer_norm_eps: instead(lambda: 3e-4)}, "encoder_layer", "The normalisation fits eps = 0.0003."),
        ({wavelength_base: instead(lambda: 2500.0)}, "positional_encoding", "The base is 2500 instead of 10000."),
        (
            {mask_fill: instead(lambda _: -12.0)},
            "scaled_dot_product_attention",
            "Masked scores become −12, which leaves their keys a weight.",
        ),
        (
            {score_divisor: instead(lambda sizes: sizes["d_k"] ** 0.75)},
            "scaled_dot_product_attention",
            "The scores are divided by d_k to the power of 0.75 instead of 1/2.",
        ),
        (
            {norm_denominator: around(lambda original, variance: original(variance) ** np.float32(1.6))},
            "layer_norm",
            "The row is divided by its variance plus eps to the power of 0.8 instead of 1/2.",
        ),
        (leak(0.2), "feed_forward", "The activation is a leaky ReLU with the slope 0.2."),
        (
            {score_divisor: instead(lambda _: 3.0)},
            "scaled_dot_product_attention",
            "The scores are divided by 3 instead of √d_k, whatever the width.",
        ),
        (
            {weigh_keys: around(lambda original, *given: (original(*given) * 0.9).astype(given[0].dtype))},
            "scaled_dot_product_attention",
            "The weights are multiplied by 0.9.",
        ),
        (
            {
                step: around(lambda original, *given: (original(*given) * 1.25).astype(given[0].dtype))
                for step in (weigh_keys, activation)
            }
            | {add_residual: around(lambda _, x, output, sums: (x + output * 1.25).astype(x.dtype))},
            "encoder_layer",
            "The weights of the attention, the activations and the results of all sub-layers, in the encoder layer, "
            "are multiplied by 1.25, as by a dropout that rescales in evaluation.",
        ),
    ],
)
def test_a_constant_is_solved_for(spec, steps, component, said):
    (found,) = [f for f in say(spec, steps, component) if f.label == "Mistake found"]
    assert found.text.startswith(said)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("steps", "component", "number", "said"),
    [
        ({layer_norm_eps: instead(lambda: 0.03)}, "encoder_layer", 2,
         "The normalisation fits eps = 0.03, only in the encoder layer's feed-forward network."),
        ({score_divisor: around(lambda original, sizes: original(sizes) * 1.7)}, "decoder_layer", 2,
         "The scores are divided by 1.7 times √d_k, only in the decoder layer's cross-attention."),
    ],
)  # fmt: skip
def test_a_constant_of_one_sublayer_is_solved_for(spec, steps, component, number, said):
    (place,) = [p for p in PLACES[component] if p.sublayer == (component, number) and not p.role]
    book = build_textbook(restrict_to(place, steps), TRACKED, only=component)
    bench = Bench(spec, Adapter.from_object(book, "mine.py", spec), "float32", "cpu")
    chosen = [case for case in spec.cases_of(component) if "-ordinary-" in case.id and case.cotangent is None][:8]
    findings = diagnose(Diagnosis(spec).explain_all([judge_case(case, bench) for case in chosen]), spec)
    (found,) = [f for f in findings if f.label == "Mistake found"]
    assert found.text.startswith(said)


class FillsBeforeItDivides:
    """Attention whose masked scores are too near, and divided like the others."""

    ARRAYS = "numpy"

    def scaled_dot_product_attention(self, query, key, value, mask=None):
        scores = query @ key.swapaxes(-1, -2)
        scores = scores if mask is None else np.where(mask, scores, scores.dtype.type(-10))
        scores = scores / scores.dtype.type(math.sqrt(query.shape[-1]))
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        weights = powers / powers.sum(-1, keepdims=True)
        return weights @ value, weights


def test_a_fill_before_the_division_is_solved_for(spec):
    bench = Bench(spec, Adapter.from_object(FillsBeforeItDivides(), "mine.py", spec), "float32", "cpu")
    judgements = [judge_case(case, bench) for case in spec.cases_of("scaled_dot_product_attention")]
    (found,) = [f for f in diagnose(Diagnosis(spec).explain_all(judgements), spec) if f.label == "Mistake found"]
    assert found.text.startswith("Masked scores become −10 before they are divided, which leaves their keys a weight.")


def test_nothing_is_said_of_a_number_that_does_not_explain_every_failing_case(spec):
    # The slope of one case is not that of another.
    uneven = {activation: instead(lambda x: np.where(x > 0, x, x / (10 + x.shape[-1])).astype(x.dtype))}
    assert not [f for f in say(spec, uneven, "feed_forward") if f.mistakes]


def test_another_function_is_not_called_by_a_number(spec):
    elu = {activation: instead(lambda x: np.where(x > 0, x, 0.5 * np.expm1(np.minimum(x, 0))).astype(x.dtype))}
    assert not [f for f in say(spec, elu, "feed_forward") if f.mistakes]


def test_a_number_is_found_to_six_digits_where_the_residual_vanishes():
    family = families()["feed_forward.slope"]
    assert fit_number(lambda value: (value - 0.123456) ** 2, family) == pytest.approx(0.123456, rel=1e-6)
    assert fit_number(lambda value: (value + 0.4) ** 2, family) == pytest.approx(-0.4, rel=1e-6)
    assert fit_number(lambda _: math.inf, family) is None


def test_the_search_of_a_family_that_does_not_fit_ends_early():
    tried = []

    def residual(value):
        tried.append(value)
        return 1 + (value - 0.12) ** 2

    fit_number(residual, families()["feed_forward.slope"])
    assert len(tried) < 35


def test_every_family_has_a_sentence_with_its_number(spec):
    for family in families().values():
        neighbour = find_neighbour(f"{family.id}=-0.25")
        assert "−0.25" in neighbour.title
        assert neighbour.component in spec.components
        assert neighbour.hint.endswith(".")

"""The closeness of results over batch sizes, padding, layouts and threads: noted, and required with --bitwise."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Final

import numpy as np
import pytest
import torch
from tests.support.runs import make_run

from goldformer.adapters import Adapter, find_adapter
from goldformer.adapters.arrays import LIBRARIES
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.verdict import Invariance, Status, Verdict
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.properties.registry import components_of
from goldformer.conformance.reports.remarks import make_remarks

BATCH: Final = "batch size"
PADDING: Final = "padding"
LAYOUT: Final = "memory layout"
THREADS: Final = "threads"


def normalise(x, params):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + x.dtype.type(1e-5)) * params["gamma"] + params["beta"]


def project(x, params):
    """The output layer, whose words are added up in another order in larger batches."""
    terms = x[..., :, None] * params["w_vocab"]
    terms = terms[..., ::-1, :] if len(x) > 2 else terms
    logits = np.zeros_like(terms[..., 0, :])
    for channel in range(terms.shape[-2]):
        logits = logits + terms[..., channel, :]
    logits = logits + params["b_vocab"]
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.fixture
def judge(spec):
    """The verdict of one property on a function, or on an adapter by its name."""

    def check(property_, component, function, *, bitwise=False, arrays="numpy"):
        if isinstance(function, str):
            adapter = find_adapter(function, spec)
        else:
            adapter = Adapter.from_object(SimpleNamespace(ARRAYS=arrays, **{component: function}), "mine.py", spec)
        bench = Bench(spec, adapter, "float32", "cpu", Policy(bitwise=bitwise))
        return check_property(spec.properties[property_], component, bench)

    return check


@pytest.mark.parametrize(
    ("property_", "component", "setting"),
    [
        ("sdpa-batch", "scaled_dot_product_attention", BATCH),
        ("mha-batch", "multi_head_attention", BATCH),
        ("fmha-batch", "fused_multi_head_attention", BATCH),
        ("enc-batch", "encoder_layer", BATCH),
        ("dec-batch", "decoder_layer", BATCH),
        ("out-batch", "output_probabilities", BATCH),
        ("ffn-positions", "feed_forward", BATCH),
        ("ln-rows", "layer_norm", BATCH),
        ("sdpa-padding", "scaled_dot_product_attention", PADDING),
        ("mha-hidden-tokens", "multi_head_attention", PADDING),
        ("encoder-batch", "encoder", PADDING),
        ("model-padding", "transformer", PADDING),
        ("memory-layout", "layer_norm", LAYOUT),
    ],
)
def test_properties_over_a_setting_note_how_closely_they_hold(property_, component, setting, judge):
    verdict = judge(property_, component, "textbook")
    assert verdict.status is Status.PASSED
    [found] = verdict.invariances
    assert found.setting == setting
    assert found.distance < 0.5
    assert found.bitwise is (found.distance == 0)


def test_another_order_of_additions_in_larger_batches_holds_within_the_tolerance(judge):
    verdict = judge("out-batch", "output_probabilities", project)
    assert verdict.status is Status.PASSED
    [found] = verdict.invariances
    assert (found.setting, found.bitwise) == (BATCH, False)
    assert 0 < found.distance < 1


def test_it_fails_where_every_bit_is_required_and_names_no_mistake(judge, spec):
    verdict = judge("out-batch", "output_probabilities", project, bitwise=True)
    assert (verdict.status, verdict.reason) == (Status.FAILED, "bitwise")
    assert verdict.message.startswith("holds within the tolerance, and not bit for bit over batch size (up to 0.")
    assert verdict.reproduce.endswith(" --bitwise")
    # The property lists mistakes that it catches; rounding is none of them.
    assert verdict.catches
    assert [remark.label for remark in make_remarks(make_run([verdict]), {}, spec)] == ["Bit for bit"]


def test_a_wrong_result_in_a_batch_is_wrong_whatever_is_required(judge):
    def mixes(x, params):
        return project(x + x.mean(0, keepdims=True), params)

    for bitwise in (False, True):
        verdict = judge("out-batch", "output_probabilities", mixes, bitwise=bitwise)
        assert (verdict.reason, verdict.invariances) == ("property", ())


def test_the_report_counts_the_components_that_stay_bit_for_bit(spec):
    def verdict(component, *invariances):
        blank = Verdict("p", "property", component, "", Status.PASSED, "", "", "float32", "cpu", (), "property")
        return replace(blank, invariances=invariances)

    exact, rounded = Invariance(BATCH, bitwise=True, distance=0.0), Invariance(BATCH, bitwise=False, distance=0.25)
    layout = Invariance(LAYOUT, bitwise=True, distance=0.0)
    verdicts = [verdict("softmax", exact, layout), verdict("layer_norm", rounded)]
    [remark] = make_remarks(make_run(verdicts), {}, spec, whole=True)
    assert (remark.label, remark.text) == (
        "Bit for bit",
        "over batch size: 1 of 2 components (within tolerance, at most 0.25 of it apart: layer_norm); "
        "memory layout: 1 of 1 components",
    )
    assert make_remarks(make_run(verdicts), {}, spec) == []


def test_invariances_survive_json(judge):
    verdict = judge("out-batch", "output_probabilities", project)
    assert Verdict.from_json(verdict.as_json()) == verdict


# Threads


def test_threads_are_compared_only_where_every_bit_is_required(judge):
    assert judge("repeat-calls", "softmax", "reference").invariances == ()
    [found] = judge("repeat-calls", "softmax", "reference", bitwise=True).invariances
    assert found == Invariance(THREADS, bitwise=True, distance=0.0)


def test_what_depends_on_the_number_of_threads_fails_where_every_bit_is_required(judge):
    def softmax(scores):
        weights = scores.softmax(-1)
        return weights.nextafter(weights + 1) if torch.get_num_threads() > 2 else weights

    verdict = judge("repeat-calls", "softmax", softmax, arrays="torch", bitwise=True)
    assert (verdict.status, verdict.reason) == (Status.FAILED, "bitwise")
    assert "not bit for bit over threads" in verdict.message


@pytest.mark.parametrize("arrays", LIBRARIES)
def test_the_number_of_threads_is_restored_or_cannot_be_chosen(arrays):
    before = torch.get_num_threads()
    with LIBRARIES[arrays].limit_threads(3) as limited:
        assert limited is (arrays in ("torch", "numpy"))
        assert torch.get_num_threads() == 3 or not limited
    assert torch.get_num_threads() == before


# Layouts


def test_a_layout_that_changes_the_last_digits_is_noted(judge):
    def softmax(scores):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        weights = powers / powers.sum(-1, keepdims=True)
        return weights if scores.flags.c_contiguous else np.nextafter(weights, weights.dtype.type(0))

    [found] = judge("memory-layout", "softmax", softmax).invariances
    assert (found.setting, found.bitwise) == (LAYOUT, False)


def test_a_layer_norm_of_rows_is_the_same_in_every_layout(judge):
    [found] = judge("memory-layout", "layer_norm", normalise).invariances
    assert found.setting == LAYOUT


def test_words_that_rounding_may_turn_are_compared_for_the_numbers_of_the_case_only(judge):
    """Thirds have no proof that keeps the candidates apart."""
    verdict = judge("memory-layout", "greedy_decode", "reference")
    assert verdict.status is Status.PASSED


def test_the_spec_says_in_which_settings_a_property_compares(spec):
    reference = find_adapter("reference", spec)
    for prop in spec.properties.values():
        for component in components_of(prop, spec) if prop.settings else ():
            verdict = check_property(prop, component, Bench(spec, reference, "float32", "cpu", Policy(bitwise=True)))
            # A component of masks and ids has no views of numbers to compare, and no sums that threads could share.
            assert verdict.invariances or prop.component == "*", prop.id
            assert {found.setting for found in verdict.invariances} <= set(prop.settings), prop.id

"""The rounding model: one pass of variances, samples, and what real arithmetic does, agree."""

from __future__ import annotations

import math

import numpy as np
import pytest

from goldformer.adapters import DTYPES
from goldformer.spec import Spec, load_spec
from goldformer.spec.oracle import truth
from goldformer.spec.oracle.derive import choose_options
from goldformer.spec.oracle.rounding import UNIT_ROUNDOFF, Rounding
from goldformer.spec.oracle.samples import Sampler
from goldformer.spec.oracle.truth import Call, OutputRounding, make_call
from goldformer.spec.oracle.variances import Propagation

RANDOM = np.random.default_rng(7)


def draw(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape)


COMPONENTS = sorted(load_spec().contracts)
#: Those in which nothing is rounded, and one that is random.
EXACT = {
    "causal_mask", "one_hot", "padding_mask", "position_ids", "shift_right", "sliding_window_mask", "xavier_uniform",
    "generate",
}  # fmt: skip


def call_case(case, spec: Spec) -> Call:
    options = next(iter(case.combine_options()))
    under = case.under(options)
    chosen = choose_options(under, spec.contracts[case.component], options)
    return Call(case.component, under.input_arrays, under.param_arrays, under.attributes, chosen)


def list_plain(component: str, spec: Spec):
    for case in spec.cases_of(component):
        if case.golden is not None and case.cotangent is None and not case.random and not case.full_size:
            yield case


@pytest.mark.sample(10)
@pytest.mark.parametrize("component", COMPONENTS)
def test_the_values_are_the_golden_ones_far_below_a_roundoff_of_float32(component: str, spec: Spec):
    furthest, count = 0.0, 0
    for case in list_plain(component, spec):
        golden = case.golden.options[case.key(next(iter(case.combine_options())))]
        if golden is None:
            continue
        found = call_case(case, spec).evaluate(Rounding.of("float32")).outputs
        for name, array in golden.items():
            values = array.select(found[name].values)
            if array.values.dtype.kind != "f":
                assert np.array_equal(values, array.values), (case.id, name)
                continue
            assert np.array_equal(np.isnan(values), np.isnan(array.values)), (case.id, name)
            if array.error_scale == 0:
                assert found[name].variance is None or not array.select(found[name].variance).any(), (case.id, name)
                assert np.array_equal(values, array.values, equal_nan=True), (case.id, name)
                continue
            deviation = math.sqrt(np.nanmax(found[name].variance))
            furthest = max(furthest, np.nanmax(np.abs(values - array.values)) / deviation)
            count += 1
    assert (count == 0) == (component in EXACT)
    assert furthest < 1e-7, "a hundredth of the tolerance would be 0.09"


SIZES = {
    "scaled_dot_product_attention": {"query": draw(3, 40, 64), "key": draw(3, 70, 64), "value": draw(3, 70, 48)},
    "grouped_query_attention": {
        "query": draw(1, 4, 40, 64), "key": draw(1, 2, 70, 64), "value": draw(1, 2, 70, 48),
    },
    "softmax": {"scores": 3 * draw(40, 300)},
    "layer_norm": {"x": draw(40, 128) + 3},
    "rms_norm": {"x": draw(40, 128) + 3},
    "feed_forward": {"x": draw(2, 20, 64)},
    "gated_feed_forward": {"x": draw(2, 20, 64)},
    "multi_head_attention": {"query": draw(1, 40, 64), "key": draw(1, 40, 64), "value": draw(1, 40, 64)},
}  # fmt: skip
PARAMS = {
    "layer_norm": {"gamma": draw(128), "beta": draw(128)},
    "rms_norm": {"gamma": draw(128)},
    "feed_forward": {"w_1": draw(64, 128) / 8, "b_1": draw(128), "w_2": draw(128, 64) / 11, "b_2": draw(64)},
    "gated_feed_forward": {
        "w_gate": draw(64, 128) / 8, "b_gate": draw(128), "w_up": draw(64, 128) / 8, "b_up": draw(128),
        "w_down": draw(128, 64) / 11, "b_down": draw(64),
    },
    "multi_head_attention": {
        **{f"w_{n}": draw(64, 64) / 8 for n in "qkvo"}, **{f"b_{n}": draw(64) / 4 for n in "qkvo"}
    },
}  # fmt: skip
ATTRIBUTES = {"multi_head_attention": {"num_heads": 4}}


def evaluate(component: str, dtype: str, *, sampled: bool, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    monkeypatch.setattr(truth, "MOST_SAMPLED", 1 << 30 if sampled else 0)
    call = Call(component, SIZES[component], PARAMS.get(component, {}), ATTRIBUTES.get(component, {}), {}, True)
    return call.evaluate(Rounding.of(dtype)).outputs["output"].variance


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("component", SIZES)
def test_one_pass_of_variances_agrees_with_samples(component, dtype, monkeypatch):
    once = evaluate(component, dtype, sampled=False, monkeypatch=monkeypatch)
    sampled = evaluate(component, dtype, sampled=True, monkeypatch=monkeypatch)
    assert 0.8 < math.sqrt(once.mean() / sampled.mean()) < 1.25
    rows = np.sqrt(once.mean(-1) / sampled.mean(-1))
    assert 0.6 < rows.min() <= rows.max() < 1.7


def test_a_call_that_is_cut_gives_what_it_gives_as_a_whole(spec: Spec, monkeypatch):
    inputs = {**SIZES["scaled_dot_product_attention"], "mask": RANDOM.random((40, 70)) < 0.7}
    monkeypatch.setattr(truth, "MOST_SAMPLED", 0)
    contract = spec.contracts["scaled_dot_product_attention"]
    outputs = []
    for block in (1 << 20, 1):
        monkeypatch.setattr(truth, "_BLOCK", block)
        call = Call(contract.component, inputs, {}, {}, {"empty_row": "uniform"}, True, ("output",), contract)
        outputs.append(call.evaluate(Rounding.of("float16")))
    whole, cut = outputs
    assert set(cut.outputs) == {"output"}
    assert np.allclose(whole.outputs["output"].values, cut.outputs["output"].values, rtol=1e-13, atol=0)
    assert np.allclose(whole.outputs["output"].variance, cut.outputs["output"].variance, rtol=1e-9, atol=0)
    assert cut.peak == whole.peak


@pytest.mark.parametrize("kind", [Sampler, Propagation])
def test_zeros_and_moves_round_nothing(kind):
    how = kind(Rounding.of("float32"))

    def variance(array):
        return array.variance if kind is Propagation else how.find_variance(array)

    def all_exact(array):
        return variance(array) is None or not variance(array).any()

    x, zeros = how.hold([[1.25, -3.0], [0.5, 7.0]]), how.hold(np.zeros((2, 2)))
    assert all_exact(x.swapaxes(0, 1).reshape(4))
    assert all_exact(x + zeros)
    assert all_exact(x * zeros)
    assert all_exact(x @ zeros)
    assert all_exact(-x)
    assert not all_exact(x + x)
    assert not all_exact(np.exp(zeros) * x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_decimal_is_rounded_once_when_it_is_read(dtype):
    how = Propagation(Rounding.of(dtype))
    read = how.read(np.array([0.1, 0.5, 3.0, -1.7]))
    unit = UNIT_ROUNDOFF[dtype]
    assert read.variance == pytest.approx(np.array([0.01, 0, 0, 2.89]) * unit**2 / 3, rel=1e-5, abs=unit**2 * 1e-9)
    assert how.hold([0.1]).variance is None


def test_underflow_has_a_cost():
    rounding = Rounding.of("float16")
    how = Propagation(rounding)
    tiny = how.hold([2.0**-14]) * how.hold([2.0**-10])
    assert tiny.variance[0] == pytest.approx(((rounding.results * 2.0**-24) ** 2 + rounding.smallest**2) / 3)


def test_underflow_takes_no_square_below_zero():
    how = Sampler(Rounding.of("float16"))
    row = how.hold(draw(200, 4) * 1e-4)
    square = (row * row).sum(axis=-1)
    assert (square.samples >= 0).all()
    assert (square.samples == 0).any(), "some squares vanish in float16, so that the test sees underflow"
    assert np.isfinite(how.find_variance(row / np.sqrt(square + 1e-7)[:, None])).all()


def test_rows_near_zero_have_a_tolerance_under_every_option(spec: Spec):
    case = spec.cases["rms-ten-thousandths"]
    for options in case.combine_options():
        call = make_call(case, options, spec.contracts[case.component])
        for dtype in DTYPES:
            assert np.isfinite(OutputRounding(call, "output")(dtype)).all(), (options, dtype)


def test_the_largest_number_on_the_way_is_known():
    inputs = {"query": np.full((1, 4), 300.0), "key": np.full((2, 4), 300.0), "value": np.ones((2, 3))}
    call = Call("scaled_dot_product_attention", inputs, {}, {}, {"empty_row": "uniform"}, True)
    assert call.evaluate(Rounding.of("float16")).peak == 360_000.0


def test_samples_are_the_same_in_every_evaluation():
    first, second = (
        Call("softmax", {"scores": np.array([0.25, 1.0, -2.0])}, {}, {}, {}).evaluate(Rounding.of("bfloat16"))
        for _ in range(2)
    )
    assert np.array_equal(first.outputs["output"].variance, second.outputs["output"].variance)


def test_the_errors_of_a_softmax_add_up_to_nearly_nothing(monkeypatch):
    """The weights of a row sum to 1 in right code, so that a large one cannot be off by itself."""
    monkeypatch.setattr(truth, "MOST_SAMPLED", 0)
    sure = Call("softmax", {"scores": np.array([30.0, 0.0, 0.0])}, {}, {}, {}).evaluate(Rounding.of("float32"))
    deviation = np.sqrt(sure.outputs["output"].variance) / UNIT_ROUNDOFF["float32"]
    assert deviation[0] < 2

"""The error scale: the same whatever ran before, 0 where nothing is rounded, as large as honest code really errs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from drawn_scales import measure
from goldformer.spec import Spec
from goldformer.spec.oracle.derive import derive, evaluate, up
from goldformer.spec.oracle.draws import ROUNDOFF, SAMPLES, Draw, error_scale
from goldformer.spec.oracle.duals import Dual, unit_draw
from goldformer.spec.oracle.rounding import SLACK, SMALLEST, UNIT_ROUNDOFF


@pytest.fixture(autouse=True)
def from_the_start():
    Draw.reset()


def scale(draw: Draw, golden: float) -> float:
    return error_scale(np.array([draw], dtype=object), np.array([golden]))


def exact(*values: float) -> list[Draw]:
    return [Draw.exact(value) for value in values]


def grid(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-64, 65, shape) / 32


# ── one operation ──

OPERATIONS = {
    "+": (lambda a, b: a + b, 0.75),
    "-": (lambda a, b: a - b, 0.25),
    "·": (lambda a, b: a * b, 0.125),
    "/": (lambda a, b: a / b, 2.0),
    "+ a number": (lambda a, b: a + 0.75, 1.25),
    "a number +": (lambda a, b: 0.75 + a, 1.25),
    "- a number": (lambda a, b: a - 0.25, 0.25),
    "· a number": (lambda a, b: 3 * a, 1.5),
    "/ a number": (lambda a, b: a / 3, 0.5 / 3),
    "exp": (lambda a, b: a.exp(), math.exp(0.5)),
    "log": (lambda a, b: a.log(), math.log(0.5)),
    "sqrt": (lambda a, b: a.sqrt(), math.sqrt(0.5)),
    "sin": (lambda a, b: a.sin(), math.sin(0.5)),
    "cos": (lambda a, b: a.cos(), math.cos(0.5)),
}


@pytest.mark.parametrize(("operation", "value"), OPERATIONS.values(), ids=OPERATIONS)
def test_one_operation_rounds_once_in_units_of_its_result(operation, value):
    result = operation(*exact(0.5, 0.25))
    np.testing.assert_allclose(result.samples, value, rtol=1.01 * ROUNDOFF)
    assert len(set(result.samples)) == SAMPLES
    assert 0.8 * abs(value) < scale(result, value) <= abs(value) * (1 + 1e-5)


def test_every_operation_draws_perturbations_of_its_own():
    a, b = exact(1, 1)
    first, second = (a * b).samples, (a * b).samples
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.5
    assert not set(first) & set(second)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, zero: x,
        lambda x, zero: -x,
        lambda x, zero: x + zero,
        lambda x, zero: zero + x,
        lambda x, zero: x - zero,
        lambda x, zero: x + 0,
        lambda x, zero: x - 0.0,
        lambda x, zero: sum([x, zero, zero]),
        lambda x, zero: x * zero,
        lambda x, zero: zero * x,
        lambda x, zero: x * zero + x,
        lambda x, zero: -zero + x,
    ],
)
def test_what_rounds_nothing_has_scale_zero(compute):
    result = compute(*exact(0.7, 0))
    assert len(set(result.samples)) == 1
    assert scale(result, float(result)) == 0.0


@pytest.mark.parametrize("value", [0.0, 1.0, -255.0, 256.0, 0.5625, 2.0**-30, 1.5 * 2.0**100])
def test_an_input_that_bfloat16_holds_is_exact(value):
    assert scale(Draw.read(value), value) == 0.0


@pytest.mark.parametrize("value", [0.1, 0.3, -2.2, 257.0, 1 + 2.0**-8, 9999.0])
def test_an_input_that_bfloat16_does_not_hold_is_perturbed_once(value):
    assert 0.8 * abs(value) < scale(Draw.read(value), value) <= abs(value) * (1 + 1e-5)


# ── what adds up ──


@pytest.mark.parametrize("n", [2, 10, 100])
def test_a_sum_of_equal_terms_errs_by_all_its_partial_sums(n):
    total = sum(exact(*[1.0] * n))
    assert isinstance(total, Draw)
    partial = np.arange(2, n + 1)
    spread = math.sqrt(np.sum(partial**2) / 3)
    assert 1.5 * spread < scale(total, n) <= min(4.5 * spread, partial.sum() * (1 + 1e-5))


@pytest.mark.parametrize("large", [2.0**4, 2.0**10, 2.0**20])
def test_cancellation_is_seen_at_the_size_of_what_cancels(large):
    a, b = exact(large, 1.0)
    assert 0.8 * large < scale((a + b) - a, 1.0) < large + 3


def test_an_exponential_is_as_sensitive_as_its_argument_is_large():
    thousand = Draw.exact(100.0) * Draw.exact(10.0)
    relative = scale((thousand - 999.0).exp(), math.e) / math.e
    assert 800 < relative < 1002


def test_the_scale_is_the_largest_over_elements_and_leaves_nan_out():
    draws = np.array([Draw.exact(1.0), Draw.exact(2.0) * Draw.exact(4.0), Draw.exact(math.nan)], dtype=object)
    golden = np.array([1.0, 8.0, math.nan])
    assert error_scale(draws, golden) == scale(draws[1], 8.0) > 6
    assert error_scale(draws[:0], golden[:0]) == 0.0
    assert error_scale(draws[2:], golden[2:]) == 0.0


def test_a_wrong_golden_value_shows_in_the_scale():
    assert scale(Draw.exact(1.0), 1.0 + 2.0**-20) == pytest.approx(2.0**14)


# ── deterministic ──


def call(seed: int) -> dict[str, np.ndarray]:
    return {"query": grid(seed, 2, 3, 5), "key": grid(seed + 100, 2, 7, 5), "value": grid(seed + 200, 2, 7, 4)}


def test_scales_do_not_depend_on_what_ran_before():
    first = measure("scaled_dot_product_attention", call(1), {}, {}, {}).scales
    measure("softmax", {"scores": grid(9, 4, 11)}, {}, {}, {})
    sum(exact(*range(50)))
    assert measure("scaled_dot_product_attention", call(1), {}, {}, {}).scales == first
    assert measure("scaled_dot_product_attention", call(2), {}, {}, {}).scales != first


def test_a_case_is_derived_alike_in_any_order(spec: Spec):
    cases = [spec.cases[id_] for id_ in ("sha-five-tokens", "sdpa-walkthrough-3x2", "sm-several-rows")]

    def derived(order):
        return {c.id: derive(c, spec.contracts[c.component]).as_json() for c in order}

    assert derived(cases) == derived(reversed(cases))


@pytest.mark.parametrize(
    "id_", ["sha-five-tokens", "sdpa-walkthrough-3x2", "pe-d-6", "emb-d-model-four", "sdpa-empty-row"]
)
def test_stored_scales_and_peaks_are_those_derived_now(spec: Spec, id_):
    case = spec.cases[id_]
    derived = derive(case, spec.contracts[case.component])
    assert case.golden.peak == derived.peak
    for option, outputs in derived.options.items():
        for name, array in (outputs or {}).items():
            assert case.golden.options[option][name].error_scale == pytest.approx(array.error_scale, rel=0.02)


def test_the_pool_of_perturbations_may_run_out_and_starts_elsewhere():
    one = Draw.exact(1.0)
    windows = [tuple((one * one).samples) for _ in range(40_000)]
    assert len(set(windows)) > 39_000
    Draw.reset()
    assert [tuple((one * one).samples) for _ in range(40_000)] == windows


# ── exact results ──


def test_selecting_rows_and_making_masks_has_scale_zero():
    ids, table = np.array([[2, 0, 3], [1, 1, 2]]), grid(1, 4, 5)
    arguments = ({"ids": ids}, {"table": table}, {})
    assert measure("token_embedding", *arguments, {"embedding_scale": "none"}).scales == {"output": 0.0}
    assert measure("token_embedding", *arguments, {"embedding_scale": "sqrt_d_model"}).scales["output"] > 1
    assert measure("causal_mask", {}, {}, {"q_seq": 3, "kv_seq": 4}, {}).scales == {}


def test_the_uniform_row_of_one_key_and_a_masked_weight_are_exact():
    mask = np.array([[True, False, False]])
    arrays = {"query": grid(1, 1, 4), "key": grid(2, 3, 4), "value": grid(3, 3, 2), "mask": mask}
    weights = evaluate("scaled_dot_product_attention", Draw.exact, Draw.read, arrays, {}, {}, {})["weights"]
    assert not np.any([draw.samples for draw in weights[0, 1:]]), "a masked key has weight 0 in every sample"
    np.testing.assert_allclose(weights[0, 0].samples, 1, rtol=4 * ROUNDOFF)


# ── against real arithmetic ──


def softmax(scores: np.ndarray) -> dict[str, np.ndarray]:
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return {"output": e / e.sum(-1, keepdims=True)}


def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> dict[str, np.ndarray]:
    scores = query @ key.swapaxes(-1, -2)
    scaled = scores / np.sqrt(query.dtype.type(query.shape[-1]))
    weights = softmax(scaled)["output"]
    return {"output": weights @ value, "weights": weights, "scores": scores, "scaled_scores": scaled}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    ("component", "compute", "inputs"),
    [
        ("softmax", softmax, lambda seed: {"scores": 2 * grid(seed, 3, 7)}),
        ("scaled_dot_product_attention", attention, call),
    ],
    ids=["softmax", "attention"],
)
def test_the_scale_covers_what_numpy_errs_and_is_not_far_above(component, compute, inputs, dtype):
    tightest: dict[str, float] = {}
    for seed in range(20):
        arrays = inputs(seed)
        truth = compute(**arrays)
        narrow = compute(**{name: array.astype(dtype) for name, array in arrays.items()})
        for name, factor in measure(component, arrays, {}, {}, {}).scales.items():
            assert narrow[name].dtype == dtype
            error = np.abs(narrow[name].astype(np.float64) - truth[name]).max()
            assert error <= SLACK * (UNIT_ROUNDOFF[dtype] * factor + SMALLEST[dtype]), f"{name}, seed {seed}"
            tightest[name] = max(tightest.get(name, 0.0), error / (UNIT_ROUNDOFF[dtype] * factor))
    # Products of such numbers are exact in float32, and so are their sums.
    exactly = {"scores"} if dtype == "float32" else set()
    assert {name for name, ratio in tightest.items() if ratio == 0.0} == exactly & set(tightest)
    assert all(ratio > 1 / 50 for name, ratio in tightest.items() if name not in exactly), tightest


def test_arithmetic_of_a_narrower_dtype_lies_far_outside():
    arrays = call(3)
    narrow = attention(**{name: array.astype("float16") for name, array in arrays.items()})
    for name, factor in measure("scaled_dot_product_attention", arrays, {}, {}, {}).scales.items():
        error = np.abs(narrow[name].astype(np.float64) - attention(**arrays)[name]).max()
        assert error > 100 * SLACK * UNIT_ROUNDOFF["float32"] * factor, name


# ── other honest orders ──


def test_a_sum_that_begins_with_its_bias_rounds_at_the_size_of_the_bias():
    """float32 as a fused kernel has it: every partial sum is as large as the bias."""
    x, w, bias = grid(1, 1, 1, 64), grid(2, 64, 1), np.array([4096.0])
    given = ({"x": x}, {"w_vocab": w, "b_vocab": bias}, {}, {})
    exact_logit = (x @ w + bias).item()
    total = np.float32(bias.item())
    for term in (x[0, 0] * w[:, 0]).astype(np.float32):
        total += term
    error = abs(float(total) - exact_logit)
    scale_of_logits = measure("output_probabilities", *given).scales["logits"]
    assert error <= SLACK / 2 * UNIT_ROUNDOFF["float32"] * scale_of_logits
    # Rounded once at that size would not have been enough.
    assert scale_of_logits > 4 * exact_logit


def test_a_loss_is_a_difference_of_numbers_as_large_as_the_logits():
    """log Σ e^z − z_y, as LOSS-2 prints it."""
    logits, targets = np.array([[[64.0, 32.0]]]), np.array([[0]])
    found = measure("cross_entropy", {"logits": logits, "targets": targets}, {}, {"pad_id": -1}, {}).scales
    assert 32 < found["token_losses"] < 128


# ── the peak ──


def test_the_peak_is_the_largest_number_on_the_way_since_the_reset():
    a, b = exact(30.0, -40.0)
    product = a * b
    (product / 1000.0).exp()
    assert Draw.peak == pytest.approx(1200)
    Draw.reset()
    assert Draw.peak == 0.0
    (a - b).sqrt()
    assert Draw.peak == pytest.approx(70)


def test_the_peak_of_a_case_is_that_of_its_largest_option(spec: Spec):
    case = spec.cases["emb-d-model-four"]
    backwards = replace(case, conventions={name: options[::-1] for name, options in case.conventions.items()})
    for made in (case, backwards):
        derived = derive(made, spec.contracts[case.component])
        assert derived.peak == case.golden.peak > 1, list(derived.options)


@pytest.mark.parametrize(("factor", "peak"), [(1.0, 20), (32.0, 32 * 32 * 20)])
def test_the_peak_of_attention_is_its_largest_score(factor, peak):
    arrays = {"query": np.full((2, 5), 2.0) * factor, "key": np.full((3, 5), 2.0) * factor, "value": np.ones((3, 2))}
    measure("scaled_dot_product_attention", arrays, {}, {}, {})
    assert Draw.peak == pytest.approx(peak)


@pytest.mark.parametrize(("root", "peak"), [(2.0**-4, 2.0**11), (2.0**-6, 2.0**17)])
def test_the_slopes_of_a_reciprocal_root_count_on_the_way_to_a_gradient(root, peak):
    """(1/√x)' = 1/(2·√x³), which code that multiplies by 1/√x forms, and no other number here is as large."""
    x = Dual(Draw.exact(root**2), unit_draw(range(1), 0))
    quotient = Dual(Draw.exact(root)) / x.sqrt()
    assert abs(float(quotient.value)) == pytest.approx(1)
    assert Draw.peak == pytest.approx(peak)
    Draw.reset()
    Dual(Draw.exact(root)) / Dual(Draw.exact(root**2)).sqrt()
    assert Draw.peak == pytest.approx(1)  # nothing is differentiated


def test_every_row_of_a_tangent_counts_for_the_peak():
    tangent = unit_draw(range(3), 2)
    Dual(Draw.exact(0.0), tangent) * 500
    assert Draw.peak == pytest.approx(500)


# An input that eight bits hold is never rounded, yet float16 cannot hold 131072: honest code would fail.
def test_an_input_counts_for_the_peak():
    measure("token_embedding", {"ids": np.array([[0]])}, {"table": np.array([[131072.0]])}, {}, {})
    assert Draw.peak >= 131072


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (0.0, 0.0),
        (1.234, 1.24),
        (99.91, 100.0),
        (0.0012301, 0.00124),
        (5.0, 5.0),
        (math.inf, math.inf),
        (123456.0, 124e3),
    ],
)
def test_a_stored_scale_is_rounded_up_to_three_digits(value, rounded):
    assert up(value) == rounded


def test_rounding_up_never_makes_smaller():
    values = np.exp(np.random.default_rng(1).uniform(-20, 20, 2000))
    ratios = np.array([up(value) / value for value in values])
    assert (ratios >= 1 - 1e-15).all()
    assert (ratios < 1.0101).all()

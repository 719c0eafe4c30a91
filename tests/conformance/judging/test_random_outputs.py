"""Random outputs: what chance and rounding may do passes, more does not, and it is said in numbers."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from goldformer.adapters import DTYPES, Adapter
from goldformer.conformance.commands.explain import find_entry, format_entry
from goldformer.conformance.diagnosis.diagnosed import Explained
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.random_outputs import compare_draws, compare_statistics
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.reports.text import explain_verdict
from goldformer.spec.model import ANY, GoldenArray
from goldformer.spec.oracle.rounding import UNIT_ROUNDOFF

every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture
def verdict_of(spec):
    """The verdict when a component returns just this array."""

    def check(case, array, dtype="float64"):
        case = spec.cases[case]

        def function(**given):
            return torch.from_numpy(np.array(array)).to(getattr(torch, dtype))

        thing = SimpleNamespace(ARRAYS="torch", NAME="mine", **{case.component: function})
        return check_case(case, Bench(spec, Adapter.from_object(thing, "mine.py", spec), dtype, "cpu"))

    return check


def uniform(spec, case, seed=0):
    d_in, d_out = (spec.cases[case].sizes[name] for name in ("d_in", "d_out"))
    bound = math.sqrt(6 / (d_in + d_out))
    return np.random.default_rng(seed).uniform(-bound, bound, (d_in, d_out))


def dropped(shape, rate=0.1, seed=0):
    return (np.random.default_rng(seed).random(shape) >= rate) / (1 - rate)


TENTH = (8, 25, 100)


# What chance and rounding may do


@every_dtype
def test_what_is_drawn_as_the_clause_says_passes_in_every_dtype(dtype, spec, verdict_of):
    for seed in range(10):
        for case, array in (("xu-wide", uniform(spec, "xu-wide", seed)), ("do-tenth", dropped(TENTH, seed=seed))):
            verdict = verdict_of(case, array, dtype)
            assert verdict.status is Status.PASSED
            assert 0 < verdict.ratio < 0.6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("case", ["xu-fused-64x192", "xu-wide", "xu-tall", "xu-small"])
def test_a_random_number_as_coarse_as_the_dtype_is_right(case, dtype, spec, verdict_of):
    """bfloat16 knows 256 numbers from 0 to 1; PyTorch draws one of them, which is always rounded down."""
    bound = math.sqrt(6 / sum(spec.cases[case].sizes.values()))
    fine = (uniform(spec, case) / bound + 1) / 2
    coarse = np.floor(fine / UNIT_ROUNDOFF[dtype]) * UNIT_ROUNDOFF[dtype]
    assert verdict_of(case, bound * (2 * coarse - 1), dtype).ratio < 0.6
    assert verdict_of(case, bound * (2 * (coarse + UNIT_ROUNDOFF[dtype]) - 1), dtype).ratio < 0.6


@every_dtype
def test_a_random_number_of_two_bits_is_too_coarse(dtype, spec, verdict_of):
    bound = math.sqrt(6 / 256)
    two_bits = np.floor((uniform(spec, "xu-fused-64x192") / bound + 1) * 2) / 2 - 1
    verdict = verdict_of("xu-fused-64x192", bound * two_bits, dtype)
    assert verdict.message.startswith("mean of weight: -0.03")


def one(statistic, value, within, error_scale):
    return GoldenArray(np.array([value]), error_scale, within={statistic: within})


# In float64 what the mean itself rounds would show, which every interval of a mean leaves room for.
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("statistic", ["mean", "mean_square", "largest"])
def test_elements_that_all_move_by_their_tolerance_stay_within_that_of_the_statistic(statistic, sign, dtype):
    x = np.random.default_rng(3).uniform(1, 2, 1000)
    moved = x + sign * tolerance(dtype, 1.5, 0.0)
    exactly = {"mean": x.mean(), "mean_square": (x**2).mean(), "largest": x.max()}[statistic]
    (difference,) = compare_statistics("output", moved, one(statistic, exactly, 0.0, 1.5), dtype)
    # Nearly all of it is used up, since the elements are of nearly one size.
    assert 0.9 < difference.ratio <= 1 + 1e-12
    moved = x + sign * 1.2 * tolerance(dtype, 1.5, 0.0)
    (difference,) = compare_statistics("output", moved, one(statistic, exactly, 0.0, 1.5), dtype)
    assert difference.wrong == 1


@every_dtype
def test_zeros_are_not_rounded(dtype):
    x = np.array([0.0, 0.0, -0.0, 1.0, 1e-30])
    golden = one("zeros", 0.6, 0.0, 100.0)
    (difference,) = compare_statistics("output", x, golden, dtype)
    assert (difference.wrong, difference.tolerance) == (0, 0.0)
    (difference,) = compare_statistics("output", x[1:], golden, dtype)
    assert (difference.wrong, difference.ratio) == (1, math.inf)


def test_the_interval_and_rounding_add_up():
    golden = one("mean", 0.0, 0.25, 2.0)
    (difference,) = compare_statistics("output", np.full(4, 0.2), golden, "float16")
    assert difference.tolerance == 0.25 + tolerance("float16", 2.0, 0.0)
    assert difference.ratio == 0.2 / difference.tolerance


# What is said


def test_a_statistic_that_is_off_is_said_in_its_numbers(spec, verdict_of):
    verdict = verdict_of("do-tenth", dropped(TENTH) * 0.9, "float32")
    assert (verdict.status, verdict.reason) == (Status.FAILED, "wrong-value")
    assert [d.output for d in verdict.differences] == ["mean of output", "mean_square of output", "largest of output"]
    mean, _, largest = verdict.differences
    got = float((dropped(TENTH) * 0.9).mean())
    assert (mean.wrong, mean.compared, mean.worst.index, mean.worst.expected) == (1, 1, (), 1.0)
    assert mean.worst.got == pytest.approx(got, rel=1e-6)
    assert verdict.message == f"mean of output: {got:.6g} instead of 1, off by {mean.ratio:.3g} times the tolerance"
    lines = explain_verdict(Explained(verdict), spec).splitlines()
    assert lines[2] == f"  → {verdict.message}"
    said = f"expected 1, actual {mean.worst.got:.9g}, error ÷ tolerance {mean.ratio:.3g} (tolerance 0.0183)"
    assert lines[3] == f"  mean of output: {said}"
    assert lines[5].startswith("  largest of output: expected 1.11111111, actual 1, error ÷ tolerance ")
    assert verdict.ratio == largest.ratio > 1000
    assert Verdict.from_json(verdict.as_json()) == verdict


def test_statistics_that_are_right_are_not_among_the_differences(verdict_of):
    verdict = verdict_of("do-tenth", dropped(TENTH, rate=0.15) * 0.85 / 0.9)
    assert [d.output for d in verdict.differences] == ["zeros of output", "mean of output", "mean_square of output"]
    assert verdict.message == "zeros of output: 0.14895 instead of 0.1, off by 2.97 times the tolerance"


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_one_element_that_is_not_finite_is_told(number, spec, verdict_of):
    weight = uniform(spec, "xu-wide")
    weight[3, 4] = number
    verdict = verdict_of("xu-wide", weight)
    assert (verdict.reason, verdict.ratio) == ("not-finite", math.inf)
    assert verdict.message == f"mean of weight: {number:.6g} instead of 0"


@pytest.mark.parametrize("array", [np.zeros((30, 400)), np.ones((30, 400)), np.full((30, 400), 0.05)])
def test_numbers_that_are_not_drawn_at_all_fail(array, verdict_of):
    assert verdict_of("xu-wide", array).bad


def test_a_weight_of_another_shape_is_told_as_any_shape(spec, verdict_of):
    verdict = verdict_of("xu-wide", uniform(spec, "xu-wide").T)
    assert (verdict.reason, verdict.message) == (
        "wrong-shape", "weight has shape (400, 30), must be (d_in, d_out) = (30, 400)",
    )  # fmt: skip


def test_a_loss_of_one_number_is_said_like_a_statistic(spec, verdict_of):
    case = next(c for c in spec.cases_of("cross_entropy") if c.golden and "loss" in c.expect)
    golden = case.golden.options[ANY]["loss"]
    verdict = verdict_of(case.id, golden.values + 1.0)
    expected, got = float(golden.values), float(golden.values + 1.0)
    assert verdict.message.startswith(f"loss: {got:.6g} instead of {expected:.6g}, off by ")


def test_a_case_is_explained_with_its_intervals(spec):
    lines = format_entry(find_entry("do-tenth", spec))
    assert "    mean: 1 ± 0.0183" in lines
    assert "    largest: 1.11111111 ± 0" in lines


# What is not implemented


def test_attention_without_dropout_declines_its_cases_alone(spec):
    def attend(query, key, value, mask=None):
        return value

    thing = SimpleNamespace(ARRAYS="torch", NAME="mine", scaled_dot_product_attention=attend)
    bench = Bench(spec, Adapter.from_object(thing, "mine.py", spec), "float32", "cpu")
    verdict = check_case(spec.cases["sdpa-dropout-sum"], bench)
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "not-implemented")
    assert verdict.message == "scaled_dot_product_attention takes no dropout_rate, and need not"


def test_two_draws_of_one_distribution_are_within_chance():
    random = np.random.default_rng(1)
    for size in (1, 2, 20, 300, 5000):
        for draw in (random.normal, random.uniform, random.laplace, random.standard_cauchy):
            assert compare_draws(draw(size=size), draw(size=size)) <= 1


@pytest.mark.parametrize(
    "other",
    [
        lambda random, n: random.normal(0, 1 / math.sqrt(3), n),  # of the same variance
        lambda random, n: random.uniform(0, 1, n),
        lambda random, n: random.uniform(-1.05, 1.05, n),
        lambda random, n: np.zeros(n),
    ],
)
def test_two_draws_of_different_distributions_are_not(other):
    random = np.random.default_rng(2)
    assert compare_draws(random.uniform(-1, 1, 10_000), other(random, 10_000)) > 1

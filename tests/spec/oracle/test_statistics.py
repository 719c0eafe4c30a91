"""Statistics of random outputs: their laws, the intervals that chance may not leave, and how they are written."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import flint
import mpmath
import numpy as np
import pytest
import yaml

from goldformer.spec import Spec
from goldformer.spec.draw import Argument, Fill
from goldformer.spec.goldenfile import render
from goldformer.spec.laws import FALSE_ALARM, Discrete, Law, Uniform, law_of, unfit
from goldformer.spec.model import ANY, Case, GoldenArray, Statistic, Wanted
from goldformer.spec.oracle import run
from goldformer.spec.oracle.derive import Derived, DerivedArray, derive
from goldformer.spec.oracle.statistics import statistics
from goldformer.spec.oracle.write import golden_entry

MEANS: tuple[Statistic, ...] = ("zeros", "mean", "mean_square")
ALL: tuple[Statistic, ...] = (*MEANS, "largest")


def two_valued(count: int, value: Fraction, rate: Fraction) -> Discrete:
    return Discrete(((count, {Fraction(0): rate, value / (1 - rate): 1 - rate}),))


def of_kept(count: int, keys: int, rate: Fraction) -> Discrete:
    """Sums of so many equal terms, by every way of dropping them."""
    values: dict[Fraction, Fraction] = {}
    for kept in itertools.product((False, True), repeat=keys):
        value = Fraction(sum(kept), keys) / (1 - rate)
        chance = math.prod((1 - rate if k else rate for k in kept), start=Fraction(1))
        values[value] = values.get(value, Fraction(0)) + chance
    return Discrete(((count, values),))


HALF, TENTH = Fraction(1, 2), Fraction(1, 10)
LAWS: dict[str, Law] = {
    "uniform": Uniform(384, Fraction(6, 40)),
    "uniform, many": Uniform(6000, Fraction(6, 430)),
    "half": two_valued(1000, Fraction(1), HALF),
    "a tenth": two_valued(2000, Fraction(-3), TENTH),
    "nine tenths": two_valued(3000, Fraction(1, 4), 1 - TENTH),
    "sums of five": of_kept(1500, 5, Fraction(3, 10)),
    "unequal": Discrete((
        *two_valued(700, Fraction(2), HALF).groups, *two_valued(500, Fraction(-1, 3), HALF).groups,
        (100, {Fraction(0): Fraction(1)}),
    )),
}  # fmt: skip
every_law = pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)


def named(law) -> tuple[Statistic, ...]:
    return tuple(name for name in ALL if unfit(law, name) is None)


def sample(law, random: np.random.Generator) -> np.ndarray:
    if isinstance(law, Uniform):
        bound = math.sqrt(law.square)
        return random.uniform(-bound, bound, law.count)
    return np.concatenate([
        random.choice([float(v) for v in values], count, p=[float(p) for p in values.values()])
        for count, values in law.groups
    ])  # fmt: skip


def measured(name: str, x: np.ndarray) -> float:
    found = {"zeros": np.mean(x == 0), "mean": x.mean(), "mean_square": (x**2).mean(), "largest": abs(x).max()}
    return float(found[name])


# ── the intervals ──


@pytest.mark.sample(1)
@every_law
def test_two_thousand_samples_stay_within_and_come_near(law):
    random = np.random.default_rng(2017)
    found = statistics(law, named(law))
    worst = dict.fromkeys(found, 0.0)
    for _ in range(2000):
        x = sample(law, random)
        for name, interval in found.items():
            off = abs(measured(name, x) - float(interval.value))
            if name == "largest" and not interval.within:
                assert off <= 1e-15 * float(interval.value)
                continue
            worst[name] = max(worst[name], off / interval.within)
    for name, ratio in worst.items():
        if found[name].within:
            # The farthest of 2000 lies about 3.5 standard deviations off, where the interval reaches 7.5 or more.
            assert 0.2 < ratio < 0.7, f"{name}: {ratio}"


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("law", "name"), [(law, name) for law in LAWS for name in MEANS if unfit(LAWS[law], name) is None]
)
def test_an_interval_is_as_wide_as_it_must_be_and_not_twice(law, name):
    random = np.random.default_rng(1)
    spread = np.std([measured(name, sample(LAWS[law], random)) for _ in range(2000)])
    # A normal distribution would leave 7.1 standard deviations as rarely; Bernstein's inequality begins at 7.5.
    assert 7.1 < statistics(LAWS[law], (name,))[name].within / spread < 14.2


def chance_of_straying(count: int, rate: Fraction, within: float) -> mpmath.mpf:
    """P(|zeros/count − rate| > within), exactly."""
    with mpmath.workdps(60):
        p, edge = mpmath.mpf(rate.numerator) / rate.denominator, mpmath.mpf(within) * count
        term, total = (1 - p) ** count, mpmath.mpf(0)
        for k in range(count + 1):
            if abs(k - p * count) > edge:
                total += term
            term *= p / (1 - p) * (count - k) / (k + 1)
        return total


@pytest.mark.parametrize("rate", [Fraction(1, 1000), TENTH, Fraction(3, 10), HALF, Fraction(3, 4)])
@pytest.mark.parametrize("count", [50, 1000, 20000])
def test_a_number_of_zeros_strays_more_rarely_than_is_said(count, rate):
    interval = statistics(two_valued(count, Fraction(1), rate), ("zeros",))["zeros"]
    exactly = chance_of_straying(count, rate, interval.within)
    assert exactly <= float(FALSE_ALARM)
    if count == 20000 and rate >= TENTH:
        assert exactly > 2.0**-60, "the interval is far wider than it must be"


@pytest.mark.parametrize(("count", "square"), [(3, 1), (40, 2), (12288, Fraction(6, 256)), (65536, Fraction(6, 640))])
def test_the_largest_of_uniform_elements_strays_just_as_rarely_as_is_said(count, square):
    interval = statistics(Uniform(count, Fraction(square)), ("largest",))["largest"]
    bound = flint.arb(Fraction(square).numerator) / Fraction(square).denominator
    assert interval.value.overlaps(bound.sqrt())
    below = 1 - flint.arb(interval.within) / bound.sqrt()
    assert bool(below**count <= flint.arb(2) ** -40)
    assert bool(below**count > flint.arb(2) ** -40 * 0.999999)


def test_more_elements_leave_chance_less_room():
    for name in named(LAWS["uniform"]):
        few, many = (statistics(Uniform(n, Fraction(1)), (name,))[name].within for n in (1000, 100_000))
        assert few > 5 * many


# ── the values ──


def test_values_follow_from_the_law_by_hand():
    found = statistics(two_valued(2000, Fraction(3), TENTH), ALL)
    expected: dict[Statistic, Fraction | int]
    expected = {"zeros": TENTH, "mean": 3, "mean_square": 10, "largest": Fraction(10, 3)}
    for name, value in expected.items():
        assert found[name].value.contains(flint.fmpq(Fraction(value).numerator, Fraction(value).denominator))
    # n·t²/2 = ln(2⁴¹)·(v + b·t/3), with v = 1/10·9/10 and b = 9/10.
    t = found["zeros"].within
    assert 2000 * t**2 / 2 == pytest.approx(41 * math.log(2) * (0.09 + 0.9 * t / 3), rel=1e-12)
    assert found["largest"].within == 0
    uniform = statistics(Uniform(500, Fraction(3)), ("mean", "mean_square", "largest"))
    assert [float(i.value) for i in uniform.values()] == [0, 1, math.sqrt(3)]
    t = uniform["mean_square"].within
    assert 500 * t**2 / 2 == pytest.approx(41 * math.log(2) * (9 * 4 / 45 + 2 * t / 3), rel=1e-12)


def changed(spec: Spec, case: str, **attributes) -> Case:
    return replace(spec.cases[case], attributes={**spec.cases[case].attributes, **attributes})


def test_the_law_of_a_weight_follows_from_its_shape(spec: Spec):
    assert law_of(spec.cases["xu-fused-64x192"], "weight") == Uniform(64 * 192, Fraction(6, 256))


def test_the_law_of_dropout_follows_from_its_input(spec: Spec):
    case = replace(spec.cases["do-tenth"], inputs={"x": Argument.of(np.array([2.0, 0.3, 2.0, 0.0]))})
    law = law_of(case, "output")
    assert isinstance(law, Discrete)
    groups = {tuple(values): (count, dict(values)) for count, values in law.groups}
    assert groups == {
        (0, Fraction(20, 9)): (2, {Fraction(0): TENTH, Fraction(20, 9): 1 - TENTH}),
        (0, Fraction(1, 3)): (1, {Fraction(0): TENTH, Fraction(1, 3): 1 - TENTH}),
        (0,): (1, {Fraction(0): 1}),
    }


@pytest.mark.parametrize("attributes", [{"training": False}, {"rate": 0}, {"rate": 1}, {"rate": 1.0}])
def test_where_chance_has_no_part_there_is_no_law(attributes, spec: Spec):
    assert law_of(changed(spec, "do-tenth", **attributes), "output") is None
    assert law_of(spec.cases["sm-four-axes"], "output") is None


def test_the_law_of_attention_sums_the_weights_of_each_element(spec: Spec):
    law = law_of(spec.cases["sdpa-dropout-samples"], "output")
    assert isinstance(law, Discrete)
    expected = [of_kept(count * 1200, keys, Fraction(3, 10)).groups[0] for count, keys in ((3, 1), (2, 2), (1, 3))]
    # A sum of k of five weights, each a fifth.
    scaled = [(n, {v * keys / 5: p for v, p in values.items()}) for keys, (n, values) in enumerate(expected, 1)]
    assert sorted((n, dict(values)) for n, values in law.groups) == sorted(scaled, key=lambda group: group[0])
    assert law_of(spec.cases["sdpa-dropout-samples"], "scores") is None
    assert law_of(spec.cases["sdpa-distinct-sizes"], "output") is None


def test_the_law_of_a_feed_forward_network_sums_hidden_channels_and_adds_the_bias(spec: Spec):
    case = spec.cases["ffn-dropout-half"]
    law = law_of(case, "output")
    assert isinstance(law, Discrete)
    assert law.count == 4 * 500 * 3
    hidden = np.maximum(case.param_arrays["w_1"].sum(0) + case.param_arrays["b_1"], 0)
    for channel, (count, values) in enumerate(law.groups):
        bias = case.param_arrays["b_2"][channel]
        # Half of the hidden channels is kept, and twice as large.
        assert (count, min(values), max(values)) == (2000, bias, bias + 2 * hidden[channel::3].sum())
        assert sum(value * chance for value, chance in values.items()) == bias + hidden[channel::3].sum()


@pytest.mark.parametrize(
    ("id_", "output", "message"),
    [
        ("ffn-dropout-half", "hidden", "is not specified"),
        ("mha-dropout-sum", "weights", "is not specified"),
        ("fmha-dropout-sum", "heads", "is not specified"),
    ],
)
def test_what_an_implementation_returns_before_or_after_dropout_has_no_law(id_, output, message, spec: Spec):
    with pytest.raises(ValueError, match=message):
        law_of(spec.cases[id_], output)


@pytest.mark.parametrize(
    "id_", ["ffn-dropout-nothing", "pe-dropout-nothing", "mha-dropout-nothing", "enc-dropout-nothing"]
)
def test_inputs_whose_distribution_is_not_known_have_no_law(id_, spec: Spec):
    with pytest.raises(ValueError, match="has a known distribution"):
        law_of(changed(spec, id_, dropout_rate=0.5), "output")
    assert law_of(changed(spec, id_, dropout_rate=0.5, training=False), "output") is None


def test_there_is_no_law_of_attention_that_mixes_weights(spec: Spec):
    case = spec.cases["sdpa-dropout-each-weight"]
    with pytest.raises(ValueError, match=r"^is not specified where weights are dropped$"):
        law_of(case, "weights")
    mask = Argument.of(np.ones((640, 8), dtype=bool))
    ones, halves = Fill(fill=1.0), Fill(fill=0.5)
    for inputs in ({"query": Argument(ones, (640, 3))}, {"mask": mask}, {"value": Argument(ones, (8, 2))},
                   {"value": Argument(halves, (8, 1))}):  # fmt: skip
        with pytest.raises(ValueError, match=r"^has a known distribution where query is 0, there is no mask, and each"):
            law_of(replace(case, inputs={**case.inputs, **inputs}), "output")


@pytest.mark.parametrize(
    ("law", "statistic", "why"),
    [
        (LAWS["uniform"], "zeros", "an element that may be any number is 0 only by rounding"),
        (LAWS["unequal"], "largest", "the elements have 2 magnitudes, not one"),
        (LAWS["sums of five"], "largest", "the elements have 5 magnitudes, not one"),
        (Discrete(((9, {Fraction(0): Fraction(1)}),)), "largest", "the elements have 0 magnitudes, not one"),
        (two_valued(39, Fraction(1), HALF), "largest", "there are so few elements that all may be dropped"),
        (two_valued(40, Fraction(1), HALF), "largest", None),
        (two_valued(12, Fraction(1), TENTH), "largest", "there are so few elements that all may be dropped"),
        (two_valued(13, Fraction(1), TENTH), "largest", None),
        (LAWS["half"], "zeros", None),
    ],
)
def test_a_statistic_that_says_nothing_is_told(law, statistic, why):
    assert unfit(law, statistic) == why


# ── deriving and writing ──


def test_a_case_is_derived_to_its_statistics_alone(spec: Spec):
    case = spec.cases["do-tenth"]
    derived = derive(case, spec.contracts["dropout"])
    output = derived.options[ANY]["output"]
    assert [float(v) for v in output.values] == [0.1, 1, 10 / 9, 10 / 9]
    assert list(output.within) == ["zeros", "mean", "mean_square", "largest"]
    # A quotient of two numbers, one of them a tenth that no dtype holds.
    assert 1 < output.error_scale < 4
    assert Derived.from_json(yaml.safe_load(yaml.safe_dump(derived.as_json()))) == derived


@pytest.mark.parametrize(
    "id_", ["xu-fused-64x192", "do-half", "sdpa-dropout-samples", "ffn-dropout-half", "mha-dropout-sum"]
)
def test_what_is_stored_is_what_is_derived_now(id_, spec: Spec):
    case = spec.cases[id_]
    derived = derive(case, spec.contracts[case.component])
    outcome = run.Outcome(case, "", derived, cached=False)
    assert run.describe_move(outcome) is None
    (name,) = case.expect
    golden = case.golden.options[ANY][name]

    def with_golden(array: GoldenArray) -> run.Outcome:
        return replace(outcome, case=replace(case, golden=replace(case.golden, options={ANY: {name: array}})))

    wider = {**golden.within, "mean": golden.within["mean"] * 1.001}
    moved = f"{name}: what chance may do differs from what is derived now"
    assert run.describe_move(with_golden(replace(golden, within=wider))) == moved
    moved = f"{name}: golden values differ from those derived now"
    assert run.describe_move(with_golden(replace(golden, values=golden.values * (1 + 1e-15) + 1e-30))) == moved


def test_statistics_are_written_one_a_line(spec):
    array = DerivedArray(
        (2,), ("0.10000000000000000", "1.1111111111111111"), 2.5, {"zeros": 0.0165, "mean_square": 0.0}
    )
    wanted = {"output": Wanted("statistics", statistics=("zeros", "mean_square"))}
    case = replace(spec.cases["sm-several-rows"], expect=wanted)
    entry = golden_entry("0123456789abcdef", Derived(1.0, 0.0, {ANY: {"output": array}}), case)
    assert (
        render(entry["outputs"])
        == """\
{
  "output": {
    "error_scale": 2.5,
    "statistics": {
      "zeros": {"value": 0.1, "within": 0.0165},
      "mean_square": {"value": 1.1111111111111111, "within": 0}
    }
  }
}"""
    )


@pytest.mark.parametrize("name", ["statistics.py", "laws.py"])
def test_the_cache_is_stamped_with_the_source_of_the_statistics(monkeypatch: pytest.MonkeyPatch, name):
    stamp, read = run._method_stamp(), Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: read(self) + b"#" * (self.name == name))
    assert run._method_stamp() != stamp

"""A verdict says how far off a result is, where and in which dtype, and if it is exact, refused or unusable."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from goldformer.adapters import DTYPES, Adapter
from goldformer.adapters.builtin import reference, textbook
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.comparator import compare
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.expected import expect
from goldformer.conformance.judging.measure import describe_difference, describe_values, find_tolerance
from goldformer.conformance.judging.tolerance import LARGEST, limit_rounding, tolerance
from goldformer.conformance.judging.verdict import Difference, Element, Limit, Status, Verdict
from goldformer.conformance.properties.judge import check_property
from goldformer.conformance.reports.text import format_difference
from goldformer.spec.model import GoldenArray
from goldformer.spec.oracle.rounding import SLACK, SMALLEST, UNIT_ROUNDOFF

CASE = "sdpa-distinct-sizes"  # output (2, 3, 4), weights (2, 3, 5)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture
def bench_of(spec):
    """A bench for functions given by component, in torch."""

    def make(dtype="float32", *, strict=False, required=True, arrays="torch", device="cpu", **names):
        adapter = Adapter.from_object(SimpleNamespace(ARRAYS=arrays, NAME="mine", **names), "mine.py", spec)
        return Bench(
            spec, adapter, dtype, device, Policy(strict=strict, require_refusals=required, require_precision=required)
        )

    return make


@pytest.fixture
def golden_plus(spec, bench_of):
    """The verdict when the golden values come back, rounded to the dtype, with something added at some places."""

    def check(case, dtype, added, output="output"):
        case = spec.cases[case]
        wanted = {name: array.values + 0.0 for name, array in case.golden.options[""].items()}
        for index, number in added.items():
            wanted[output][index] += number
        tensors = {name: torch.from_numpy(values).to(getattr(torch, dtype)) for name, values in wanted.items()}
        return check_case(case, bench_of(dtype, **{case.component: lambda **given: tensors}))

    return check


def golden(spec, case, output="output"):
    return spec.cases[case].golden.options[""][output]


def limits(spec, dtype, output="output"):
    """Return the tolerance of an output of CASE."""
    case = spec.cases[CASE]
    contract = spec.contracts[case.component]
    return find_tolerance(expect(case, {"empty_row": "uniform"}, contract, dtype)[output], contract, dtype)


# Where and how far


def test_the_golden_values_themselves_pass_far_below_the_tolerance(golden_plus):
    verdict = golden_plus(CASE, "float64", {})
    assert (verdict.status, verdict.reason, verdict.message, verdict.differences) == (Status.PASSED, "", "", ())
    assert verdict.ratio < 0.05


def test_one_wrong_element_is_named_with_what_was_expected_and_got(golden_plus, spec):
    values = golden(spec, CASE)
    bound = limits(spec, "float32").element[1, 2, 3]
    verdict = golden_plus(CASE, "float32", {(1, 2, 3): 50 * bound})
    assert (verdict.status, verdict.reason) == (Status.FAILED, "wrong-value")
    (difference,) = verdict.differences
    assert (difference.output, difference.wrong, difference.compared) == ("output", 1, 24)
    assert difference.first == difference.worst
    assert difference.first.index == (1, 2, 3)
    assert difference.first.expected == values.values[1, 2, 3]
    assert difference.first.got == pytest.approx(values.values[1, 2, 3] + 50 * bound, rel=2**-23)
    assert difference.tolerance == bound
    assert verdict.ratio == difference.ratio == pytest.approx(50, abs=0.2)
    assert verdict.message.startswith("output: 1 of 24 values are wrong, such as -0.459")
    assert verdict.message.endswith(f" at [1, 2, 3]: {verdict.ratio:.3g} times the tolerance")


@pytest.mark.parametrize(
    ("expected", "got", "said"),
    [
        (0.5, 0.25, "expected 0.5, actual 0.25"),
        (0.49538031, 0.49536833, "expected 0.49538, actual 0.495368"),
        (0.4953803, 0.4953798, "expected 0.4953803, actual 0.4953798"),
        (1.0, 1.0 + 2**-52, "expected 1, actual 1.0000000000000002"),
        (1.5, math.nan, "expected 1.5, actual nan"),
        (True, False, "expected True, actual False"),
    ],
)
def test_values_have_as_many_digits_as_show_that_they_differ(expected, got, said):
    element = Element((1,), expected, got)
    assert describe_values(element) == said
    difference = Difference("output", 1, 2, 1e-9, 10.0, element, element)
    line = format_difference(difference)[1].partition(", error")[0]
    fewest, most = (text.partition("expected ")[2].split(", actual ") for text in (said, line))
    # A report shows nine digits at least.
    assert all(len(long) >= len(short) for short, long in zip(fewest, most, strict=True))
    assert most[0] != most[1]


def test_first_is_in_reading_order_and_worst_is_the_farthest(golden_plus, spec):
    bound = limits(spec, "float32").element
    added = {p: times * bound[p] for p, times in {(0, 1, 2): 3, (1, 0, 0): -70, (1, 2, 3): 20}.items()}
    (difference,) = golden_plus(CASE, "float32", added).differences
    assert (difference.wrong, difference.first.index, difference.worst.index) == (3, (0, 1, 2), (1, 0, 0))
    assert difference.ratio == pytest.approx(70, abs=0.2)


def test_wrong_outputs_come_in_the_order_in_which_data_flows(golden_plus, spec, bench_of):
    def all_halved(query, key, value, mask=None):
        return tuple(x / 2 for x in reference.scaled_dot_product_attention(query, key, value, mask))

    verdict = check_case(spec.cases[CASE], bench_of(scaled_dot_product_attention=all_halved))
    assert [d.output for d in verdict.differences] == ["scores", "scaled_scores", "weights", "output"]
    assert verdict.message.startswith("scores: 30 of 30 values are wrong")
    assert verdict.ratio == max(d.ratio for d in verdict.differences)


def test_outputs_that_are_right_are_not_among_the_differences(golden_plus):
    verdict = golden_plus(CASE, "float32", {(0, 0, 0): 1.0}, output="weights")
    assert [d.output for d in verdict.differences] == ["weights"]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_infinitely_wrong_at_its_place(number, golden_plus):
    verdict = golden_plus(CASE, "float32", {(1, 0, 2): number})
    assert verdict.reason == "not-finite"
    assert verdict.message == f"output: 1 of 24 values are wrong, such as {number}"
    assert (verdict.ratio, verdict.differences[0].worst.index) == (math.inf, (1, 0, 2))


def test_probes_are_told_by_their_place_in_the_whole_output(spec, bench_of):
    case = spec.cases["pe-seven-words-of-128"]
    probed = case.golden.options["interleaved"]["output"].indices
    place = probed[len(probed) // 2]
    unprobed = next(i for i in np.ndindex(1, 7, 128) if i not in probed)

    def with_added(index):
        def positional_encoding(x):
            output = reference.positional_encoding(x)
            output[index] += 1.0
            return output

        return check_case(case, bench_of(positional_encoding=positional_encoding))

    (difference,) = with_added(place).differences
    assert (difference.wrong, difference.compared, difference.worst.index) == (1, len(probed), place)
    assert with_added(unprobed).status is Status.PASSED


# How much is allowed


@every_dtype
@pytest.mark.parametrize(("times", "status"), [(0.8, Status.PASSED), (1.3, Status.FAILED)])
def test_one_element_may_be_off_by_its_tolerance(times, status, dtype, golden_plus, spec):
    bound = limits(spec, dtype).element[1, 1, 1]
    verdict = golden_plus(CASE, dtype, {(1, 1, 1): times * bound})
    assert verdict.status is status
    assert verdict.ratio == pytest.approx(times, abs=0.15)


def test_the_tolerance_is_nine_deviations_of_an_element_and_its_row(spec):
    case, contract = spec.cases[CASE], spec.contracts["scaled_dot_product_attention"]
    expected = expect(case, {"empty_row": "uniform"}, contract, "float16")["output"]
    variance = expected.rounding("float16")
    row = variance.mean(-1, keepdims=True)
    found = limits(spec, "float16")
    assert np.allclose(found.element, 9 * np.sqrt((variance + row) / 2), rtol=1e-12)
    assert np.array_equal(found.row, np.broadcast_to(row, variance.shape))
    assert (found.rows, found.common) == (6, math.inf)
    assert found.average == pytest.approx(1.7 * (1 + 2 / math.sqrt(6)))


def judge_scaled(dtype, factor, noise=0.0):
    """Judge an output of 32 rows that is off by a factor, and by a noise of some deviations everywhere."""
    random = np.random.default_rng(1)
    values, deviation = random.uniform(-1, 1, (32, 16)), UNIT_ROUNDOFF[dtype] / math.sqrt(3)
    expected = GoldenArray(values, 1.0, rounding=lambda _: deviation**2 * np.ones(values.shape))
    signs = np.sign(random.standard_normal(values.shape))
    return compare("output", values * factor + noise * deviation * signs, values, limit_rounding(expected, None, dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_factor_that_all_values_have_in_common_is_seen_in_half_types(dtype):
    found = judge_scaled(dtype, 1 + 1.7 * UNIT_ROUNDOFF[dtype])
    assert (found.limit, found.wrong, found.first.index) == (Limit.COMMON, 512, (0, 0))
    assert describe_difference(found).startswith(
        "output: all values are too large or too small by the same factor, 1.1"
    )
    assert not judge_scaled(dtype, 1 + 1.3 * UNIT_ROUNDOFF[dtype]).wrong


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_finer_types_are_judged_element_by_element(dtype):
    assert not judge_scaled(dtype, 1.0, noise=8.0).wrong
    assert judge_scaled(dtype, 1.0, noise=10.0).limit is Limit.ELEMENT


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_errors_that_are_small_but_everywhere_are_seen(dtype):
    found = judge_scaled(dtype, 1.0, noise=3.0)
    assert (found.limit, found.wrong) == (Limit.AVERAGE, 512)
    assert describe_difference(found).startswith("output: no value is far off, but all of them together are, 1.3")
    assert not judge_scaled(dtype, 1.0, noise=1.5).wrong


@every_dtype
def test_the_tolerance_of_a_dtype(dtype):
    unit, smallest = UNIT_ROUNDOFF[dtype], SMALLEST[dtype]
    assert SLACK == 4
    assert tolerance(dtype, 10.0, 3.0) == SLACK * (unit * 10 + smallest)
    assert tolerance(dtype, 0.0, 3.0) == 0.0
    coarse = max(0.0, unit - 2**-24)
    assert tolerance(dtype, 10.0, 3.0, "float32") == SLACK * (min(unit, 2**-24) * 10 + coarse * 3 + smallest)


@every_dtype
def test_the_numbers_of_a_dtype_are_those_of_torch(dtype):
    about = torch.finfo(getattr(torch, dtype))
    assert (UNIT_ROUNDOFF[dtype], LARGEST[dtype]) == (about.eps / 2, about.max)
    assert SMALLEST[dtype] == about.smallest_normal * about.eps


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_angles_formed_in_half_precision_are_wrong_though_the_result_is_rounded_to_it(dtype, spec, bench_of):
    def in_half(x):
        two_i = torch.arange(x.shape[-1], dtype=x.dtype) // 2 * 2
        angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] / 10000.0 ** (two_i / x.shape[-1])
        return x + torch.where(torch.arange(x.shape[-1]) % 2 == 0, angle.sin(), angle.cos())

    case = spec.cases["pe-200x128"]
    assert check_case(case, bench_of(dtype, positional_encoding=in_half)).reason == "wrong-value"
    in_float = bench_of(dtype, positional_encoding=lambda x: in_half(x.float()).to(x.dtype))
    assert check_case(case, in_float).ratio < 0.5


@pytest.mark.parametrize("times", [1.0, math.nextafter(1.0, 2.0)])
def test_an_error_of_just_the_tolerance_is_right(times):
    difference = compare("output", np.array([0.0, times]), np.zeros(2), 1.0)
    assert (difference.wrong, difference.ratio) == (int(times > 1), times)


def test_nan_agrees_with_nan_and_infinity_with_itself():
    agreeing = np.array([math.nan, math.inf, -math.inf, 0.0])
    assert compare("output", agreeing, agreeing, 0.0).ratio == 0.0
    crossed = compare("output", agreeing, np.array([0.0, -math.inf, math.nan, 0.0]), 1e300)
    assert (crossed.wrong, crossed.ratio) == (3, math.inf)


# What is exact


@every_dtype
def test_the_last_bit_of_an_embedding_counts(dtype, spec, bench_of):
    def token_embedding(ids, params):
        output = params["table"][ids]
        integer = {8: torch.int64, 4: torch.int32, 2: torch.int16}[output.element_size()]
        output[1, 2, 3] = (output[1, 2, 3].view(integer) + 1).view(output.dtype)
        return output

    verdict = check_case(spec.cases["emb-distinct-sizes"], bench_of(dtype, token_embedding=token_embedding))
    assert (verdict.status, verdict.ratio) == (Status.FAILED, math.inf)
    assert verdict.message == "output: 1 of 60 values are wrong; they must be exact"
    (difference,) = verdict.differences
    assert (difference.tolerance, difference.worst.index) == (0.0, (1, 2, 3))


def test_one_flipped_place_of_a_mask_is_told(spec, bench_of):
    def causal_mask(q_seq, kv_seq):
        mask = reference.causal_mask(q_seq=q_seq, kv_seq=kv_seq)
        mask[2, 3] = ~mask[2, 3]
        return mask

    verdict = check_case(spec.cases["mask-causal-4"], bench_of(causal_mask=causal_mask))
    assert verdict.message == "mask: 1 of 16 values are wrong"
    assert verdict.differences[0].first == Element((2, 3), expected=False, got=True)


# What cannot be run


@pytest.mark.parametrize(
    ("declared", "where", "reason", "message"),
    [
        ({"DTYPES": ("float32",)}, {"dtype": "float64"}, "dtype", "mine works in float32, not in float64"),
        (
            {"arrays": "numpy"}, {"dtype": "bfloat16"}, "dtype",
            "mine works in float64, float32, float16, not in bfloat16",
        ),
        ({"DEVICES": ("cpu",)}, {"device": "cuda"}, "device", "mine works on cpu, not on cuda"),
        ({"DEVICES": ("cpu", "cuda")}, {"device": "mps"}, "device", "mine works on cpu, cuda, not on mps"),
        ({}, {"device": "mps"}, "device", "no MPS GPU here"),
        ({}, {"device": "xpu:1"}, "device", "no XPU here"),
        ({}, {"device": "tpu"}, "device", "mine works on cpu, cuda, xpu, mps, not on tpu"),
        (
            {}, {"device": "cuda:one"}, "device",
            "there is no device cuda:one: write cpu, pretend, cuda, xpu, mps, or one with its number, cuda:1",
        ),
        ({"arrays": "numpy"}, {"device": "cuda:1"}, "device", "mine works on cpu, not on cuda:1"),
        ({}, {"device": "cuda"}, "device", "no CUDA GPU here"),
    ],
)  # fmt: skip
def test_a_dtype_or_device_that_is_not_there_is_skipped(declared, where, reason, message, bench_of, spec, monkeypatch):
    for module in (torch.cuda, torch.xpu, torch.backends.mps):
        monkeypatch.setattr(module, "is_available", lambda: False)
    bench = bench_of(**declared, **where, softmax=lambda scores: scores)
    for verdict in (
        check_case(spec.cases["sm-several-rows"], bench),
        check_case(spec.cases["sm-no-elements"], bench),
        check_property(spec.properties["sm-simplex"], "softmax", bench),
    ):
        assert (verdict.status, verdict.reason, verdict.message) == (Status.SKIPPED, reason, message)


def test_float64_is_skipped_with_a_reason_on_a_gpu_that_has_none(bench_of, spec, monkeypatch):
    case = spec.cases["sm-several-rows"]
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)
    verdict = check_case(case, bench_of(device="mps", dtype="float64", softmax=lambda scores: scores))
    assert (verdict.status, verdict.reason, verdict.message) == (Status.SKIPPED, "dtype", "MPS GPUs have no float64")
    assert bench_of(device="mps", softmax=lambda scores: scores).explain_unusable() is None
    monkeypatch.setattr(torch.xpu, "is_available", lambda: True)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 1)
    for has_fp64, found in ((False, ("dtype", "this XPU has no float64")), (True, None)):
        properties = SimpleNamespace(has_fp64=has_fp64)
        monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device, made=properties: made)
        assert bench_of(device="xpu", dtype="float64", softmax=lambda scores: scores).explain_unusable() == found


def test_a_gpu_beyond_the_last_is_not_there(bench_of, spec, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    verdict = check_case(spec.cases["sm-several-rows"], bench_of(device="cuda:2", softmax=lambda scores: scores))
    assert (verdict.reason, verdict.message) == ("device", "there are 2 CUDA GPUs here, no cuda:2")
    assert verdict.reproduce.endswith(" --device cuda:2")


@pytest.mark.parametrize(("dtype", "peak", "fits"), [
    ("float16", 65504.0, True), ("float16", 65505.0, False), ("bfloat16", 65505.0, True), ("float32", 1e39, False),
])  # fmt: skip
def test_a_case_with_numbers_beyond_the_dtype_is_skipped(dtype, peak, fits, bench_of, spec):
    case = spec.cases["sm-several-rows"]
    case = replace(case, golden=replace(case.golden, peak=peak))
    verdict = check_case(case, bench_of(dtype, softmax=reference.softmax))
    if fits:
        assert verdict.status is Status.PASSED
    else:
        assert (verdict.status, verdict.reason) == (Status.SKIPPED, "dtype")
        assert verdict.message == f"intermediate numbers up to {peak:.3g} overflow {dtype}"


def normalise_by_hand(x, params):
    """As BERT has it, each step in the dtype of the call."""
    centred = x - x.mean(-1, keepdim=True)
    variance = (centred * centred).mean(-1, keepdim=True)
    return centred / torch.sqrt(variance + 1e-12) * params["gamma"] + params["beta"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_eps_that_the_dtype_has_not_says_nothing_of_rows_of_small_variance(dtype, bench_of, spec):
    bench = bench_of(dtype, layer_norm=normalise_by_hand, CONVENTIONS={"layer_norm_eps": "1e-12"})
    cases = [case for case in spec.cases_of("layer_norm") if case.error is None]
    verdicts = {case.id: check_case(case, bench) for case in cases}
    lost = {id_ for id_, verdict in verdicts.items() if "an eps of 1e-12 is 0 in" in verdict.message}
    assert [v.message for v in verdicts.values() if v.bad] == []
    assert sum(v.status is Status.PASSED for v in verdicts.values()) >= 10
    assert lost == ({
        "ln-a-thousandth-apart", "ln-variance-of-five-millionths", "ln-variance-of-one-millionth",
        "ln-variance-of-one-trillionth", "ln-low-magnitude", "ln-constant-rows", "ln-one-channel",
        "ln-rows-of-unlike-size",
    } if dtype == "float16" else set())  # fmt: skip


def test_an_eps_that_the_dtype_has_not_is_said_with_the_variance(bench_of, spec):
    case, conventions = spec.cases["ln-low-magnitude"], {"layer_norm_eps": "1e-12"}
    verdict = check_case(case, bench_of("float16", layer_norm=normalise_by_hand, CONVENTIONS=conventions))
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "dtype")
    says = "an eps of 1e-12 is 0 in float16, which cannot hold all digits of a variance of 8.83e-08"
    assert verdict.message == says
    assert check_case(case, bench_of("float16", layer_norm=normalise_by_hand)).is_judged


@pytest.mark.parametrize(("strict", "status"), [(False, Status.SKIPPED), (True, Status.FAILED)])
@pytest.mark.parametrize("case", ["sdpa-causal", "sdpa-widths-differ"])
def test_an_absent_component_is_skipped_unless_strict(case, strict, status, bench_of, spec):
    verdict = check_case(spec.cases[case], bench_of(strict=strict, softmax=reference.softmax))
    assert (verdict.status, verdict.reason) == (status, "not-implemented")
    assert verdict.message == "mine has no scaled_dot_product_attention"


# What must be refused


def returns_queries_where_it_should_raise(query, key, value, mask=None):
    if key.shape[-1] != query.shape[-1] or not key.shape[-2]:
        return query[..., :2], query
    return textbook.scaled_dot_product_attention(query, key, value, mask)


def test_a_bad_call_that_is_accepted_fails_where_refusals_are_required(bench_of, spec):
    bench = bench_of(arrays="numpy", scaled_dot_product_attention=returns_queries_where_it_should_raise)
    verdict = check_case(spec.cases["sdpa-widths-differ"], bench)
    assert (verdict.status, verdict.reason) == (Status.FAILED, "no-error")
    assert verdict.message == (
        "accepts a bad key and returns an array of shape (3, 2, 2): raise an error that names the argument"
    )


@pytest.mark.parametrize(
    ("strict", "status", "reason"), [(False, Status.SKIPPED, "advice"), (True, Status.FAILED, "no-error")]
)
def test_accepting_what_only_should_be_refused_is_advice_unless_strict(strict, status, reason, bench_of, spec):
    case = spec.cases["sdpa-no-keys"]
    assert case.clauses == ("CALL-6",)
    functions = {"scaled_dot_product_attention": returns_queries_where_it_should_raise}
    verdict = check_case(case, bench_of(arrays="numpy", strict=strict, **functions))
    assert (verdict.status, verdict.reason) == (status, reason)
    assert verdict.message.startswith("accepts a bad key and returns an array of shape (2, 3, 2)")


@pytest.mark.parametrize("error", [ValueError, IndexError, RuntimeError, AssertionError, SystemExit])
def test_any_error_is_a_refusal(error, bench_of, spec):
    def softmax(scores):
        if scores.numel() == 0:
            raise error
        return reference.softmax(scores)

    assert check_case(spec.cases["sm-no-elements"], bench_of(softmax=softmax)).status is Status.PASSED


def test_not_implemented_is_no_refusal(bench_of, spec):
    def softmax(scores):
        if scores.numel() == 0:
            raise NotImplementedError("empty scores")
        return reference.softmax(scores)

    verdict = check_case(spec.cases["sm-no-elements"], bench_of(softmax=softmax))
    assert (verdict.status, verdict.message) == (Status.SKIPPED, "empty scores")


def test_a_wrong_but_working_base_does_not_stand_in_the_way_of_a_refusal(bench_of, spec):
    def ten_times_the_rows(ids, params):
        return reference.token_embedding(ids, params=params) * 10

    bench = bench_of(token_embedding=ten_times_the_rows)
    assert check_case(spec.cases["emb-distinct-sizes"], bench).reason == "wrong-value"
    assert check_case(spec.cases["emb-id-far-too-large"], bench).status is Status.PASSED


# What a verdict carries


def test_a_verdict_says_what_was_judged_and_how_to_see_it_again(bench_of, spec):
    case = spec.cases["sdpa-causal"]
    verdict = check_case(case, bench_of("bfloat16"))
    assert (verdict.check, verdict.kind, verdict.component) == ("sdpa-causal", "case", "scaled_dot_product_attention")
    assert (verdict.dtype, verdict.device, verdict.title) == ("bfloat16", "cpu", case.title)
    assert (verdict.clauses, verdict.catches, verdict.source) == (case.clauses, case.kills, "java J2")
    assert verdict.reproduce == "goldformer check mine.py --case sdpa-causal --dtype bfloat16"


def test_verdicts_survive_json(golden_plus, bench_of, spec):
    def no_mask(q_seq, kv_seq):
        return torch.ones(q_seq, kv_seq, dtype=torch.bool)

    verdicts = [
        golden_plus(CASE, "float32", {}),
        golden_plus(CASE, "float32", {(0, 1, 2): 0.5, (1, 0, 0): -0.5}),
        golden_plus(CASE, "float32", {(0, 1, 2): math.inf}),
        check_case(spec.cases["mask-causal-4"], bench_of(causal_mask=no_mask)),
        check_case(spec.cases["mask-causal-4"], bench_of()),
        check_case(spec.cases["sm-several-rows"], bench_of(softmax=lambda scores: 1 / 0)),
        check_property(spec.properties["sm-simplex"], "softmax", bench_of(softmax=lambda scores: scores)),
    ]
    assert {v.status for v in verdicts} == set(Status)
    assert [Verdict.from_json(json.loads(json.dumps(v.as_json()))) for v in verdicts] == verdicts


def test_nan_survives_json():
    element = Element((1,), 0.0, math.nan)
    difference = Difference("output", 1, 2, 0.5, math.inf, element, element)
    verdict = Verdict("x", "case", "softmax", "", Status.FAILED, "not-finite", "", "float32", "cpu", (), "",
                      ratio=math.inf, differences=(difference,))  # fmt: skip
    back = Verdict.from_json(json.loads(json.dumps(verdict.as_json())))
    assert math.isnan(back.differences[0].first.got)
    assert back.differences[0].first.index == (1,)
    assert back.ratio == math.inf


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_on_a_cpu_a_model_of_full_size_is_run_in_float32_alone(dtype, spec, bench):
    case = next(c for c in spec.cases.values() if c.full_size)
    verdict = check_case(case, bench("reference", dtype))
    assert (verdict.status, verdict.reason) == (Status.SKIPPED, "dtype")
    assert verdict.message.startswith("on a CPU a model of full size is run only in float32: ")

"""Miniatures: implementations right in all but one way, and the exact verdict that each way gets."""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from goldformer.adapters import Adapter
from goldformer.adapters.builtin import reference, textbook
from goldformer.conformance.judging.applicability import plan
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.invoke import Arguments, invoke
from goldformer.conformance.judging.verdict import Status
from goldformer.conformance.properties.judge import check_property

HONEST = {"numpy": textbook, "torch": reference}
COMPONENTS = ("softmax", "causal_mask", "scaled_dot_product_attention")
ATTENTION = "scaled_dot_product_attention"
OUTPUTS = ("output", "weights", "scores", "scaled_scores")


# Each takes the honest outputs by name and the arguments, and returns (or does) what it is named for.


def returns_none(outputs, given):
    return None


def returns_tuple_of_none(outputs, given):
    return None, outputs["weights"]


def returns_list(outputs, given):
    return outputs["output"].tolist()


def returns_number(outputs, given):
    return 0.5


def returns_other_library(outputs, given):
    output = outputs["output"]
    return torch.from_numpy(output) if isinstance(output, np.ndarray) else output.numpy()


def returns_wrong_shape(outputs, given):
    return outputs["output"][..., None]


def returns_wrong_weights_shape(outputs, given):
    return outputs["output"], outputs["weights"].sum(-1)


def spoilt(array, number):
    array = array + 0
    array[(-1,) * array.ndim] = number
    return array


def returns_nan(outputs, given):
    return spoilt(outputs["output"], np.nan)


def returns_inf(outputs, given):
    return spoilt(outputs["output"], np.inf)


def returns_minus_inf_in_weights(outputs, given):
    return outputs["output"], spoilt(outputs["weights"], -np.inf)


def promotes_dtype(outputs, given):
    output = outputs["output"]
    return output.astype(np.float64) if isinstance(output, np.ndarray) else output.double()


def demotes_dtype(outputs, given):
    output = outputs["output"]
    return output.astype(np.float16) if isinstance(output, np.ndarray) else output.half()


def mutates_input(outputs, given):
    given["query"] += 1.0
    return outputs


def mutates_mask(outputs, given):
    if "mask" in given:
        given["mask"][...] = True
    return outputs


def raises(outputs, given):
    raise ValueError("no such luck")


def exits(outputs, given):
    sys.exit("cannot go on")


def warns(outputs, given):
    warnings.warn("overflow in exp", RuntimeWarning, stacklevel=1)
    return outputs


def returns_every_output(outputs, given):
    return tuple(outputs[name] for name in OUTPUTS)


def returns_output_alone(outputs, given):
    return outputs["output"]


def returns_none_for_optional_outputs(outputs, given):
    return outputs["output"], None, None, outputs["scaled_scores"]


def maps_none_for_optional_outputs(outputs, given):
    return {"output": outputs["output"], "weights": None}


def mapping_with_unknown_key(outputs, given):
    return {"output": outputs["output"], "attn": outputs["weights"]}


def mapping_without_first_output(outputs, given):
    return {"weights": outputs["weights"]}


def empty_mapping(outputs, given):
    return {}


def long_names(outputs, given):
    return dict.fromkeys(["x" * 20_000], outputs["output"])


def mapping_of_none(outputs, given):
    return {"output": None}


def tuple_too_long(outputs, given):
    return (*returns_every_output(outputs, given), outputs["output"])


def empty_tuple(outputs, given):
    return ()


random = np.random.default_rng(7)


def random_each_call(outputs, given):
    return outputs["output"] + float(random.uniform(0.25, 0.75))


def declines_everything(outputs, given):
    raise NotImplementedError


PASSED, FAILED, ERRORED = Status.PASSED, Status.FAILED, Status.ERRORED
TYPE = {"numpy": "numpy.ndarray", "torch": "torch.Tensor"}
NAMES = ", ".join(OUTPUTS)
DECLARED = "or declare DTYPES without float32"
PROMOTED = (
    f"as the inputs are: a constant of another dtype promotes the result, cast the constant to float32, {DECLARED}"
)
CAST = f"as the inputs are: an intermediate value is made in or cast to float16, keep it in float32, {DECLARED}"

BY_NAME = "; a tuple holds output, weights in this order: return other outputs as a mapping by name"

#: What "sdpa-distinct-sizes", of shape (2, 3, 4), gives in float32. {type} is the library's array.
MINIATURES = {
    returns_none: (FAILED, "nothing-returned", "returned None: return output"),
    returns_tuple_of_none: (FAILED, "nothing-returned", "returned None: return output"),
    mapping_of_none: (FAILED, "not-an-array", "output is a NoneType: return a {type}"),
    returns_list: (FAILED, "not-an-array", "output is a list: return a {type}"),
    returns_number: (FAILED, "not-an-array", "output is a float: return a {type}"),
    returns_other_library: (FAILED, "not-an-array", "output is {other}: return a {type}"),
    returns_wrong_shape: (
        FAILED, "wrong-shape", "output has shape (2, 3, 4, 1), must be (..., q_seq, d_v) = (2, 3, 4)",
    ),
    returns_wrong_weights_shape: (
        FAILED, "wrong-shape", f"weights has shape (2, 3), must be (..., q_seq, kv_seq) = (2, 3, 5){BY_NAME}",
    ),
    returns_nan: (FAILED, "not-finite", "output: 1 of 24 values are wrong, such as nan"),
    returns_inf: (FAILED, "not-finite", "output: 1 of 24 values are wrong, such as inf"),
    returns_minus_inf_in_weights: (FAILED, "not-finite", "weights: 1 of 30 values are wrong, such as -inf"),
    promotes_dtype: (FAILED, "wrong-dtype", f"output is float64, must be float32, {PROMOTED}"),
    demotes_dtype: (FAILED, "wrong-dtype", f"output is float16, must be float32, {CAST}"),
    mutates_input: (FAILED, "mutated-input", "changed the caller's query in place: work on a copy (CALL-2)"),
    raises: (ERRORED, "raised", "raised ValueError: no such luck (" + __file__ + ":{line}, raises)"),
    exits: (ERRORED, "raised", "raised SystemExit: cannot go on (" + __file__ + ":{line}, exits)"),
    warns: (PASSED, "", ""),
    returns_every_output: (PASSED, "", ""),
    returns_output_alone: (PASSED, "", ""),
    returns_none_for_optional_outputs: (PASSED, "", ""),
    maps_none_for_optional_outputs: (PASSED, "", ""),
    mapping_with_unknown_key: (
        FAILED, "not-an-array", f"returned a mapping of output, attn; the contract has {NAMES}",
    ),
    mapping_without_first_output: (
        FAILED, "not-an-array", f"returned a mapping of weights; the contract has {NAMES}",
    ),
    empty_mapping: (FAILED, "not-an-array", f"returned a mapping of nothing; the contract has {NAMES}"),
    long_names: (
        FAILED,
        "not-an-array",
        f"returned a mapping of {'x' * 250} … 19500 characters … {'x' * 250}; the contract has {NAMES}",
    ),
    tuple_too_long: (FAILED, "not-an-array", f"returned 5 values; the contract has {NAMES}"),
    empty_tuple: (FAILED, "not-an-array", f"returned 0 values; the contract has {NAMES}"),
    declines_everything: (
        Status.SKIPPED, "not-implemented", "scaled_dot_product_attention raises NotImplementedError",
    ),
}  # fmt: skip


every_library = pytest.mark.parametrize("arrays", HONEST)
every_miniature = pytest.mark.parametrize("miniature", MINIATURES, ids=lambda m: m.__name__)


@pytest.fixture
def bench_of(spec):
    """A bench with honest components but for attention, which a miniature returns."""

    def make(miniature, arrays, dtype="float32", *, strict=False):
        honest = HONEST[arrays]

        def scaled_dot_product_attention(query, key, value, mask=None):
            returned = honest.scaled_dot_product_attention(query, key, value, mask)
            outputs = returned if isinstance(returned, dict) else dict(zip(OUTPUTS, returned, strict=True))
            given = {"query": query, "key": key, "value": value} | ({} if mask is None else {"mask": mask})
            return miniature(outputs, given)

        functions = {name: getattr(honest, name) for name in COMPONENTS}
        thing = SimpleNamespace(ARRAYS=arrays, **functions | {ATTENTION: scaled_dot_product_attention})
        return Bench(spec, Adapter.from_object(thing, "mine.py", spec), dtype, "cpu", Policy(strict=strict))

    return make


def text_for(message, miniature, arrays):
    other = {"numpy": "a Tensor", "torch": "an ndarray"}[arrays]
    line = miniature.__code__.co_firstlineno + 1
    return message.replace("{type}", TYPE[arrays]).replace("{other}", other).replace("{line}", str(line))


@every_library
@every_miniature
def test_each_miniature_gets_its_own_verdict(miniature, arrays, bench_of, spec):
    status, reason, message = MINIATURES[miniature]
    verdict = check_case(spec.cases["sdpa-distinct-sizes"], bench_of(miniature, arrays))
    assert (verdict.status, verdict.reason) == (status, reason)
    assert verdict.message == text_for(message, miniature, arrays)


@pytest.mark.sample(12)
@every_miniature
def test_one_bad_component_never_ends_the_run(miniature, bench_of, verdicts_of, spec):
    verdicts = verdicts_of(bench_of(miniature, "numpy"), *COMPONENTS)
    assert [v.check for v in verdicts] == [case.id for case in plan(spec, COMPONENTS)]
    bad = {v.component for v in verdicts if v.bad}
    assert bad == ({ATTENTION} if MINIATURES[miniature][0] in (FAILED, ERRORED) else set())
    others = [v for v in verdicts if v.component != ATTENTION]
    assert {v.status for v in others} <= {PASSED, Status.SKIPPED}
    assert {v.component for v in others if v.status is PASSED} == {"softmax", "causal_mask"}


@pytest.mark.sample(8)
@pytest.mark.parametrize(
    "miniature", [m for m, (status, *_) in MINIATURES.items() if status in (FAILED, ERRORED)], ids=lambda m: m.__name__
)
def test_every_golden_case_of_the_component_gets_the_same_verdict(miniature, bench_of, verdicts_of, spec):
    status, reason, _ = MINIATURES[miniature]
    # Refusals and gradients are judged another way, and no miniature drops weights.
    judged = [
        v
        for v in verdicts_of(bench_of(miniature, "numpy"), ATTENTION)
        if spec.cases[v.check].error is None and spec.cases[v.check].cotangent is None
        if "dropout_rate" not in spec.cases[v.check].attributes
    ]
    assert judged
    assert {(v.status, v.reason) for v in judged} == {(status, reason)}


@pytest.mark.parametrize("miniature", [returns_none, raises, exits, returns_wrong_shape], ids=lambda m: m.__name__)
def test_a_refusal_is_not_judged_where_the_working_call_is_broken(miniature, bench_of, spec):
    status, reason, _ = MINIATURES[miniature]
    bench = replace(bench_of(miniature, "numpy"), policy=Policy(require_refusals=True))
    verdict = check_case(spec.cases["sdpa-widths-differ"], bench)
    assert (verdict.status, verdict.reason) == (status, reason)
    assert verdict.message.startswith("cannot be judged: sdpa-cross-lengths, the same call without the fault, fails: ")


@every_library
def test_a_changed_mask_is_a_changed_input(arrays, bench_of, spec):
    verdict = check_case(spec.cases["sdpa-causal"], bench_of(mutates_mask, arrays))
    assert (verdict.status, verdict.reason) == (FAILED, "mutated-input")
    assert verdict.message == "changed the caller's mask in place: work on a copy (CALL-2)"


@every_library
def test_an_input_of_nan_that_is_left_alone_is_no_changed_input(arrays, spec):
    """NaN differs from itself; the comparison of what was handed over must not."""
    thing = SimpleNamespace(ARRAYS=arrays, softmax=lambda scores: scores)
    adapter = Adapter.from_object(thing, "mine.py", spec)
    scores = np.array([[np.nan, 1.0, np.inf]])
    result = invoke(adapter, spec.contracts["softmax"], Arguments({"scores": scores}, {}, {}), "float32", "cpu")
    np.testing.assert_array_equal(result.outputs["output"], scores)


def test_what_was_raised_keeps_its_traceback_for_a_closer_look(bench_of, spec):
    verdict = check_case(spec.cases["sdpa-distinct-sizes"], bench_of(raises, "numpy"))
    assert verdict.detail.startswith("Traceback (most recent call last):")
    assert verdict.detail.rstrip().endswith("ValueError: no such luck")


def test_an_error_inside_a_library_is_placed_at_the_implementations_own_line(bench_of, spec):
    def softmax_over_axis_nine(outputs, given):
        return torch.nn.functional.softmax(outputs["scores"], dim=9)

    message = check_case(spec.cases["sdpa-distinct-sizes"], bench_of(softmax_over_axis_nine, "torch")).message
    assert message.startswith("raised IndexError: Dimension out of range")
    assert re.search(rf"\({re.escape(__file__)}:\d+, softmax_over_axis_nine\)$", message)


def test_interrupting_the_run_is_no_verdict(bench_of, spec):
    def interrupted(outputs, given):
        raise KeyboardInterrupt("by hand")

    with pytest.raises(KeyboardInterrupt, match="by hand"):
        check_case(spec.cases["sdpa-distinct-sizes"], bench_of(interrupted, "numpy"))


# Masks


@pytest.mark.parametrize(
    ("component", "case", "dtype", "status"),
    [
        ("output_probabilities", "out-distinct-sizes", "bfloat16", Status.PASSED),
        ("output_probabilities", "out-distinct-sizes", "float64", FAILED),
        ("softmax", "sm-several-rows", "bfloat16", FAILED),
    ],
)
def test_logits_and_probabilities_of_a_half_type_may_be_float32(component, case, dtype, status, spec):
    def keep_wide(*args, **options):
        returned = getattr(HONEST["torch"], component)(*args, **options)
        return tuple(a.float() for a in returned) if isinstance(returned, tuple) else returned.float()

    adapter = Adapter.from_object(SimpleNamespace(ARRAYS="torch", **{component: keep_wide}), "mine.py", spec)
    verdict = check_case(spec.cases[case], Bench(spec, adapter, dtype, "cpu"))
    assert (verdict.status, verdict.reason) == (status, "wrong-dtype" if status is FAILED else "")


@every_library
@pytest.mark.parametrize(
    ("convert", "dtype"),
    [({"numpy": np.float32, "torch": torch.float32}, "float32"), ({"numpy": np.int64, "torch": torch.int64}, "int64")],
    ids=["float_mask_output", "integer_mask"],
)
def test_a_mask_must_be_boolean(convert, dtype, arrays, spec):
    def causal_mask(q_seq, kv_seq):
        mask = HONEST[arrays].causal_mask(q_seq=q_seq, kv_seq=kv_seq)
        return mask.astype(convert[arrays]) if arrays == "numpy" else mask.to(convert[arrays])

    adapter = Adapter.from_object(SimpleNamespace(ARRAYS=arrays, causal_mask=causal_mask), "mine.py", spec)
    verdict = check_case(spec.cases["mask-causal-4"], Bench(spec, adapter, "float32", "cpu"))
    assert (verdict.status, verdict.reason) == (FAILED, "wrong-dtype")
    added = "mask == 0 if it is added to scores, " if "float" in dtype else ""
    made = f"return {added}mask != 0 if 1 means may attend"
    assert verdict.message == f"mask is {dtype}, must be bool: True means may attend; {made}"


# Devices


def test_an_output_on_another_device_is_told_by_name(bench_of, spec):
    def on_meta(outputs, given):
        return outputs["output"].to("meta")

    verdict = check_case(spec.cases["sdpa-distinct-sizes"], bench_of(on_meta, "torch"))
    assert (verdict.status, verdict.reason) == (FAILED, "wrong-device")
    assert verdict.message == "output is on meta, the inputs are on cpu"


def test_tensors_with_history_strides_and_a_subclass_are_tensors(bench_of, spec):
    def odd_tensor(outputs, given):
        strided = outputs["output"].transpose(0, 1).contiguous().transpose(0, 1)
        return torch.nn.Parameter(strided)

    assert check_case(spec.cases["sdpa-distinct-sizes"], bench_of(odd_tensor, "torch")).status is PASSED


# Parameters


@pytest.mark.parametrize(
    ("act", "status"),
    [
        (lambda params: params.setdefault("b_q", 0.0), PASSED),
        (lambda params: params.pop("w_o"), PASSED),
        (lambda params: params["w_v"].fill(0.0), FAILED),
    ],
    ids=["adds a name", "takes a name away", "overwrites an array"],
)
def test_arrays_of_params_are_the_callers_but_the_mapping_is_not(act, status, spec):
    def multi_head_attention(query, key, value, mask=None, *, num_heads, params):
        returned = textbook.multi_head_attention(query, key, value, mask, num_heads=num_heads, params=dict(params))
        act(params)
        return returned

    thing = SimpleNamespace(ARRAYS="numpy", multi_head_attention=multi_head_attention)
    bench = Bench(spec, Adapter.from_object(thing, "mine.py", spec), "float32", "cpu")
    verdict = check_case(spec.cases["mha-biases-without-output"], bench)
    assert verdict.status is status
    assert ("changed the caller's w_v in place" in verdict.message) is (status is FAILED)


# Chance and memory


def test_random_each_call_is_wrong_and_does_not_repeat(bench_of, spec):
    bench = bench_of(random_each_call, "numpy")
    case = check_case(spec.cases["sdpa-distinct-sizes"], bench)
    assert (case.status, case.reason) == (FAILED, "wrong-value")
    repeated = check_property(spec.properties["repeat-calls"], ATTENTION, bench)
    assert (repeated.status, repeated.reason) == (FAILED, "property")
    assert repeated.message == "a second call with the same inputs gives something else"


def test_what_remembers_its_last_call_is_caught_by_calling_twice(bench_of, spec):
    calls = []

    def remembers(outputs, given):
        calls.append(given)
        return outputs["output"] * (1 if len(calls) % 2 else 2)

    repeated = check_property(spec.properties["repeat-calls"], ATTENTION, bench_of(remembers, "numpy"))
    assert (repeated.status, repeated.reason) == (FAILED, "property")
    assert not repeated.detail, "it drew nothing, so there is no smallest input"


# What is not there


def declines_masks(outputs, given):
    if "mask" in given:
        raise NotImplementedError("no masks yet")
    return outputs


def test_a_declined_variant_is_skipped_and_the_others_are_judged(bench_of, verdicts_of):
    verdicts = verdicts_of(bench_of(declines_masks, "numpy"), ATTENTION)
    skipped = {v.check for v in verdicts if (v.reason, v.message) == ("not-implemented", "no masks yet")}
    assert {"sdpa-causal", "sdpa-empty-row", "sdpa-mask-too-long"} <= skipped
    passed = {v.check for v in verdicts if v.status is PASSED}
    assert {"sdpa-distinct-sizes", "sdpa-widths-differ"} <= passed
    assert not [v.check for v in verdicts if v.bad]


@pytest.mark.parametrize(
    ("miniature", "message"),
    [
        (declines_masks, "no masks yet"),
        (declines_everything, "scaled_dot_product_attention raises NotImplementedError"),
    ],
)
def test_strict_fails_what_is_declined(miniature, message, bench_of, spec):
    verdict = check_case(spec.cases["sdpa-causal"], bench_of(miniature, "numpy", strict=True))
    assert (verdict.status, verdict.reason, verdict.message) == (FAILED, "not-implemented", message)

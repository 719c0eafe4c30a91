"""A case of several calls: who gets which state, and what is said of the call that goes wrong."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from goldformer.adapters import Adapter
from goldformer.adapters.skeleton import sign, write_example, write_stub
from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.api.expectation import assert_correct
from goldformer.conformance.api.report import NonConformance
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.conformance.judging.cases import Bench, check_case
from goldformer.conformance.judging.verdict import Status

TEXTBOOK = build_textbook().cached_attention
CASE = "cache-prompt-chunk-steps"


def attend(query, key, value, mask=None, state=None):
    return TEXTBOOK(query, key, value, mask, state)


def judge(spec, function, case=CASE, dtype="float64"):
    thing = SimpleNamespace(ARRAYS="numpy", cached_attention=function)
    return check_case(spec.cases[case], Bench(spec, Adapter.from_object(thing, "mine.py", spec), dtype, "cpu"))


def returning(change):
    """Return an implementation whose results `change` makes of the right ones; it counts its calls from 1."""
    count = [0]

    def function(query, key, value, mask, state):
        called = attend(query, key, value, mask, state)
        count[0] += 1
        return change(called["output"], called["state"], count[0])

    return function


def test_each_call_gets_the_state_of_the_call_that_it_follows(spec):
    seen: list[Any] = []

    def function(query, key, value, mask, state):
        inner = None if state is None else state[0]
        called = attend(query, key, value, mask, inner)
        seen.append((query.shape[2], state and state[1]))
        return called["output"], (called["state"], len(seen))

    assert judge(spec, function, "cache-sequences-take-turns").status is Status.PASSED
    assert seen == [(3, None), (2, None), (1, 1), (1, 2), (1, 3), (1, 4)]


@pytest.mark.parametrize(
    "change",
    [
        lambda output, state, _: (output, state),
        lambda output, state, _: [output, state],
        lambda output, state, _: {"state": state, "output": output},
    ],
)
def test_a_call_returns_its_output_and_state_in_any_form(spec, change):
    assert judge(spec, returning(change)).status is Status.PASSED


def test_a_state_may_be_any_object(spec):
    class Handle:
        """Reads as nothing and compares with nothing."""

        def __init__(self, inner):
            self.inner = inner

        def __eq__(self, other):
            raise AssertionError("a state is not compared")

        __hash__ = None
        __bool__ = __len__ = None

    def function(query, key, value, mask, state):
        called = attend(query, key, value, mask, state if state is None else state.inner)
        return called["output"], Handle(called["state"])

    assert judge(spec, function, "cache-continuations-take-turns").status is Status.PASSED


@pytest.mark.parametrize(
    ("change", "reason", "says"),
    [
        (
            lambda output, state, n: (output + (n == 3), state),
            "wrong-value",
            r"30 of 210 values are wrong, .* times the tolerance, in call 3 of 4$",
        ),
        (lambda output, state, n: (output + (n in (2, 4)), state), "wrong-value", r", in calls 2, 4 of 4$"),
        (
            lambda output, state, n: (output[:, :, :1], state),
            "wrong-shape",
            r"^output of call 1 has shape \(1, 6, 1, 5\), must be \(batch, .*, seq, d_v\) = \(1, 6, 3, 5\)$",
        ),
        (
            lambda output, state, n: (output.astype(np.float32 if n == 2 else np.float64), state),
            "wrong-dtype",
            r"^output of call 2 is float32, must be float64",
        ),
        (
            lambda output, state, n: output,
            "not-an-array",
            r"^returned no state for the calls that follow: return \(output, state\), in call 1 of 4$",
        ),
        (
            lambda output, state, n: (output, None),
            "not-an-array",
            r"^returned no state for the calls that follow: return \(output, state\), in call 1 of 4$",
        ),
        (lambda output, state, n: (None, state), "nothing-returned", r"^returned None: return output, in call 1 of 4$"),
        (
            lambda output, state, n: {"out": output, "state": state},
            "not-an-array",
            r"^returned a mapping of out; the contract has output, in call 1 of 4$",
        ),
    ],
)
def test_a_failure_names_the_call(spec, change, reason, says):
    verdict = judge(spec, returning(change))
    assert (verdict.status, verdict.reason) == (Status.FAILED, reason)
    assert re.search(says, verdict.message), verdict.message


def test_an_exception_names_the_call(spec):
    def function(query, key, value, mask, state):
        if state is not None and state[0].shape[2] == 5:
            raise IndexError("the table ends")
        return attend(query, key, value, mask, state)

    verdict = judge(spec, function)
    assert (verdict.status, verdict.reason) == (Status.ERRORED, "raised")
    assert verdict.message.startswith("raised IndexError: the table ends")
    assert verdict.message.endswith(", in call 3 of 4")


def test_an_array_that_is_changed_in_place_is_told(spec):
    def function(query, key, value, mask, state):
        called = attend(query, key, value, mask, state)
        if state is not None:
            key += 1
        return called

    verdict = judge(spec, function)
    assert (verdict.reason, verdict.message) == (
        "mutated-input",
        "changed the caller's key in place: work on a copy (CALL-2)",
    )


def test_a_function_without_a_state_is_refused(spec):
    verdict = judge(spec, lambda query, key, value, mask=None: query)
    assert verdict.reason == "wrong-parameters"
    assert verdict.message == (
        "cached_attention does not take state; the suite calls it with query, key, value, mask, state"
    )


def test_code_that_consumes_a_state_may_declare_it(spec):
    def append(state, key, value):
        state = [key[:, :, :0], value[:, :, :0]] if state is None else state
        state[:] = np.concatenate((state[0], key), 2), np.concatenate((state[1], value), 2)
        return state

    def function(query, key, value, mask, state):
        before = None if state is None else tuple(state)
        output = attend(query, key, value, mask, before)["output"]
        return output, append(state, key, value)

    thing = SimpleNamespace(ARRAYS="numpy", cached_attention=function)
    adapter = Adapter.from_object(thing, "mine.py", spec)
    declared = Adapter.from_object(
        SimpleNamespace(**vars(thing), CONVENTIONS={"cache_state": "consumed"}), "mine.py", spec
    )
    case = spec.cases["cache-two-continuations"]
    assert check_case(case, Bench(spec, adapter, "float64", "cpu")).status is Status.FAILED
    skipped = check_case(case, Bench(spec, declared, "float64", "cpu"))
    assert (skipped.status, skipped.reason) == (Status.SKIPPED, "convention")
    once = spec.cases["cache-sequences-take-turns"]
    assert check_case(once, Bench(spec, declared, "float64", "cpu")).status is Status.PASSED


def attend_in_calls(function, arrays, calls):
    """Return the joined outputs of calls with so many new tokens."""
    state, outputs, start = None, [], 0
    for new in calls:
        called = function(*(array[:, :, start : start + new] for array in arrays.values()), None, state)
        state, start = called["state"], start + new
        outputs.append(called["output"])
    return np.concatenate(outputs, axis=2)


def test_assert_correct_takes_the_outputs_of_all_calls():
    random = np.random.default_rng(7)
    shapes = {"query": (1, 4, 5, 3), "key": (1, 2, 5, 3), "value": (1, 2, 5, 6)}
    arrays: dict[str, Any] = {name: random.normal(size=shape) for name, shape in shapes.items()}
    assert_correct(attend_in_calls(attend, arrays, (3, 2)), "cached_attention", **arrays, calls=[3, 2])
    wrong = implementations()["cache-values-lost"].make().cached_attention
    with pytest.raises(NonConformance) as refusal:
        assert_correct(attend_in_calls(wrong, arrays, (3, 2)), "cached_attention", **arrays, calls=[3, 2])
    assert re.search(r"48 of 120 values are wrong.*, in call 2 of 2$", str(refusal.value).splitlines()[0])
    assert "Mistake found: cache-values-lost" in str(refusal.value)
    with pytest.raises(ValueError, match=r"^cached_attention: calls is \[3, 3\], 6 tokens in all, but query has 5$"):
        assert_correct(arrays["query"], "cached_attention", **arrays, calls=[3, 3])


def test_an_adapter_of_a_session_is_written_with_a_state(spec):
    contract = spec.contracts["cached_attention"]
    assert sign(contract) == "cached_attention(query, key, value, mask=None, state=None)"
    assert "return my_cached_attention(query, key, value, mask, state)" in write_example(contract)
    assert "Returns output (batch, kv_heads*group, seq, d_v), state, which a later call is given." in write_stub(
        contract
    )

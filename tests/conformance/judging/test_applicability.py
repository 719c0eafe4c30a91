"""The message where an implementation runs no case of a component says what excludes the cases."""

from __future__ import annotations

import pytest

from goldformer.conformance.judging.applicability import find_working_case
from goldformer.conformance.judging.invoke import NotImplementedHere

SOFTMAX = "ARRAYS = 'numpy'\ndef softmax(scores):\n    return scores\n"
MODEL = """
ARRAYS = "numpy"
CONVENTIONS = {"rms_norm_eps_place": "outside", "rope_direction": "negative"}


def decoder_only_model(ids, params):
    raise AssertionError("no case applies")
"""


def explain(implementation, component="decoder_only_model"):
    with pytest.raises(NotImplementedHere) as refused:
        find_working_case(component, implementation)
    return str(refused.value)


def test_a_missing_function_is_named(bench, adapter_file):
    assert explain(bench(adapter_file(SOFTMAX))).endswith(" has no decoder_only_model")


def test_the_declared_option_that_excludes_the_cases_is_named(bench, adapter_file, spec):
    message = explain(implementation := bench(adapter_file(MODEL)))
    cases = [c for c in spec.cases_of("decoder_only_model") if c.error is None and not c.shape_only]
    name = implementation.adapter.name
    assert message.startswith(f"none of the {len(cases)} cases of decoder_only_model applies to {name}; ")
    # The first option that excludes a case is named.
    cases = [case for case in cases if case.only_with.get("embedding_scale") != "sqrt_d_model"]
    count = sum("rms_norm_eps_place" in case.only_with for case in cases)
    assert f"; {count} of them: only for rms_norm_eps_place: inside; the adapter declares outside" in message
    assert (
        f"; {len(cases) - count} of them: only for rope_direction: positive; the adapter declares negative" in message
    )
    assert "has no decoder_only_model" not in message


def test_the_last_call_that_was_declined_says_why(bench, adapter_file):
    source = "ARRAYS = 'numpy'\ndef softmax(scores):\n    raise NotImplementedError('only for three axes')\n"
    assert "only for three axes" in explain(bench(adapter_file(source)), "softmax")

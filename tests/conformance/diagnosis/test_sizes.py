"""Failures that depend on a size."""

from types import SimpleNamespace

import numpy as np
import pytest

from goldformer.adapters.protocol import Adapter
from goldformer.conformance.diagnosis import sizes
from goldformer.conformance.diagnosis.sizes import describe_size
from goldformer.conformance.judging.cases import Bench, check_case


def attend(query, key, value, mask=None):
    scores = query @ key.swapaxes(-1, -2) / query.shape[-1] ** 0.5
    if mask is not None:
        scores = np.where(mask, scores, -1e30)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ value


def forget_keys(query, key, value, mask=None):
    return attend(query, key[..., :32, :], value[..., :32, :], None if mask is None else mask[..., :32])


def stop_after_32(query, key, value, mask=None):
    if key.shape[-2] > 32:
        raise RuntimeError("positions beyond the table")
    return attend(query, key, value, mask)


@pytest.mark.parametrize(
    ("function", "said", "advice"),
    [
        (forget_keys, "wrong in", "Look at the end of a block, of a tile or of a table"),
        (
            stop_after_32,
            "raises in",
            "If it is built for no more, let the adapter raise NotImplementedError for larger calls",
        ),
    ],
)
def test_the_largest_right_size_and_the_smallest_wrong_one_are_told(function, said, advice, spec):
    functions = SimpleNamespace(ARRAYS="numpy", NAME="mine", scaled_dot_product_attention=function)
    bench = Bench(spec, Adapter.from_object(functions, "mine.py", spec), "float32", "cpu")
    cases = [case for case in spec.cases_of("scaled_dot_product_attention") if case.cotangent is None]
    (finding,) = describe_size([check_case(case, bench) for case in cases], spec)
    assert f"cases of up to 31 keys, {said}" in finding.text
    assert finding.text.endswith(f" from 64 keys on. {advice}")


def test_calls_that_are_too_small_to_show_a_mistake_end_no_block(spec, monkeypatch):
    def forget_fifth_key(query, key, value, mask=None):
        return attend(query, key[..., :4, :], value[..., :4, :], None if mask is None else mask[..., :4])

    functions = SimpleNamespace(ARRAYS="numpy", NAME="mine", scaled_dot_product_attention=forget_fifth_key)
    bench = Bench(spec, Adapter.from_object(functions, "mine.py", spec), "float32", "cpu")
    cases = [case for case in spec.cases_of("scaled_dot_product_attention") if case.cotangent is None]
    verdicts = [check_case(case, bench) for case in cases]
    assert not [*describe_size(verdicts, spec)]
    monkeypatch.setattr(sizes, "SHORTEST", 4)
    (finding,) = describe_size(verdicts, spec)
    assert "cases of up to 4 keys, wrong in" in finding.text


def test_nothing_is_said_of_right_code(spec):
    functions = SimpleNamespace(ARRAYS="numpy", NAME="mine", scaled_dot_product_attention=attend)
    bench = Bench(spec, Adapter.from_object(functions, "mine.py", spec), "float32", "cpu")
    cases = spec.cases_of("scaled_dot_product_attention")[:40]
    assert not [*describe_size([check_case(case, bench) for case in cases], spec)]

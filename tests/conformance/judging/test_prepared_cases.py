"""A case that is prepared once gives every implementation with the same declarations the verdict of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from goldformer.adapters import find_adapter
from goldformer.adapters.arrays import LIBRARIES, Jax, Wire
from goldformer.adapters.dtypes import WireArray
from goldformer.conformance.judging import cases
from goldformer.conformance.judging.applicability import select_plain_cases
from goldformer.conformance.judging.cases import Bench, PreparedCase, judge_case
from goldformer.conformance.judging.decision import Policy
from goldformer.conformance.judging.invoke import convert_arguments, read_arguments
from goldformer.conformance.judging.verdict import Status

RIGHT = """
import numpy as np

ARRAYS = "numpy"


def softmax(scores):
    if not scores.shape[-1]:
        raise ValueError("nothing to attend to")
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""
WRONG = RIGHT.replace("scores - scores.max(-1, keepdims=True)", "2 * scores")


@pytest.mark.parametrize("id_", ["sm-several-rows", "sm-no-elements"])
def test_each_implementation_gets_its_own_verdict_and_the_arguments_are_read_once(
    spec, bench, adapter_file, monkeypatch, id_
):
    reads = []

    def record(case, **how):
        reads.append(case.id)
        return read_arguments(case, **how)

    monkeypatch.setattr(cases, "read_arguments", record)
    benches = [bench(adapter_file(text, f"a{i}.py"), "float64") for i, text in enumerate((RIGHT, WRONG, RIGHT))]
    prepared = PreparedCase(spec.cases[id_], benches[0])
    judged = [judge_case(spec.cases[id_], at, prepared).verdict for at in benches]
    assert len(reads) == len(set(reads))
    alone = [judge_case(spec.cases[id_], at).verdict for at in benches]
    assert [(v.status, v.reason, v.ratio, v.differences) for v in judged] == [
        (v.status, v.reason, v.ratio, v.differences) for v in alone
    ]
    assert judged[1].status is (Status.FAILED if id_ == "sm-several-rows" else judged[0].status)


def test_another_process_gets_the_same_arrays_again_and_no_other_library_does(spec):
    case = spec.cases["sm-several-rows"]
    contract, arguments = spec.contracts["softmax"], read_arguments(case)
    first, second = (convert_arguments(Wire(), contract, arguments, "float32", "cpu") for _ in range(2))
    assert isinstance(first["scores"], WireArray)
    assert first["scores"] is second["scores"]
    first["scores"] = None
    assert convert_arguments(Wire(), contract, arguments, "float32", "cpu")["scores"] is second["scores"]
    assert convert_arguments(Wire(), contract, arguments, "float64", "cpu")["scores"].dtype == "float64"
    numpy = LIBRARIES["numpy"]
    one, other = (convert_arguments(numpy, contract, arguments, "float32", "cpu")["scores"] for _ in range(2))
    assert not np.shares_memory(one, other)


def test_jax_has_64_bits_in_calls_of_float64_alone(spec):
    config = SimpleNamespace(jax_enable_x64=True, jax_default_matmul_precision=None)
    config.update = partial(setattr, config)
    library = Jax()
    library.__dict__["_jax"] = SimpleNamespace(config=config)
    contract, arguments = spec.contracts["causal_mask"], read_arguments(spec.cases["mask-causal-3"])
    with library.keep_settings():
        for dtype in ("float64", "float32", "float16", "bfloat16"):
            convert_arguments(library, contract, arguments, dtype, "cpu")
            assert config.jax_enable_x64 == (dtype == "float64")
        library.choose_precision(tf32=False)
        assert config.jax_default_matmul_precision == "highest"
    assert (config.jax_enable_x64, config.jax_default_matmul_precision) == (True, None)


def test_what_is_not_implemented_has_no_values_computed(spec, bench, adapter_file):
    """The values of large calls take nine seconds in all, and a new adapter has nothing but stubs."""
    missing = RIGHT.replace("    powers = np.exp", "    raise NotImplementedError\n    powers = np.exp")
    judged = []
    for text in (missing, RIGHT):
        at = bench(adapter_file(text, f"of_{len(text)}.py"))
        prepared = PreparedCase(spec.cases["sm-several-rows"], at)
        judged.append((judge_case(prepared.whole, at, prepared).verdict.status, "expected" in vars(prepared)))
    assert judged == [(Status.SKIPPED, False), (Status.PASSED, True)]


def test_a_bench_that_is_not_timed_keeps_no_duration(spec, bench, adapter_file):
    at = bench(adapter_file(RIGHT), "float64")
    case = spec.cases["sm-several-rows"]
    assert judge_case(case, at).verdict.seconds > 0
    assert judge_case(case, replace(at, policy=Policy(timed=False))).verdict.seconds == 0


def test_properties_are_tried_with_no_model_of_full_size(spec):
    """Each property of a missing component tries all of its cases, and a whole model takes a second."""
    cases = [*select_plain_cases("transformer", Bench(spec, find_adapter("textbook", spec), "float32", "cpu"))]
    assert len(cases) > 10
    assert not any(case.full_size for case in cases)


@pytest.mark.parametrize(("id_", "is_kept"), [("sm-several-rows", True), ("sdpa-size-causal-513", False)])
def test_a_large_call_that_passes_keeps_no_arrays(spec, id_, is_kept):
    bench = Bench(spec, find_adapter("textbook", spec), "float32", "cpu")
    judgement = judge_case(spec.cases[id_], bench)
    kept = judgement.drop_large_arrays()
    assert (kept.outcome is not None, bool(kept.expected)) == (is_kept, is_kept)
    assert ("input_arrays" in vars(spec.cases[id_])) == is_kept
    assert kept.verdict == judgement.verdict
    failed = replace(judgement, verdict=replace(judgement.verdict, status=Status.FAILED))
    assert failed.drop_large_arrays() is failed


def test_the_parameters_of_a_whole_model_are_drawn_again_at_each_access(spec):
    params = spec.cases["tf-n9-shapes"].param_arrays
    assert list(params) == list(spec.cases["tf-n9-shapes"].params)
    (first, again) = (params["b_vocab"] for _ in range(2))
    assert first is not again
    assert np.array_equal(first, again)

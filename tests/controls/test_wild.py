"""Implementations in the styles that people write: what is right is not called wrong."""

from __future__ import annotations

import pytest

from goldformer.adapters import find_adapter
from goldformer.conformance.judging.cases import Bench, check_case, plan
from wild import read_bench

BENCH = read_bench()
CORRECT = [wild for wild in BENCH if wild.is_correct]


@pytest.mark.parametrize("wild", BENCH, ids=lambda wild: wild.name)
def test_each_mistake_changes_one_place_and_leaves_python(wild):
    for name in wild.mistakes:
        compile(wild.apply_mistake(name), wild.path.name, "exec")


def test_the_bench_is_wide():
    assert len(BENCH) >= 30
    assert len(CORRECT) >= 20
    assert all(len(wild.mistakes) >= 4 for wild in BENCH)


@pytest.mark.sample(5)
@pytest.mark.parametrize("wild", CORRECT, ids=lambda wild: wild.name)
def test_no_number_of_correct_code_is_called_wrong(wild, spec):
    bench = Bench(spec, find_adapter(str(wild.path), spec), "float32", "cpu")
    verdicts = [check_case(case, bench) for case in plan(spec, bench.adapter.functions) if case.error is None]
    assert [(v.check, v.message) for v in verdicts if v.bad] == []
    assert any(v.is_judged for v in verdicts)

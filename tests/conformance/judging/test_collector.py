"""The garbage collector does not search the spec again and again, and is afterwards as it was."""

from __future__ import annotations

import gc

import pytest

import goldformer
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.judging.collector import sparing_collector


def test_the_thresholds_are_put_back():
    before, inside = gc.get_threshold(), []

    @sparing_collector()
    def fail():
        inside.append(gc.get_threshold())
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert inside == [(*before[:2], 1 << 30)]
    assert gc.get_threshold() == before


def test_full_collections_wait_until_a_check_is_over():
    seen, before = set(), gc.get_threshold()

    def softmax(x):
        seen.add(gc.get_threshold()[2])
        return x

    goldformer.check(softmax, arrays="numpy")
    assert seen == {1 << 30}
    assert gc.get_threshold() == before


def test_full_collections_wait_while_failures_are_explained(monkeypatch, bench):
    seen = []
    monkeypatch.setattr(Diagnosis, "complete_all", lambda *_: seen.append(gc.get_threshold()[2]))
    Diagnosis(bench("textbook").spec).explain_all([])
    assert seen == [1 << 30]

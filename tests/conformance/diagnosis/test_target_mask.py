"""Models that hide later words of a target and not its padding: right if declared, told as that option if not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support import wild

from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND, OPTION_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.judging.cases import judge_case

ONLY = "target_mask", "causal_only"
#: Implementations in styles of their own, and the edit that leaves the target's padding out of the mask.
STYLES = {
    "fused_kernel_model": "memory-mask-and-own-mask",
    "keras_like_layers": "padding-of-target-forgotten",
    "sequence_first_greedy": "target-padding-seen",
}
styles = pytest.mark.parametrize(("name", "edit"), STYLES.items(), ids=STYLES)


def judge(bench, spec):
    cases = [c for c in spec.cases_of("transformer") if not (c.error or c.full_size or c.is_computed)]
    return Diagnosis(spec).explain_all(judge_case(c, bench) for c in cases if c.cotangent is None)


def make_bench(name, edit, tmp_path, spec, **options):
    (style,) = wild.read_bench([name])
    bench = wild.make_bench(name, edit, tmp_path, spec)
    return replace(bench, adapter=bench.adapter.declare({**style.declares, **options}, spec))


@styles
def test_a_declared_mask_is_right(name, edit, tmp_path, spec):
    verdicts = judge(make_bench(name, edit, tmp_path, spec, **dict([ONLY])), spec)
    assert not [(v.check, v.message) for v in verdicts if v.bad]
    assert any(v.is_judged for v in verdicts if v.check == "tf-target-padding-between-words" or "between" in v.check)


@pytest.mark.sample(1)
@styles
def test_an_undeclared_mask_is_told_as_the_option(name, edit, tmp_path, spec):
    findings = list(diagnose(judge(make_bench(name, edit, tmp_path, spec), spec), spec))
    (found,) = [f for f in findings if f.label == OPTION_FOUND]
    assert '"target_mask": "causal_only"' in found.text
    # In a model every mask of padding of a target is joined to a causal one: to drop it there is the same.
    assert {f.mistakes for f in findings} <= {(), ("causal-drops-padding",)}
    assert MISTAKE_FOUND not in [f.label for f in findings]

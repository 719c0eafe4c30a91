"""The limits: correct implementations stay well within them, in every dtype, and mistakes lie far beyond."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch

from goldformer.adapters import BUILT_IN, DTYPES, find_adapter
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.tolerance import LARGEST, find_smallest_normal, tolerance
from goldformer.conformance.judging.verdict import Limit, Status
from goldformer.spec.oracle.rounding import SLACK, SMALLEST, UNIT_ROUNDOFF


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BUILT_IN)
def test_the_pool_of_correct_implementations_stays_well_within(name, dtype, spec, verdicts_of):
    adapter = find_adapter(name, spec)
    if dtype not in adapter.dtypes:
        pytest.skip(f"{name} does not work in {dtype}")
    verdicts = verdicts_of(Bench(spec, adapter, dtype, "cpu"))
    assert not [f"{v.check}: {v.message}" for v in verdicts if v.bad]
    ratios = [v.ratio for v in verdicts if v.ratio is not None]
    assert len(ratios) > 20
    assert max(ratios) <= 0.6


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_constants_are_those_of_the_dtype(dtype):
    info = torch.finfo(getattr(torch, dtype))
    assert UNIT_ROUNDOFF[dtype] == info.eps / 2
    assert LARGEST[dtype] == info.max
    assert SMALLEST[dtype] == info.tiny * info.eps  # the smallest normal, its last bit alone
    assert find_smallest_normal(dtype) == info.tiny


def test_the_tolerance_is_the_formula():
    assert tolerance("float32", 3.0, 100.0) == pytest.approx(SLACK * 3 * 2**-24, rel=1e-9)
    # PE-5: angles in float32 or better, then one rounding to the dtype of the result.
    half = tolerance("bfloat16", 3.0, 100.0, at_least="float32")
    assert half == pytest.approx(SLACK * (3 * 2**-24 + (2**-8 - 2**-24) * 100), rel=1e-9)
    assert tolerance("float64", 3.0, 100.0, at_least="float32") == tolerance("float64", 3.0, 100.0)


def test_a_scale_of_zero_means_exact():
    assert tolerance("bfloat16", 0.0, 100.0) == 0.0
    assert not math.isclose(tolerance("float16", 1e-9, 0.0), 0.0, abs_tol=1e-12)


def test_a_tolerance_never_swallows_what_it_judges(spec):
    """In float32 every golden output is judged to a bound below a tenth of its own size.

    It comes nearest to that at the loss of a sure token, log Σ e^z − z_y: a small difference of two numbers of size 10.
    The score of sure tokens is such a difference too, and may be as near to 0 as it likes: it is the logarithm of a
    probability, which is then judged to four digits. In most options of its case it has to be far from 0.
    """
    scores: dict[str, list[bool]] = defaultdict(list)
    for case in spec.cases.values():
        at_least = spec.contracts[case.component].computed_in_at_least
        for outputs in (case.golden.options if case.golden else {}).values():
            for name, golden in (outputs or {}).items():
                if golden.magnitude:
                    bound = tolerance("float32", golden.error_scale, golden.magnitude, at_least)
                    if name == "scores" and "ids" in outputs:
                        assert bound < max(golden.magnitude / 10, 1e-4), case.id
                        scores[case.id].append(bound < golden.magnitude / 10)
                    else:
                        assert bound < golden.magnitude / 10, f"{case.id} {name}"
    assert scores
    assert not [id_ for id_, far in scores.items() if 2 * sum(far) <= len(far)]


def test_a_wrong_implementation_lies_far_beyond(spec, verdicts_of, adapter_file):
    path = adapter_file(
        "import torch\nARRAYS = 'torch'\ndef softmax(scores):\n    return torch.softmax(scores * 1.001, dim=-1)\n"
    )
    verdicts = verdicts_of(Bench(spec, find_adapter(path, spec), "float32", "cpu"), "softmax")
    worst = max(v.ratio or 0 for v in verdicts if v.status is Status.FAILED)
    assert worst > 100


def test_a_norm_that_is_computed_in_bfloat16_is_wrong_in_its_rows(spec, verdicts_of, adapter_file):
    path = adapter_file(
        "import torch\nARRAYS = 'torch'\ndef rms_norm(x, params):\n"
        "    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * params['gamma']\n"
    )
    verdicts = verdicts_of(Bench(spec, find_adapter(path, spec), "bfloat16", "cpu"), "rms_norm")
    wrong = {v.check: [d.limit for d in v.differences] for v in verdicts if v.status is Status.FAILED}
    assert wrong["rms-rows-of-many-sizes"] == [Limit.ROW]


def test_words_that_are_all_zero_are_wrong_in_bfloat16(spec, verdicts_of, adapter_file):
    path = adapter_file(
        "import torch\nARRAYS = 'torch'\ndef generate(ids, *, max_new_tokens, **more):\n"
        "    return torch.zeros(len(ids), max_new_tokens, dtype=torch.long)\n"
    )
    verdicts = verdicts_of(Bench(spec, find_adapter(path, spec), "bfloat16", "cpu"), "generate")
    assert sum(v.status is Status.FAILED for v in verdicts) >= 10

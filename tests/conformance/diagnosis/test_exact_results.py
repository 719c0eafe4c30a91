"""Cases whose expected result is exact, such as beta where gamma is 0: a wrong formula rounds there all the same."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from goldformer.adapters.protocol import Adapter
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.judging.cases import Bench, judge_case


def norm_by_hand(x, params):
    x = x - x.mean(-1, keepdim=True)
    return params["beta"] * x * torch.rsqrt((x**2).mean(-1, keepdim=True) + 1e-5) + params["gamma"]


def norm_of_torch(x, params):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], params["beta"], params["gamma"])


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("norm", [norm_by_hand, norm_of_torch])
def test_gamma_and_beta_swapped_explain_the_case_whose_expected_result_is_beta(norm, dtype, spec):
    adapter = Adapter.from_object(SimpleNamespace(ARRAYS="torch", layer_norm=norm), "mine.py", spec)
    bench = Bench(spec, adapter, dtype, "cpu")
    cases = [case for case in spec.cases_of("layer_norm") if case.error is None and case.cotangent is None]
    verdicts = Diagnosis(spec).explain_all(judge_case(case, bench) for case in cases)
    failing = {verdict.check for verdict in verdicts if verdict.bad}
    assert "ln-scale-zero" in failing
    (found,) = (f for f in diagnose(verdicts, spec) if f.mistakes)
    assert found.label == MISTAKE_FOUND
    in_all = f"in {len(failing)} of {len(failing)} failing cases"
    assert found.text.startswith(f"The code exchanges `gamma` and `beta`. It reproduces your output {in_all}")

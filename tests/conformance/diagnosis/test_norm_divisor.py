"""Norms that divide by the sample deviation plus eps: right where declared, told as that option where not."""

from __future__ import annotations

import pytest

from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND, OPTION_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.judging.cases import judge_case

ANNOTATED = """
import torch
from torch import nn
from torch.func import functional_call

ARRAYS = "torch"

class LayerNorm(nn.Module):
    def __init__(self, features, eps={eps}):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2

def layer_norm(x, *, params):
    state = {{"a_2": params["gamma"], "b_2": params["beta"]}}
    return functional_call(LayerNorm(x.shape[-1]).to(x), state, (x,), strict=True)
"""
NUMPY = """
import numpy as np

ARRAYS = "numpy"

def layer_norm(x, *, params):
    wide = x.astype(np.result_type(x.dtype, np.float32))
    std = np.std(wide, axis=-1, ddof=1, keepdims=True)
    row = (wide - np.mean(wide, axis=-1, keepdims=True)) / (std + {eps})
    return (params["gamma"] * row + params["beta"]).astype(x.dtype)

def layer_norm_gradient(x, cotangent, *, params):
    mean, std = x.mean(-1, keepdims=True), x.std(-1, ddof=1, keepdims=True)
    row, n = x - mean, x.shape[-1]
    g = cotangent * params["gamma"]
    safe = np.where(std == 0, 1, std)  # nothing flows through the deviation of equal numbers
    back = g / (std + {eps}) - row * (g * row).sum(-1, keepdims=True) / ((std + {eps}) ** 2 * safe * (n - 1))
    axes = tuple(range(x.ndim - 1))
    return {{
        "x": back - back.mean(-1, keepdims=True),
        "gamma": (cotangent * row / (std + {eps})).sum(axes),
        "beta": cotangent.sum(axes),
    }}
"""
DECLARED = '\nCONVENTIONS = {{"norm_divisor": "std_plus_eps", "layer_norm_eps": "{}"}}\n'
styles = pytest.mark.parametrize("source", [ANNOTATED, NUMPY], ids=["annotated", "numpy"])


def judge(bench, spec):
    cases = [c for c in spec.cases_of("layer_norm") if not c.error]
    return Diagnosis(spec).explain_all(judge_case(c, bench) for c in cases)


@styles
@pytest.mark.parametrize("eps", ["1e-5", "1e-6", "1e-12"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_declared_deviation_is_right_with_each_eps(source, eps, dtype, bench, adapter_file, spec):
    verdicts = judge(bench(adapter_file(source.format(eps=eps) + DECLARED.format(eps)), dtype), spec)
    assert not [(v.check, v.message) for v in verdicts if v.bad]
    assert sum(v.is_judged for v in verdicts) >= 20


@styles
@pytest.mark.parametrize("eps", ["1e-5", "1e-6"])
def test_an_undeclared_deviation_is_told_as_the_option(source, eps, bench, adapter_file, spec):
    findings = diagnose(judge(bench(adapter_file(source.format(eps=eps))), spec), spec)
    (found,) = [f for f in findings if f.label in (OPTION_FOUND, MISTAKE_FOUND)]
    assert found.label == OPTION_FOUND
    assert '"norm_divisor": "std_plus_eps"' in found.text
    assert ('"layer_norm_eps": "1e-6"' in found.text) == (eps == "1e-6")


@styles
def test_an_eps_that_is_not_listed_is_an_option_beside_the_deviation(source, bench, adapter_file, spec):
    findings = list(diagnose(judge(bench(adapter_file(source.format(eps="1e-8"))), spec), spec))
    (found,) = [f for f in findings if f.label in (OPTION_FOUND, MISTAKE_FOUND)]
    assert found.label == OPTION_FOUND
    assert '{"norm_divisor": "std_plus_eps", "layer_norm_eps": "1e-8"}' in found.text

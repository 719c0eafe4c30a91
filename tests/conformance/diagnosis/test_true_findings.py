"""Every sentence of a finding is true: all failing cases are counted, and the simplest explanation comes first."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from goldformer.adapters.protocol import Adapter
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND, Finding
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.judging.cases import Bench, judge_case
from goldformer.conformance.judging.verdict import Verdict
from goldformer.spec import Spec


def run(spec: Spec, dtype: str = "float32", arrays: str = "torch", **functions) -> tuple[list[Verdict], list[Finding]]:
    """Return the verdicts and the findings of all cases of some functions, those of full size left out."""
    code = SimpleNamespace(ARRAYS=arrays, CONVENTIONS={}, **functions)
    at = Bench(spec, Adapter.from_object(code, "mine.py", spec), dtype, "cpu")
    components = {name.removesuffix("_gradient"): None for name in functions}
    cases = [case for name in components for case in spec.cases_of(name) if not case.full_size]
    verdicts = Diagnosis(spec).explain_all([judge_case(case, at) for case in cases])
    return verdicts, list(diagnose(verdicts, spec))


def find_said(findings: list[Finding], label: str = MISTAKE_FOUND) -> Finding:
    (found,) = (finding for finding in findings if finding.label == label)
    return found


# A norm whose forward pass divides by n − 1, with a backward pass by hand


class NormWithMemory:
    """A layer of a framework in plain NumPy: the forward pass keeps what the backward pass reads."""

    def __init__(self, gamma, beta, taken):
        self.gamma, self.beta, self.taken = gamma, beta, taken

    def forward(self, x):
        self.inverse = 1 / np.sqrt(np.var(x, axis=-1, ddof=1, keepdims=True) + x.dtype.type(1e-5))
        self.hat = (x - np.mean(x, axis=-1, keepdims=True)) * self.inverse
        return self.gamma * self.hat + self.beta

    def backward(self, upstream):
        width = upstream.shape[-1] - self.taken
        scaled = upstream * self.gamma
        along = (scaled * self.hat).sum(-1, keepdims=True) / width
        flat = tuple(range(upstream.ndim - 1))
        return {
            "x": self.inverse * (scaled - np.mean(scaled, axis=-1, keepdims=True) - self.hat * along),
            "gamma": (upstream * self.hat).sum(flat),
            "beta": upstream.sum(flat),
        }


def in_numpy(taken):
    def build(params):
        return NormWithMemory(params["gamma"], params["beta"], taken)

    def gradient(x, cotangent, *, params):
        norm = build(params)
        norm.forward(x)
        return norm.backward(cotangent)

    return {
        "arrays": "numpy",
        "layer_norm": lambda x, *, params: build(params).forward(x),
        "layer_norm_gradient": gradient,
    }


def in_autograd(taken):
    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            deviation = torch.sqrt(x.var(dim=-1, keepdim=True) + 1e-5)
            normal = (x - x.mean(dim=-1, keepdim=True)) / deviation
            ctx.save_for_backward(normal, deviation, weight)
            return normal * weight

        @staticmethod
        def backward(ctx, grad):
            normal, deviation, weight = ctx.saved_tensors
            inner = grad * weight
            spread = normal * (inner * normal).sum(-1, keepdim=True) / (inner.shape[-1] - taken)
            given = (inner - inner.mean(-1, keepdim=True) - spread) / deviation
            return given, (grad * normal).reshape(-1, grad.shape[-1]).sum(0)

    def forward(x, *, params):
        return Norm.apply(x, params["gamma"]) + params["beta"]

    def gradient(x, cotangent, *, params):
        leaves = {"x": x, "gamma": params["gamma"], "beta": params["beta"]}
        leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
        forward(leaves["x"], params=leaves).backward(cotangent)
        return {name: leaf.grad for name, leaf in leaves.items()}

    return {"layer_norm": forward, "layer_norm_gradient": gradient}


@pytest.mark.parametrize("style", [in_numpy, in_autograd])
def test_the_backward_pass_of_right_code_is_named_beside_a_wrong_forward_pass(style, spec):
    verdicts, findings = run(spec, **style(0))
    said = find_said(findings)
    assert said.mistakes == ("ln-unbiased", "layer_norm.backward.of-right-code")
    assert "the variance divides by d_model − 1 and the backward pass has the formula of right code" in said.text
    failing = sum(v.bad for v in verdicts)
    assert f"in {failing} of {failing} failing cases (" in said.text
    # A case without gradients says nothing of the backward pass.
    assert all(("ln-unbiased",) in {m.causes for m in v.matches} for v in verdicts if v.bad and v.asks == "values")


@pytest.mark.parametrize("style", [in_numpy, in_autograd])
def test_the_right_gradient_of_a_wrong_forward_pass_is_one_mistake(style, spec):
    _, findings = run(spec, **style(1))
    assert find_said(findings).mistakes == ("ln-unbiased",)


def test_gradients_that_a_cause_does_not_explain_contradict_it(spec):
    code = in_numpy(1)
    right = code["layer_norm_gradient"]

    def gradient(x, cotangent, *, params):
        found = right(x, cotangent, params=params)
        return found | {"x": found["x"] * np.tanh(found["x"])}

    verdicts, findings = run(spec, **code | {"layer_norm_gradient": gradient})
    said, failing = find_said(findings), [v for v in verdicts if v.bad]
    gradients = [v.check for v in failing if v.asks == "gradients"]
    assert said.mistakes == ("ln-unbiased",)
    assert f"in {len(failing) - len(gradients)} of {len(failing)} failing cases" in said.text
    assert f"; {len(gradients)} of a backward pass by hand contradict it: {', '.join(gradients)}. " in said.text

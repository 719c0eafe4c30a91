"""Dropout that stays on in evaluation is told from other results that change from call to call."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from goldformer.adapters import Adapter
from goldformer.conformance.diagnosis.explain import Diagnosis
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND
from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.selection import Selection, checks
from goldformer.spec import Spec

DRAWS = np.random.default_rng(3)


class ByTorch:
    """Attention by torch's own function, and functions around it."""

    ARRAYS = "torch"

    def scaled_dot_product_attention(self, query, key, value, mask=None):
        return functional.scaled_dot_product_attention(query, key, value, mask, dropout_p=0.1)

    def multi_head_attention(self, query, key, value, mask=None, *, num_heads, params):
        q, k, v = (
            (x @ params[f"w_{role}"] + params.get(f"b_{role}", 0)).unflatten(-1, (num_heads, -1)).transpose(1, 2)
            for role, x in zip("qkv", (query, key, value), strict=True)
        )
        heads = self.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        return heads @ params["w_o"] + params.get("b_o", 0)

    def feed_forward(self, x, *, params):
        hidden = torch.nn.Dropout(0.25)(torch.relu(x @ params["w_1"] + params.get("b_1", 0)))
        return hidden @ params["w_2"] + params.get("b_2", 0)


class ByHand:
    """Attention in NumPy whose weights something happens to."""

    ARRAYS = "numpy"

    def __init__(self, change):
        self.change = change

    def scaled_dot_product_attention(self, query, key, value, mask=None):
        scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]).astype(query.dtype)
        scores = scores if mask is None else np.where(mask, scores, np.finfo(scores.dtype).min)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return self.change(powers / powers.sum(-1, keepdims=True)).astype(value.dtype) @ value


def drop(weights, rate=0.2):
    return np.where(DRAWS.random(weights.shape) < rate, 0, weights / (1 - rate))


def name(thing, component, spec: Spec):
    bench = Bench(spec, Adapter.from_object(thing, "mine", spec), "float32", "cpu")
    verdicts = Diagnosis(spec).explain_all(check() for check in checks(bench, Selection(("float32",), (component,))))
    return [finding for finding in diagnose(verdicts, spec) if finding.mistakes]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("thing", "component", "rate"),
    [
        (ByTorch(), "scaled_dot_product_attention", "0.1"),
        (ByTorch(), "multi_head_attention", "0.1"),
        (ByTorch(), "feed_forward", "0.25"),
        (ByHand(drop), "scaled_dot_product_attention", "0.2"),
    ],
)
def test_dropout_is_named_with_its_rate(thing, component, rate, spec: Spec):
    (found,) = name(thing, component, spec)
    assert (found.label, found.mistakes) == (MISTAKE_FOUND, ("dropout-in-evaluation",))
    assert f"as after a dropout of about {rate}" in found.text


@pytest.mark.parametrize(
    "change",
    [
        lambda weights: weights * (1 + DRAWS.normal(size=weights.shape) / 20),
        lambda weights: weights * DRAWS.choice([0, 0.5, 2], weights.shape),
    ],
)
def test_other_random_results_are_not_called_that(change, spec: Spec):
    (found,) = name(ByHand(change), "scaled_dot_product_attention", spec)
    assert found.mistakes == ("nondeterminism",)

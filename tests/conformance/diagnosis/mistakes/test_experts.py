"""Each mistake in the router of a mixture of experts gives what PyTorch code with it gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.spec.formulas.options import OPTIONS

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "experts"]

RANDOM = np.random.default_rng(3)
X, W = (torch.from_numpy(RANDOM.standard_normal(shape)) for shape in ((3, 5), (5, 4)))
LOGITS = X @ W
CHOSEN = torch.zeros_like(LOGITS).scatter(-1, LOGITS.topk(2).indices, 1.0)
SIGMOIDS = LOGITS.sigmoid() * CHOSEN
WRITTEN = {
    "moe-raw-logits": LOGITS * CHOSEN,
    "moe-softmax-axis": LOGITS.softmax(0) * CHOSEN,
}
OF_OPTIONS = {
    "renormalised": LOGITS.masked_fill(CHOSEN == 0, -torch.inf).softmax(-1),
    "not_renormalised": LOGITS.softmax(-1) * CHOSEN,
    "sigmoid": SIGMOIDS / SIGMOIDS.sum(-1, keepdim=True),
}


def test_every_mistake_of_the_catalogue_is_made(spec):
    assert {m.id for m in spec.mistakes.values() if m.component == "expert_router"} == {*MISTAKES} == {*WRITTEN}


@pytest.mark.parametrize("mistake", WRITTEN)
def test_weights_are_those_of_code_with_the_mistake(mistake):
    made = implementations()[mistake].make()
    weights = made.expert_router(X.numpy(), top_k=2, params={"w_router": W.numpy()})["weights"]
    np.testing.assert_allclose(weights, WRITTEN[mistake], rtol=0, atol=1e-14)


@pytest.mark.parametrize("option", OF_OPTIONS)
def test_an_option_is_that_of_code_with_it(option):
    made = build_textbook(OPTIONS.get(("moe_weights", option), {}))
    weights = made.expert_router(X.numpy(), top_k=2, params={"w_router": W.numpy()})["weights"]
    np.testing.assert_allclose(weights, OF_OPTIONS[option], rtol=0, atol=1e-14)

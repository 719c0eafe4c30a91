"""Each mistake in a mixture of experts, and in its router, gives what PyTorch code with it gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.reference_impl import ExpertFeedForward
from goldformer.spec.formulas.options import OPTIONS

MISTAKES = {id_ for id_, made in implementations().items() if made.module == "experts"}

RANDOM = np.random.default_rng(3)
X, W = (torch.from_numpy(RANDOM.standard_normal(shape)) for shape in ((3, 5), (5, 4)))
LOGITS = X @ W
CHOSEN = torch.zeros_like(LOGITS).scatter(-1, LOGITS.topk(2).indices, 1.0)
SIGMOIDS = LOGITS.sigmoid() * CHOSEN
RIGHT = LOGITS.masked_fill(CHOSEN == 0, -torch.inf).softmax(-1)
WRITTEN = {
    "moe-raw-logits": LOGITS * CHOSEN,
    "moe-softmax-axis": LOGITS.softmax(0) * CHOSEN,
    "moe-all-experts": LOGITS.softmax(-1),
    "moe-weights-by-rank": torch.zeros_like(LOGITS).masked_scatter(CHOSEN == 1, RIGHT.topk(2).values),
}
OF_OPTIONS = {
    "renormalised": RIGHT,
    "not_renormalised": LOGITS.softmax(-1) * CHOSEN,
    "sigmoid": SIGMOIDS / SIGMOIDS.sum(-1, keepdim=True),
}

torch.manual_seed(0)
MIXTURE = ExpertFeedForward(5, 6, 4, 2, dtype=torch.float64)
TOKENS = torch.from_numpy(RANDOM.standard_normal((2, 3, 5)))
WEIGHTS = MIXTURE(TOKENS).weights


def add(weights, shift=0, before=False):
    """The sum of the experts by weight; the weights may multiply what the experts read."""
    experts = [MIXTURE.experts[(index + shift) % 4] for index in range(4)]
    shares = weights.unbind(-1)
    if before:
        return sum(expert(share[..., None] * TOKENS).output for expert, share in zip(experts, shares, strict=True))
    return sum(share[..., None] * expert(TOKENS).output for expert, share in zip(experts, shares, strict=True))


MIXED = {
    "moe-weights-before": add(WEIGHTS, before=True),
    "moe-unweighted": add((WEIGHTS > 0).double()),
    "moe-first-only": add(torch.zeros_like(WEIGHTS).scatter(-1, *reversed(WEIGHTS.topk(1)))),
    "moe-one-choice-for-all": add(WEIGHTS[:, :1].expand_as(WEIGHTS)),
    "moe-expert-index": add(WEIGHTS, shift=1),
}


def mix(made):
    params = {name: p.detach().numpy() for name, p in MIXTURE.named_parameters()}
    return made.expert_feed_forward(TOKENS.numpy(), num_experts=4, top_k=2, params=params)["output"]


def test_every_mistake_of_the_catalogue_is_made(spec):
    listed = {"expert_router": {*WRITTEN}, "expert_feed_forward": {*MIXED}}
    for component, written in listed.items():
        assert {m.id for m in spec.mistakes.values() if m.component == component} == written
    assert set.union(*listed.values()) == MISTAKES


@pytest.mark.parametrize("mistake", WRITTEN)
def test_weights_are_those_of_code_with_the_mistake(mistake):
    made = implementations()[mistake].make()
    weights = made.expert_router(X.numpy(), top_k=2, params={"w_router": W.numpy()})["weights"]
    np.testing.assert_allclose(weights, WRITTEN[mistake], rtol=0, atol=1e-14)
    assert np.abs(weights - RIGHT.numpy()).max() > 1e-3


@pytest.mark.parametrize("mistake", MIXED)
def test_a_mixture_is_that_of_code_with_the_mistake(mistake):
    output = mix(implementations()[mistake].make())
    np.testing.assert_allclose(output, MIXED[mistake].detach(), rtol=0, atol=1e-12)
    assert np.abs(output - mix(build_textbook())).max() > 1e-3


@pytest.mark.parametrize("option", OF_OPTIONS)
def test_an_option_is_that_of_code_with_it(option):
    made = build_textbook(OPTIONS.get(("moe_weights", option), {}))
    weights = made.expert_router(X.numpy(), top_k=2, params={"w_router": W.numpy()})["weights"]
    np.testing.assert_allclose(weights, OF_OPTIONS[option], rtol=0, atol=1e-14)

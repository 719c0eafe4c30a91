"""Each mistake in the filters of the next token gives what PyTorch code with it gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.spec.formulas.options import OPTIONS

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "sampling"]

INF = float("inf")
LOGITS = torch.tensor([[2, 1.5, 1, 0.5, 0, -0.5, -1]], dtype=torch.float64)
SURE = torch.tensor([[3, 0.5, -1]], dtype=torch.float64)
PREVIOUS = torch.tensor([[0, 0, 5]])


def weigh(logits, kept=None):
    """Return the softmax over the first `kept` tokens."""
    logits = logits if kept is None else logits.masked_fill(torch.arange(logits.shape[-1]) >= kept, -INF)
    return torch.softmax(logits, -1)


def lower(by):
    """Return the logits with those of tokens 0 and 5 replaced."""
    return weigh(LOGITS.index_copy(1, torch.tensor([0, 5]), torch.tensor([by], dtype=torch.float64)))


FLAT = torch.cat([SURE, torch.tensor([[0, 0.5, -0.5]], dtype=torch.float64)])
#: The logits, the settings, and what code with the mistake gives.
WRITTEN = {
    "sample-top-p-crossing": (LOGITS, {"top_p": 0.7}, weigh(LOGITS, 2)),
    "sample-top-p-empty": (SURE, {"top_p": 0.5}, torch.full((1, 3), torch.nan)),
    # The sum of all is reached later: 0.40, 0.64, 0.79.
    "sample-top-p-not-renormalised": (LOGITS, {"top_k": 3, "top_p": 0.7}, weigh(LOGITS, 3)),
    "sample-top-k-off-by-one": (LOGITS, {"top_k": 1}, weigh(LOGITS, 2)),
    "sample-removed-zero": (LOGITS, {"top_k": 2}, weigh(LOGITS * (torch.arange(7) < 2))),
    "sample-temperature-twice": (LOGITS, {"temperature": 2.0}, weigh(LOGITS / 4)),
    "sample-temperature-multiplied": (LOGITS, {"temperature": 2.0}, weigh(LOGITS * 2)),
    "sample-temperature-zero": (LOGITS, {"temperature": 0.0}, torch.full((1, 7), torch.nan)),
    "sample-penalty-sign": (LOGITS, {"repetition_penalty": 2.0}, lower([1, -0.25])),
    "sample-penalty-multiplied": (LOGITS, {"repetition_penalty": 2.0}, lower([4, -1])),
    "sample-penalty-per-occurrence": (LOGITS, {"repetition_penalty": 2.0}, lower([0.5, -1])),
    "sample-min-p-logits": (LOGITS, {"min_p": 0.5}, weigh(LOGITS, 3)),
    "sample-rows-shared": (FLAT, {"top_p": 0.8}, torch.stack([weigh(FLAT[0], 1), torch.tensor([0.0, 1.0, 0.0])])),
}


def run(made, logits, settings):
    previous = PREVIOUS.numpy() if "repetition_penalty" in settings else None
    return made.token_filter(logits.numpy(), previous, **settings)["probabilities"]


def test_every_mistake_of_the_catalogue_is_made(spec):
    named = {m.id for m in spec.mistakes.values() if m.component == "token_filter"}
    assert named == {*MISTAKES} == {*WRITTEN}


@pytest.mark.parametrize("mistake", WRITTEN)
def test_a_distribution_is_that_of_code_with_the_mistake(mistake):
    logits, settings, expected = WRITTEN[mistake]
    right, wrong = (run(made, logits, settings) for made in (build_textbook(), implementations()[mistake].make()))
    if not expected.isnan().any():
        np.testing.assert_allclose(wrong, expected, rtol=0, atol=1e-14)
    assert not np.allclose(right, wrong, equal_nan=True)
    assert np.isfinite(right).all()


def test_nothing_that_is_left_is_no_distribution():
    for mistake in ("sample-top-p-empty", "sample-temperature-zero"):
        logits, settings, _ = WRITTEN[mistake]
        assert not np.isclose(run(implementations()[mistake].make(), logits, settings).sum(), 1)


OF_OPTIONS = {
    # At the temperature 2 the first three tokens have 0.27, 0.49 and 0.66, at 1 they have 0.40, 0.64 and 0.79.
    ("sample_order", "temperature_first"): ({"temperature": 2.0, "top_p": 0.55}, weigh(LOGITS / 2, 3)),
    ("sample_order", "temperature_last"): ({"temperature": 2.0, "top_p": 0.55}, weigh(LOGITS / 2, 2)),
    ("temperature_zero", "greedy"): ({"temperature": 0.0}, weigh(LOGITS, 1)),
}


@pytest.mark.parametrize("option", OF_OPTIONS)
def test_an_option_is_that_of_code_with_it(option):
    settings, expected = OF_OPTIONS[option]
    np.testing.assert_allclose(run(build_textbook(OPTIONS.get(option, {})), LOGITS, settings), expected, atol=1e-14)


@pytest.mark.parametrize(("option", "left"), [("exactly_k", [1, 2]), ("all_equal", [1, 2, 3])])
def test_equal_logits_at_the_cut(option, left):
    made = build_textbook(OPTIONS.get(("sample_ties", option), {}))
    probabilities = run(made, torch.tensor([[1.0, 3, 3, 3, 0]]), {"top_k": 2})
    assert np.flatnonzero(probabilities[0]).tolist() == left
    np.testing.assert_allclose(probabilities[0, left], 1 / len(left), rtol=1e-6)

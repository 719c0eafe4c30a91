"""Each mistake in a loss gives what PyTorch code with it gives."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from goldformer.conformance.diagnosis.mistakes import implementations

COMPONENTS = {"label_smoothing", "cross_entropy", "kl_divergence"}
MISTAKES = [id_ for id_, m in implementations().items() if m.module == "losses"]


def test_every_mistake_of_the_catalogue_is_made(spec):
    # What goes wrong in a backward pass alone is made elsewhere.
    named = {m.id for m in spec.mistakes.values() if m.component in COMPONENTS and "-bwd" not in m.id}
    assert named == {*MISTAKES}


# The same in PyTorch, as it is written


def made(mistake):
    return implementations()[mistake].make()


PAD, VOCAB = 2, 5
TARGETS = torch.tensor([[0, 3, 4], [1, PAD, PAD]])
LOGITS = torch.from_numpy(np.random.default_rng(1).integers(-64, 65, (2, 3, VOCAB)) / 32)
FLAT = LOGITS.flatten(0, 1), TARGETS.flatten()
TARGET = torch.tensor([[0.5, 0.25, 0.125, 0, 0.125], [0.25, 0.25, 0.25, 0.125, 0.125]]).double()
LOG_Q = LOGITS[0, :2].log_softmax(-1)

WRITTEN_CROSS_ENTROPY = {
    "double-softmax": functional.cross_entropy(FLAT[0].softmax(-1), FLAT[1], ignore_index=PAD),
    "log-softmax-missing": functional.nll_loss(*FLAT, ignore_index=PAD),
    "loss-pad-counted": functional.cross_entropy(*FLAT),
    "loss-pad-denominator": functional.cross_entropy(*FLAT, ignore_index=PAD, reduction="none").mean(),
}
WRITTEN_DIVERGENCE = {
    "ls-log-zero": (TARGET * (TARGET.log() - LOG_Q)).sum(-1),
    "kl-reversed": functional.kl_div(TARGET.log(), LOG_Q.exp(), reduction="none").sum(-1),
    "kl-no-log": functional.kl_div(LOG_Q.exp(), TARGET, reduction="none").sum(-1),
    "kl-row-mean": functional.kl_div(LOG_Q, TARGET, reduction="none").mean(-1),
}


@pytest.mark.parametrize("mistake", WRITTEN_CROSS_ENTROPY)
def test_a_cross_entropy_is_that_of_code_with_the_mistake(mistake):
    given = made(mistake).cross_entropy(LOGITS.numpy(), TARGETS.numpy(), pad_id=PAD)
    assert given["loss"] == pytest.approx(WRITTEN_CROSS_ENTROPY[mistake].item(), rel=1e-13)


@pytest.mark.parametrize("mistake", WRITTEN_DIVERGENCE)
def test_a_divergence_is_that_of_code_with_the_mistake(mistake):
    given = made(mistake).kl_divergence(TARGET.numpy(), LOGITS[0, :2].numpy())
    np.testing.assert_allclose(given, WRITTEN_DIVERGENCE[mistake], rtol=1e-13)


@pytest.mark.parametrize("mistake", ["double-softmax", "log-softmax-missing"])
def test_a_mistake_in_the_cross_entropy_is_none_in_the_divergence(mistake):
    given = made(mistake).kl_divergence(TARGET.numpy(), LOGITS[0, :2].numpy())
    np.testing.assert_allclose(given, functional.kl_div(LOG_Q, TARGET, reduction="none").sum(-1), rtol=1e-13)


def test_smoothed_targets_sum_to_more_than_one():
    one_hot = functional.one_hot(TARGETS, VOCAB).double()
    given = made("ls-mass").label_smoothing(one_hot.numpy(), smoothing=0.125)
    np.testing.assert_allclose(given, one_hot * 0.875 + 0.125 / (VOCAB - 1), rtol=1e-15)
    assert (given.sum(-1) > 1.03).all()


def test_every_mistake_is_written_here():
    assert {*MISTAKES} == {*WRITTEN_CROSS_ENTROPY, *WRITTEN_DIVERGENCE, "ls-mass"}

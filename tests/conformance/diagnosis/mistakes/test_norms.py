"""Each mistake in root mean square normalisation gives what PyTorch code with it gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.spec.formulas.options import OPTIONS

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "norms"]


def draw(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).integers(-64, 65, shape) / 64)


X, GAMMA = draw(1, 3, 5, 6), draw(2, 6)
SQUARE = (X * X).mean(-1, keepdim=True)
SCALED = X / X.abs().amax(-1, keepdim=True)
WRITTEN = {
    "rms-variance": X * torch.rsqrt(X.var(-1, keepdim=True, correction=0) + 1e-6) * GAMMA,
    "rms-variance-unbiased": X * torch.rsqrt(X.var(-1, keepdim=True) + 1e-6) * GAMMA,
    "rms-mean-subtracted": functional.layer_norm(X, (6,), GAMMA, eps=1e-6),
    "rms-divides-by-rsqrt": X / torch.rsqrt(SQUARE + 1e-6) * GAMMA,
    "rms-sum": X * torch.rsqrt(X.pow(2).sum(-1, keepdim=True) + 1e-6) * GAMMA,
    "rms-axis": functional.rms_norm(X, (5, 6), eps=1e-6) * GAMMA,
    "rms-eps-scaled": functional.rms_norm(SCALED, (6,), GAMMA, eps=1e-6),
    "rms-no-weight": functional.rms_norm(X, (6,), eps=1e-6),
    "rms-offset-twice": functional.rms_norm(X, (6,), 2 + GAMMA, eps=1e-6),
    # In float64 all is right, but for the squares that float16 rounds.
    "rms-half-precision": X * torch.rsqrt((X * X).half().double().mean(-1, keepdim=True) + 1e-6) * GAMMA,
    "rms-not-cast-back": functional.rms_norm(X, (6,), GAMMA, eps=1e-6),
}


def test_every_mistake_of_the_catalogue_is_made(spec):
    named = {m.id for m in spec.mistakes.values() if m.component == "rms_norm" and "-bwd" not in m.id}
    assert named == {*MISTAKES} == {*WRITTEN}


@pytest.mark.parametrize("mistake", WRITTEN)
def test_a_norm_is_that_of_code_with_the_mistake(mistake):
    output = implementations()[mistake].make().rms_norm(X.numpy(), params={"gamma": GAMMA.numpy()})
    np.testing.assert_allclose(output, WRITTEN[mistake], rtol=0, atol=1e-13)


@pytest.mark.parametrize("mistake", ["rms-half-precision", "rms-not-cast-back"])
def test_what_shows_in_float16_only(mistake):
    x, params = np.array([300, -300], np.float16), {"gamma": np.array([1, 1], np.float16)}
    right, wrong = (made.rms_norm(x, params=params) for made in (build_textbook(), implementations()[mistake].make()))
    assert (right.dtype, right.tolist()) == (np.float16, [1, -1])
    assert (wrong.dtype, wrong.tolist()) != (right.dtype, right.tolist())


OF_OPTIONS = {
    ("rms_norm_eps", "1e-5"): X / (SQUARE + 1e-5).sqrt() * GAMMA,
    ("rms_norm_eps", "float32_eps"): functional.rms_norm(X, (6,), GAMMA, eps=torch.finfo(torch.float32).eps),
    ("rms_norm_eps_place", "outside"): X / (SQUARE.sqrt() + 1e-6) * GAMMA,
    ("rms_norm_weight", "one_plus_w"): functional.rms_norm(X, (6,), 1 + GAMMA, eps=1e-6),
}


@pytest.mark.parametrize("option", OF_OPTIONS)
def test_an_option_is_that_of_code_with_it(option):
    made = build_textbook(OPTIONS[option])
    np.testing.assert_allclose(
        made.rms_norm(X.numpy(), params={"gamma": GAMMA.numpy()}), OF_OPTIONS[option], atol=1e-13
    )
    leaf, scale = X.clone().requires_grad_(), GAMMA.clone().requires_grad_()
    eps = {"1e-5": 1e-5, "float32_eps": 2.0**-23}.get(option[1], 1e-6)
    root = leaf.pow(2).mean(-1, keepdim=True)
    root = root.sqrt() + eps if option[1] == "outside" else (root + eps).sqrt()
    cotangent = draw(3, 3, 5, 6)
    (leaf / root * (scale + (option[1] == "one_plus_w"))).backward(cotangent)
    gradients = made.rms_norm_gradient(x=X.numpy(), cotangent=cotangent.numpy(), params={"gamma": GAMMA.numpy()})
    np.testing.assert_allclose(gradients["x"], leaf.grad, atol=1e-12)
    np.testing.assert_allclose(gradients["gamma"], scale.grad, atol=1e-12)


def test_through_a_row_of_zeros_no_gradient_flows_where_eps_is_outside():
    made = build_textbook(OPTIONS["rms_norm_eps_place", "outside"])
    gradients = made.rms_norm_gradient(x=np.zeros(3), cotangent=np.ones(3), params={"gamma": np.ones(3)})
    assert np.isfinite(gradients["x"]).all()

"""Each mistake in rotary position embedding gives what PyTorch code with it gives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.spec.formulas.options import OPTIONS

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "rope"]

X = torch.from_numpy(np.random.default_rng(1).integers(-64, 65, (2, 3, 4, 8)) / 64)
POSITIONS = torch.tensor([[[5, 2, 11, 7]], [[0, 1, 3, 2]]])
BASE, WIDTH = 500.0, 6
TURNED, REST = X[..., :WIDTH], X[..., WIDTH:]
PAIR = torch.arange(0, WIDTH, 2, dtype=torch.float64)


def turn(x, positions=POSITIONS, frequency=BASE ** (-PAIR / WIDTH)):
    """Return the channels as complex numbers times e^(i·angle)."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.exp(1j * positions[..., None] * frequency)).flatten(-2)


def join(turned):
    return torch.cat([turned, REST], -1)


def lay_out(angle, order):
    """Return what code gives that multiplies by cosines and sines in an order of its own."""
    across = torch.stack([-TURNED[..., 1::2], TURNED[..., 0::2]], -1).flatten(-2)
    return TURNED * angle[..., order].cos() + across * angle[..., order].sin()


ANGLE = POSITIONS[..., None] * BASE ** (-PAIR / WIDTH)
HEADS = torch.arange(3)[:, None].expand(3, 4)
WRITTEN = {
    "rope-pair-mismatch": join(lay_out(ANGLE, [0, 1, 2, 0, 1, 2])),
    "rope-minus-missing": join(
        TURNED * ANGLE.cos().repeat_interleave(2, -1)
        + TURNED.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) * ANGLE.sin().repeat_interleave(2, -1)
    ),
    "rope-exponent-half": join(turn(TURNED, frequency=BASE ** (-PAIR / 2 / WIDTH))),
    "rope-exponent-odd": join(turn(TURNED, frequency=BASE ** (-(PAIR + 1) / WIDTH))),
    "rope-exponent-one-based": join(turn(TURNED, frequency=BASE ** (-(PAIR - 2) / WIDTH))),
    "rope-exponent-one-ahead": join(turn(TURNED, frequency=BASE ** (-(PAIR + 2) / WIDTH))),
    "rope-exponent-sign": join(turn(TURNED, frequency=BASE ** (PAIR / WIDTH))),
    "rope-base-default": join(turn(TURNED, frequency=10000 ** (-PAIR / WIDTH))),
    "rope-partial-ignored": turn(X, frequency=BASE ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)),
    "rope-partial-width": join(turn(TURNED, frequency=BASE ** (-PAIR / 8))),
    "rope-offset-missing": join(turn(TURNED, torch.arange(4))),
    "rope-positions-shared": join(turn(TURNED, POSITIONS[:1])),
    "rope-axis-heads": join(turn(TURNED, HEADS)),
    # In float64 both are right.
    "rope-half-precision": join(turn(TURNED)),
    "rope-promotes": join(turn(TURNED)),
}

# Three pairs that make 31.8, 4.0 and 0.5 turns within the original length.
FACTOR, LENGTH = 4.0, 200
SPEED = BASE ** (-PAIR / WIDTH)
TURNS = LENGTH * SPEED / (2 * math.pi)


def scale(kept, factor=FACTOR):
    return SPEED * (kept + (1 - kept) / factor)


BANDS = ((TURNS - 1) / 3).clamp(0, 1)
PAIR_OF_TURNS = [3 * math.log(LENGTH / (2 * math.pi * turns)) / math.log(BASE) for turns in (32, 1)]
SHARPER = 1 + math.log(FACTOR) / 10
SCALED = {
    "rope-scaling-missing": turn(TURNED),
    "rope-scaling-inverted": turn(TURNED, frequency=SPEED * FACTOR),
    "rope-scaling-hard-coded": turn(TURNED, frequency=SPEED / 8),
    "rope-scaling-bands-swapped": turn(TURNED, frequency=scale(1 - BANDS)),
    "rope-scaling-waves-not-scaled": turn(TURNED, frequency=scale(1 - torch.tensor([0, 1 / 2, 1]))),
}
OF_SCALING = {
    "linear": turn(TURNED, frequency=SPEED / FACTOR),
    "llama3": turn(TURNED, frequency=scale(BANDS)),
    "yarn": SHARPER * turn(TURNED, frequency=scale(1 - torch.tensor([0, 1 / 2, 1]))),
    "yarn_not_rounded": SHARPER * turn(TURNED, frequency=scale(1 - (PAIR / 2 / PAIR_OF_TURNS[1]).clamp(max=1))),
    "yarn_by_turns": SHARPER * turn(TURNED, frequency=scale(((TURNS - 1) / 31).clamp(0, 1))),
}


def test_every_mistake_of_the_catalogue_is_made(spec):
    named = {m.id for m in spec.mistakes.values() if m.component == "rotary_embedding" and "-bwd" not in m.id}
    assert named == {*MISTAKES} == WRITTEN.keys() | SCALED.keys()


@pytest.mark.parametrize("mistake", WRITTEN)
def test_a_turn_is_that_of_code_with_the_mistake(mistake):
    made = implementations()[mistake].make()
    output = made.rotary_embedding(X.numpy(), POSITIONS.numpy(), base=BASE, rotary_width=WIDTH)
    np.testing.assert_allclose(output, WRITTEN[mistake], rtol=0, atol=1e-12)


@pytest.mark.parametrize("mistake", SCALED)
def test_a_scaled_turn_is_that_of_code_with_the_mistake(mistake):
    made = implementations()[mistake]
    declared = getattr(made.make(), "CONVENTIONS", {})
    layers = (OPTIONS[item] for item in declared.items() if item in OPTIONS)
    output = build_textbook(*layers, made.steps).rotary_embedding(*SCALED_CALL, **SCALED_BY)
    np.testing.assert_allclose(output, join(SCALED[mistake]), rtol=0, atol=1e-12)


SCALED_CALL = X.numpy(), POSITIONS.numpy()
SCALED_BY = {"base": BASE, "rotary_width": WIDTH, "scaling_factor": FACTOR, "original_length": LENGTH}


@pytest.mark.parametrize("option", OF_SCALING)
def test_scaled_angles_are_those_of_code_with_the_option(option):
    output = build_textbook(OPTIONS.get(("rope_scaling", option), {})).rotary_embedding(*SCALED_CALL, **SCALED_BY)
    np.testing.assert_allclose(output, join(OF_SCALING[option]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("option", ["llama3", "yarn"])
def test_bands_need_the_original_length(option):
    with pytest.raises(ValueError, match=r"^original_length: missing; pass the number of positions"):
        build_textbook(OPTIONS["rope_scaling", option]).rotary_embedding(*SCALED_CALL, scaling_factor=2.0)


@pytest.mark.parametrize("mistake", ["rope-half-precision", "rope-promotes"])
def test_what_shows_in_float16_only(mistake):
    call = np.array([[1, 0]], np.float16), np.array([4097])
    right, wrong = (made.rotary_embedding(*call) for made in (build_textbook(), implementations()[mistake].make()))
    assert right.dtype == np.float16
    np.testing.assert_allclose(right, [[np.cos(4097), np.sin(4097)]], atol=1e-3)
    is_promoted, is_far = wrong.dtype == np.float32, np.abs(wrong - right).max() > 0.1
    assert (is_promoted, is_far) == ((False, True) if mistake == "rope-half-precision" else (True, False))


HALVES = torch.cat([TURNED[..., 0::2], TURNED[..., 1::2]], -1)
OF_OPTIONS = {
    ("rope_pairing", "half"): (HALVES, torch.cat([turn(TURNED)[..., 0::2], turn(TURNED)[..., 1::2]], -1)),
    ("rope_direction", "negative"): (TURNED, turn(TURNED, -POSITIONS)),
}


@pytest.mark.parametrize("option", OF_OPTIONS)
def test_an_option_is_that_of_code_with_it(option):
    made, (x, expected) = build_textbook(OPTIONS[option]), OF_OPTIONS[option]
    output = made.rotary_embedding(join(x).numpy(), POSITIONS.numpy(), base=BASE, rotary_width=WIDTH)
    np.testing.assert_allclose(output, join(expected), rtol=0, atol=1e-13)


def test_a_backward_pass_turns_back_and_with_the_mistake_forwards():
    call = {"x": X.numpy(), "positions": POSITIONS.numpy(), "base": BASE, "rotary_width": WIDTH}
    for made, positions in ((build_textbook(), -POSITIONS), (implementations()["rope-bwd"].make(), POSITIONS)):
        gradients = made.rotary_embedding_gradient(cotangent=X.numpy(), **call)
        np.testing.assert_allclose(gradients["x"], join(turn(TURNED, positions)), rtol=0, atol=1e-12)

"""Each mistake in the gated feed-forward network gives what PyTorch code with it gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional

from goldformer.adapters.textbook.build import build_textbook
from goldformer.conformance.diagnosis.mistakes import implementations
from goldformer.spec.formulas.options import OPTIONS

MISTAKES = [id_ for id_, made in implementations().items() if made.module == "gated"]


def draw(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).integers(-128, 129, shape) / 64)


# Twice as wide as the hidden layer: the fused weight is square. The rows are large enough to be clamped.
X = 4 * draw(1, 2, 3, 6)
SHAPES = {"w_gate": (6, 3), "b_gate": (3,), "w_up": (6, 3), "b_up": (3,), "w_down": (3, 6), "b_down": (6,)}
PARAMS = {name: draw(2 + i, *shape) for i, (name, shape) in enumerate(SHAPES.items())}
GATE, UP = (X @ PARAMS[f"w_{n}"] + PARAMS[f"b_{n}"] for n in ("gate", "up"))


def narrow(hidden):
    return hidden @ PARAMS["w_down"] + PARAMS["b_down"]


def network(x, activate=functional.silu, **params):
    p = PARAMS | params
    return narrow(activate(x @ p["w_gate"] + p["b_gate"]) * (x @ p["w_up"] + p["b_up"]))


FUSED = torch.cat([GATE, UP], -1)
TURNED = torch.cat([PARAMS["w_gate"], PARAMS["w_up"]], -1).T
WRITTEN = {
    "glu-act-of-product": narrow(functional.silu(GATE * UP)),
    "glu-swapped": narrow(GATE * functional.silu(UP)),
    "glu-up-ignored": narrow(functional.silu(GATE)),
    "glu-sum": narrow(functional.silu(GATE) + UP),
    "glu-both-activated": narrow(functional.silu(GATE) * functional.silu(UP)),
    "glu-no-activation": narrow(GATE * UP),
    "glu-sigmoid": narrow(functional.glu(torch.cat([UP, GATE], -1), -1)),
    "glu-alpha": narrow(GATE * torch.sigmoid(1.702 * GATE) * UP),
    "glu-clamped": narrow(functional.silu(GATE.clamp(max=7)) * UP.clamp(-7, 7)),
    "glu-interleaved": narrow(functional.silu(FUSED[..., ::2]) * FUSED[..., 1::2]),
    "glu-transposed": network(X, w_gate=TURNED[:, :3], w_up=TURNED[:, 3:]),
    "glu-bias-missing": (functional.silu(X @ PARAMS["w_gate"]) * (X @ PARAMS["w_up"])) @ PARAMS["w_down"],
    "glu-output-activated": functional.silu(network(X)),
    "glu-mixes-tokens": network(X + functional.pad(X, (0, 0, 1, 0))[:, :-1]),
    # In float64 all is right.
    "glu-silu-overflow": network(X),
}


def run(made, name="gated_feed_forward", **arguments):
    return getattr(made, name)(x=X.numpy(), params={n: p.numpy() for n, p in PARAMS.items()}, **arguments)


def test_every_mistake_of_the_catalogue_is_made(spec):
    named = {m.id for m in spec.mistakes.values() if m.component == "gated_feed_forward" and "-bwd" not in m.id}
    assert named == {*MISTAKES} == {*WRITTEN}


@pytest.mark.parametrize("mistake", WRITTEN)
def test_a_network_is_that_of_code_with_the_mistake(mistake):
    output = run(implementations()[mistake].make())["output"]
    np.testing.assert_allclose(output, WRITTEN[mistake], rtol=0, atol=1e-11)
    assert (mistake == "glu-silu-overflow") == bool(np.allclose(output, network(X), rtol=0, atol=1e-3))


def test_the_transposed_weight_shows_only_where_it_is_square():
    x, params = np.ones((1, 2, 3)), {"w_gate": np.ones((3, 2)), "w_up": np.ones((3, 2)), "w_down": np.ones((2, 3))}
    right, wrong = (m.gated_feed_forward(x, params=params) for m in (build_textbook(), made("glu-transposed")))
    np.testing.assert_array_equal(right["output"], wrong["output"])


def made(mistake):
    return implementations()[mistake].make()


def test_a_power_that_overflows_float16_shows_only_there():
    params = {"w_gate": np.ones((1, 1)), "w_up": np.full((1, 1), -64.0), "w_down": np.ones((1, 1))}
    for dtype, expected in ((np.float16, 0.0), (np.float32, -0.0566)):
        given = {name: array.astype(dtype) for name, array in params.items()}
        x = np.full((1, 1, 1), -12, dtype)
        right, wrong = (m.gated_feed_forward(x, params=given) for m in (build_textbook(), made("glu-silu-overflow")))
        assert right["output"].dtype == dtype
        np.testing.assert_allclose(right["output"], -0.0566, rtol=1e-3)
        np.testing.assert_allclose(wrong["output"], expected, rtol=1e-3)


@pytest.mark.parametrize(
    ("mistake", "wrong"), [("glu-bwd", {"x", "w_gate", "b_gate"}), ("glu-bwd-up", {"x", "w_up", "b_up"})]
)
def test_a_mistake_of_the_backward_pass_shows_in_the_gradients_that_it_names(mistake, wrong):
    right, other = (
        run(m, "gated_feed_forward_gradient", cotangent=X.numpy()) for m in (build_textbook(), made(mistake))
    )
    assert {name for name in right if not np.allclose(right[name], other[name])} == wrong
    np.testing.assert_array_equal(run(made(mistake))["output"], run(build_textbook())["output"])


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": torch.relu,
}


@pytest.mark.parametrize("option", ACTIVATIONS)
def test_an_option_is_that_of_code_with_it(option):
    made = build_textbook(OPTIONS.get(("gate_activation", option), {}))
    leaves = {"x": X.clone(), **{name: p.clone() for name, p in PARAMS.items()}}
    for leaf in leaves.values():
        leaf.requires_grad_()
    gate, up = (leaves["x"] @ leaves[f"w_{n}"] + leaves[f"b_{n}"] for n in ("gate", "up"))
    output = (ACTIVATIONS[option](gate) * up) @ leaves["w_down"] + leaves["b_down"]
    np.testing.assert_allclose(run(made)["output"], output.detach(), rtol=0, atol=1e-11)
    cotangent = draw(9, 2, 3, 6)
    output.backward(cotangent)
    gradients = run(made, "gated_feed_forward_gradient", cotangent=cotangent.numpy())
    assert gradients.keys() == leaves.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(gradient, leaves[name].grad, rtol=0, atol=1e-10, err_msg=name)


def test_a_relu_gate_is_not_the_activation_of_the_other_network():
    made = build_textbook(OPTIONS["gate_activation", "relu"], OPTIONS["activation", "gelu"])
    np.testing.assert_allclose(run(made)["output"], network(X, torch.relu), rtol=0, atol=1e-11)

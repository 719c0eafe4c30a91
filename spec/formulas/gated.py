"""The gated feed-forward network."""

import numpy as np

from goldformer.spec.formulas.arrays import Array, arithmetic, number
from goldformer.spec.formulas.heads import Params, project
from goldformer.spec.formulas.steps import step


@step
def gated_feed_forward(x: Array, *, params: Params) -> dict[str, Array]:
    """Return output (batch, seq, d_model), and hidden, gate and up, (batch, seq, d_ff)."""
    gate, up = project_branches(x, params)
    hidden = join_branches(gate, up)
    return {"output": project(hidden, params, "down"), "hidden": hidden, "gate": gate, "up": up}


@step
def project_branches(x: Array, params: Params) -> tuple[Array, Array]:
    """Return gate and up, (batch, seq, d_ff)."""
    return project(x, params, "gate"), project(x, params, "up")


@step
def join_branches(gate: Array, up: Array) -> Array:
    """Return the activated gate times up."""
    return gate_activation(gate) * up


@step
def gate_activation(gate: Array) -> Array:
    """Return SiLU, x·σ(x), computed in float32 at least and rounded once (GLU-4)."""
    wide = arithmetic().widen(gate)
    return arithmetic().narrow(wide * sigmoid(wide), gate)


@step
def sigmoid(x: Array) -> Array:
    """Return σ(x) = 1/(1 + e^(−x)); only a power of a number below 0 is taken, which cannot overflow."""
    is_negative = arithmetic().decide(x) < 0
    power = np.exp(np.where(is_negative, x, -x))
    return np.where(is_negative, power, arithmetic().constant(1, x)) / (number(1) + power)

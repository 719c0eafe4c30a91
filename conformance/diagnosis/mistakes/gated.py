"""Mistakes in the gated feed-forward network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from goldformer.conformance.diagnosis.mistakes.registry import mistake
from goldformer.spec.formulas.arrays import Array, as_array
from goldformer.spec.formulas.gated import (
    gate_activation,
    gated_feed_forward,
    join_branches,
    project_branches,
    sigmoid,
)
from goldformer.spec.formulas.heads import Params, apply_affine, project
from goldformer.spec.formulas.options import silu

Network = Callable[..., dict[str, Array]]

#: The factor with which a sigmoid approximates GELU, and the limit of the gates of one published model.
ALPHA: Final = 1.702
LIMIT: Final = 7


@mistake("glu-act-of-product", instead_of=join_branches)
def activate_product(gate: Array, up: Array) -> Array:
    """Return the activation of gate times up."""
    return gate_activation(gate * up)


@mistake("glu-swapped", around=join_branches)
def activate_up(original: Callable[[Array, Array], Array], gate: Array, up: Array) -> Array:
    """Return the gate times the activated up."""
    return original(up, gate)


@mistake("glu-up-ignored", instead_of=join_branches)
def leave_out_up(gate: Array, up: Array) -> Array:
    """Return the activated gate: the network is plain."""
    return gate_activation(gate)


@mistake("glu-sum", instead_of=join_branches)
def add_branches(gate: Array, up: Array) -> Array:
    """Return the activated gate plus up."""
    return as_array(gate_activation(gate) + up)


@mistake("glu-both-activated", instead_of=join_branches)
def activate_both(gate: Array, up: Array) -> Array:
    """Return the product of both branches, each activated."""
    return as_array(gate_activation(gate) * gate_activation(up))


@mistake("glu-no-activation", instead_of=gate_activation)
def leave_out_activation(gate: Array) -> Array:
    """Return the gate as it is."""
    return gate


@mistake("glu-sigmoid", instead_of=gate_activation)
def take_sigmoid(gate: Array) -> Array:
    """Return σ(gate), without the factor gate."""
    return sigmoid(gate)


@mistake("glu-alpha", instead_of=gate_activation)
def steepen_sigmoid(gate: Array) -> Array:
    """Return gate·σ(1.702·gate)."""
    return as_array(gate * sigmoid(gate * ALPHA))


@mistake("glu-clamped", around=join_branches)
def clamp_branches(original: Callable[[Array, Array], Array], gate: Array, up: Array) -> Array:
    """Return the product of a gate of at most 7 and an up between −7 and 7."""
    limit = LIMIT * np.sign(up.real)
    return original(np.where(gate.real > LIMIT, LIMIT, gate), np.where(abs(up.real) > LIMIT, limit, up))


@mistake("glu-interleaved", around=project_branches)
def read_interleaved(
    original: Callable[[Array, Params], tuple[Array, Array]], x: Array, params: Params
) -> tuple[Array, Array]:
    """Return every other column of gate and up side by side, from the first one and from the second one on."""
    fused = np.concatenate(original(x, params), axis=-1)
    return fused[..., ::2], fused[..., 1::2]


@mistake("glu-transposed", around=project_branches)
def transpose_square(
    original: Callable[[Array, Params], tuple[Array, Array]], x: Array, params: Params
) -> tuple[Array, Array]:
    """Return gate and up of the fused weight transposed, where 2·d_ff = d_model makes it square."""
    width = params["w_gate"].shape[1]
    if x.shape[-1] != 2 * width:
        return original(x, params)
    turned = np.concatenate([params["w_gate"], params["w_up"]], axis=-1).T
    return original(x, {**params, "w_gate": turned[:, :width], "w_up": turned[:, width:]})


@mistake("glu-bias-missing", around=project)
def leave_out_biases(original: Callable[[Array, Params, str], Array], x: Array, params: Params, role: str) -> Array:
    """Return x·W without the bias, in the three maps of the network."""
    return apply_affine(x, params[f"w_{role}"], None) if role in ("gate", "up", "down") else original(x, params, role)


@mistake("glu-output-activated", around=gated_feed_forward)
def activate_output(original: Network, x: Array, *, params: Params) -> dict[str, Array]:
    """Return the network with its output activated, too."""
    outputs = original(x, params=params)
    return outputs | {"output": gate_activation(outputs["output"])}


@mistake("glu-mixes-tokens", around=gated_feed_forward)
def read_token_before(original: Network, x: Array, *, params: Params) -> dict[str, Array]:
    """Return the network of every token plus the one before, as a kernel of width 2 reads them."""
    return original(x + np.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1], params=params)


@mistake(
    "glu-silu-overflow", instead_of=gate_activation, shows_in=("float16",), conventions={"gate_activation": "silu"}
)
def divide_by_power(gate: Array) -> Array:
    """Return gate/(1 + e^(−gate)) in the dtype of the gate: 0 where e^(−gate) overflows float16."""
    with np.errstate(over="ignore"):
        return silu(gate)

"""Properties of the gated feed-forward network."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_params

SIZES = {"batch": st.integers(1, 2), "seq": st.integers(1, 4), "seed": st.integers(0, 999)}


@holds("glu-positions", batch=st.integers(1, 2), seq=st.integers(2, 5), seed=st.integers(0, 999))
def positions_do_not_mix(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Require that permuted positions give permuted rows, and that no row depends on later positions."""
    sizes = {"batch": batch, "seq": seq, "d_model": 4, "d_ff": 6}
    arguments, other = (subject.draw(sizes, s) for s in (seed, seed + 1000))
    relations.follows_order(subject, arguments, "x", seed=seed)
    relations.ignores_later(subject, arguments, other, "x", last=0)
    wide = {"batch": 1 + 7 * (batch - 1), "seq": 1, "d_model": 16, "d_ff": 24}
    relations.ignores_batch(subject, subject.draw(wide, seed))


@holds("glu-linear-in-up", **SIZES, factor=st.sampled_from([-8, -1, 0.125, 8]))
def output_is_linear_in_up(subject: Subject, batch: int, seq: int, seed: int, factor: float) -> None:
    """Require that the output is multiplied as up is; the factors keep every element exact in every dtype."""
    arguments = _clear(_draw(subject, batch, seq, seed), "b_down")
    scaled = with_params(arguments, **{n: factor * a for n, a in arguments.params.items() if n in ("w_up", "b_up")})
    bounds = [subject.bound(given) * size for given, size in ((arguments, abs(factor)), (scaled, 1))]
    claim = f"when up is multiplied by {factor}, the output is not"
    subject.agree(subject.output(scaled), subject.output(arguments) * factor, max(bounds), claim)


@holds("glu-gate-of-zero", **SIZES)
def gate_of_zero_gives_the_last_bias(subject: Subject, batch: int, seq: int, seed: int) -> None:
    """Require that the output is b_down where the gate is 0, whatever up is."""
    arguments = _clear(_draw(subject, batch, seq, seed), "w_gate", "b_gate")
    output = subject.output(arguments)
    expected = np.broadcast_to(arguments.params.get("b_down", np.zeros(output.shape[-1])), output.shape)
    bound = subject.bound(arguments)
    subject.agree(output, expected, bound, "with a gate of 0, the output is not b_down")


def _draw(subject: Subject, batch: int, seq: int, seed: int) -> Arguments:
    return subject.draw({"batch": batch, "seq": seq, "d_model": 4, "d_ff": 6}, seed)


def _clear(arguments: Arguments, *names: str) -> Arguments:
    """Return the same call with zeros for some of the parameters that it has."""
    return with_params(arguments, **{n: np.zeros_like(a) for n, a in arguments.params.items() if n in names})

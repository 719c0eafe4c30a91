"""Properties of rotary position embedding."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, draw_arguments, with_inputs

NAME = "rotary_embedding"

SEED = st.integers(0, 999)
PAIRS = st.integers(1, 4)
#: The largest position that is drawn: every half type has neighbours there that it does not tell apart.
LAST = 2100


def _draw_call(subject: Subject, seq: int, pairs: int, seed: int) -> Arguments:
    """Draw two samples of tokens, and positions in any order."""
    arguments = draw_arguments(NAME, subject.bench, {"batch": 2, "seq": seq, "pairs": pairs}, seed)
    return with_inputs(arguments, positions=np.random.default_rng(seed).integers(1, LAST, seq))


@holds("rope-relative", seq=st.integers(2, 5), pairs=PAIRS, seed=SEED, shift=st.sampled_from([1, 7, 256]))
def scores_depend_on_differences(subject: Subject, seq: int, pairs: int, seed: int, shift: int) -> None:
    """Require that adding one number to all positions leaves the scores of all pairs of tokens as they are."""
    arguments = _draw_call(subject, seq, pairs, seed)
    moved = with_inputs(arguments, positions=arguments.inputs["positions"] + shift)
    here, there = (subject.call(NAME, given)["output"].astype(np.float64) for given in (arguments, moved))
    element = max(subject.tolerance(NAME, given, "output") for given in (arguments, moved))
    # A score is a sum of products of two channels, each known to `element`.
    row = max(np.abs(turned).sum(-1).max() for turned in (here, there))
    subject.agree(
        "output",
        there @ there.swapaxes(-1, -2),
        here @ here.swapaxes(-1, -2),
        2 * element * float(row),
        f"adding {shift} to all positions changes the scores of turned queries and keys",
    )


@holds("rope-length", seq=st.integers(1, 5), pairs=PAIRS, seed=SEED)
def pairs_keep_their_length(subject: Subject, seq: int, pairs: int, seed: int) -> None:
    """Require that the sum of the squares of each pair stays as it is."""
    arguments = _draw_call(subject, seq, pairs, seed)
    turned, pairing = subject.call(NAME, arguments)["output"], subject.options(NAME)["rope_pairing"]
    before, after = (_split_pairs(array, pairing) for array in (arguments.inputs["x"], turned))
    element = subject.tolerance(NAME, arguments, "output")
    subject.agree(
        "output",
        np.square(after).sum(0),
        np.square(before).sum(0),
        2 * element * float(np.abs(after).sum(0).max()),
        "a pair of channels does not keep its length",
    )


@holds("rope-zero", seq=st.integers(2, 5), pairs=PAIRS, seed=SEED)
def position_zero_turns_nothing(subject: Subject, seq: int, pairs: int, seed: int) -> None:
    """Require that tokens at position 0 stay as they are, whatever their place."""
    arguments = _draw_call(subject, seq, pairs, seed)
    at_zero = np.arange(seq) % 2 == 1
    given = with_inputs(arguments, positions=np.where(at_zero, 0, arguments.inputs["positions"]))
    subject.agree(
        "output",
        subject.call(NAME, given)["output"][:, at_zero],
        given.inputs["x"][:, at_zero],
        subject.tolerance(NAME, given, "output"),
        "a token at position 0 does not stay as it is",
    )


def _split_pairs(x: NDArray[np.float64], pairing: str) -> NDArray[np.float64]:
    """Return the first and the second channels of all pairs, (2, ..., pairs)."""
    halves = np.split(x, 2, axis=-1) if pairing == "half" else (x[..., 0::2], x[..., 1::2])
    return np.stack(halves).astype(np.float64)

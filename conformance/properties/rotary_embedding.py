"""Properties of rotary position embedding."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs

SEED = st.integers(0, 999)
PAIRS = st.integers(1, 4)
#: The largest position that is drawn: every half type has neighbours there that it does not tell apart.
LAST = 2100


def _draw_call(subject: Subject, seq: int, pairs: int, seed: int) -> Arguments:
    """Draw two samples of tokens, and positions in any order."""
    arguments = subject.draw({"batch": 2, "seq": seq, "pairs": pairs}, seed)
    return with_inputs(arguments, positions=np.random.default_rng(seed).integers(1, LAST, seq))


@holds("rope-relative", seq=st.integers(2, 5), pairs=PAIRS, seed=SEED, shift=st.sampled_from([1, 7, 256]))
def scores_depend_on_differences(subject: Subject, seq: int, pairs: int, seed: int, shift: int) -> None:
    """Require that adding one number to all positions leaves the scores of all pairs of tokens as they are."""
    arguments = _draw_call(subject, seq, pairs, seed)
    moved = with_inputs(arguments, positions=arguments.inputs["positions"] + shift)
    here, there = (subject.output(given).astype(np.float64) for given in (arguments, moved))
    element = subject.bound(arguments, moved)
    # A score is a sum of products of two channels, each known to `element`.
    row = max(np.abs(turned).sum(-1).max() for turned in (here, there))
    claim = f"adding {shift} to all positions changes the scores of turned queries and keys"
    subject.agree(there @ there.swapaxes(-1, -2), here @ here.swapaxes(-1, -2), 2 * element * float(row), claim)


@holds("rope-length", seq=st.integers(1, 5), pairs=PAIRS, seed=SEED)
def pairs_keep_their_length(subject: Subject, seq: int, pairs: int, seed: int) -> None:
    """Require that the sum of the squares of each pair stays as it is."""
    arguments = _draw_call(subject, seq, pairs, seed)
    turned, pairing = subject.output(arguments), subject.options()["rope_pairing"]
    before, after = (_split_pairs(array, pairing) for array in (arguments.inputs["x"], turned))
    bound = 2 * subject.bound(arguments) * float(np.abs(after).sum(0).max())
    claim = "a pair of channels does not keep its length"
    subject.agree(np.square(after).sum(0), np.square(before).sum(0), bound, claim)


@holds("rope-zero", seq=st.integers(2, 5), pairs=PAIRS, seed=SEED)
def position_zero_turns_nothing(subject: Subject, seq: int, pairs: int, seed: int) -> None:
    """Require that tokens at position 0 stay as they are, whatever their place."""
    arguments = _draw_call(subject, seq, pairs, seed)
    at_zero = np.arange(seq) % 2 == 1
    given = with_inputs(arguments, positions=np.where(at_zero, 0, arguments.inputs["positions"]))
    claim = "a token at position 0 does not stay as it is"
    subject.agree(subject.output(given)[:, at_zero], given.inputs["x"][:, at_zero], subject.bound(given), claim)


def _split_pairs(x: NDArray[np.float64], pairing: str) -> NDArray[np.float64]:
    """Return the first and the second channels of all pairs, (2, ..., pairs)."""
    halves = np.split(x, 2, axis=-1) if pairing == "half" else (x[..., 0::2], x[..., 1::2])
    return np.stack(halves).astype(np.float64)

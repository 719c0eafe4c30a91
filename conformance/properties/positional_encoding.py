"""Properties of the positional encoding."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs

ATTENTION = "scaled_dot_product_attention"

SEED = st.integers(0, 999)
WIDTH = st.integers(1, 4).map(lambda pairs: 2 * pairs)


def read_table(subject: Subject, seq: int, d_model: int) -> tuple[NDArray[np.float64], float]:
    """Return the encoding, which is the output for an input of zeros, and its tolerance."""
    arguments = Arguments({"x": np.zeros((1, seq, d_model))}, {}, {})
    return subject.output(arguments)[0], subject.bound(arguments)


@holds("pe-batch", batch=st.integers(2, 4), seq=st.integers(1, 5), d_model=WIDTH, seed=SEED)
def same_for_every_sample(subject: Subject, batch: int, seq: int, d_model: int, seed: int) -> None:
    """Require that the encoding does not depend on the sample."""
    arguments = subject.draw({"batch": batch, "seq": seq, "d_model": d_model}, seed)
    same = with_inputs(arguments, x=np.broadcast_to(arguments.inputs["x"][:1], (batch, seq, d_model)).copy())
    output = subject.output(same)
    subject.agree(output, output[:1].repeat(batch, axis=0), 0.0, "two samples that are equal get different encodings")


def split_pairs(encoding: NDArray[np.float64], layout: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Split an encoding into its sines and its cosines."""
    half = encoding.shape[-1] // 2
    if layout == "interleaved":
        return encoding[..., 0::2], encoding[..., 1::2]
    return encoding[..., :half], encoding[..., half:]


@holds("pe-shift-is-rotation", seq=st.integers(4, 9), d_model=WIDTH, shift=st.integers(1, 3))
def shift_is_a_rotation(subject: Subject, seq: int, d_model: int, shift: int) -> None:
    """Require that row pos + shift is row pos with every pair turned by the angle of row `shift`."""
    encoding, bound = read_table(subject, seq, d_model)
    sine, cosine = split_pairs(encoding, subject.options()["pe_layout"])
    # One turn mixes two entries with factors of at most √2 together, each known to `bound`.
    bound *= 2 * math.sqrt(2)
    claim = f"row pos + {shift} is not row pos with each pair of sine and cosine turned by the angle of row {shift}"
    ahead = sine[:-shift] * cosine[shift] + cosine[:-shift] * sine[shift]
    subject.agree(ahead, sine[shift:], bound, claim)
    ahead = cosine[:-shift] * cosine[shift] - sine[:-shift] * sine[shift]
    subject.agree(ahead, cosine[shift:], bound, claim)


@holds("pe-rows-differ", seq=st.integers(2, 40), d_model=WIDTH, seed=SEED)
def rows_differ(subject: Subject, seq: int, d_model: int, seed: int) -> None:
    """Require that the rows of two positions differ."""
    encoding, bound = read_table(subject, seq, d_model)
    one = seed % seq
    other = (one + 1 + seed % (seq - 1)) % seq
    claim = f"positions {one} and {other} have the same row"
    subject.differ(encoding[one], encoding[other], bound, claim)


@holds("pe-breaks-symmetry", seq=st.integers(3, 6), seed=SEED)
def breaks_permutation_symmetry(subject: Subject, seq: int, seed: int) -> None:
    """Require that with the encoding added, permuting the tokens does more than permute the output."""
    arguments = subject.draw({"batch": 2, "seq": seq, "d_model": 4}, seed)
    order = np.roll(np.arange(seq), 1)

    def attend(x: NDArray[np.float64]) -> NDArray[np.float64]:
        y = subject.output(with_inputs(arguments, x=x))
        return subject.call(Arguments({"query": y, "key": y, "value": y}, {}, {}), ATTENTION)["output"]

    x = arguments.inputs["x"]
    attention = Arguments({"query": x, "key": x, "value": x}, {}, {})
    bound = subject.tolerances(attention, ATTENTION)["output"]
    claim = "with the encoding added, permuting the tokens still only permutes the output"
    subject.differ(attend(x[:, order]), attend(x)[:, order], bound, claim)

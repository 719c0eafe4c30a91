"""Properties of softmax."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties import Subject, drawn, holds, with_inputs

SIZES = {"batch": st.integers(1, 3), "n": st.integers(1, 7), "seed": st.integers(0, 999)}


@holds("sm-simplex", **SIZES)
def test_rows_on_the_simplex(subject: Subject, batch: int, n: int, seed: int) -> None:
    """Non-negative, summing to 1."""
    arguments = drawn("softmax", subject.bench, {"batch": batch, "n": n}, seed)
    rows = subject.call("softmax", arguments)["output"]
    bound = n * subject.bound("softmax", arguments, "output")
    subject.agree("output", rows.clip(min=0), rows, 0.0, "a weight is negative")
    subject.agree("output", rows.sum(-1), np.ones(batch), bound, "the weights of a row do not sum to 1")


@holds("sm-shift", **SIZES, shift=st.sampled_from([-64, -8, 8, 64]))
def test_shift_changes_nothing(subject: Subject, batch: int, n: int, seed: int, shift: int) -> None:
    """softmax(x + c) = softmax(x); the shifts keep every element exact in every dtype that is run."""
    arguments = drawn("softmax", subject.bench, {"batch": batch, "n": n}, seed)
    # Quarters: shifted by 64 they still fit bfloat16's eight bits.
    scores = np.round(arguments.inputs["scores"] * 2) / 2
    plain, moved = with_inputs(arguments, scores=scores), with_inputs(arguments, scores=scores + shift)
    subject.agree(
        "output",
        subject.call("softmax", moved)["output"],
        subject.call("softmax", plain)["output"],
        max(subject.bound("softmax", call, "output") for call in (plain, moved)),
        f"softmax(x + {shift}) differs from softmax(x)",
    )

"""Properties of softmax."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs

SIZES = {"batch": st.integers(1, 3), "n": st.integers(1, 7), "seed": st.integers(0, 999)}


@holds("sm-simplex", **SIZES, factor=st.sampled_from([1, 4096]))
def rows_on_the_simplex(subject: Subject, batch: int, n: int, seed: int, factor: int) -> None:
    """Require weights that are non-negative and sum to 1, also for scores up to 8192, whose exponentials overflow."""
    arguments = subject.draw({"batch": batch, "n": n}, seed)
    arguments = with_inputs(arguments, scores=arguments.inputs["scores"] * factor)
    rows = subject.output(arguments)
    bound = n * subject.bound(arguments)
    subject.agree(rows.clip(min=0), rows, 0.0, "a weight is negative")
    subject.agree(rows.sum(-1), np.ones(batch), bound, "the weights of a row do not sum to 1")


@holds("sm-shift", **SIZES, shift=st.sampled_from([-1024, -8, 8, 1024]))
def shift_changes_nothing(subject: Subject, batch: int, n: int, seed: int, shift: int) -> None:
    """Require softmax(x + c) = softmax(x); the shifts keep every element exact in every dtype that is run."""
    arguments = subject.draw({"batch": batch, "n": n}, seed)
    # Halves, or eights for the long shifts: shifted they still fit bfloat16's eight bits.
    scores = np.round(arguments.inputs["scores"] * 2) * max(0.5, abs(shift) / 128)
    plain, moved = with_inputs(arguments, scores=scores), with_inputs(arguments, scores=scores + shift)
    relations.gives_the_same(subject, plain, moved, f"softmax(x + {shift}) differs from softmax(x)")

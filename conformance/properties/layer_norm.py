"""Properties of layer normalisation."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, draw_arguments, with_inputs

NAME = "layer_norm"


@holds("ln-rows", batch=st.integers(2, 4), d_model=st.integers(2, 6), seed=st.integers(0, 999))
def rows_are_normalised_alone(subject: Subject, batch: int, d_model: int, seed: int) -> None:
    """Require that a row does not depend on other rows, nor on a number added to all its channels."""
    arguments = draw_arguments(NAME, subject.bench, {"batch": batch, "d_model": d_model}, seed)
    # Quarters: lifted by 16 they still fit bfloat16's eight bits.
    x = np.round(arguments.inputs["x"] * 4) / 4
    arguments, alone, lifted = (with_inputs(arguments, x=y) for y in (x, x[1:2], x[1:2] + 16))
    row = subject.call(NAME, alone)["output"]
    bound = subject.tolerance(NAME, alone, "output")
    subject.agree(
        "output",
        subject.call(NAME, arguments)["output"][1:2],
        row,
        bound,
        "a row gives something else when other rows stand beside it",
    )
    subject.agree(
        "output",
        subject.call(NAME, lifted)["output"],
        row,
        max(bound, subject.tolerance(NAME, lifted, "output")),
        "adding 16 to every channel of a row changes the result",
    )

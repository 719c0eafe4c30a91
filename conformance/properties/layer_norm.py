"""Properties of layer normalisation."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import NotAdvised, Subject, Violation, with_inputs

#: The number that is added to every channel of a row.
LIFT = 16


@holds("ln-rows", batch=st.integers(2, 4), d_model=st.integers(2, 6), seed=st.integers(0, 999))
def rows_do_not_mix(subject: Subject, batch: int, d_model: int, seed: int) -> None:
    """Require that a row does not depend on other rows, nor on a number added to all its channels."""
    arguments = subject.draw({"batch": batch, "d_model": d_model}, seed)
    # Quarters: lifted by 16 they still fit bfloat16's eight bits.
    x = np.round(arguments.inputs["x"] * 4) / 4
    arguments, by_itself, lifted = (with_inputs(arguments, x=y) for y in (x, x[1:2], x[1:2] + LIFT))
    row = subject.output(by_itself)
    bound = subject.bound(by_itself)
    claim = "a row gives something else when other rows are next to it"
    subject.agree(subject.output(arguments)[1:2], row, bound, claim)
    relations.ignores_batch(subject, arguments)
    bound = max(bound, subject.bound(lifted))
    raised = subject.output(lifted)
    try:
        subject.agree(raised, row, bound, f"adding {LIFT} to every channel of a row costs accuracy (LN-5)")
    except Violation as inaccurate:
        # mean(x²) − mean(x)² cancels: it multiplies rounding by 1 + μ²/σ², which LN-5 only advises against.
        mean, variance = x[1].mean() + LIFT, x[1].var() + float(subject.options()["layer_norm_eps"])
        bound *= 1 + mean**2 / variance
        if 100 * bound > np.abs(row).max():
            return  # the dtype is too coarse to tell another function from that
        subject.agree(raised, row, bound, f"adding {LIFT} to every channel of a row changes the result")
        raise NotAdvised(str(inaccurate), inaccurate.difference) from inaccurate

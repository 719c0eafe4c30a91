"""Properties of the Xavier-uniform initialisation."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, Violation


@holds("xavier-seed", d_in=st.integers(8, 12), d_out=st.integers(8, 12), seed=st.integers(0, 999))
def the_seed_decides(subject: Subject, d_in: int, d_out: int, seed: int) -> None:
    """Require that only the seed decides the weight: by chance, two of 64 elements or more are never equal."""
    sizes = {"d_in": d_in, "d_out": d_out}
    first, again, other = (subject.output(subject.draw(sizes, 1, seed=s)) for s in (seed, seed, seed + 1))
    subject.agree(again, first, 0.0, "the same seed gives another weight the second time")
    if np.array_equal(first, other):
        raise Violation(f"seeds {seed} and {seed + 1} give the same weight")

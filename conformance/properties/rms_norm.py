"""Properties of root mean square normalisation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from hypothesis import strategies as st

from goldformer.conformance.judging.invoke import Array
from goldformer.conformance.properties import relations
from goldformer.conformance.properties.registry import holds
from goldformer.conformance.properties.subject import Subject, with_inputs


@holds("rms-rows", batch=st.integers(2, 4), d_model=st.integers(2, 6), seed=st.integers(0, 999))
def rows_do_not_mix(subject: Subject, batch: int, d_model: int, seed: int) -> None:
    """Require that a row does not depend on other rows."""
    arguments = subject.draw({"batch": batch, "d_model": d_model}, seed)
    by_itself = with_inputs(arguments, x=arguments.inputs["x"][1:2])
    claim = "a row gives something else when other rows are next to it"
    subject.agree(subject.output(arguments)[1:2], subject.output(by_itself), subject.bound(by_itself), claim)
    relations.ignores_batch(subject, arguments)


@holds(
    "rms-scale",
    batch=st.integers(1, 3),
    d_model=st.integers(1, 6),
    seed=st.integers(0, 999),
    factor=st.sampled_from([-8, -1, 0.125, 8]),
)
def size_does_not_matter(subject: Subject, batch: int, d_model: int, seed: int, factor: float) -> None:
    """Require RMSNorm(c·x; eps) = sign(c)·RMSNorm(x; eps/c²); the factors keep every element exact in every dtype."""
    arguments = subject.draw({"batch": batch, "d_model": d_model}, seed)
    x, options = arguments.inputs["x"], subject.options()
    scaled = with_inputs(arguments, x=factor * x)
    ratio = np.copysign(_divide(x, options) / _divide(factor * x, options) * abs(factor), factor)
    claim = f"a row times {factor} does not give what the row gives, up to eps and the sign"
    subject.agree(subject.output(scaled), subject.output(arguments) * ratio, subject.bound(arguments, scaled), claim)


def _divide(x: Array, options: Mapping[str, str]) -> Array:
    """Return the number that each row is divided by, (..., 1)."""
    eps = 2.0**-23 if options["rms_norm_eps"] == "float32_eps" else float(options["rms_norm_eps"])
    square = np.square(x).mean(-1, keepdims=True)
    root = np.sqrt(square) + eps if options["rms_norm_eps_place"] == "outside" else np.sqrt(square + eps)
    return np.asarray(root)

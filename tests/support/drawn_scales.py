"""The error scales and the margin of one call, measured by draws without a proof."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.oracle.derive import GAPS, evaluate
from goldformer.spec.oracle.draws import Draw, error_scale, margin


class Measured(NamedTuple):
    """The error scale of each output, and the margin of the decisions."""

    scales: dict[str, float]
    margin: float


def measure(
    component: str,
    inputs: Mapping[str, NDArray[Any]],
    params: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, Any],
    conventions: Mapping[str, str],
) -> Measured:
    """Measure one call; the mean of the samples stands for the golden values."""
    Draw.reset()
    drawn = dict(evaluate(component, Draw.exact, Draw.read, inputs, params, attributes, conventions))
    gaps = drawn.pop(GAPS, np.empty(0, dtype=object))
    floats = {name: array for name, array in drawn.items() if array.dtype.kind == "O"}
    return Measured({name: error_scale(array, _average(array)) for name, array in floats.items()}, margin(gaps))


def _average(drawn: NDArray[Any]) -> NDArray[np.float64]:
    return np.array([d.samples for d in drawn.ravel()]).mean(-1).reshape(drawn.shape) if drawn.size else np.empty(0)

"""Error scales of the calls that properties draw, measured once for all dtypes and implementations."""

from __future__ import annotations

from typing import Final

import numpy as np

from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.spec.oracle.derive import Measured, measure

#: The number of calls that are remembered. A run of the suite makes a few hundred, the same ones in every dtype.
_MOST: Final = 4096
_remembered: dict[object, Measured] = {}


def measure_call(formula: str, arguments: Arguments, options: dict[str, str]) -> Measured:
    """Return the error scales and the margin of one call of a formula."""
    arrays = [*arguments.inputs.items(), *arguments.params.items()]
    key = (
        formula,
        tuple(arguments.attributes.items()),
        tuple(options.items()),
        tuple((name, array.shape, array.dtype.char, array.tobytes()) for name, array in arrays),
    )
    if key not in _remembered:
        if len(_remembered) >= _MOST:
            _remembered.clear()
        _remembered[key] = measure(formula, arguments.inputs, arguments.params, arguments.attributes, options)
    return _remembered[key]


def measure_tolerances(component: str, arguments: Arguments, bench: Bench) -> dict[str, float]:
    """Return the tolerance of every output of one call."""
    contract = bench.spec.contracts[component]
    scales = measure_call(component, arguments, bench.adapter.options(component, bench.spec)).scales
    magnitude = 1.0 + float(np.abs(arguments.inputs["x"]).max()) if contract.computed_in_at_least else 0.0
    return {
        name: tolerance(bench.rounds_to, scale, magnitude, contract.computed_in_at_least)
        for name, scale in scales.items()
    }

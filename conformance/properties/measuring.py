"""Error scales of the calls that properties draw, measured once for all dtypes and implementations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.invoke import Arguments
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.spec.oracle.derive import GAPS
from goldformer.spec.oracle.rounding import Rounding
from goldformer.spec.oracle.truth import Call, find_margin, find_scale

#: The dtype whose roundoffs are counted: in half types sums are finer than results, and a scale is a little too large.
_COUNTED: Final = "float32"


@dataclass(frozen=True, slots=True)
class Measured:
    """The error scale of each output of one call, and the margin of its decisions, without a proof."""

    scales: Mapping[str, float]
    margin: float


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
        _remembered[key] = _measure(Call(formula, arguments.inputs, arguments.params, arguments.attributes, options))
    return _remembered[key]


def _measure(call: Call) -> Measured:
    outputs = dict(call.evaluate(Rounding.of(_COUNTED)).outputs)
    gaps = outputs.pop(GAPS, None)
    floats = {name: truth.variance for name, truth in outputs.items() if truth.values.dtype.kind == "f"}
    scales = {name: find_scale(variance, _COUNTED) for name, variance in floats.items()}
    return Measured(scales, math.inf if gaps is None else find_margin(gaps, _COUNTED))


def measure_tolerances(component: str, arguments: Arguments, bench: Bench) -> dict[str, float]:
    """Return the tolerance of every output of one call."""
    contract = bench.spec.contracts[component]
    scales = measure_call(component, arguments, bench.adapter.options(component, bench.spec)).scales
    magnitude = 1.0 + float(np.abs(arguments.inputs["x"]).max()) if contract.computed_in_at_least else 0.0
    return {
        name: tolerance(bench.rounds_to, scale, magnitude, contract.computed_in_at_least)
        for name, scale in scales.items()
    }

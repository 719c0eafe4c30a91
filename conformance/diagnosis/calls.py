"""Calls of an implementation with arguments that no case has, compared with the formulas of the spec.

The expected values are those of the formula in float64. Its error scale on just these arguments is measured, and both
sides were rounded: a result is wrong if it differs by more than the tolerances of its dtype and of float64 together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.comparator import compare
from goldformer.conformance.judging.invoke import Arguments, Array, BadResult, CallProblem
from goldformer.conformance.judging.tolerance import least_margin, tolerance
from goldformer.conformance.judging.verdict import UNANSWERED, Difference
from goldformer.conformance.properties.measuring import measure_call
from goldformer.spec.oracle.derive import apply

#: The most calls of one component.
MOST_CALLS: Final = 30


class Exhausted(Exception):
    """All calls are made, or the implementation does not answer any more."""


@dataclass
class Calls:
    """The calls of one component that were made, and how many."""

    bench: Bench
    component: str
    count: int = 0

    def find_differences(self, arguments: Arguments, component: str = "") -> tuple[Difference, ...] | None:
        """Return the wrong outputs of a call as data flows to them; None if it says nothing.

        A call says nothing if it raises, if rounding decides its result, or if a mask leaves a query no key: what it
        gives then is a convention.
        """
        component = component or self.component
        options = self.bench.adapter.options(component, self.bench.spec)
        if has_empty_row(arguments):
            return None
        measured = measure_call(component, arguments, options)
        if measured.margin <= least_margin(self._rounds_to):
            return None
        actual = self.call(arguments, component)
        if actual is None:
            return None
        expected = compute(component, arguments, options)
        differences = (
            compare(name, actual[name], expected[name], self._widen(measured.scales.get(name, 0.0)))
            for name in self.bench.spec.contracts[component].flow
            if name in actual and name in expected
        )
        return tuple(difference for difference in differences if difference.wrong)

    def call(self, arguments: Arguments, component: str = "") -> Mapping[str, Array] | None:
        """Return the outputs of a call; None if it has none, and Exhausted if there are no more calls."""
        if self.count >= MOST_CALLS:
            raise Exhausted
        self.count += 1
        try:
            return self.bench.call(component or self.component, arguments).outputs
        except BadResult as bad:
            if bad.reason in UNANSWERED:
                raise Exhausted from bad
            return None
        except CallProblem:
            return None

    @property
    def _rounds_to(self) -> str:
        """The dtype to which results are right: an implementation that is right to a coarser one was judged by that."""
        return (self.bench.find_coarser() or self.bench).rounds_to

    def _widen(self, scale: float) -> float:
        return tolerance(self._rounds_to, scale, 0.0) + tolerance("float64", scale, 0.0)


def compute(component: str, arguments: Arguments, options: Mapping[str, str]) -> Mapping[str, Array]:
    """Return the outputs of a call as the formula gives them in float64."""
    with np.errstate(all="ignore"):
        return apply(component, float, arguments.inputs, arguments.params, arguments.attributes, options)


def has_empty_row(arguments: Arguments) -> bool:
    """Return True if a query may have no key: a mask hides all of them, or a sentence begins with padding."""
    pad, inputs = arguments.attributes.get("pad_id"), arguments.inputs.values()
    masked = any(not array.any(-1).all() for array in inputs if array.dtype.kind == "b")
    return masked or (
        pad is not None and any((array[:, 0] == pad).any() for array in inputs if array.dtype.kind == "i")
    )


def is_model_right(calls: Calls, arguments: Arguments) -> bool | None:
    """Return True if the implementation's model is right on the words that decoding should give, all at once.

    None if it has no model, or the call says nothing.
    """
    spec, options = calls.bench.spec, calls.bench.adapter.options(calls.component, calls.bench.spec)
    if not calls.bench.has("transformer"):
        return None
    ids = compute(calls.component, arguments, options)["ids"]
    ids = ids[:, 0] if ids.ndim > 2 else ids  # the best of several beams
    first = np.full((len(ids), 1), arguments.attributes["bos_id"], dtype=ids.dtype)
    inputs = {**arguments.inputs, "target": np.concatenate([first, ids[:, :-1]], axis=1)}
    kept = {n: value for n, value in arguments.attributes.items() if n in spec.contracts["transformer"].attributes}
    found = calls.find_differences(Arguments(inputs, arguments.params, kept), "transformer")
    return None if found is None else not found

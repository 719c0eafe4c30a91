"""Calls of an implementation with arguments that no case has, compared with the formulas of the spec.

The expected values are those of the formula in float64. Its error scale on just these arguments is measured, and both
sides were rounded: a result is wrong if it differs by more than the tolerances of its dtype and of float64 together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.comparator import compare
from goldformer.conformance.judging.gradient import invoke_gradient
from goldformer.conformance.judging.invoke import Arguments, Array, BadResult, CallProblem, Result
from goldformer.conformance.judging.measure import GRADIENT_OF
from goldformer.conformance.judging.tolerance import least_margin, tolerance
from goldformer.conformance.judging.verdict import UNANSWERED, Difference
from goldformer.conformance.properties.measuring import measure_call
from goldformer.spec.oracle.derive import apply, measure_gradient

#: The most calls of one component.
MOST_CALLS: Final = 30

#: How far, relatively, two factors may be apart that are one but for rounding; and how many scores show one factor.
_ONE_FACTOR: Final = 2.0**-10
_SEVERAL: Final = 2


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
        return None if actual is None else self.compare(actual, arguments, options, measured.scales, component)

    def call(self, arguments: Arguments, component: str = "") -> Mapping[str, Array] | None:
        """Return the outputs of a call; None if it has none, and Exhausted if there are no more calls."""
        return self._ask(lambda: self.bench.call(component or self.component, arguments))

    def _ask(self, call: Callable[[], Result]) -> Mapping[str, Array] | None:
        if self.count >= MOST_CALLS:
            raise Exhausted
        self.count += 1
        try:
            return call().outputs
        except BadResult as bad:
            if bad.reason in UNANSWERED:
                raise Exhausted from bad
            return None
        except CallProblem:
            return None

    def compare(
        self,
        actual: Mapping[str, Array],
        arguments: Arguments,
        options: Mapping[str, str],
        scales: Mapping[str, float],
        component: str = "",
    ) -> tuple[Difference, ...]:
        """Return the outputs that differ from those of the formulas under some options, as data flows to them."""
        component = component or self.component
        expected = compute(component, arguments, options)
        differences = (
            compare(name, actual[name], expected[name], self._widen(scales.get(name, 0.0)))
            for name in self.bench.spec.contracts[component].flow
            if name in actual and name in expected
        )
        return tuple(difference for difference in differences if difference.wrong)

    @property
    def _rounds_to(self) -> str:
        """The dtype to which results are right: an implementation that is right to a coarser one was judged by that."""
        return (self.bench.find_coarser() or self.bench).rounds_to

    def _widen(self, scale: float) -> float:
        return tolerance(self._rounds_to, scale, 0.0) + tolerance("float64", scale, 0.0)


@dataclass
class GradientCalls(Calls):
    """The same of gradients, whose differences are named as in a verdict: "gradient of x"."""

    def find_differences(self, arguments: Arguments, component: str = "") -> tuple[Difference, ...] | None:
        """Return the wrong gradients of a call; None if it says nothing."""
        del component
        if has_empty_row(arguments):
            return None
        contract, cotangent = self.bench.spec.contracts[self.component], draw_cotangent(arguments, self)
        specs = {**contract.inputs, **contract.params_for(arguments.attributes)}
        given = {**arguments.inputs, **arguments.params}
        wanted = {name: spec for name, spec in specs.items() if spec.kind == "float" and name in given}
        bench = self.bench
        actual = self._ask(
            lambda: invoke_gradient(bench.adapter, contract, arguments, cotangent, wanted, bench.dtype, bench.device)
        )
        if actual is None:
            return None
        options = bench.adapter.options(self.component, bench.spec)
        call = (arguments.inputs, arguments.params, arguments.attributes, options)
        expected = measure_gradient(self.component, call, cotangent, contract.first_output)
        differences = (
            compare(f"{GRADIENT_OF}{name}", actual[name], expected[name][0], self._widen(expected[name][1]))
            for name in wanted
        )
        return tuple(difference for difference in differences if difference.wrong)


def compute(component: str, arguments: Arguments, options: Mapping[str, str]) -> Mapping[str, Array]:
    """Return the outputs of a call as the formula gives them in float64."""
    with np.errstate(all="ignore"):
        return apply(component, float, arguments.inputs, arguments.params, arguments.attributes, options)


def draw_cotangent(arguments: Arguments, calls: Calls) -> Array:
    """Return the same numbers for each call of one shape: multiples of 1/32, which every dtype holds."""
    contract = calls.bench.spec.contracts[calls.component]
    bound = arguments.bind(contract)
    shape = contract.outputs[contract.first_output].shape.sizes(bound.sizes, bound.lead or ())
    return np.random.default_rng(0).integers(-32, 32, shape) / 32


def has_empty_row(arguments: Arguments) -> bool:
    """Return True if a query may have no key: a mask hides all of them, or a sentence begins with padding."""
    pad, inputs = arguments.attributes.get("pad_id"), arguments.inputs.values()
    masked = any(not array.any(-1).all() for array in inputs if array.dtype.kind == "b")
    return masked or (
        pad is not None and any((array[:, 0] == pad).any() for array in inputs if array.dtype.kind == "i")
    )


def has_scaled_scores(calls: Calls, arguments: Arguments) -> bool:
    """Return True if a search under a length penalty gives the right words, and all scores times one wrong factor."""
    options = calls.bench.adapter.options(calls.component, calls.bench.spec)
    if options.get("length_penalty", "none") == "none":
        return False
    actual = calls.call(arguments) or {}
    if "scores" not in actual or not calls.find_differences(arguments):
        return False
    expected = compute(calls.component, arguments, options)
    if not np.array_equal(actual.get("ids", expected["ids"]), expected["ids"]) or expected["scores"].size < _SEVERAL:
        return False
    with np.errstate(all="ignore"):
        factors = actual["scores"].astype(np.float64) / expected["scores"].astype(np.float64)
    return bool(np.isfinite(factors).all()) and bool(np.ptp(factors) <= _ONE_FACTOR * abs(factors).max())


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

"""The expected values and error scales of a case: the spec's golden values, or a substitute.

A case asks only for some outputs, or for some of their places, and a random call has no golden values at all. Then the
textbook in float64, under the declared options, replaces the golden values, and the error scale is measured. Both take
time, so they are made only for outputs that moved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from goldformer.adapters.dtypes import round_to_dtype
from goldformer.adapters.protocol import find_options
from goldformer.conformance.baseline.array_files import LARGE, select_sample
from goldformer.conformance.diagnosis.imitation import Imitator
from goldformer.conformance.judging.expected import expect
from goldformer.conformance.judging.invoke import Array, Result
from goldformer.conformance.judging.measure import find_tolerance
from goldformer.spec import Case, Contract, Spec
from goldformer.spec.model import GoldenArray
from goldformer.spec.oracle.derive import measure_gradient
from goldformer.spec.oracle.rounding import SLACK, SMALLEST, UNIT_ROUNDOFF
from goldformer.spec.oracle.truth import make_call


@dataclass(frozen=True, slots=True)
class Precision:
    """A working precision within a wider dtype, with its unit roundoff and its smallest step.

    `is_dtype` is False if nothing is stored in it, so that no value shows it.
    """

    name: str
    unit: float
    smallest: float
    is_dtype: bool = True

    def tolerance(self, golden: GoldenArray) -> float:
        """Return the largest error of a correct evaluation in this precision; 0 if the values are exact."""
        return SLACK * (self.unit * golden.error_scale + self.smallest) if golden.error_scale else 0.0

    def has_all(self, values: Array) -> bool:
        """Return True if every value is a number of this precision."""
        return self.is_dtype and np.array_equal(round_to_dtype(values, self.name), values, equal_nan=True)


#: The dtype in whose roundoffs scales are counted.
_COUNTED: Final = "float32"

#: From the finest to the coarsest. Factors of TF32 keep ten bits after the point and the range of float32, and only
#: GPUs multiply them.
PRECISIONS: Final = (
    Precision("float32", UNIT_ROUNDOFF["float32"], SMALLEST["float32"]),
    Precision("TF32", 2.0**-11, SMALLEST["float32"], is_dtype=False),
    Precision("float16", UNIT_ROUNDOFF["float16"], SMALLEST["float16"]),
    Precision("bfloat16", UNIT_ROUNDOFF["bfloat16"], SMALLEST["bfloat16"]),
)


def list_coarser(dtype: str, device: str) -> tuple[Precision, ...]:
    """Return the precisions below that of a dtype that a device has, the finest first."""
    return tuple(p for p in PRECISIONS if p.unit > UNIT_ROUNDOFF[dtype] and (p.is_dtype or device != "cpu"))


def find_shown(old: Array, new: Array, precisions: Iterable[Precision]) -> Precision | None:
    """Return the coarsest of some precisions that has all finite new values and not all values that they replace."""
    finite = np.isfinite(new)
    now, then = new[finite], old[finite]
    shown = (p for p in precisions if p.has_all(now) and not p.has_all(then))
    return max(shown, key=lambda precision: precision.unit, default=None)


class ExpectedResults:
    """Makes the expected result of each case once."""

    def __init__(self, spec: Spec, imitator: Imitator) -> None:
        self.spec = spec
        self.imitator = imitator
        self._made: dict[tuple[str, tuple[tuple[str, str], ...]], ExpectedResult] = {}

    def of(self, case: Case, conventions: Mapping[str, str]) -> ExpectedResult:
        """Return the expected result of a case under declared conventions."""
        options = find_options(conventions, case.component, self.spec)
        key = (case.id, tuple(options.items()))
        if key not in self._made:
            self._made[key] = ExpectedResult(case, self.spec, options, self.imitator)
        return self._made[key]


def _select_stored(golden: GoldenArray) -> GoldenArray:
    """Return the values at the places that a baseline stores of a large output; anything else is itself."""
    is_large = golden.indices is None and golden.values.size > LARGE
    return replace(golden, values=select_sample(golden.values)) if is_large else golden


class ExpectedResult:
    """The expected values of one case under one option of each convention."""

    def __init__(self, case: Case, spec: Spec, options: dict[str, str], imitator: Imitator) -> None:
        self.case = case.under(options)
        self.options = options
        self.contract: Contract = spec.contracts[case.component]
        self._imitator = imitator
        self._textbook: Result | None = None
        self._has_run = False
        self._gradients: dict[str, tuple[Array, float]] | None = None
        #: The golden values of the case itself.
        self.golden: Mapping[str, GoldenArray] = expect(self.case, options, self.contract, "float64") or {}

    def whole(self, output: str) -> GoldenArray | None:
        """Return the expected values of all elements of an output; None if nothing says how large rounding errors are.

        For a large output these are the stored elements, for a full-size model those that its case asks for.
        """
        golden = self.golden.get(output)
        if self.case.full_size or (golden is not None and golden.indices is None):
            return golden and _select_stored(golden)
        values = self._run_textbook(output)
        if values is None:
            return None
        # Ids and booleans are exact.
        scale = self.scale(output) if values.dtype.kind == "f" else 0.0
        return _select_stored(GoldenArray(values, scale))

    def find_expected(self, also: Iterable[str]) -> dict[str, GoldenArray]:
        """Return the golden values, and the substitutes for the outputs in `also` without complete golden values.

        Of a large output they are the values at the places that a baseline stores.
        """
        stored = {name: _select_stored(golden) for name, golden in self.golden.items()}
        whole = {output: found for output in also if (found := self.whole(output)) is not None}
        return {**stored, **whole}

    def tolerance(self, output: str, dtype: str) -> float | None:
        """Return the case's own tolerance for all elements of an output; None if nothing says how rounding goes."""
        whole = self.whole(output)
        return None if whole is None else find_tolerance(whole, self.contract, dtype).largest

    def scale(self, output: str) -> float:
        """Return the measured error scale of all elements of an output; infinity if the formula does not give it."""
        cotangent = self.case.cotangent_array
        if cotangent is None:
            call = make_call(self.case, self.options, self.contract)
            return call.find_scale(output, _COUNTED) if output in self.contract.outputs else math.inf
        if self._gradients is None:
            called = (self.case.input_arrays, self.case.param_arrays, self.case.attributes, self.options)
            self._gradients = measure_gradient(self.case.component, called, cotangent, self.contract.first_output)
        return self._gradients[output][1] if output in self._gradients else math.inf

    def _run_textbook(self, output: str) -> Array | None:
        """Return an output of the textbook; None for random cases, in which it draws other numbers."""
        if not self._has_run and not self.case.random:
            self._textbook = self._imitator.run_textbook(self.case, self.options)
        self._has_run = True
        return self._textbook.outputs.get(output) if self._textbook else None

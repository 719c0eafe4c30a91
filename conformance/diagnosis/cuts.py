"""Cut a large call to its first samples and rows, which do not depend on the others: imitations of it take less time.

What a mistake gives for them is what it gives for the whole, unless it mixes samples; smaller cases show that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from goldformer.conformance.judging.invoke import Array
from goldformer.spec import Case, Contract
from goldformer.spec.draw import Argument
from goldformer.spec.model import ArraySpec, Golden, GoldenArray
from goldformer.spec.oracle.truth import Call, OutputRounding

#: Axes along which the first rows are kept, where the rows of a result do not depend on one another.
_ROWS: Final = ("seq", "q_seq")
_BATCH: Final = "batch"
#: The fewest rows that are kept.
_FEWEST: Final = 32
#: The most samples that are kept along one axis.
_MOST: Final = 16


@dataclass(frozen=True)
class Cut:
    """Numbers of what is kept of the leading axes of a call, and of axes by name: always the first ones."""

    contract: Contract
    lead: tuple[int, ...]
    kept: Mapping[str, int]

    def cut_array(self, array: Array, spec: ArraySpec) -> Array:
        """Return the part of an array of the contract that is kept."""
        names = [axis.symbols[0] if str(axis) in self.kept else "" for axis in spec.shape.axes]
        sizes = [self.kept.get(name) for name in names]
        # An array may have fewer axes than its contract, or some of length 1, where it is the same for all samples.
        ahead: list[int | None] = list(self.lead) if spec.shape.lead else []
        return array[tuple(slice(size) for size in [*ahead, *sizes][len(ahead) + len(sizes) - array.ndim :])]

    def cut_case(self, case: Case) -> Case:
        """Return the call with the part of its inputs that is kept, under an id of its own."""
        inputs = {n: Argument.of(self.cut_array(a, self.contract.inputs[n])) for n, a in case.input_arrays.items()}
        kept = ", ".join(f"{name} {size}" for name, size in self.kept.items())
        golden = case.golden and Golden(
            case.golden.derivation,
            case.golden.peak,
            {key: outputs and self.cut_all(outputs) for key, outputs in case.golden.options.items()},
            case.golden.margin,
        )
        return replace(
            case, id=f"{case.id} cut to {[*self.lead]} {kept}", inputs=inputs, golden=golden, lead=self.lead,
            sizes={**case.sizes, **self.kept}, whole=None if case.whole is None else self.cut_case(case.whole),
        )  # fmt: skip

    def cut_all(self, expected: Mapping[str, GoldenArray]) -> dict[str, GoldenArray]:
        """Return what is expected of the part that is kept."""
        return {name: self._cut_golden(golden, self.contract.outputs[name]) for name, golden in expected.items()}

    def _cut_golden(self, golden: GoldenArray, spec: ArraySpec) -> GoldenArray:
        rounding = golden.rounding
        if isinstance(rounding, OutputRounding):
            proven = tuple(place for place in rounding.proven if self._keeps(place, spec))
            rounding = replace(rounding, call=self._cut_call(rounding.call), proven=proven)
        if golden.indices is None:
            return replace(golden, values=self.cut_array(golden.values, spec), rounding=rounding)
        within = [self._keeps(place, spec) for place in golden.indices]
        indices = tuple(place for place, kept in zip(golden.indices, within, strict=True) if kept)
        return replace(golden, values=golden.values[within], indices=indices, rounding=rounding)

    def _keeps(self, place: tuple[int, ...], spec: ArraySpec) -> bool:
        """Return True if an element of an output is kept."""
        sizes = [*(self.lead if spec.shape.lead else ()), *(self.kept.get(str(axis)) for axis in spec.shape.axes)]
        return all(size is None or k < size for k, size in zip(place, sizes, strict=True))

    def _cut_call(self, call: Call) -> Call:
        if id(call) not in self._calls:
            inputs = {name: self.cut_array(array, self.contract.inputs[name]) for name, array in call.inputs.items()}
            # The call is kept with its part: no other one gets its id.
            self._calls[id(call)] = (call, replace(call, inputs=inputs))
        return self._calls[id(call)][1]

    @cached_property
    def _calls(self) -> dict[int, tuple[Call, Call]]:
        return {}


def choose_cut(case: Case, contract: Contract, output: str, first: tuple[int, ...], most: int) -> Cut | None:
    """Return a cut of a case to at most that many numbers, if it can be, which keeps the first wrong element.

    None for a case that has no more numbers, or whose samples and rows depend on one another.
    """
    if case.size <= most or case.cotangent is not None or case.random or case.error is not None:
        return None
    specs = [spec for name, spec in contract.inputs.items() if name in case.inputs]
    results = [contract.outputs[name] for name in case.expect if name in contract.outputs]
    names = [_BATCH] if all(_BATCH in spec.shape.symbols for spec in (*specs, *results)) else []
    names += [name for name in _ROWS if name in contract.free]
    lead = case.lead if all(spec.shape.lead for spec in (*specs, *results)) else ()
    if not names and not lead:
        return None
    spec = contract.outputs[output]
    first = first or (0,) * (len(case.lead) * spec.shape.lead + len(spec.shape.axes))
    ahead = first[: len(case.lead)] if spec.shape.lead else (0,) * len(case.lead)
    places = dict(zip(map(str, spec.shape.axes), first[len(first) - len(spec.shape.axes) :], strict=True))
    count = _MOST
    while True:
        samples = tuple(min(size, max(count, k + 1)) for size, k in zip(case.lead, ahead, strict=True))
        kept = {n: min(case.sizes[n], max(count if n == _BATCH else _FEWEST, places.get(n, 0) + 1)) for n in names}
        cut = Cut(contract, samples if lead else case.lead, kept)
        size = sum(cut.cut_array(array, contract.inputs[name]).size for name, array in case.input_arrays.items())
        if count == 1 or size + sum(array.size for array in case.param_arrays.values()) <= most:
            return cut
        count //= 2

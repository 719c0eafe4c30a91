"""The truth of a call of any size, on the spot: its values in float64, and the rounding that honest code adds to them.

The values are those of the formulas in float64. Their own error is as far below the tolerance of a coarser dtype as the
unit roundoff of float64 is below its own: by 2²⁹ for float32. Golden values are proven instead.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.model import UNSPECIFIED, Attribute, Case, Contract
from goldformer.spec.oracle.derive import apply, choose_options
from goldformer.spec.oracle.rounding import ELEMENT, SLACK, UNIT_ROUNDOFF, Floats, Rounding, is_half
from goldformer.spec.oracle.samples import Sampled, Sampler
from goldformer.spec.oracle.variances import Propagation, Rounded

Array = NDArray[Any]

#: The standard deviations that an error scale is: the slack times it is the limit of an element.
DEVIATIONS: Final = ELEMENT / SLACK
#: The most numbers in the arguments of a call whose errors are sampled: in larger ones they are nearly independent.
MOST_SAMPLED: Final = 1 << 14
#: About the most numbers of the inputs that are computed at once, where the leading axes can be cut.
_BLOCK: Final = 1 << 18
#: The convention for rows without a key. NaN there marks all that depends on them, through layers too.
_ROWS: Final = "empty_row"


@dataclass(frozen=True, slots=True, eq=False)
class Truth:
    """The values of one output, and the variance of the rounding error of each; None if all are exact."""

    values: Array
    variance: Floats | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """The outputs of a call for code that rounds in one way, and the largest number on the way."""

    outputs: Mapping[str, Truth]
    peak: float


def find_margin(gaps: Truth, dtype: str) -> float:
    """Return the unit roundoff at which rounding may turn one of some decisions; infinity without any."""
    sizes = np.abs(gaps.values)
    scales = 0.0 if gaps.variance is None else DEVIATIONS * np.sqrt(gaps.variance) / UNIT_ROUNDOFF[dtype]
    # One roundoff moves a gap by its own size, however exact its two sides may be.
    return float(np.min(sizes / np.maximum(scales, sizes), initial=math.inf))


def find_scale(variance: Floats | None, dtype: str) -> float:
    """Return the error scale of an output with these variances, in unit roundoffs of a dtype."""
    largest = 0.0 if variance is None else math.sqrt(np.nanmax(variance, initial=0.0))
    return DEVIATIONS * largest / UNIT_ROUNDOFF[dtype]


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a component under some options; what it gives in each dtype is computed once.

    With `held`, each dtype holds the arguments exactly; else they are decimals, which it rounds, or drawn with all bits
    (`has_all_bits`), which only float64 holds. `outputs` are those that are wanted, all if there are none. A large call
    is cut along the leading axes of its `contract`.
    """

    formula: str
    inputs: Mapping[str, Array]
    params: Mapping[str, Array]
    attributes: Mapping[str, Attribute]
    options: Mapping[str, str]
    held: bool = False
    outputs: Collection[str] = ()
    contract: Contract | None = None
    #: True if NaN marks what depends on rows without a key.
    has_marks: bool = False
    has_all_bits: bool = False
    _known: dict[Rounding, Evaluation] = field(default_factory=dict, init=False, repr=False)

    def evaluate(self, rounding: Rounding) -> Evaluation:
        """Return the truth of each output for code that rounds like this."""
        if rounding not in self._known:
            self._known[rounding] = self._evaluate(rounding)
        return self._known[rounding]

    @cached_property
    def plain(self) -> Mapping[str, Array]:
        """The outputs in float64, without what rounding may add."""
        with np.errstate(all="ignore"):
            return apply(self.formula, np.asarray, self.inputs, self.params, self.attributes, self.options)

    def find_scale(self, output: str, dtype: str) -> float:
        """Return the error scale of an output, in unit roundoffs of a dtype."""
        return find_scale(self.evaluate(Rounding.of(dtype)).outputs[output].variance, dtype)

    @property
    def size(self) -> int:
        """The number of numbers in the arguments."""
        return sum(array.size for array in (*self.inputs.values(), *self.params.values()))

    def _evaluate(self, rounding: Rounding) -> Evaluation:
        if self.contract is None or self.size <= MOST_SAMPLED or not (lead := self._find_lead(self.contract)):
            return self._run(self.inputs, rounding)
        joined, peak = _Joined(lead), 0.0
        for start, block in self._cut(self.contract, lead):
            part = self._run(block, rounding)
            joined.put(start, part.outputs)
            peak = max(peak, part.peak)
        return Evaluation(joined.read(), peak)

    def _run(self, inputs: Mapping[str, Array], rounding: Rounding) -> Evaluation:
        how = Sampler(rounding) if self.size <= MOST_SAMPLED else Propagation(rounding)
        is_held = self.held or (self.has_all_bits and rounding.dtype == "float64")
        read = how.hold if is_held else how.read
        made = {name: read(array) if array.dtype.kind == "f" else array for name, array in inputs.items()}
        params = {name: read(array) for name, array in self.params.items()}
        plain = {n: how.read(value) if isinstance(value, float) else value for n, value in self.attributes.items()}
        with np.errstate(invalid="ignore", divide="ignore"):
            found = apply(self.formula, how.hold, made, params, plain, self.options)
        wanted = self.outputs or found
        return Evaluation({name: _read(found[name]) for name in found if name in wanted}, how.peak)

    def _find_lead(self, contract: Contract) -> tuple[int, ...]:
        """Return the axes "..." of the call; none if not all arrays of its contract have them."""
        given = {name: spec for name, spec in contract.inputs.items() if name in self.inputs}
        if not all(spec.shape.lead for spec in (*given.values(), *contract.outputs.values())):
            return ()
        leads = (self.inputs[name].shape[: -len(spec.shape.axes)] for name, spec in given.items())
        return np.broadcast_shapes(*leads)

    def _cut(self, contract: Contract, lead: tuple[int, ...]) -> Iterator[tuple[int, Mapping[str, Array]]]:
        """Yield the inputs block by block along the leading axes, joined to one, each with its first index."""
        count = math.prod(lead)
        flat = {}
        for name, array in self.inputs.items():
            core = array.shape[-len(contract.inputs[name].shape.axes) :]
            flat[name] = np.broadcast_to(array, (*lead, *core)).reshape(count, *core)
        rows = max(1, _BLOCK * count // sum(array.size for array in flat.values()))
        for start in range(0, count, rows):
            yield start, {name: array[start : start + rows] for name, array in flat.items()}


def make_call(case: Case, options: Mapping[str, str], contract: Contract, *, held: bool = False) -> Call:
    """Return the call of a case under some options. With `held`, its arrays are the exact numbers of a call.

    A small call is made once: whoever judges many implementations asks for it again and again.
    """
    chosen = {name: options[name] for name in contract.conventions if name in options}
    has_marks = chosen.get(_ROWS) == UNSPECIFIED
    called = choose_options(case, contract, chosen | ({_ROWS: "nan"} if has_marks else {}))
    key = (held, has_marks, *called.items())
    if key in case.calls:
        known: Call = case.calls[key]
        return known
    wanted = tuple(case.expect) if held else ()
    arrays = (case.input_arrays, case.param_arrays)
    every_bit = case.has_all_bits
    call = Call(case.component, *arrays, case.attributes, called, held, wanted, contract, has_marks, every_bit)
    if call.size <= MOST_SAMPLED:
        case.calls[key] = call
    return call


class _Joined:
    """The outputs of blocks, each written to its place as soon as it is computed."""

    def __init__(self, lead: tuple[int, ...]) -> None:
        self._lead = lead
        self._values: dict[str, Array] = {}
        self._variances: dict[str, Floats] = {}

    def put(self, start: int, outputs: Mapping[str, Truth]) -> None:
        """Write the outputs of a block that begins at an index of the leading axes."""
        for name, part in outputs.items():
            end, whole = start + len(part.values), (math.prod(self._lead), *part.values.shape[1:])
            if name not in self._values:
                self._values[name] = np.empty(whole, part.values.dtype)
            self._values[name][start:end] = part.values
            if part.variance is None:
                continue
            if name not in self._variances:
                self._variances[name] = np.zeros(whole)
            self._variances[name][start:end] = part.variance

    def read(self) -> dict[str, Truth]:
        """Return the outputs with their leading axes."""
        found = {}
        for name, values in self._values.items():
            shape, variance = (*self._lead, *values.shape[1:]), self._variances.get(name)
            found[name] = Truth(values.reshape(shape), None if variance is None else variance.reshape(shape))
        return found


def _read(output: Any) -> Truth:
    if isinstance(output, Sampled):
        # A copy: a view would keep all samples.
        return Truth(np.array(output.samples[0]), output.sampler.find_variance(output))
    if isinstance(output, Rounded):
        return Truth(np.asarray(output.value), output.variance)
    if output.dtype == object:  # the gaps of decisions
        parts = [_read(element) for element in output]
        variances = [0.0 if part.variance is None else float(part.variance) for part in parts]
        return Truth(np.array([float(part.values) for part in parts]), np.array(variances))
    return Truth(output)


#: How code in a half type rounds: each operation, only the result of float32, or the sums of each operation too.
Style = Literal["steps", "once", "coarse"]


@dataclass(frozen=True, slots=True, eq=False)
class OutputRounding:
    """The variance of the rounding error of each element of one output of a call, by dtype; None if all are exact.

    `unproven` values in float64 are rounded as those that they are compared with, except at the `proven` places.
    `style` matters in half types only.
    """

    call: Call
    output: str
    unproven: bool = False
    proven: tuple[tuple[int, ...], ...] = ()
    style: Style = "steps"

    def __call__(self, dtype: str) -> Floats | None:
        """Return the variances in a dtype."""
        half = is_half(dtype)
        if half and self.style == "once":
            truth = self._evaluate(Rounding.of("float32"))
            rounded = Rounding.of(dtype).of_result(truth.values)
            return rounded if truth.variance is None else rounded + truth.variance
        variance = self._evaluate(Rounding.of(dtype, dtype if half and self.style == "coarse" else "float32")).variance
        if variance is None or not self.unproven or dtype != "float64":
            return variance
        both = 2 * variance
        if self.proven:
            at = tuple(np.array(self.proven).T)
            both[at] = variance[at]
        return both

    def _evaluate(self, rounding: Rounding) -> Truth:
        return self.call.evaluate(rounding).outputs[self.output]

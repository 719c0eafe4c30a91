"""The implementation that a property calls, the arguments it draws, and the relations it requires of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.adapters.arrays import LIBRARIES, ArrayLibrary, Wire
from goldformer.conformance.judging.cases import Bench
from goldformer.conformance.judging.comparator import compare
from goldformer.conformance.judging.gradient import invoke_gradient
from goldformer.conformance.judging.invoke import (
    Arguments,
    BadResult,
    CallProblem,
    NotCheckable,
    call,
    check_inputs_unchanged,
    convert_arguments,
    join_parts,
    name_outputs,
    read_outputs,
    read_parts,
    run_with_own_arrays,
)
from goldformer.conformance.judging.tolerance import least_margin, tolerance
from goldformer.conformance.judging.verdict import NONDETERMINISM, WITHHELD, Difference, Invariance
from goldformer.conformance.properties.measuring import measure_call, measure_tolerances
from goldformer.spec import Contract
from goldformer.spec.draw import Dyadic
from goldformer.spec.model import Attribute
from goldformer.spec.tables import Setting
from goldformer.spec.ways import PLAIN, Way

Array = NDArray[Any]


class Violation(AssertionError):
    """A relation that does not hold, with the outputs that show it.

    `drawn` are the arguments for which it does not hold, if they were drawn. `shows` is the id of the mistake, if the
    property knows which of those that it catches it is.
    """

    def __init__(self, message: str, difference: Difference | None = None, shows: str = "") -> None:
        super().__init__(message)
        self.difference = difference
        self.shows = shows
        self.drawn: Mapping[str, Any] = {}


class NotAdvised(Violation):
    """Behaviour that a clause only advises against: a failure under --strict, and skipped without it."""


class MixesDevices(Violation):
    """A tensor that stays on the CPU: wrong on a GPU, and right here."""


@dataclass(frozen=True, slots=True)
class Returned:
    """The arrays that a call returned, by name, copies of their values, and the outputs.

    Each call of a session returns arrays of its own, and the outputs are joined from them.
    """

    arrays: Mapping[str, Any]
    values: Mapping[str, Array]
    outputs: Mapping[str, Array]


#: The number of times that a call is repeated to tell a race from what a setting does.
_CONFIRMED: Final = 2

#: Makes a call and returns its outputs.
Run = Callable[[], Mapping[str, Array]]


class PlainCall:
    """A call that can be repeated as it is, and the outputs that it gave when it was first made."""

    def __init__(self, arguments: Arguments, run: Run) -> None:
        self.arguments = arguments
        self.run = run
        self.outputs = run()


@dataclass
class Subject:
    """The implementation that a property calls, and the worst ratio of its results so far."""

    bench: Bench
    component: str
    ratio: float | None = None
    seconds: float = 0.0
    #: The closeness of the same call in other settings.
    invariances: dict[Setting, Invariance] = field(default_factory=dict)
    #: The inputs in which a NaN that a mask hides reaches the output.
    hidden_nan: tuple[str, ...] = ()

    def options(self, component: str = "") -> dict[str, str]:
        """Return the options that the adapter declares for a component: its own if none is named, here and below."""
        return self.bench.adapter.options(component or self.component, self.bench.spec)

    @property
    def hides_later(self) -> bool:
        """Return True if the adapter declares that no query of the component sees a later key, in any call."""
        later = self.bench.spec.contracts[self.component].later_tokens
        return later is not None and bool(later.find_hiding(self.options()))

    def draw(self, sizes: Mapping[str, int], seed: int, /, **attributes: Attribute) -> Arguments:
        """Draw arguments of the component's shapes."""
        return draw_arguments(self.component, self.bench, sizes, seed, **attributes)

    def output(self, arguments: Arguments) -> Array:
        """Return the first output of one call."""
        return self.call(arguments)[self.contract.first_output]

    def call(self, arguments: Arguments, component: str = "", way: Way = PLAIN) -> Mapping[str, Array]:
        """Return the outputs of one call; BadResult if one is missing that the bench requires."""
        component = component or self.component
        result = self.bench.call(component, arguments, way=way)
        outputs = self.bench.spec.contracts[component].outputs
        if component == self.component and (
            withheld := self.bench.policy.describe_withheld(outputs, outputs.keys() - result.outputs.keys())
        ):
            raise BadResult(WITHHELD, withheld)
        self.seconds += result.seconds
        # A later call may write to what this one returned.
        return {name: array.copy() for name, array in result.outputs.items()}

    @property
    def library(self) -> ArrayLibrary:
        """Return the array library of the implementation."""
        return LIBRARIES[self.bench.adapter.arrays]

    @property
    def contract(self) -> Contract:
        """Return the contract of the component."""
        return self.bench.spec.contracts[self.component]

    def make(self, arguments: Arguments) -> dict[str, Any]:
        """Make new arrays of the arguments of a call of the component, with the parameters in one mapping."""
        bench = self.bench
        convert = partial(convert_arguments, self.library, self.contract, arguments, bench.dtype, bench.device)
        return run_with_own_arrays(convert, bench.adapter, bench.device)

    def run(self, arguments: Arguments, given: Mapping[str, Any]) -> Returned:
        """Call the component with these very arrays, which hold the arguments, and keep the arrays that it returns."""
        return run_with_own_arrays(partial(self._run, arguments, given), self.bench.adapter, self.bench.device)

    def _run(self, arguments: Arguments, given: Mapping[str, Any]) -> Returned:
        returned, seconds = call(self.bench.adapter, self.contract, given)
        self.seconds += seconds
        if self.library.name != Wire.name:  # another process gets copies
            check_inputs_unchanged(self.library, given, self.make(arguments))
        called = (self.library, self.contract, arguments, returned, self.bench.dtype, self.bench.device)
        is_session = self.contract.session is not None
        read = read_parts(*called) if is_session else read_outputs(*called)
        # A call that writes to an earlier result must not change what was read from it.
        values = {name: array.copy() for name, array in read.items()}
        outputs = join_parts(self.contract, arguments, values) if is_session else values
        return Returned(name_outputs(returned, self.contract), values, outputs)

    def gradient(self, arguments: Arguments, cotangent: Array, *wanted: str) -> Mapping[str, Array]:
        """Return the gradients of the arguments `wanted`, for a gradient of the first output."""
        bench, contract = self.bench, self.contract
        specs = {**contract.inputs, **contract.params_for(arguments.attributes)}
        given = (cotangent, {name: specs[name] for name in wanted}, bench.dtype, bench.device)
        result = invoke_gradient(bench.adapter, contract, arguments, *given)
        self.seconds += result.seconds
        return result.outputs

    def bound(self, *calls: Arguments) -> float:
        """Return the tolerance of the first output, the largest of these calls."""
        return max(self.tolerances(call)[self.contract.first_output] for call in calls)

    def tolerances(self, arguments: Arguments, component: str = "") -> dict[str, float]:
        """Return the tolerance of every output of a call; error scales are measured on these inputs."""
        return measure_tolerances(component or self.component, arguments, self.bench)

    def decisive_tolerance(self, arguments: Arguments, output: str, component: str = "") -> float:
        """Return the tolerance of an output of a call that decides something; NotCheckable if rounding decides."""
        self.require_decisive(arguments, component)
        scales = measure_call(component or self.component, arguments, self.options(component)).scales
        return tolerance(self.bench.rounds_to, scales[output], 0.0)

    def require_decisive(self, arguments: Arguments, component: str = "") -> None:
        """Raise NotCheckable if rounding decides what a call gives."""
        component = component or self.component
        call = measure_call(component, arguments, self.options(component))
        if call.margin <= least_margin(self.bench.rounds_to):
            raise NotCheckable(
                f"rounding to {self.bench.rounds_to} decides what {component} gives for the inputs drawn"
            )

    def agree(self, actual: Array, expected: Array, bound: float, claim: str, output: str = "") -> None:
        """Raise Violation unless two results are finite and agree within twice a bound: both of them were rounded.

        They are of the first output if none is named.
        """
        output = output or self.contract.first_output
        difference = compare(output, actual, expected, 2 * bound)
        if not np.isfinite(actual).all():
            finite = np.where(np.isfinite(expected), expected, 0.0)
            raise Violation(
                f"{output} is not finite, though all inputs are", compare(output, actual, finite, 2 * bound)
            )
        self.ratio = max(self.ratio or 0.0, difference.ratio)
        if difference.wrong:
            raise Violation(claim, difference)

    def repeats(
        self,
        arguments: Arguments,
        actual: Mapping[str, Array],
        expected: Mapping[str, Array],
        claim: str,
        setting: Setting | None = None,
    ) -> None:
        """Raise Violation unless two calls of the component with equal arguments agree in all outputs."""
        first = self.contract.first_output
        for name in (first, *(name for name in expected if name != first and name in actual)):
            noted = setting if name == first else None
            self.stays(arguments, actual[name], expected[name], claim, noted, output=name)

    def stays(
        self,
        arguments: Arguments,
        actual: Array,
        expected: Array,
        claim: str,
        setting: Setting | None = None,
        output: str = "",
    ) -> None:
        """Raise Violation unless an output agrees in another setting; note whether it does bit for bit.

        It is the first output if none is named.
        """
        name = output or self.contract.first_output
        exact = expected.dtype.kind != "f" or np.array_equal(actual, expected, equal_nan=True)
        if expected.dtype.kind == "f":
            # What is not finite in both is the same: golden cases say that it should be finite.
            same = ~np.isfinite(actual) & ((actual == expected) | (np.isnan(actual) & np.isnan(expected)))
            actual, expected = np.where(same, 0.0, actual), np.where(same, 0.0, expected)
        # Error scales take long to measure, and most repeated results are equal to the bit.
        bound = 0.0 if exact else self.tolerances(arguments)[name]
        self.agree(actual, expected, bound, claim, name)
        if setting is not None:
            before = self.invariances.get(setting, Invariance(setting, bitwise=True, distance=0.0))
            distance = 0.0 if exact else float(np.abs(actual - expected).max(initial=0.0)) / bound
            self.invariances[setting] = Invariance(setting, before.bitwise and exact, max(before.distance, distance))

    def require_same(self, plain: PlainCall, run: Run, claim: str, shows: str, setting: Setting | None = None) -> None:
        """Raise Violation if `run`, the same call in another setting, gives something else than the plain call.

        It shows the mistake `shows` if that comes again, and not without the setting; nondeterminism if it does not.
        """
        try:
            self.repeats(plain.arguments, run(), plain.outputs, claim, setting)
        except Violation as first:
            if first.shows:
                raise
            message = claim if str(first) == claim else f"{claim}: {first}"
            is_constant = not any(self._differs(plain, plain.run) for _ in range(_CONFIRMED))
            if not is_constant or not all(self._differs(plain, run) for _ in range(_CONFIRMED)):
                raise Violation(f"{message}, but not every time", first.difference, NONDETERMINISM) from first
            raise Violation(message, first.difference, shows) from first

    def _differs(self, plain: PlainCall, run: Run) -> bool:
        """Return True if a call gives something else than the plain call, or no result."""
        try:
            self.repeats(plain.arguments, run(), plain.outputs, "")
        except (CallProblem, Violation):
            return True
        return False

    def differ(self, actual: Array, other: Array, bound: float, claim: str) -> None:
        """Raise Violation unless two results differ by more than rounding; a dtype too coarse to tell passes."""
        if 100 * bound > float(np.abs(other).max()):
            return
        if not compare("", actual, other, 2 * bound).wrong:
            raise Violation(claim)


#: The rows of a table of learned positions: more than any property has tokens.
_POSITIONS: Final = 64


def draw_arguments(
    component: str, bench: Bench, sizes: Mapping[str, int], seed: int, /, **attributes: Attribute
) -> Arguments:
    """Draw arguments of the contract's shapes with the spec's generator; optional inputs are left out."""
    contract = bench.spec.contracts[component]
    params = contract.params_under(attributes, bench.adapter.options(component, bench.spec))
    sizes = {"positions": _POSITIONS, **sizes}
    drawn_inputs, drawn_params = (
        {
            name: _draw_array(name, group, seed, spec.shape.sizes(sizes, _lead_axes(sizes)))
            for name, spec in specs.items()
            if not spec.broadcast and spec.kind == "float" and not (spec.optional and group == "inputs")
        }
        for group, specs in (("inputs", contract.inputs), ("params", params))
    )
    return Arguments(drawn_inputs, drawn_params, attributes)


@lru_cache(maxsize=1 << 13)
def _draw_array(name: str, group: str, seed: int, shape: tuple[int, ...]) -> Array:
    # Cached, because every dtype and many properties draw the same small arrays.
    reach = 2 if group == "inputs" else 1
    return Dyadic(draw="dyadic", seed=seed, range=(-reach, reach), step="1/64").build(name, shape)


def _lead_axes(sizes: Mapping[str, int]) -> tuple[int, ...]:
    return (sizes["batch"],) if "batch" in sizes else ()


def with_all_digits(arguments: Arguments) -> Arguments:
    """Return the same call with a third of each number: short numbers add up without rounding, in any order."""

    def fill(arrays: Mapping[str, Array]) -> dict[str, Array]:
        return {name: array / 3 if array.dtype.kind == "f" else array for name, array in arrays.items()}

    return replace(arguments, inputs=fill(arguments.inputs), params=fill(arguments.params))


def with_inputs(arguments: Arguments, **changed: Array) -> Arguments:
    """Return the same call with some inputs replaced."""
    return replace(arguments, inputs={**arguments.inputs, **changed})


def with_params(arguments: Arguments, **changed: Array) -> Arguments:
    """Return the same call with some parameters replaced."""
    return replace(arguments, params={**arguments.params, **changed})

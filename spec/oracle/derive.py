"""Derives one case: golden values in balls, error scales in draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.laws import law_of
from goldformer.spec.model import ANY, Attribute, Case, Contract, Statistic, Wanted
from goldformer.spec.oracle import decoding_formulas, duals, formulas, layer_formulas
from goldformer.spec.oracle.draws import Draw, error_scale, margin
from goldformer.spec.oracle.matrices import Weight, is_large
from goldformer.spec.oracle.statistics import statistics
from goldformer.spec.tables import Convention

Outputs = dict[str, NDArray[Any]]

#: The formula of each component, by its name.
FORMULAS = {**vars(formulas), **vars(layer_formulas), **vars(decoding_formulas)}

#: What a formula that chooses gives beside its outputs: by how much the chosen exceeded the rejected.
GAPS: Final = "gaps"


@dataclass(frozen=True, slots=True)
class DerivedArray:
    """Golden decimals (or truth values) in row-major order, their shape, and the error scale.

    With `within`, the decimals are those of statistics.
    """

    shape: tuple[int, ...]
    values: tuple[str, ...]
    error_scale: float
    within: Mapping[Statistic, float] | None = None


@dataclass(frozen=True, slots=True)
class Derived:
    """What `goldformer derive` writes for one case; an option that refuses the call is None.

    `margin` is that of its decisions, the smallest over all options; None where nothing is chosen, or only ties.
    """

    peak: float
    widest: float
    options: Mapping[str, Mapping[str, DerivedArray] | None]
    margin: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Plain data, for the cache of derivations."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Derived:
        """The inverse of as_json."""
        options = {
            option: None
            if outputs is None
            else {
                n: DerivedArray(**{**a, "shape": tuple(a["shape"]), "values": tuple(a["values"])})
                for n, a in outputs.items()
            }
            for option, outputs in data["options"].items()
        }
        return cls(data["peak"], data["widest"], options, data["margin"])


def evaluate(
    component: str,
    number: formulas.Number,
    given: Callable[[float], Any],
    inputs: Mapping[str, NDArray[Any]],
    params: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, Attribute],
    conventions: Mapping[str, str],
    constant: Callable[[float], Any] | None = None,
) -> Outputs:
    """Run a component's formula on the elements that `given` and `number` make, attributes by `constant`."""
    make = np.frompyfunc(given, 1, 1)
    made = {n: make(a) if a.dtype.kind == "f" else a for n, a in inputs.items()}
    weights = {n: Weight(a, given) if is_large(a) else make(a) for n, a in params.items()}
    plain = {n: (constant or given)(value) if isinstance(value, float) else value for n, value in attributes.items()}
    return apply(component, number, made, weights, plain, conventions)


def apply(
    component: str,
    number: formulas.Number,
    inputs: Mapping[str, Any],
    params: Mapping[str, Any],
    attributes: Mapping[str, Any],
    conventions: Mapping[str, str],
) -> Outputs:
    """Run a component's formula on arrays that are made already."""
    # Components built of others hand their parameters on, by prefix; the others name each of theirs.
    arguments: Mapping[str, Any] = {"params": params} if any("." in name for name in params) else params
    outputs: Outputs = FORMULAS[component](number, **inputs, **arguments, **attributes, **conventions)
    return outputs


@dataclass(frozen=True, slots=True)
class Measured:
    """What draws tell of one call without a proof: the error scale of each output, the margin of its decisions."""

    scales: Mapping[str, float]
    margin: float


def measure(
    component: str,
    inputs: Mapping[str, NDArray[Any]],
    params: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, Attribute],
    conventions: Mapping[str, str],
) -> Measured:
    """Measure one call: what properties on drawn inputs need."""
    Draw.reset()
    drawn = evaluate(component, Draw.exact, Draw.given, inputs, params, attributes, conventions)
    gaps = drawn.pop(GAPS, np.empty(0, dtype=object))
    centre = {
        name: np.array([np.mean(d.samples) for d in array.ravel()])
        for name, array in drawn.items()
        if array.dtype.kind == "O"
    }
    return Measured({name: error_scale(drawn[name], values) for name, values in centre.items()}, margin(gaps))


def scales(
    component: str,
    inputs: Mapping[str, NDArray[Any]],
    params: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, Attribute],
    conventions: Mapping[str, str],
) -> Mapping[str, float]:
    """The error scale of each output of one call, without a proof."""
    return measure(component, inputs, params, attributes, conventions).scales


@dataclass(frozen=True, slots=True)
class _Method:
    """How a case is evaluated: its outputs, or the gradients of its arguments for its cotangent."""

    case: Case
    contract: Contract
    conventions: Mapping[str, str]

    def samples(self) -> list[int] | None:
        """The samples that a full-size case has probes in, to which its call is narrowed; None means all."""
        if not any(map(is_large, self.case.param_arrays.values())):
            return None
        wanted = [want for want in self.case.expect.values() if want.form != "shape"]
        if any(want.form != "probes" for want in wanted):
            raise ValueError(f"{self.case.id}: a case of this size can ask for probes and shapes alone")
        return sorted({place[0] for want in wanted for place in want.indices})

    def inputs(self) -> Mapping[str, NDArray[Any]]:
        """The inputs, of the samples that matter: samples do not mix (MODEL-6)."""
        samples = self.samples()
        if samples is None:
            return self.case.input_arrays
        batched = {name for name, spec in self.contract.inputs.items() if str(spec.shape.axes[0]) == "batch"}
        return {n: a[samples] if n in batched else a for n, a in self.case.input_arrays.items()}

    def places(self, want: Wanted) -> Any:
        """Where in the outputs the places that a case asks for are."""
        if want.form != "probes":
            return ...
        places = np.array(want.indices).T
        if (samples := self.samples()) is not None:
            places[0] = np.searchsorted(samples, places[0])
        return tuple(places)

    def choosing(self, among_equals: str) -> _Method:
        """The same, with the first or the last chosen among equals."""
        return replace(self, conventions={**self.conventions, "among_equals": among_equals})

    def run(
        self, number: formulas.Number, given: Callable[[float], Any], unit: Callable[[int, int], Any]
    ) -> Mapping[str, NDArray[Any]]:
        """Evaluate on one kind of elements."""
        case = self.case

        def formula(number: formulas.Number, element: Callable[[float], Any], constant: Any) -> Outputs:
            call = (self.inputs(), case.param_arrays, case.attributes, self.conventions)
            return evaluate(case.component, number, element, *call, constant)

        if case.cotangent_array is None:
            return formula(number, given, given)
        floats = {n: a for n, a in {**case.input_arrays, **case.param_arrays}.items() if a.dtype.kind == "f"}
        cotangent = np.frompyfunc(given, 1, 1)(case.cotangent_array)
        return duals.gradients(
            lambda dual, seeded: formula(dual, seeded, lambda v: duals.Dual(given(v))),
            floats, cotangent, self.contract.first_output, number, given, unit,
        )  # fmt: skip


def chosen(case: Case, contract: Contract, option: str) -> Mapping[str, str]:
    """The conventions that a case's formula is run under, with this option of the case's own."""
    # The formulas know the conventions of their own component; the rest of only_with concerns others.
    fixed = {name: option for name, option in case.only_with.items() if name in contract.conventions}
    return {**fixed, case.convention: option} if case.convention else fixed


def derive(case: Case, contract: Contract, conventions: Mapping[str, Convention], *, advice: bool = False) -> Derived:
    """The golden values of a case under every option of its convention; `advice` says that it binds nobody.

    Unproven where a value or a decision is not certain, and where a tie leaves open what the case asks for.
    """
    from goldformer.spec.oracle import balls  # only deriving needs python-flint

    options = tuple(conventions[case.convention].options) if case.convention else (ANY,)
    peak, widest, least = 0.0, 0.0, math.inf
    derived: dict[str, Mapping[str, DerivedArray] | None] = {}
    for option in options:
        if option == "refused":
            derived[option] = None
            continue
        how = _Method(case, contract, chosen(case, contract, option))
        with balls.precision(balls.PRECISION if how.samples() is None else balls.FULL_SIZE):
            proven = how.run(balls.exact, balls.given, duals.unit_balls(balls.exact))
        Draw.reset()
        drawn = how.run(Draw.exact, Draw.given, duals.unit_draw)
        peak = max(peak, Draw.peak)
        if GAPS in proven:
            least = min(least, _margin(how, proven, drawn, advice=advice))
        wanted = {name: want for name, want in case.expect.items() if want.form != "shape"}
        derived[option] = {name: _derived(how, name, proven[name], drawn[name]) for name in wanted}
        floats = [proven[name][how.places(want)] for name, want in wanted.items() if proven[name].dtype.kind == "O"]
        widest = max([widest, *map(balls.widest, floats)])
    return Derived(up(peak), widest, derived, down(least) if math.isfinite(least) else None)


def _derived(how: _Method, name: str, proven: NDArray[Any], drawn: NDArray[Any]) -> DerivedArray:
    """What a case asks of one output, with its error scale."""
    from goldformer.spec.oracle import balls

    want = how.case.expect[name]
    at = how.places(want)
    truth, samples = proven[at], drawn[at]
    if truth.dtype.kind in "bi":
        return DerivedArray(truth.shape, tuple(str(v).lower() for v in truth.ravel().tolist()), 0.0)
    values = balls.decimals(truth)
    scale = up(error_scale(samples, np.array([float(v) for v in values])))
    if want.form == "statistics":
        return _statistics(how.case, name, want.statistics, scale)
    return DerivedArray(truth.shape, tuple(values), scale)


def _margin(
    how: _Method, proven: Mapping[str, NDArray[Any]], drawn: Mapping[str, NDArray[Any]], *, advice: bool
) -> float:
    """The margin of the decisions of one call, ties left out; Unproven as for `derive`."""
    from goldformer.spec.oracle import balls

    case = how.case
    gaps = np.array([float(text) for text in balls.decimals(proven[GAPS])])
    if np.any(gaps < 0):
        raise balls.Unproven(f"{case.id}: a candidate was chosen over one that is better by {-gaps.min():.3g}")
    ids = [name for name in case.expect if proven[name].dtype.kind == "i"]
    if ties := int(np.count_nonzero(gaps == 0)):
        equals = f"{case.id}: {ties} of its {len(gaps)} decisions are between exactly equal candidates"
        if ids and not advice:
            raise balls.Unproven(f"{equals}: ask for no {' and '.join(ids)}, or cite clauses that are SHOULD alone")
        other = how.choosing("last").run(balls.exact, balls.given, duals.unit_balls(balls.exact))
        if any(balls.decimals(other[n]) != balls.decimals(proven[n]) for n in (GAPS, *case.expect) if n not in ids):
            raise balls.Unproven(f"{equals}, and what is expected depends on which of them is chosen")
    if len(drawn[GAPS]) != len(gaps) or (not ties and any(np.any(proven[name] != drawn[name]) for name in ids)):
        raise balls.Unproven(f"{case.id}: the best candidates lie so close together that rounding chooses between them")
    return margin(drawn[GAPS][gaps != 0], gaps[gaps != 0])


def _statistics(case: Case, output: str, names: tuple[Statistic, ...], scale: float) -> DerivedArray:
    from goldformer.spec.oracle import balls  # only deriving needs python-flint

    law = law_of(case, output)
    assert law is not None, "only a random output is asked for its statistics"
    found = statistics(law, names)
    values = tuple(balls.decimal(interval.value) for interval in found.values())
    within = {name: up(interval.within) for name, interval in found.items()}
    return DerivedArray((len(names),), values, scale, within)


def up(value: float) -> float:
    """Rounded up to three significant digits, so that a stored scale is short and no smaller than measured."""
    if value == 0.0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return float(f"{math.ceil(value / unit) * unit:.3g}")


def down(value: float) -> float:
    """Rounded down to three significant digits, so that a stored margin is no larger than measured."""
    return -up(-value)

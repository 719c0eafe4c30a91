"""Derivation of one case: golden values in balls, error scales in draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from goldformer.spec.formulas import COMPONENTS, name_outputs
from goldformer.spec.formulas.arrays import computing
from goldformer.spec.formulas.layers import decoder, encoder
from goldformer.spec.formulas.options import find_steps
from goldformer.spec.formulas.steps import Replacements, Step, instead, replacing
from goldformer.spec.laws import law_of
from goldformer.spec.model import REFUSED, Attribute, Case, Contract, Statistic
from goldformer.spec.oracle import duals, searches
from goldformer.spec.oracle.draws import Draw, error_scale, margin
from goldformer.spec.oracle.exact import WITHOUT_CHANCE, Exact, Number, list_unseen
from goldformer.spec.oracle.matrices import Weight, is_large
from goldformer.spec.oracle.narrow import Narrowing
from goldformer.spec.oracle.statistics import statistics

Outputs = dict[str, NDArray[Any]]
#: Inputs, parameters, attributes and conventions of a call.
Call = tuple[Mapping[str, NDArray[Any]], Mapping[str, NDArray[Any]], Mapping[str, Attribute], Mapping[str, Any]]

#: The convention that changes nothing but the last step of a model, and the outputs before that step.
_LAST: Final = "output_layer"
_DECODED: Final = frozenset({"memory", "decoded"})

#: The components that choose and do not search: what follows from a choice between equals is not derived.
_CHOOSING: Final = ("expert_feed_forward", "expert_router", "token_filter")

#: The formula of each component, by its name; what decodes also says how narrow its decisions were.
FORMULAS: Final[Mapping[str, Callable[..., Any]]] = {
    **COMPONENTS,
    "greedy_decode": searches.greedy_decode,
    "beam_search": searches.beam_search,
    **{name: searches.record_gaps(COMPONENTS[name]) for name in (*_CHOOSING, "generate")},
    "teacher_forced": searches.teacher_forced,
}
#: What only the search of a formula that decodes reads.
_OF_SEARCH: Final = frozenset({"among_equals", "beam_finish", "length_penalty"})

#: The extra output of formulas that choose: by how much the chosen exceeded the rejected.
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
    """The derivation of one case, as `goldformer derive` writes it; an option that refuses the call is None.

    `margin` is that of its decisions, the smallest over all options; None where nothing is chosen, or only ties.
    """

    peak: float
    widest: float
    options: Mapping[str, Mapping[str, DerivedArray] | None]
    margin: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return plain data, for the cache of derivations."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Derived:
        """Read what as_json wrote."""
        return TypeAdapter(cls).validate_python(data)


def evaluate(
    component: str,
    number: Number,
    read: Callable[[float], Any],
    inputs: Mapping[str, NDArray[Any]],
    params: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, Attribute],
    conventions: Mapping[str, Any],
    constant: Callable[[float], Any] | None = None,
) -> Outputs:
    """Run a component's formula on the elements that `read` and `number` make, attributes by `constant`."""
    make = np.frompyfunc(read, 1, 1)
    made = {n: make(a) if a.dtype.kind == "f" else a for n, a in inputs.items()}
    weights = {n: Weight(a, read) if is_large(a) else make(a) for n, a in params.items()}
    plain = {n: (constant or read)(value) if isinstance(value, float) else value for n, value in attributes.items()}
    return apply(component, number, made, weights, plain, conventions)


def apply(
    component: str,
    number: Number,
    inputs: Mapping[str, Any],
    params: Mapping[str, Any],
    attributes: Mapping[str, Any],
    conventions: Mapping[str, Any],
) -> Outputs:
    """Run a component's formula on arrays that are made already.

    `conventions` may also hold results of a model that need not be computed again.
    """
    of_search = {name: conventions[name] for name in _OF_SEARCH & conventions.keys() if "bos_id" in attributes}
    arguments = {**inputs, **({"params": params} if params else {}), **attributes, **of_search}
    with in_numbers(component, number, conventions):
        return name_outputs(component, FORMULAS[component](**arguments))


@contextmanager
def in_numbers(component: str, number: Number, conventions: Mapping[str, Any]) -> Iterator[None]:
    """Run the formula of a component inside the context on one kind of numbers, under options, with known results."""
    options = [find_steps(*item) for item in conventions.items() if item[0] not in _DECODED]
    with computing(Exact(number)), replacing(WITHOUT_CHANCE, list_unseen(component), *options, _give(conventions)):
        yield


def _give(known: Mapping[str, Any]) -> Replacements:
    """Return the replacements of the stacks of a model whose results are known."""
    stacks: dict[str, Step] = {"memory": encoder, "decoded": decoder}
    return {
        stack: instead(lambda *_, _output=known[name], **__: {"output": _output})
        for name, stack in stacks.items()
        if name in known
    }


def measure_gradient(
    component: str, call: Call, cotangent: NDArray[Any], output: str
) -> dict[str, tuple[NDArray[np.float64], float]]:
    """Return the gradient of Σ cotangent·output by each argument of one call, and its error scale, without a proof."""
    Draw.reset()
    drawn = _differentiate(component, call, cotangent, output, Draw.exact, Draw.read, Draw.read, duals.unit_draw)
    centre = {name: _average(array) for name, array in drawn.items()}
    return {name: (values, error_scale(drawn[name], values)) for name, values in centre.items()}


def _average(drawn: NDArray[Any]) -> NDArray[np.float64]:
    """Return the means over the samples of draws."""
    return np.array([d.samples for d in drawn.ravel()]).mean(-1).reshape(drawn.shape) if drawn.size else np.empty(0)


def _differentiate(
    component: str,
    call: Call,
    cotangent: NDArray[Any],
    output: str,
    number: Number,
    read: Callable[[float], Any],
    constant: Callable[[float], Any],
    unit: Callable[[range, int], Any],
) -> Mapping[str, NDArray[Any]]:
    """Return the gradient of Σ cotangent·output by each argument of a call, on one kind of elements."""
    inputs, params, _, _ = call
    floats = {n: a for n, a in {**inputs, **params}.items() if a.dtype.kind == "f"}

    def formula(dual: Number, seed: Callable[[float], Any]) -> Outputs:
        return evaluate(component, dual, seed, *call, lambda value: duals.Dual(constant(value)))

    return duals.gradients(formula, floats, np.frompyfunc(read, 1, 1)(cotangent), output, number, read, unit)


@dataclass(frozen=True)
class Method:
    """The evaluation of a case: its outputs, or the gradients of its arguments for its cotangent."""

    case: Case
    contract: Contract
    conventions: Mapping[str, str]
    #: Outputs that the formula need not compute again.
    known: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    #: True if the arrays are those of a call, and not decimals that each dtype rounds.
    held: bool = False

    @cached_property
    def is_full_size(self) -> bool:
        """True if a parameter is multiplied in whole."""
        return any(map(is_large, self.case.param_arrays.values()))

    @cached_property
    def _narrowing(self) -> Narrowing | None:
        """The part of the call that is evaluated: of large calls only what the case asks for. None means all."""
        if self.is_full_size:
            narrowing = Narrowing.of(self.case, self.contract, {"batch"})  # MODEL-6
            if narrowing is None:
                raise ValueError(f"{self.case.id}: a case of this size can ask only for probes and shapes")
            return narrowing
        free = self.contract.free if self.case.is_computed else ()
        return Narrowing.of(self.case, self.contract, free) if free else None

    def inputs(self) -> Mapping[str, NDArray[Any]]:
        """Return the inputs, cut down to what matters."""
        arrays, how = self.case.input_arrays, self._narrowing
        return arrays if how is None else {n: how.cut(a, self.contract.inputs[n]) for n, a in arrays.items()}

    def places(self, name: str) -> Any:
        """Return the index of the places that a case asks for in an output."""
        want = self.case.expect[name]
        if not want.indices:
            return ...
        if self._narrowing is None:
            return tuple(np.array(want.indices).T)
        return self._narrowing.find_places(want, self.contract.outputs[name])

    def choose_among_equals(self, among_equals: str) -> Method:
        """Return the same method, with the first or the last chosen among equals."""
        return replace(self, conventions={**self.conventions, "among_equals": among_equals})

    def run_balls(self) -> Mapping[str, NDArray[Any]]:
        """Evaluate on balls."""
        from goldformer.spec.oracle import balls  # only deriving needs python-flint

        read = balls.exact if self.held or self.case.has_all_bits else balls.read
        return self._run(balls.exact, read, balls.read, duals.unit_balls(balls.exact))

    def run_draws(self) -> Mapping[str, NDArray[Any]]:
        """Evaluate on draws."""
        return self._run(Draw.exact, Draw.hold if self.held else Draw.read, Draw.read, duals.unit_draw)

    def _run(
        self,
        number: Number,
        read: Callable[[float], Any],
        constant: Callable[[float], Any],
        unit: Callable[[range, int], Any],
    ) -> Mapping[str, NDArray[Any]]:
        """Evaluate on one kind of elements: arrays by `read`, attributes by `constant`."""
        case = self.case
        call = (self.inputs(), case.param_arrays, case.attributes, {**self.conventions, **self.known})
        if case.cotangent_array is None:
            return evaluate(case.component, number, read, *call, constant)
        output = self.contract.first_output
        return _differentiate(case.component, call, case.cotangent_array, output, number, read, constant, unit)


def choose_options(case: Case, contract: Contract, options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the conventions for the formula of a case, with these options of the case's own conventions."""
    # The formulas know the conventions of their own component; the rest of only_with concerns others.
    fixed = {name: option for name, option in case.only_with.items() if name in contract.conventions}
    return {**fixed, **options}


def derive(
    case: Case,
    contract: Contract,
    *,
    advice: bool = False,
    held: bool = False,
    only: Mapping[str, str] | None = None,
) -> Derived:
    """Derive the golden values of a case under every combination of options, or `only` one of them.

    With `advice`, all clauses of the case are SHOULD.

    With `held`, the arrays are the exact numbers of a call: no decimal is meant by them, and no dtype rounds them.
    Unproven where a value or a decision is not certain, where a tie leaves open what the case asks for, and where a
    number overflows.
    """
    from goldformer.spec.oracle import balls  # only deriving needs python-flint

    peak, widest, least = 0.0, 0.0, math.inf
    shared: dict[tuple[str, ...], tuple[Outputs, Outputs]] = {}
    derived: dict[str, Mapping[str, DerivedArray] | None] = {}
    for options in case.combine_options() if only is None else [only]:
        key = case.key(options)
        if REFUSED in options.values():
            derived[key] = None
            continue
        variant = case.under(options)
        how = Method(variant, contract, choose_options(variant, contract, options), held=held)
        before = tuple(option for name, option in options.items() if name != _LAST)
        known_proven, known_drawn = shared.get(before, ({}, {}))
        with balls.precision(balls.FULL_SIZE if how.is_full_size else balls.PRECISION):
            proven = replace(how, known=known_proven).run_balls()
        if not known_drawn:
            # What is known was perturbed already; new operations get further perturbations.
            Draw.reset()
        with np.errstate(over="ignore", invalid="ignore"):
            drawn = replace(how, known=known_drawn).run_draws()
        if not math.isfinite(Draw.peak):
            raise balls.Unproven(f"{case.id}: intermediate numbers overflow float64: write smaller ones")
        if _LAST in options and proven.keys() >= _DECODED:
            shared[before] = _select_decoded(proven), _select_decoded(drawn)
        peak = max(peak, Draw.peak)
        if GAPS in proven:
            least = min(least, _margin(how, proven, drawn, advice=advice))
        wanted = {name: want for name, want in variant.expect.items() if want.form != "shape"}
        derived[key] = {name: _derive_output(how, name, proven[name], drawn[name]) for name in wanted}
        floats = [proven[name][how.places(name)] for name in wanted if proven[name].dtype.kind == "O"]
        widest = max([widest, *map(balls.widest, floats)])
    return Derived(up(peak), widest, derived, down(least) if math.isfinite(least) else None)


def _select_decoded(outputs: Mapping[str, NDArray[Any]]) -> Outputs:
    return {name: outputs[name] for name in _DECODED}


def derive_combination(
    case: Case, contract: Contract, options: Mapping[str, str], scales: Mapping[str, float]
) -> Mapping[str, DerivedArray]:
    """Derive the golden values of a case under one combination of options, whose error scales are known.

    Its decisions were proven before.
    """
    how = Method(case, contract, choose_options(case, contract, options))
    proven = how.run_balls()
    wanted = [name for name, want in case.expect.items() if want.form != "shape"]
    return {name: replace(_write_proven(proven[name][how.places(name)]), error_scale=scales[name]) for name in wanted}


def _derive_output(how: Method, name: str, proven: NDArray[Any], drawn: NDArray[Any]) -> DerivedArray:
    """Return the values of one output that a case asks for, with its error scale, or its statistics."""
    want, at = how.case.expect[name], how.places(name)
    derived = _write_proven(proven[at])
    if proven.dtype.kind != "O":
        return derived
    scale = up(error_scale(drawn[at], np.array([float(v) for v in derived.values])))
    if want.form == "statistics":
        return _statistics(how.case, name, want.statistics, scale)
    return replace(derived, error_scale=scale)


def _write_proven(truth: NDArray[Any]) -> DerivedArray:
    """Return proven values as they are stored, without an error scale."""
    from goldformer.spec.oracle import balls

    if truth.dtype.kind in "bi":
        return write_exact(truth)
    return DerivedArray(truth.shape, tuple(balls.decimals(truth)), 0.0)


def write_exact(values: NDArray[Any]) -> DerivedArray:
    """Return truth values or integers as they are stored."""
    return DerivedArray(values.shape, tuple(str(v).lower() for v in values.ravel().tolist()), 0.0)


def _margin(
    how: Method, proven: Mapping[str, NDArray[Any]], drawn: Mapping[str, NDArray[Any]], *, advice: bool
) -> float:
    """Return the margin of the decisions of one call, without ties; Unproven as for `derive`."""
    from goldformer.spec.oracle import balls

    case = how.case
    gaps = np.array([float(text) for text in balls.decimals(proven[GAPS])])
    if np.any(gaps < 0):
        raise balls.Unproven(f"{case.id}: a candidate was chosen over one that is better by {-gaps.min():.3g}")
    ids = [name for name in case.expect if proven[name].dtype.kind == "i"]
    if ties := int(np.count_nonzero(gaps == 0)):
        equals = f"{case.id}: {ties} of its {len(gaps)} decisions are between exactly equal candidates"
        if case.component in _CHOOSING:
            raise balls.Unproven(f"{equals}: choose other inputs")
        if ids and not advice:
            raise balls.Unproven(f"{equals}: ask for no {' and '.join(ids)}, or cite only clauses that are SHOULD")
        other = how.choose_among_equals("last").run_balls()
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
    """Round up to three significant digits, so that a stored scale is short and no smaller than measured."""
    if value == 0.0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return float(f"{math.ceil(value / unit) * unit:.3g}")


def down(value: float) -> float:
    """Round down to three significant digits, so that a stored margin is no larger than measured."""
    return -up(-value)

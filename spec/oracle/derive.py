"""Derives one case: golden values in balls, error scales in draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.model import ANY, Case, Contract, Convention
from goldformer.spec.oracle import formulas
from goldformer.spec.oracle.draws import Draw, error_scale

Outputs = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class DerivedArray:
    """Golden decimals (or truth values) in row-major order, their shape, and the error scale."""

    shape: tuple[int, ...]
    values: tuple[str, ...]
    error_scale: float


@dataclass(frozen=True, slots=True)
class Derived:
    """What `goldformer derive` writes for one case; an option that refuses the call is None."""

    peak: float
    widest: float
    options: Mapping[str, Mapping[str, DerivedArray] | None]

    def as_json(self) -> dict[str, Any]:
        """Plain data, for the cache of derivations."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Derived:
        """The inverse of as_json."""
        options = {
            option: None
            if outputs is None
            else {n: DerivedArray(tuple(a["shape"]), tuple(a["values"]), a["error_scale"]) for n, a in outputs.items()}
            for option, outputs in data["options"].items()
        }
        return cls(data["peak"], data["widest"], options)


def evaluate(
    component: str,
    number: formulas.Number,
    given: Callable[[float], Any],
    inputs: Mapping[str, NDArray[Any]],
    params: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, int | bool],
    conventions: Mapping[str, str],
) -> Outputs:
    """Run a component's formula on the elements that `given` and `number` make."""
    make = np.frompyfunc(given, 1, 1)
    arguments = {
        name: make(array) if array.dtype.kind == "f" else array for name, array in {**inputs, **params}.items()
    }
    formula = getattr(formulas, component)
    outputs: Outputs = formula(number, **arguments, **attributes, **conventions)
    return outputs


def scales(
    component: str,
    inputs: Mapping[str, NDArray[Any]],
    params: Mapping[str, NDArray[Any]],
    attributes: Mapping[str, int | bool],
    conventions: Mapping[str, str],
) -> dict[str, float]:
    """The error scale of each output of one call, without a proof: what properties on drawn inputs need."""
    Draw.reset()
    drawn = evaluate(component, Draw.exact, Draw.given, inputs, params, attributes, conventions)
    centre = {
        name: np.array([np.mean(d.samples) for d in array.ravel()])
        for name, array in drawn.items()
        if array.dtype.kind == "O"
    }
    return {name: error_scale(drawn[name], values) for name, values in centre.items()}


def derive(case: Case, contract: Contract, conventions: Mapping[str, Convention]) -> Derived:
    """The golden values of a case under every option of its convention."""
    from goldformer.spec.oracle import balls  # only deriving needs python-flint

    options = tuple(conventions[case.convention].options) if case.convention else (ANY,)
    # The formulas know the conventions of their own component; the rest of only_with concerns others.
    fixed = {name: option for name, option in case.only_with.items() if name in contract.conventions}
    peak, widest = 0.0, 0.0
    derived: dict[str, Mapping[str, DerivedArray] | None] = {}
    for option in options:
        chosen = {**fixed, case.convention: option} if case.convention else fixed
        arguments = (case.input_arrays, case.param_arrays, case.attributes, chosen)
        if option == "refused":
            derived[option] = None
            continue
        proven = evaluate(case.component, balls.exact, balls.given, *arguments)
        Draw.reset()
        drawn = evaluate(case.component, Draw.exact, Draw.given, *arguments)
        peak = max(peak, Draw.peak)
        outputs = {}
        for name, want in case.expect.items():
            if want.form == "shape":
                continue
            at = tuple(np.array(want.indices).T) if want.form == "probes" else ...
            truth, samples = np.atleast_1d(proven[name][at]), np.atleast_1d(drawn[name][at])
            if truth.dtype.kind == "b":
                outputs[name] = DerivedArray(truth.shape, tuple(str(bool(v)).lower() for v in truth.ravel()), 0.0)
                continue
            widest = max(widest, balls.widest(truth))
            values = balls.decimals(truth)
            golden = np.array([float(v) for v in values])
            outputs[name] = DerivedArray(truth.shape, tuple(values), up(error_scale(samples, golden)))
        derived[option] = outputs
    return Derived(up(peak), widest, derived)


def up(value: float) -> float:
    """Rounded up to three significant digits, so that a stored scale is short and no smaller than measured."""
    if value == 0.0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    return float(f"{math.ceil(value / unit) * unit:.3g}")

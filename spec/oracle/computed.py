"""Derivation of one case, and of those whose values are computed when they run.

Of these only some places are proven, in balls on as little of the call as they take. The error scale and the largest
number on the way are those of the call in float32, and the computed values must agree with the proven ones.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from goldformer.spec.model import Case, Contract
from goldformer.spec.oracle.derive import (
    GAPS,
    Derived,
    DerivedArray,
    Method,
    choose_options,
    derive,
    down,
    up,
    write_exact,
)
from goldformer.spec.oracle.rounding import ELEMENT, Rounding
from goldformer.spec.oracle.truth import Call, Truth, find_margin

#: The dtype whose tolerance the error of a computed value is measured by, and the largest share of it.
_DTYPE: Final = "float32"
_SHARE: Final = 0.01


def derive_case(case: Case, contract: Contract, *, advice: bool = False, held: bool = False) -> Derived:
    """Derive the golden values of a case that are stored; the options and Unproven are those of `derive`."""
    return _derive_computed(case, contract) if case.is_computed else derive(case, contract, advice=advice, held=held)


def _derive_computed(case: Case, contract: Contract) -> Derived:
    """Prove some places of the outputs that are computed when the case runs, under the documents' own options."""
    from goldformer.spec.oracle import balls  # only deriving needs python-flint

    (options,) = case.combine_stored()
    variant = case.under(options)
    how = Method(variant, contract, choose_options(variant, contract, options))
    call = Call(case.component, variant.input_arrays, variant.param_arrays, case.attributes, how.conventions)
    proven = how.run_balls()
    margin = _find_margin(case, proven[GAPS], call) if GAPS in proven else None
    arrays = {
        name: _derive_output(how, name, proven[name], call) for name, w in variant.expect.items() if w.form != "shape"
    }
    floats = [proven[name][how.places(name)] for name in arrays if proven[name].dtype.kind == "O"]
    widest = max(map(balls.widest, floats), default=0.0)
    return Derived(up(call.evaluate(Rounding.of(_DTYPE)).peak), widest, {case.key(options): arrays}, margin)


def _find_margin(case: Case, proven: NDArray[Any], call: Call) -> float:
    """Return the unit roundoff at which rounding may turn a decision; Unproven if one is between equals, or turned."""
    from goldformer.spec.oracle import balls

    gaps = np.array([float(text) for text in balls.decimals(proven)])
    found = call.evaluate(Rounding.of(_DTYPE)).outputs[GAPS]
    if np.any(gaps <= 0) or found.variance is None or len(found.values) != len(gaps):
        raise balls.Unproven(f"{case.id}: decisions lie so close together that they must be stored: ask for all of it")
    return down(find_margin(Truth(gaps, found.variance), _DTYPE))


def _derive_output(how: Method, name: str, proven: NDArray[Any], call: Call) -> DerivedArray:
    """Return the proven values of one output; Unproven if the computed ones are too far from them."""
    from goldformer.spec.oracle import balls

    want, found = how.case.expect[name], call.evaluate(Rounding.of(_DTYPE)).outputs[name]
    at = tuple(np.array(want.indices).T) if want.indices else ...
    truth, computed = proven[how.places(name)], found.values[at]
    if truth.dtype.kind in "bi":
        if not np.array_equal(truth, computed):
            raise balls.Unproven(f"{how.case.id}: computed values of {name} are not the proven ones")
        return write_exact(truth)
    values = balls.decimals(truth)
    error = np.abs(computed.ravel() - np.array([float(v) for v in values]))
    limit = 0.0 if found.variance is None else _SHARE * ELEMENT * np.sqrt(found.variance[at]).ravel()
    if np.any(error > limit):
        raise balls.Unproven(
            f"{how.case.id}: a computed value of {name} is {np.max(error - limit):.3g} too far from the proven one"
        )
    return DerivedArray(truth.shape, tuple(values), up(call.find_scale(name, _DTYPE)))

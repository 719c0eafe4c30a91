"""Derive the golden values of cases that are no part of the spec, where they are judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from goldformer.conformance.judging.expected import compute_outputs
from goldformer.spec import Case, Spec
from goldformer.spec.model import Golden, GoldenArray
from goldformer.spec.oracle.rounding import Rounding
from goldformer.spec.oracle.truth import make_call

#: The most numbers that the arguments of a case may have whose golden values are derived.
MOST_DERIVED: Final = 1 << 20


class CannotDerive(Exception):
    """No golden values can be derived here; the message says why, and what to do instead."""


def derive_values(case: Case, spec: Spec, *, held: bool = False) -> Case:
    """Return a case with golden values; CannotDerive if nothing here can derive them.

    With `held`, the arrays are the exact numbers of a call, as for `spec.oracle.derive.derive`.
    """
    count = sum(math.prod(recipe.shape) for recipe in (*case.inputs.values(), *case.params.values()))
    if count > MOST_DERIVED:
        what = f"{case.id} has no golden values, and {count} numbers, more than the {MOST_DERIVED} that are derived"
        raise CannotDerive(f"{what}: write smaller sizes, or expect only shapes")
    from goldformer.spec.oracle.balls import Unproven  # only deriving needs python-flint
    from goldformer.spec.oracle.run import derive_golden

    try:
        return derive_golden(case, spec, held=held)
    except Unproven as error:
        raise CannotDerive(str(error)) from error


def evaluate_values(case: Case, spec: Spec, dtype: str) -> Case:
    """Return a case of a call's own arrays with values computed in float64, without a proof, at any size.

    Not for searches: their decisions need a proof.
    """
    contract = spec.contracts[case.component]
    options: dict[str, Mapping[str, GoldenArray]] = {}
    peak = 0.0
    for chosen in case.combine_options():
        call = make_call(case, {**case.only_with, **chosen}, contract, held=True)
        peak = max(peak, call.evaluate(Rounding.of(dtype)).peak)
        options[case.key(chosen)] = compute_outputs(case, call, case.expect, dtype)
    return replace(case, golden=Golden("", peak, options))

"""Derive the golden values of cases that are no part of the spec, where they are judged."""

from __future__ import annotations

import math
from typing import Final

from goldformer.spec import Case, Spec

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

"""The options of families of models, and the golden values that are stored for them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from goldformer.spec.errors import Problem
from goldformer.spec.load import FEWEST_CASES, Spec
from goldformer.spec.model import Case
from goldformer.spec.tables import Family

Options = dict[str, str]


def list_variants(family: Family, spec: Spec) -> list[Options]:
    """Return the options of all conventions that usual code of a family has; the first are its own."""
    defaults = {name: convention.default for name, convention in spec.conventions.items()}
    return [defaults | dict(zip(family.options, chosen, strict=True)) for chosen in product(*family.options.values())]


def list_stored_options(case: Case, spec: Spec) -> list[Options]:
    """Return the combinations of options for which golden values of a case are stored.

    They show every pair of options, and are those of every family that the case applies to. Of a case whose values are
    computed it is the documents' own.
    """
    stored = case.combine_stored()
    if case.is_computed:
        return stored
    families = [family for family in spec.families.values() if case.component in family.components]
    named = [options for family in families for options in list_variants(family, spec) if case.admits(options)]
    keys = {case.key(options) for options in (*stored, *named)}
    return [options for options in case.combine_options() if case.key(options) in keys]


def count_cases(component: str, options: Options, spec: Spec) -> int:
    """Return the number of cases of a component that have stored golden values for these options."""
    return sum(
        case.admits(options) and case.key(options) in case.golden.options
        for case in spec.cases_of(component)
        if case.golden is not None
    )


def lint_families(spec: Spec) -> Iterator[Problem]:
    """Yield the families with too few cases in a component that they have, and the cases without their values."""
    for family in spec.families.values():
        for component in family.components:
            for options in list_variants(family, spec):
                if (count := count_cases(component, options, spec)) < FEWEST_CASES:
                    chosen = ", ".join(f"{name}: {options[name]}" for name in family.options)
                    found = f"has {count} cases of {component} with values ({chosen})"
                    yield family.place.problem(family.id, f"{found}: add cases until it has {FEWEST_CASES}")
    for case in spec.cases.values():
        if case.golden is not None:
            missing = {*map(case.key, list_stored_options(case, spec))} - {*case.golden.options}
            if missing:
                message = f"has no golden values for {min(missing)}, a family's: run goldformer derive --case {case.id}"
                yield case.place.problem(case.id, message)

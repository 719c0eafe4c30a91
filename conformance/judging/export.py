"""Cases as plain calls: every argument as numbers, every expectation with its tolerance in each dtype.

A reader in another language needs nothing else: recipes are drawn, the changes of refusals are made, and the options
under which a case holds are written out. spec/making/exported.py has the schema.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from goldformer.adapters import DTYPES
from goldformer.conformance.judging.applicability import explain_lost_eps, explain_out_of_reach
from goldformer.conformance.judging.tolerance import tolerance
from goldformer.spec.draw import Argument, Dyadic, Kind
from goldformer.spec.families import list_stored_options, list_variants
from goldformer.spec.load import Spec
from goldformer.spec.model import NOT_FINITE, Array, ArraySpec, Case, Contract, GoldenArray

#: The words for numbers that JSON does not have; NaN equals no key.
_WORDS: Final = {value: word for word, value in NOT_FINITE.items() if not math.isnan(value)}

#: The kinds of arrays by the kinds of NumPy's dtypes.
_KINDS: Final[Mapping[str, Kind]] = {"f": "float", "b": "bool", "i": "ids"}

Json = dict[str, Any]


def export_component(component: str, spec: Spec) -> Json:
    """Return all cases of a component as plain calls."""
    contract, cases = spec.contracts[component], spec.cases_of(component)
    return {
        **spec.edition_of(component).as_json(),
        "component": component,
        "number_of_cases": len(cases),
        "first_output": contract.first_output,
        "families": {
            family.id: list_variants(family, spec)[0]
            for family in spec.families.values()
            if component in family.components
        },
        "conventions": {name: _order_options(name, spec) for name in contract.conventions},
        "cases": [_export_case(case, contract, spec) for case in cases],
    }


def _order_options(name: str, spec: Spec) -> list[str]:
    """Return the options of a convention, the default first."""
    convention = spec.conventions[name]
    return sorted(convention.options, key=lambda option: option != convention.default)


def _export_case(case: Case, contract: Contract, spec: Spec) -> Json:
    plain: Json = {"id": case.id, "title": case.title, "clauses": list(case.clauses)}
    if spec.is_advice(case):
        plain["advice"] = True
    plain["attributes"] = {n: list(a) if isinstance(a, tuple) else a for n, a in case.attributes.items()}
    # The numbers of a full-size model fill a gigabyte.
    write = _write_recipe if case.full_size else _write_argument
    plain["inputs"] = {name: write(name, argument) for name, argument in case.inputs.items()}
    plain["params"] = {name: write(name, argument) for name, argument in case.params.items()}
    if case.cotangent is not None:
        plain["cotangent"] = _write_argument("cotangent", case.cotangent)
    plain["expect"] = list(_list_expectations(case, contract, spec))
    return plain


# ── arguments ──


def _write_argument(name: str, argument: Argument) -> Json:
    array = argument.build(name)
    return {"kind": _KINDS[array.dtype.kind], "shape": list(array.shape), "values": _write_numbers(array)}


def _write_recipe(name: str, argument: Argument) -> Json:
    """Return an argument of a full-size model: the recipe where its numbers are drawn from a grid."""
    recipe = argument.made_of
    if not isinstance(recipe, Dyadic):
        return _write_argument(name, argument)
    lo, hi, step = map(float, recipe.grid)
    grid = {"range": [lo, hi], "step": step}
    drawn = {"draw": "dyadic", "seed": recipe.seed, "name": recipe.like or name, **grid}
    return {"kind": "float", "shape": list(argument.shape), "recipe": drawn}


def _write_numbers(array: Array) -> list[Any]:
    numbers: list[Any] = array.ravel().tolist()
    if array.dtype.kind != "f":
        return numbers
    return [number if math.isfinite(number) else _WORDS.get(number, "NaN") for number in numbers]


# ── expectations ──


def _list_expectations(case: Case, contract: Contract, spec: Spec) -> Iterator[Json]:
    """Yield what a case expects, for each combination of options whose values are stored."""
    shared = _list_admitted(case, contract, spec)
    base = _list_defaults(spec) | {name: admitted[0] for name, admitted in shared.items()}
    for chosen in list_stored_options(case, spec):
        called, own = case.under(chosen), {name: _list_equal(case, base | chosen, name) for name in chosen}
        # Under some options the parameter at fault does not exist.
        if not all(own.values()):
            continue
        entry: Json = {"options": shared | own}
        if without := [name for name in case.params if name not in called.params]:
            entry["without"] = without
        if case.error is not None:
            yield {**entry, "refuses": case.error}
        elif (golden := case.expects(chosen)) is None:
            yield {**entry, "may_refuse": True}
        else:
            dtypes = [dtype for dtype in DTYPES if _is_judged(called, contract, base | chosen, dtype)]
            arrays = contract.results_of(called)
            outputs = {
                name: _write_output(called, arrays[name], golden.get(name), contract, dtypes) for name in called.expect
            }
            yield {**entry, "outputs": outputs}


def _list_defaults(spec: Spec) -> dict[str, str]:
    return {name: convention.default for name, convention in spec.conventions.items()}


def _is_judged(case: Case, contract: Contract, options: Mapping[str, str], dtype: str) -> bool:
    """Return True if a dtype holds the numbers of a case and separates its candidates."""
    return not (
        explain_out_of_reach(case, dtype, contract.computed_in_at_least) or explain_lost_eps(case, options, dtype)
    )


def _list_equal(case: Case, options: Mapping[str, str], name: str) -> list[str]:
    """Return the options of a convention that make the same call as the chosen one, if the case holds under them."""
    key = case.key(options)
    equal = [option for option in case.conventions[name] if case.key({**options, name: option}) == key]
    return [option for option in equal if case.admits({**options, name: option})]


def _list_admitted(case: Case, contract: Contract, spec: Spec) -> dict[str, list[str]]:
    """Return the options under which a case holds, for each convention that it does not have values for.

    Each convention decides by itself. Where later tokens are always hidden, another mask than that of the case would
    be another call.
    """
    deciding = contract.conventions_of_params | contract.conventions_of_masks | case.only_with.keys()
    start = _list_defaults(spec) | dict(case.only_with)
    for array in case.dependent.values():
        if array.name in case.params:
            start |= {n: allowed[0] for n, allowed in array.only_with.items() if start[n] not in allowed}
    return {
        name: [option for option in spec.conventions[name].options if case.admits({**start, name: option})]
        for name in sorted(deciding - case.conventions.keys())
    }


def _write_output(
    case: Case, array: ArraySpec, golden: GoldenArray | None, contract: Contract, dtypes: Sequence[str]
) -> Json:
    """Return what is compared of an output: its shape, and values or statistics with their tolerance."""
    shape = array.shape.sizes(case.sizes, case.lead)
    plain: Json = {"kind": array.kind, "shape": list(shape)}
    if golden is None:
        return plain
    if golden.within is not None:
        values = zip(golden.within.items(), golden.values.tolist(), strict=True)
        plain["statistics"] = {name: {"value": value, "within": within} for (name, within), value in values}
    else:
        if golden.indices is not None:
            plain["at"] = [list(place) for place in golden.indices]
        plain["values"] = _write_numbers(golden.values)
    at_least, largest = contract.computed_in_at_least, 0.0 if golden.within is not None else golden.magnitude
    plain["tolerance"] = {dtype: tolerance(dtype, golden.error_scale, largest, at_least) for dtype in dtypes}
    return plain

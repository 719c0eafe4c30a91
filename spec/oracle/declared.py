"""Cases under what an implementation declares, where few stored ones fit that combination of options.

The stored cases of ordinary form draw all of their numbers, so each can be called under any options.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from goldformer.spec.casefile import read_cases
from goldformer.spec.errors import SpecError
from goldformer.spec.load import Spec
from goldformer.spec.model import Case
from goldformer.spec.yamlfile import YamlFile

#: The number of cases with values that every combination of options should have, gradients not counted.
LEAST: Final = 20
#: The end of the id of a case that is derived for the options that an implementation declares.
AS_DECLARED: Final = "-as-declared"

#: The most cases of a search that are derived: each takes a tenth of a second, and a check should not wait longer.
#: They are enough for a search that declines one or two of them.
_MOST_SEARCHES: Final = 12
#: The sizes and attributes that say how long a sequence may become.
_LENGTHS: Final = ("source_seq", "seq", "max_length")

#: A case as its file has it.
Entry = Mapping[str, Any]

#: The common part of the ids of the cases of ordinary form.
_ORDINARY: Final = "-ordinary-"
#: The fields that concern only the stored case: the options that it is derived under, and proofs about its numbers.
_OF_STORED: Final = ("convention", "blind", "meant_for")


def count_missing(component: str, options: Mapping[str, str], spec: Spec) -> int:
    """Return how many cases a component has too few under these options; 0 if its ordinary ones fit every option.

    One more is missing if none that fits has numbers with all bits. `options` has an option of every convention.
    """
    stored = [case for case in spec.cases_of(component) if case.error is None and not case.shape_only]
    stored = [case for case in stored if case.cotangent is None]
    if not any(_ORDINARY in case.id for case in stored):
        return 0
    fitting = [case for case in stored if not case.explain_unfit(options)]
    has_all_bits = any(case.has_all_bits for case in fitting) or not any(case.has_all_bits for case in stored)
    return max(0, LEAST - len(fitting)) + (not has_all_bits)


def derive_declared(component: str, options: Mapping[str, str], spec: Spec) -> dict[str, Case]:
    """Return cases under these options by their ids, with golden values: as many as are missing, or all that fit.

    Gradients come on top. Of a search there are at most twelve. Left out are cases that these options contradict, and
    those whose values are not certain.
    """
    from goldformer.spec.oracle.balls import Unproven  # only deriving needs python-flint
    from goldformer.spec.oracle.run import derive_golden

    missing = count_missing(component, options, spec)
    if "max_length" in spec.contracts[component].attributes:
        missing = min(missing, _MOST_SEARCHES)
    derived: dict[str, Case] = {}
    for case in _declare_ordinary(component, options, spec) if missing else ():
        try:
            derived[case.id] = derive_golden(case, spec)
        except Unproven:
            continue
        if sum(case.cotangent is None for case in derived.values()) == missing:
            break
    return derived


def _declare_ordinary(component: str, options: Mapping[str, str], spec: Spec) -> Iterator[Case]:
    """Yield the stored cases of ordinary form that do not fit, read again as cases of only these options.

    Those whose numbers have all bits come first.
    """
    unfit = [c for c in spec.cases_of(component) if _ORDINARY in c.id and c.explain_unfit(options)]
    if not unfit:
        return
    file = YamlFile.read(unfit[0].place.file)
    entries: Mapping[str, Entry] = {entry["id"]: entry for entry in file.data["cases"]}
    for case in sorted(unfit, key=lambda case: not case.has_all_bits):
        entry = _declare(case, entries[case.id], options, spec)
        single = replace(file, data={"component": component, "cases": [entry]})
        try:
            (declared,) = read_cases(single, spec.contracts, spec.conventions, underived=True)
        except SpecError:
            continue  # what it expects contradicts these options
        if not declared.explain_unfit(options):
            yield replace(declared, place=case.place)


def _declare(case: Case, entry: Entry, options: Mapping[str, str], spec: Spec) -> Entry:
    """Return the entry of a case in its file as a case of only these options."""
    contract = spec.contracts[case.component]
    deciding = contract.conventions_of_params | contract.conventions_of_masks
    named = {*case.conventions, *case.only_with, *deciding}
    exist = contract.params_under(case.attributes, {name: options[name] for name in contract.conventions_of_params})
    params = entry["params"]
    return {
        **{key: value for key, value in entry.items() if key not in _OF_STORED},
        "id": case.id + AS_DECLARED,
        "only_with": {name: options[name] for name in sorted(named)},
        "params": {**params, "but": {name: drawn for name, drawn in params.get("but", {}).items() if name in exist}},
        "sizes": _name_positions(entry, options),
        "inputs": {**entry["inputs"], **_hide_later(case, options)},
    }


def _hide_later(case: Case, options: Mapping[str, str]) -> Entry:
    """Return the mask of a case as code has it that always hides later tokens; nothing if that is the case's own."""
    if not (called := case.under(options)).hiding:
        return {}
    assert called.later_tokens is not None
    name = called.later_tokens.mask
    return {name: {"values": called.input_arrays[name].tolist()}}


def _name_positions(entry: Entry, options: Mapping[str, str]) -> Mapping[str, int]:
    """Return the sizes of a case, with one more learned position than it has tokens if it says no number of them."""
    sizes: Mapping[str, int] = entry["sizes"]
    if options["positions"] != "learned" or "positions" in sizes:
        return sizes
    given = {**sizes, **entry["attributes"]}
    return {**sizes, "positions": 1 + max(given[name] for name in _LENGTHS if name in given)}

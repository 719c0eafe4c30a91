"""Checks that need the whole spec: coverage, printed digits, errata, equal sizes, blind cases."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from goldformer.spec.errors import Problem
from goldformer.spec.families import lint_families
from goldformer.spec.load import Spec
from goldformer.spec.making.coverage import cover
from goldformer.spec.making.edges import list_unvisited
from goldformer.spec.making.vacuity import find_vacuous
from goldformer.spec.model import ANY, Case, Contract, GoldenArray, read_count
from goldformer.spec.strict import Location
from goldformer.spec.tables import Property
from goldformer.spec.ways import list_empty_squares

#: A document's digits agree if the value lies within half a unit of the last printed digit. The small
#: excess accepts a value on the very edge, whichever way its author rounded.
_HALF_UNIT = 0.5 + 1e-9


_DIGITS = re.compile(r"-?\d*\.?\d+")


def lint(spec: Spec) -> list[Problem]:
    """List the problems of a spec that loads."""
    return [
        *cover(spec).problems(),
        *_list_unused_conventions(spec),
        *_check_listed_clauses(spec),
        *_check_editions(spec),
        *_list_unkilled_mistakes(spec),
        *_list_survivors(spec),
        *_check_errata_digits(spec),
        *_check_printed_digits(spec),
        *_list_empty_squares(spec),
        *_list_unvisited_edges(spec),
        *lint_families(spec),
        *lint_cases(spec),
    ]


def lint_cases(spec: Spec) -> Iterator[Problem]:
    """Yield the problems of cases that do not depend on other cases."""
    yield from _check_refusals(spec)
    yield from _check_equal_sizes(spec)
    yield from find_vacuous(spec)


def _list_unused_conventions(spec: Spec) -> Iterator[Problem]:
    tried = {name for case in spec.cases.values() for name in (*case.conventions, *_list_other_options(case, spec))}
    # A mask that is causal under an option is so in every case that fits it.
    tried |= {name for contract in spec.contracts.values() for name in contract.conventions_of_masks}
    for name in spec.conventions:
        if name not in tried:
            yield Location(spec.root / "conventions.yaml", 1).problem(name, "is a convention that no case depends on")


def _check_listed_clauses(spec: Spec) -> Iterator[Problem]:
    """Yield the clauses that a contract lists and nothing shows, and those that are shown and not listed."""
    shown: dict[str, set[str]] = {name: set() for name in spec.contracts}
    checks: list[Case | Property] = [*spec.cases.values(), *spec.properties.values()]
    for item in checks:
        # Some properties are of every component.
        if item.component in shown:
            shown[item.component].update(item.clauses)
    for name, contract in spec.contracts.items():
        listed, place = set(contract.clauses), Location(spec.root / "contracts" / f"{name}.yaml", 1)
        # A contract need not list them.
        if listed and (missing := sorted(shown[name] - listed)):
            yield place.problem("clauses", f"is missing {', '.join(missing)}, which its checks show: add it")
        if extra := sorted(listed - shown[name]):
            yield place.problem("clauses", f"has {', '.join(extra)}, which no check shows: take it out")


def _check_editions(spec: Spec) -> Iterator[Problem]:
    """Yield the clauses that a contract lists from an edition that is neither its own nor the default one."""
    for name, contract in spec.contracts.items():
        own = (spec.default_edition.edition, contract.edition)
        known = [id_ for id_ in contract.clauses if id_ in spec.clauses]
        if foreign := [id_ for id_ in known if spec.clauses[id_].edition not in own]:
            other = spec.clauses[foreign[0]].edition
            message = f"has {', '.join(foreign)} of the edition {other}, and {name} is of {contract.edition}: remove it"
            yield Location(spec.root / "contracts" / f"{name}.yaml", 1).problem("clauses", message)


def _list_other_options(case: Case, spec: Spec) -> list[str]:
    """List the conventions that decide whether a case holds: it has another option than the default, or chose it.

    A case that is silent on a convention which matters on some inputs holds under all of its options.
    """
    known = spec.conventions
    return [n for n, option in case.only_with.items() if option != known[n].default or known[n].on_some_inputs]


def _list_unkilled_mistakes(spec: Spec) -> Iterator[Problem]:
    """Yield the mistakes that no case and no property is known to reveal."""
    killed = {id_ for case in spec.cases.values() for id_ in case.kills}
    killed |= {id_ for prop in spec.properties.values() for id_ in prop.catches}
    for id_ in spec.mistakes:
        if id_ not in killed:
            message = (
                "is killed by no case and caught by no property: add a case that is meant_for it and run "
                f"goldformer mistakes {id_} --matrix --write, or list it in the catches of a property"
            )
            yield Location(spec.root / "mistakes.yaml", 1).problem(id_, message)


def _list_survivors(spec: Spec) -> Iterator[Problem]:
    """Yield the cases that are meant for a mistake but do not kill it."""
    for case in spec.cases.values():
        for id_ in case.meant_for:
            if id_ not in case.kills:
                message = f"{id_} is not among its kills: run goldformer mistakes {id_} --matrix --write"
                yield case.place.problem(f"{case.id}.meant_for", message)


def _list_empty_squares(spec: Spec) -> Iterator[Problem]:
    """Yield the ways of being called in which no case of a component is called, and excuses that are not needed."""
    for component, ways in list_empty_squares(spec).items():
        place = Location(spec.root / "cases" / f"{component}.yaml", 1)
        what = f"{', '.join(ways)}: add a case that such a call fits, or list the square with a reason in spec/ways.py"
        yield place.problem(component, f"must have a case for each way of being called or an excuse, not both: {what}")


def _list_unvisited_edges(spec: Spec) -> Iterator[Problem]:
    """Yield the edges of contracts that no case visits, and excuses that are not needed."""
    for component, edges in list_unvisited(spec).items():
        place = Location(spec.root / "cases" / f"{component}.yaml", 1)
        what = f"{', '.join(edges)}: add a case, or list the edge with a reason in spec/edges.yaml"
        yield place.problem(component, f"must have a case for each edge of its contract or an excuse, not both: {what}")


def _check_refusals(spec: Spec) -> Iterator[Problem]:
    """Yield the error cases that demand a refusal although no clause of theirs asks for it."""
    for case in spec.cases.values():
        if case.error is not None and not any(spec.clauses[id_].demands_refusal for id_ in case.clauses):
            cited = ", ".join(case.clauses)
            message = f"{cited} asks for no refusal: cite a clause that says what 'is an error', such as CALL-8"
            yield case.place.problem(f"{case.id}.clauses", message)


def _check_errata_digits(spec: Spec) -> Iterator[Problem]:
    """Yield the errata that excuse digits which no case prints."""
    for erratum in spec.errata.values():
        for digits in erratum.digits:
            printed = spec.cases[digits.case].printed if digits.case in spec.cases else {}
            if digits.output not in printed:
                yield erratum.place.problem(erratum.id, f"{digits.case} prints no {digits.output}")


def _check_printed_digits(spec: Spec) -> Iterator[Problem]:
    """Yield printed numbers that are wrong without an erratum, and errata of numbers that are right."""
    excused = {
        (d.case, d.output, index): erratum
        for erratum in spec.errata.values()
        for d in erratum.digits
        for index in d.indices
    }
    for case in spec.cases.values():
        for output, printed in case.printed.items():
            try:
                digits = list(_read_digits(case, output, printed))
            except ValueError as error:
                yield case.place.problem(f"{case.id}.printed.{output}", str(error))
                continue
            for index, text, value in digits:
                erratum = excused.pop((case.id, output, index), None)
                agrees = abs(float(text) - value) <= _HALF_UNIT * float(_unit(text))
                if not agrees and erratum is None:
                    message = f"prints {text}, the true value is {value:.6g}: correct it, or add an erratum"
                    yield case.place.problem(f"{case.id}.printed.{output}{list(index)}", message)
                if agrees and erratum is not None:
                    message = f"{case.id} {output}{list(index)} prints {text}, which is right ({value:.6g})"
                    yield erratum.place.problem(erratum.id, message)
    for (case_id, output, index), erratum in excused.items():
        if output in (spec.cases[case_id].printed if case_id in spec.cases else ()):
            yield erratum.place.problem(erratum.id, f"{case_id} prints no {output}{list(index)}")


def _read_digits(case: Case, output: str, printed: Any) -> Iterator[tuple[tuple[int, ...], str, float]]:
    golden = _golden(case)[output]
    texts = np.array(printed, dtype=object)
    if texts.shape != golden.values.shape:
        raise ValueError(f"has shape {texts.shape}, the output {golden.values.shape}")
    for index in np.ndindex(texts.shape):
        text = str(texts[index])
        if not _DIGITS.fullmatch(text):
            raise ValueError(f"holds {text!r} at {list(index)}: write the digits as a string, such as '0.75'")
        yield index, text, float(golden.values[index])


def _golden(case: Case) -> Mapping[str, GoldenArray]:
    assert case.golden is not None, "only a derived case reaches the lint"
    outputs = case.golden.options.get(ANY) or next(iter(case.golden.options.values()))
    assert outputs is not None, "the documents' own option refuses nothing"
    return outputs


def _unit(text: str) -> Fraction:
    """Return one unit of the last digit printed: 3.50 is known to a hundredth."""
    return Fraction(1, 10 ** len(text.partition(".")[2]))


def _check_equal_sizes(spec: Spec) -> Iterator[Problem]:
    """Yield the cases with equal sizes but no reason: equal sizes hide transposed axes. A reason needs equal sizes."""
    for case in spec.cases.values():
        if case.error is not None:
            continue
        pair = find_equal_sizes(case, spec.contracts[case.component])
        if pair and not case.equal_sizes:
            message = f"{pair[0]} and {pair[1]} are both {pair[2]}; say why in equal_sizes"
            yield case.place.problem(f"{case.id}.sizes", message)
        elif case.equal_sizes and not pair:
            yield case.place.problem(
                f"{case.id}.equal_sizes", "gives a reason, but no two sizes are equal: leave it out"
            )


def find_equal_sizes(case: Case, contract: Contract) -> tuple[str, str, int] | None:
    """Return the first two names of the same size, and that size; None if all differ. A size of 1 does not count."""
    sizes = {**case.sizes, **{f"lead[{i}]": size for i, size in enumerate(case.lead)}}
    for name, attribute in contract.attributes.items():
        # A number that is at least 1 is a size, even if no axis has that length.
        if attribute.kind == "int" and attribute.minimum == 1 and name in case.attributes:
            sizes.setdefault(attribute.size or name, read_count(case.attributes[name]))
    seen: dict[int, str] = {}
    for name, size in sizes.items():
        if size > 1 and size in seen:
            return seen[size], name, size
        seen[size] = name
    return None

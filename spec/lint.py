"""Checks of the spec that need all of it: coverage both ways, printed digits, errata, sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from goldformer.spec.errors import Problem
from goldformer.spec.model import ANY, Case, GoldenArray, Level, Place, Spec

#: A document's digits agree when the value lies within half a unit of the last one printed; the hair
#: lets a value on the very edge count, whichever way its author rounded.
_HALF_UNIT = 0.5 + 1e-9


_DIGITS = re.compile(r"-?\d*\.?\d+")


def lint(spec: Spec) -> list[Problem]:
    """Everything wrong with a spec that loads."""
    return [
        *_uncovered_clauses(spec),
        *_uncovered_rows(spec),
        *_untried_options(spec),
        *_unproven_errata(spec),
        *_printed_digits(spec),
        *_equal_sizes(spec),
    ]


def _problem(place: Place, field: str, message: str) -> Problem:
    return Problem(place.file, place.line, field, message)


def proofs_by_clause(spec: Spec) -> dict[str, list[str]]:
    """The cases and properties that show each clause."""
    proofs: dict[str, list[str]] = {id_: [] for id_ in spec.clauses}
    shown = [(item.id, item.clauses) for item in spec.cases.values()]
    shown += [(item.id, item.clauses) for item in spec.properties.values()]
    for id_, clauses in shown:
        for clause in clauses:
            proofs[clause].append(id_)
    return proofs


#: Clauses that every single case shows: the engine checks them on each call it makes.
EVERY_CALL = frozenset({"CALL-1", "CALL-2", "CALL-3", "CALL-4"})


def _uncovered_clauses(spec: Spec) -> Iterator[Problem]:
    for id_, proofs in proofs_by_clause(spec).items():
        clause = spec.clauses[id_]
        if not proofs and clause.level is Level.MUST and id_ not in EVERY_CALL:
            yield _problem(clause.place, id_, "is a MUST that no case and no property shows")


def _uncovered_rows(spec: Spec) -> Iterator[Problem]:
    cited = {(c.document, row) for clause in spec.clauses.values() for c in clause.sources for row in c.rows}
    cited |= {(c.source.document, row) for c in spec.cases.values() if c.source for row in c.source.rows}
    for document in spec.documents.values():
        for row in document.rows:
            if (document.id, row.id) not in cited:
                place = Place(spec.root / "documents.yaml", 1)
                yield _problem(place, f"{document.id} {row.id}", "is cited by no clause and no case")


def _untried_options(spec: Spec) -> Iterator[Problem]:
    tried = {case.convention for case in spec.cases.values()}
    for name in spec.conventions:
        if name not in tried:
            yield _problem(Place(spec.root / "conventions.yaml", 1), name, "is a convention that no case depends on")


def _unproven_errata(spec: Spec) -> Iterator[Problem]:
    for erratum in spec.errata.values():
        for proof in erratum.proof:
            if proof not in spec.cases and proof not in spec.properties:
                yield _problem(erratum.place, erratum.id, f"is proven by {proof!r}, which is no case and no property")
        for digits in erratum.digits:
            printed = spec.cases[digits.case].printed if digits.case in spec.cases else {}
            if digits.output not in printed:
                yield _problem(erratum.place, erratum.id, f"{digits.case} prints no {digits.output}")


def _printed_digits(spec: Spec) -> Iterator[Problem]:
    """Every printed number agrees with the golden value, or an erratum says that just this one does not."""
    excused = {
        (d.case, d.output, index): erratum
        for erratum in spec.errata.values()
        for d in erratum.digits
        for index in d.indices
    }
    for case in spec.cases.values():
        for output, printed in case.printed.items():
            try:
                digits = list(_printed(case, output, printed))
            except ValueError as error:
                yield _problem(case.place, f"{case.id}.printed.{output}", str(error))
                continue
            for index, text, value in digits:
                erratum = excused.pop((case.id, output, index), None)
                agrees = abs(float(text) - value) <= _HALF_UNIT * float(_unit(text))
                if not agrees and erratum is None:
                    message = f"prints {text}, the true value is {value:.6g}: correct it, or add an erratum"
                    yield _problem(case.place, f"{case.id}.printed.{output}{list(index)}", message)
                if agrees and erratum is not None:
                    message = f"{case.id} {output}{list(index)} prints {text}, which is right ({value:.6g})"
                    yield _problem(erratum.place, erratum.id, message)
    for (case_id, output, index), erratum in excused.items():
        if output in (spec.cases[case_id].printed if case_id in spec.cases else ()):
            yield _problem(erratum.place, erratum.id, f"{case_id} prints no {output}{list(index)}")


def _printed(case: Case, output: str, printed: Any) -> Iterator[tuple[tuple[int, ...], str, float]]:
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
    """One unit of the last digit printed: 3.50 is known to a hundredth."""
    return Fraction(1, 10 ** len(text.partition(".")[2]))


def _equal_sizes(spec: Spec) -> Iterator[Problem]:
    """Equal sizes hide transposed axes: they need a reason."""
    for case in spec.cases.values():
        if case.error is not None or case.equal_sizes:
            continue
        sizes = {**case.sizes, **{f"lead[{i}]": size for i, size in enumerate(case.lead)}}
        seen: dict[int, str] = {}
        for name, size in sizes.items():
            if size > 1 and size in seen:
                yield _problem(
                    case.place,
                    f"{case.id}.sizes",
                    f"{seen[size]} and {name} are both {size}; say why in equal_sizes",
                )
                break
            seen[size] = name

"""A number solved for: one kind of edit, for every constant of a formula and for a factor of every step's result."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from goldformer.conformance.diagnosis.edits.edit import Edit
from goldformer.conformance.diagnosis.edits.generate import find_outer_results, name_place
from goldformer.conformance.diagnosis.edits.graph import Graph
from goldformer.conformance.diagnosis.failure import FailingCase
from goldformer.conformance.judging.invoke import Result
from goldformer.spec.formulas.steps import Step

#: The numbers of the grid to a factor of ten, and the sections after it: they leave six digits.
_POINTS: Final = 3
_SECTIONS: Final = 30
#: After this many sections, which divide the interval by 50, the residual of the right number has fallen.
_EARLY: Final = 8
#: The powers of ten between which a number lies: a small one such as eps, a large one such as a base, another one.
_SMALL: Final = (-12, 0)
_LARGE: Final = (0.5, 8)
_OTHER: Final = (-2, 3)
#: The factors of a result.
_FACTORS: Final = (-2, 2)
#: The most digits of a number that somebody meant.
_DIGITS: Final = 9

#: Returns how far the outputs with an edit are from the actual ones, a sum of squares; inf if they are not comparable.
Residual = Callable[[Edit], float]


def solve_constants(graph: Graph, residual: Residual, fits: Callable[[Edit], bool]) -> Iterator[Edit]:
    """Yield the edits of one constant that fit a result, as another number and times a factor, in the fewest digits."""
    for place in _list_places(graph, is_number=True):
        for kind in ("solved", "scaled"):
            yield from _solve_number(graph, place, residual, fits, kind)


def solve_factors(graph: Graph, residual: Residual, fits: Callable[[Edit], bool]) -> Iterator[Edit]:
    """Yield the edits that multiply what a step returns by a number, in the fewest digits that fit a result."""
    for place in _list_places(graph, is_number=False):
        yield from _solve_number(graph, place, residual, fits, "scaled")


def _list_places(graph: Graph, *, is_number: bool) -> list[str]:
    """Return the places of constants, or those of arrays that steps return."""
    outer = find_outer_results(graph)
    places: dict[str, None] = {}
    for node in graph.nodes:
        scope, role = outer.get(node, (node.scope, node.role))
        is_free = node in outer or (node.is_number and not node.parents)
        is_float = node.is_number or node.value.dtype.kind == "f"
        if is_free and is_float and node.is_number is is_number:
            places.setdefault(name_place(scope, role))
    return list(places)


def _solve_number(
    graph: Graph, place: str, residual: Residual, fits: Callable[[Edit], bool], kind: str
) -> Iterator[Edit]:
    """Yield the edit of one constant, or of one factor, that fits a result, if there is one."""
    nodes = graph.find(place)
    if not nodes:
        return
    powers = _choose_powers(float(nodes[0].value)) if kind == "solved" else _FACTORS
    value = _fit_number(lambda number: residual(_make(graph, place, kind, number)), powers)
    if value is not None:
        tried = (_make(graph, place, kind, value, digits) for digits in range(1, _DIGITS + 1))
        fitting = next(filter(fits, dict.fromkeys(tried)), None)
        yield from [fitting] if fitting else []


def fit_constant(graph: Graph, step: Step, failure: FailingCase) -> float | None:
    """Return the number that a step returns in the code of a failing case; None if no number fits."""
    place = f"{step.__name__}/result"

    def measure(number: float) -> float:
        made = _make(graph, place, "solved", number).give_outputs(graph, failure.output_names, failure.wrong)
        return failure.find_residual(None if made is None else Result(made, 0.0))

    nodes = graph.find(place)
    return _fit_number(measure, _choose_powers(float(nodes[0].value))) if nodes else None


def _make(graph: Graph, place: str, kind: str, number: float, digits: int = _DIGITS) -> Edit:
    return Edit(graph.root.name, place, f"{kind}:{float(f'{number:.{digits}g}'):.9g}")


def _choose_powers(own: float) -> tuple[float, float]:
    """Return the powers of ten between which a number lies that stands in the place of another one."""
    size = abs(own)
    if 0 < size <= 1e-3:
        return _SMALL
    return _LARGE if 1000 <= size <= 10 ** _LARGE[1] else _OTHER


def _fit_number(residual: Callable[[float], float], powers: tuple[float, float]) -> float | None:
    """Return the number with the smallest residual; None if there is no residual, or if the residual does not vanish.

    It is searched by a golden section of its exponent.
    """
    low, high = powers
    is_signed = powers not in (_SMALL, _LARGE)
    grid = [10.0 ** float(power) for power in np.linspace(low, high, round(_POINTS * (high - low)) + 1)]
    start = {value: residual(value) for value in (*grid, *([-value for value in grid] if is_signed else ()))}
    best = min(start, key=lambda value: start[value])
    if not math.isfinite(start[best]) or start[best] == max(start.values()):
        return None
    sign, middle = math.copysign(1.0, best), math.log10(abs(best))
    shrink = (math.sqrt(5) - 1) / 2
    low, high = middle - 1 / _POINTS, middle + 1 / _POINTS

    def at(exponent: float) -> float:
        return residual(sign * 10.0**exponent)

    one, two = high - shrink * (high - low), low + shrink * (high - low)
    left, right = at(one), at(two)
    for count in range(_SECTIONS):
        if count == _EARLY and min(left, right) > start[best] / 4:
            return float(best)
        # One of the two points is used again.
        if left < right:
            high, two, right = two, one, left
            one = high - shrink * (high - low)
            left = at(one)
        else:
            low, one, left = one, two, right
            two = low + shrink * (high - low)
            right = at(two)
    return float(sign * 10.0 ** ((low + high) / 2))

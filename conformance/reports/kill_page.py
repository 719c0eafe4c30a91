"""The kill matrix as one page of HTML that asks nothing of the network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.diagnosis.kill import FAR, Kill, KillCheck, KillMatrix
from goldformer.conformance.reports.page import rendered
from goldformer.conformance.reports.text import number
from goldformer.spec import Case, Property, Spec

#: Where each shade of a margin begins, a number of it, and its words in the legend.
_SHADES: Final = (
    (0.0, "0.5", "below 10"),
    (FAR, "1.5", "10 and more"),
    (1e2, "3.0", "10² and more"),
    (1e4, "5.0", "10⁴ and more"),
    (1e6, "7.0", "10⁶ and more"),
    (1e8, "9.0", "10⁸ and more"),
    (math.inf, "∞", "infinite"),
)


@dataclass(frozen=True, slots=True)
class Square:
    """A cell as it is drawn: its classes, its text, and what is said of it where a pointer rests."""

    classes: str
    text: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """The table of one component: the mistakes that show in its checks, or that these list."""

    component: str
    title: str
    checks: tuple[Case | Property, ...]
    redundant: frozenset[str]
    rows: tuple[tuple[Kill, tuple[Square, ...]], ...]


def page(matrix: KillMatrix, spec: Spec) -> str:
    """The whole page, as text."""
    return rendered("kill_matrix.html", matrix=matrix, sections=list(_sections(matrix, spec)), shades=_SHADES)


def _sections(matrix: KillMatrix, spec: Spec) -> Iterator[Section]:
    for component in spec.components:
        found = [(kill, _cells(kill, component)) for kill in matrix.kills]
        shown = [(k, cells) for k, cells in found if any(cell.killed or cell.listed for cell in cells.values())]
        measured = {check for _, cells in shown for check in cells}
        checks: list[Case | Property] = [case for case in spec.cases_of(component) if case.id in measured]
        checks += [prop for prop in spec.properties.values() if prop.id in measured]
        rows = tuple((kill, tuple(_square(cells.get(check.id)) for check in checks)) for kill, cells in shown)
        redundant = frozenset(matrix.redundant.get(component, ()))
        if rows:
            yield Section(component, spec.contracts[component].title, tuple(checks), redundant, rows)


def _cells(kill: Kill, component: str) -> dict[str, KillCheck]:
    """What the checks of a component say of a mistake, by their ids."""
    return {cell.check: cell for cell in kill.cells if cell.component == component}


def _square(cell: KillCheck | None) -> Square:
    if cell is None:
        return Square("n", "–")
    if not cell.killed:
        return Square("u", "✗", f"claimed, but passes: margin {number(cell.margin)}") if cell.listed else Square("", "")
    shade = sum(cell.margin >= start for start, _, _ in _SHADES) - 1
    text = "∞" if math.isinf(cell.margin) else f"{math.log10(cell.margin):.1f}"
    why = "" if cell.reason == "wrong-value" else f" ({cell.reason})"
    return Square(f"k{shade} c" if cell.listed else f"k{shade}", text, number(cell.margin) + why)

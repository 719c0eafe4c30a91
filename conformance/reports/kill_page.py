"""The kill matrix as one HTML page that loads nothing from the network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.diagnosis.failure import CLEAR
from goldformer.conformance.diagnosis.kill import Kill, KillCheck, KillMatrix
from goldformer.conformance.reports.page import TableCell, render
from goldformer.conformance.reports.text import format_ratio
from goldformer.spec import Case, Property, Spec

#: The shades: the margin at which each begins, a sample, and its words in the legend.
_SHADES: Final = (
    (0.0, "0.5", "below 10"),
    (CLEAR, "1.5", "10 and more"),
    (1e2, "3.0", "10² and more"),
    (1e4, "5.0", "10⁴ and more"),
    (1e6, "7.0", "10⁶ and more"),
    (1e8, "9.0", "10⁸ and more"),
    (math.inf, "∞", "infinite"),
)


@dataclass(frozen=True, slots=True)
class ComponentTable:
    """The table of one component: the mistakes that its checks kill or list."""

    component: str
    title: str
    checks: tuple[Case | Property, ...]
    redundant: frozenset[str]
    rows: tuple[tuple[Kill, tuple[TableCell, ...]], ...]


def page(matrix: KillMatrix, spec: Spec) -> str:
    """Return the whole page."""
    return render("kill_matrix.html", matrix=matrix, sections=list(_list_tables(matrix, spec)), shades=_SHADES)


def _list_tables(matrix: KillMatrix, spec: Spec) -> Iterator[ComponentTable]:
    for component in spec.components:
        found = [(kill, _select_cells(kill, component)) for kill in matrix.kills]
        shown = [(k, cells) for k, cells in found if any(cell.killed or cell.listed for cell in cells.values())]
        measured = {check for _, cells in shown for check in cells}
        checks: list[Case | Property] = [case for case in spec.cases_of(component) if case.id in measured]
        checks += [prop for prop in spec.properties.values() if prop.id in measured]
        rows = tuple((kill, tuple(_draw_cell(cells.get(check.id)) for check in checks)) for kill, cells in shown)
        redundant = frozenset(matrix.redundant.get(component, ()))
        if rows:
            yield ComponentTable(component, spec.contracts[component].title, tuple(checks), redundant, rows)


def _select_cells(kill: Kill, component: str) -> dict[str, KillCheck]:
    """Return the cells of a mistake that belong to the checks of a component, by the ids of the checks."""
    return {cell.check: cell for cell in kill.cells if cell.component == component}


def _draw_cell(cell: KillCheck | None) -> TableCell:
    if cell is None:
        return TableCell("–", kind="n")
    if not cell.killed:
        tooltip = f"claimed, but passes: margin {format_ratio(cell.margin)}"
        return TableCell("✗", kind="u", tooltip=tooltip) if cell.listed else TableCell("", kind="")
    shade = sum(cell.margin >= start for start, _, _ in _SHADES) - 1
    text = "∞" if math.isinf(cell.margin) else f"{math.log10(cell.margin):.1f}"
    why = "" if cell.reason == "wrong-value" else f" ({cell.reason})"
    return TableCell(text, kind=f"k{shade} c" if cell.listed else f"k{shade}", tooltip=format_ratio(cell.margin) + why)

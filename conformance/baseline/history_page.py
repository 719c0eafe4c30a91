"""A history as one HTML page that loads nothing from the network: a plot, and a table of components."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from goldformer.adapters.untrusted_text import printable
from goldformer.conformance.baseline.drift import explain_drift
from goldformer.conformance.baseline.history import History, format_cell
from goldformer.conformance.baseline.moves import Kind, Tally
from goldformer.conformance.reports.page import render
from goldformer.conformance.reports.text import format_ratio

#: The plot's height, the width of a baseline in it, and the space to its left and above it, in its own units.
_HEIGHT: Final = 220.0
_STEP: Final = 130.0
_LEFT: Final = 70.0
_TOP: Final = 20.0

#: The width of the names to the right of the lines, the height of one, and the most names at one height.
_LABELS: Final = 320.0
_LABEL_HEIGHT: Final = 14.0
_NAMED: Final = 2

#: The least power of ten of move ÷ tolerance that is drawn; smaller moves are at the bottom, as if nothing moved.
_LEAST: Final = -3


@dataclass(frozen=True, slots=True)
class PlotPoint:
    """One component at one baseline: its place, its class, and its tooltip."""

    x: float
    y: float
    kind: str
    tooltip: str


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One component over all baselines; `worst` is its worst class."""

    component: str
    path: str
    worst: str
    points: tuple[PlotPoint, ...]


@dataclass(frozen=True, slots=True)
class PlotLabel:
    """The components whose lines end at one place, to its right."""

    x: float
    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Plot:
    """The lines and their labels, the powers of ten next to them, and the names below them, with their places."""

    width: float
    height: float
    bottom: float
    lines: tuple[PlotLine, ...]
    powers: tuple[tuple[float, str], ...]
    names: tuple[tuple[float, str], ...]
    labels: tuple[PlotLabel, ...]


def page(found: History) -> str:
    """Return the whole page."""
    rows = [
        (name, [(format_cell(column, name), _name_class(column.tallies.get(name))) for column in found.columns])
        for name in found.components
    ]
    sections = [
        (column, column.drift.environment, list(explain_drift(column.drift)))
        for column in found.columns
        if column.drift is not None
    ]
    page = render("history.html", history=found, plot=make_plot(found), rows=rows, sections=sections)
    return printable(page)


def _name_class(tally: Tally | None) -> str:
    return str(tally.worst) if tally is not None else "none"


@dataclass(frozen=True, slots=True)
class Scale:
    """Powers of ten; the top is for infinite moves and those without a number."""

    top: int

    @property
    def unit(self) -> float:
        """The height of a power of ten."""
        return _HEIGHT / (self.top - _LEAST)

    def height_of(self, ratio: float | None, worst: Kind) -> float:
        """Return the y coordinate of a move."""
        power = float(self.top)
        if worst is not Kind.FORM and ratio is not None and math.isfinite(ratio):
            power = min(max(math.log10(ratio), _LEAST), power) if ratio else _LEAST
        return round(_TOP + (self.top - power) * self.unit, 1)


def make_plot(found: History) -> Plot:
    """Plot every component's largest move ÷ tolerance on a scale of powers of ten."""
    ratios = [t.ratio for c in found.columns for t in c.tallies.values() if t.ratio and math.isfinite(t.ratio)]
    scale = Scale(max([1, *(math.ceil(math.log10(ratio)) for ratio in ratios)]) + 1)
    powers = [(scale.height_of(10.0**p, Kind.ROUNDING), f"10{_superscript(p)}") for p in range(_LEAST + 1, scale.top)]
    bottom = _TOP + _HEIGHT
    lines = tuple(_draw_lines(found, scale))
    return Plot(
        width=_LEFT + _STEP * (len(found.columns) - 1) + _LABELS,
        height=bottom + 2 * _TOP,
        bottom=bottom,
        lines=lines,
        labels=tuple(_label_lines(lines)),
        powers=((_TOP, "∞"), *powers, (bottom, "0")),
        names=tuple((_locate_column(nth), column.name) for nth, column in enumerate(found.columns)),
    )


def _locate_column(nth: int) -> float:
    return _LEFT + _STEP * nth


def _draw_lines(found: History, scale: Scale) -> Iterator[PlotLine]:
    for name in found.components:
        points = []
        for nth, column in enumerate(found.columns):
            tally = column.tallies.get(name)
            if column.drift is None:
                y = scale.height_of(0.0, Kind.IDENTICAL)
                points.append(PlotPoint(_locate_column(nth), y, "identical", f"{name}, {column.name}: the first"))
            elif tally is not None:
                ratio = "" if tally.ratio is None else f", {format_ratio(tally.ratio)} times the tolerance"
                tooltip = f"{name}, {column.name}: {tally.worst}{ratio}"
                points.append(
                    PlotPoint(_locate_column(nth), scale.height_of(tally.ratio, tally.worst), str(tally.worst), tooltip)
                )
        worst = max((t.worst for c in found.columns if (t := c.tallies.get(name))), default=Kind.IDENTICAL)
        yield PlotLine(name, " ".join(f"{p.x},{p.y}" for p in points), str(worst), tuple(points))


def _label_lines(lines: Iterable[PlotLine]) -> Iterator[PlotLabel]:
    """Yield the names of the lines at their ends; lines that end at almost one height share a label."""
    ends = sorted((line.points[-1].y, line.points[-1].x, line.component) for line in lines if line.points)
    for _, group in groupby(ends, key=lambda end: round(end[0] / _LABEL_HEIGHT)):
        listed = list(group)
        names = [name for _, _, name in listed]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield PlotLabel(max(x for _, x, _ in listed) + 10, listed[0][0] + 4, ", ".join(names[:_NAMED]) + more)


def _superscript(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))

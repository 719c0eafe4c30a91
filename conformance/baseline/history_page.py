"""A history as one page of HTML that asks nothing of the network: a plot, and a table of components."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.baseline.drift import remarks
from goldformer.conformance.baseline.history import History, cell
from goldformer.conformance.baseline.moves import Kind, Tally
from goldformer.conformance.reports.page import rendered
from goldformer.conformance.reports.text import number

#: The plot's height between its ends, the width of a baseline in it, and the space left of it, in its own units.
_HEIGHT: Final = 220.0
_STEP: Final = 130.0
_LEFT: Final = 70.0
_TOP: Final = 20.0

#: The least power of ten of move ÷ tolerance that is drawn; what moved less lies on the bottom with what did not move.
_LEAST: Final = -3


@dataclass(frozen=True, slots=True)
class Dot:
    """One component at one baseline: its place, its class, and what is said of it where a pointer rests."""

    x: float
    y: float
    kind: str
    said: str


@dataclass(frozen=True, slots=True)
class Line:
    """One component over all baselines; `worst` is its class at its worst."""

    component: str
    points: str
    worst: str
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Plot:
    """The lines, the powers of ten beside them, and the names below them, with their places."""

    width: float
    height: float
    bottom: float
    lines: tuple[Line, ...]
    powers: tuple[tuple[float, str], ...]
    names: tuple[tuple[float, str], ...]


def page(found: History) -> str:
    """The whole page, as text."""
    rows = [
        (name, [(cell(column, name), _kind(column.tallies.get(name))) for column in found.columns])
        for name in found.components
    ]
    sections = [
        (column, column.drift.environment, list(remarks(column.drift)))
        for column in found.columns
        if column.drift is not None
    ]
    return rendered("history.html", history=found, plot=plot(found), rows=rows, sections=sections)


def _kind(tally: Tally | None) -> str:
    return str(tally.worst) if tally is not None else "none"


@dataclass(frozen=True, slots=True)
class Scale:
    """Powers of ten, the largest of which is for what is infinite or has no number."""

    top: int

    @property
    def unit(self) -> float:
        """The height of a power of ten."""
        return _HEIGHT / (self.top - _LEAST)

    def place(self, ratio: float | None, worst: Kind) -> float:
        """How far down a move lies."""
        power = float(self.top)
        if worst is not Kind.FORM and ratio is not None and math.isfinite(ratio):
            power = min(max(math.log10(ratio), _LEAST), power) if ratio else _LEAST
        return round(_TOP + (self.top - power) * self.unit, 1)


def plot(found: History) -> Plot:
    """Every component's largest move ÷ tolerance, on a scale of powers of ten."""
    ratios = [t.ratio for c in found.columns for t in c.tallies.values() if t.ratio and math.isfinite(t.ratio)]
    scale = Scale(max([1, *(math.ceil(math.log10(ratio)) for ratio in ratios)]) + 1)
    powers = [(scale.place(10.0**p, Kind.ROUNDING), f"10{_raised(p)}") for p in range(_LEAST + 1, scale.top)]
    bottom = _TOP + _HEIGHT
    return Plot(
        width=_LEFT + _STEP * (len(found.columns) - 1) + _STEP / 2,
        height=bottom + 2 * _TOP,
        bottom=bottom,
        lines=tuple(_lines(found, scale)),
        powers=((_TOP, "∞"), *powers, (bottom, "0")),
        names=tuple((_x(nth), column.name) for nth, column in enumerate(found.columns)),
    )


def _x(nth: int) -> float:
    return _LEFT + _STEP * nth


def _lines(found: History, scale: Scale) -> Iterator[Line]:
    for name in found.components:
        dots = []
        for nth, column in enumerate(found.columns):
            tally = column.tallies.get(name)
            if column.drift is None:
                place = scale.place(0.0, Kind.IDENTICAL)
                dots.append(Dot(_x(nth), place, "identical", f"{name}, {column.name}: the first"))
            elif tally is not None:
                ratio = "" if tally.ratio is None else f", {number(tally.ratio)} times the tolerance"
                said = f"{name}, {column.name}: {tally.worst}{ratio}"
                dots.append(Dot(_x(nth), scale.place(tally.ratio, tally.worst), str(tally.worst), said))
        worst = max((t.worst for c in found.columns if (t := c.tallies.get(name))), default=Kind.IDENTICAL)
        yield Line(name, " ".join(f"{dot.x},{dot.y}" for dot in dots), str(worst), tuple(dots))


def _raised(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))

"""A drift as one page of HTML that asks nothing of the network: what moved, by component, and the worst of it drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.baseline.drift import Drift, headline, remarks
from goldformer.conformance.baseline.moves import KINDS, Kind, Move, worst_first
from goldformer.conformance.baseline.report import SYMBOLS, cells
from goldformer.conformance.reports.page import rendered
from goldformer.conformance.reports.pictures import Heat, side_by_side, where

#: So many moves of a component are shown, and so many of these are drawn; the JSON has all.
_SHOWN: Final = 20
_DRAWN: Final = 3


@dataclass(frozen=True, slots=True)
class Shown:
    """A move as it is shown, and the window that is drawn of it."""

    move: Move
    said: str
    where: str
    windows: tuple[Heat, ...]
    repeat: str


@dataclass(frozen=True, slots=True)
class Part:
    """What moved in one component, the worst first; `more` moves are left out."""

    component: str
    worst: Kind
    cells: tuple[str, ...]
    shown: tuple[Shown, ...]
    more: int


def page(drift: Drift, allowed: Kind) -> str:
    """The whole page, as text."""
    return rendered(
        "drift.html", drift=drift, now=drift.new.recordings[-1], old=drift.old.recordings[0], allowed=allowed,
        parts=list(_parts(drift)), remarks=list(remarks(drift)), kinds=KINDS, symbols=SYMBOLS,
    )  # fmt: skip


def _parts(drift: Drift) -> Iterator[Part]:
    moved = [move for move in worst_first(drift.moves) if move.kind is not Kind.IDENTICAL]
    count = Counter(move.component for move in moved)
    for name, tally in drift.tallies.items():
        mine = [move for move in moved if move.component == name][:_SHOWN]
        shown = tuple(_shown(move, drift, drawn=nth < _DRAWN) for nth, move in enumerate(mine))
        yield Part(name, tally.worst, tuple(cells(tally)), shown, count[name] - len(shown))


def _shown(move: Move, drift: Drift, *, drawn: bool) -> Shown:
    grid = move.grid if drawn else None
    windows = side_by_side(grid, move.tolerance or 0.0, ("then", "now"))
    said = headline(move, drift.spec).removeprefix(f"{move.kind}: ")
    return Shown(move, said, where(move.output, grid), windows, drift.repeat(move.key))

"""A drift as one HTML page that loads nothing from the network: the moves by component, and pictures of the worst."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.baseline.drift import Drift, headline, remarks
from goldformer.conformance.baseline.moves import KINDS, Kind, Move, worst_first
from goldformer.conformance.baseline.report import SYMBOLS, cells
from goldformer.conformance.reports.page import render
from goldformer.conformance.reports.pictures import HeatMap, name_window, side_by_side

#: The number of moves of a component that are listed, and of those that have pictures; the JSON has all.
_LISTED: Final = 20
_PICTURED: Final = 3


@dataclass(frozen=True, slots=True)
class ListedMove:
    """A move with its text, and pictures of a window of it."""

    move: Move
    text: str
    where: str
    windows: tuple[HeatMap, ...]
    repeat: str


@dataclass(frozen=True, slots=True)
class ComponentMoves:
    """The moves of one component, the worst first; `more` moves are left out."""

    component: str
    worst: Kind
    cells: tuple[str, ...]
    listed: tuple[ListedMove, ...]
    more: int


def page(drift: Drift, allowed: Kind) -> str:
    """Return the whole page."""
    return render(
        "drift.html", drift=drift, now=drift.new.recordings[-1], old=drift.old.recordings[0], allowed=allowed,
        parts=list(_list_components(drift)), remarks=list(remarks(drift)), kinds=KINDS, symbols=SYMBOLS,
    )  # fmt: skip


def _list_components(drift: Drift) -> Iterator[ComponentMoves]:
    moved = [move for move in worst_first(drift.moves) if move.kind is not Kind.IDENTICAL]
    count = Counter(move.component for move in moved)
    for name, tally in drift.tallies.items():
        mine = [move for move in moved if move.component == name][:_LISTED]
        listed = tuple(_list_move(move, drift, with_pictures=nth < _PICTURED) for nth, move in enumerate(mine))
        yield ComponentMoves(name, tally.worst, tuple(cells(tally)), listed, count[name] - len(listed))


def _list_move(move: Move, drift: Drift, *, with_pictures: bool) -> ListedMove:
    grid = move.grid if with_pictures else None
    windows = side_by_side(grid, move.tolerance or 0.0, ("then", "now"))
    text = headline(move, drift.spec).removeprefix(f"{move.kind}: ")
    return ListedMove(move, text, name_window(move.output, grid), windows, drift.repeat(move.key))

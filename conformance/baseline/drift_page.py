"""A drift as one HTML page that loads nothing from the network: the moves by reason, and pictures of the worst.

What moved further than allowed comes first; what is allowed is folded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from goldformer.adapters.untrusted_text import printable
from goldformer.conformance.baseline.drift import Drift, describe_cause, explain_drift
from goldformer.conformance.baseline.drift_data import SYMBOLS, format_tally
from goldformer.conformance.baseline.moves import KINDS, Kind, Move, MoveGroup, group_by_reason, sort_worst_first
from goldformer.conformance.reports.fixes import put_fixes_first
from goldformer.conformance.reports.page import render
from goldformer.conformance.reports.pictures import HeatMap, draw_side_by_side, name_window

#: The number of moves for a reason that are listed, of reasons of a component, and of reasons with a picture.
_LISTED: Final = 20
_REASONS: Final = 20
_PICTURED: Final = 3


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """Moves of a component for the same reason, with pictures of a window of the worst; `more` are left out."""

    group: MoveGroup
    text: str
    where: str
    windows: tuple[HeatMap, ...]
    repeat: str
    others: tuple[Move, ...]
    more: int


@dataclass(frozen=True, slots=True)
class ComponentMoves:
    """The moves of one component by their reasons, the worst first; `more` reasons are left out."""

    component: str
    listed: tuple[ListedGroup, ...]
    more: int


def page(drift: Drift, allowed: Kind) -> str:
    """Return the whole page."""
    beyond = list(_list_components(drift, lambda move: move.kind > allowed))
    made = render(
        "drift.html", drift=drift, now=drift.new.recordings[-1], old=drift.old.recordings[0], allowed=allowed,
        rows=[(name, tally.worst, format_tally(tally)) for name, tally in drift.ranked(allowed)], beyond=beyond,
        within=list(_list_components(drift, lambda move: Kind.IDENTICAL < move.kind <= allowed)),
        named={part.component for part in beyond}, remarks=put_fixes_first(explain_drift(drift)),
        kinds=KINDS, symbols=SYMBOLS,
    )  # fmt: skip
    return printable(made)


def _list_components(drift: Drift, wanted: Callable[[Move], bool]) -> Iterator[ComponentMoves]:
    for name in drift.tallies:
        groups = group_by_reason(move for move in drift.moves if move.component == name and wanted(move))
        listed = tuple(
            _list_group(group, drift, with_picture=nth < _PICTURED) for nth, group in enumerate(groups[:_REASONS])
        )
        if listed:
            yield ComponentMoves(name, listed, len(groups) - len(listed))


def _list_group(group: MoveGroup, drift: Drift, *, with_picture: bool) -> ListedGroup:
    move = group.shown
    grid = move.grid if with_picture else None
    windows = draw_side_by_side(grid, move.tolerance or 0.0, ("then", "now"))
    others = tuple(other for other in sort_worst_first(group.moves) if other is not move)
    text = "; ".join(filter(None, (group.extent, describe_cause(move, drift.spec))))
    where = name_window(move.output, grid)
    return ListedGroup(group, text, where, windows, drift.repeat(move.key), others[:_LISTED], len(others[_LISTED:]))

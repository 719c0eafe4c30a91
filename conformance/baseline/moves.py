"""What moved between two baselines: each output in a class, with the number that moved most and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from goldformer.conformance.baseline.arrays import Kept
from goldformer.conformance.baseline.model import Ended, Key
from goldformer.conformance.judging.verdict import Element, Grid, Match


class Kind(IntEnum):
    """The classes of a move, from the best to the worst.

    FORM is another dtype or shape, an output that is new or gone, or no result any more: it comes last, since nothing
    is left to compare, and anything may hide there.
    """

    IDENTICAL = 0
    ROUNDING = 1
    PRECISION = 2
    SEMANTIC = 3
    UNEXPLAINED = 4
    FORM = 5

    def __str__(self) -> str:
        return self.name.lower()


KINDS: Final = tuple(map(str, Kind))


@dataclass(frozen=True, slots=True)
class Move:
    """One output of one call, then and now.

    `output` is empty where the call as a whole moved. `ratio` is the largest |new − old| ÷ tolerance, None where there
    is none; `furthest` is where it is, with the old value as expected and the new one as got; `beyond` of `compared`
    elements moved by more than the tolerance, of which `grid` is a window. `matches` are the known mistakes and options
    that give what is got now, or, where `was` is set, what was got then.
    """

    key: Key
    component: str
    output: str
    kind: Kind
    why: str = ""
    ratio: float | None = None
    furthest: Element | None = None
    beyond: int = 0
    compared: int = 0
    tolerance: float | None = None
    matches: tuple[Match, ...] = ()
    was: bool = False
    grid: Grid | None = None

    @property
    def place(self) -> tuple[Key, str]:
        """Which output of which call."""
        return self.key, self.output


def worst_first(moves: Iterable[Move]) -> list[Move]:
    """By class, and within it those that moved furthest; the parts of a component before it."""
    return sorted(moves, key=lambda move: (-move.kind, -(move.ratio or 0.0)))


def worst(moves: Iterable[Move]) -> Kind:
    """The worst class of some moves; identical where there are none."""
    return max((move.kind for move in moves), default=Kind.IDENTICAL)


@dataclass(frozen=True, slots=True)
class Tally:
    """How some moves fall into classes, the largest ratio that is a number, and the worst class."""

    counts: tuple[int, ...]
    ratio: float | None

    @classmethod
    def of(cls, moves: Iterable[Move]) -> Tally:
        """Count moves."""
        listed = list(moves)
        counts = tuple(sum(move.kind is kind for move in listed) for kind in Kind)
        return cls(counts, max((move.ratio for move in listed if move.ratio is not None), default=None))

    @property
    def worst(self) -> Kind:
        """The worst class that occurs."""
        return max((kind for kind in Kind if self.counts[kind]), default=Kind.IDENTICAL)


def changed_form(before: Kept, after: Kept) -> str:
    """What of an output's dtype and shape is not as it was; empty where both are."""
    changes = {"dtype": (before.dtype, after.dtype), "shape": (list(before.shape), list(after.shape))}
    return ", ".join(f"{name} {old} → {new}" for name, (old, new) in changes.items() if old != new)


def changed_end(before: Ended | None, after: Ended | None) -> str:
    """What is said of a call that gave no result, then or now; empty where it ended as it did."""
    was = f"it was {before.reason}: {before.message}" if before is not None else ""
    if after is None:
        return f"gives a result now; {was}"
    said = f"{after.reason}: {after.message}"
    if before is None:
        return f"gives no result any more; {said}"
    # What an error says may hold anything; what is said of a wrong dtype or shape is ours.
    told = after.reason in ("wrong-dtype", "wrong-shape") and before.message != after.message
    return f"{said}; {was}" if before.reason != after.reason or told else ""


def by_component(moves: Iterable[Move], components: Iterable[str]) -> Iterator[tuple[str, list[Move]]]:
    """The moves of each component that has any, in that order."""
    listed = list(moves)
    for component in components:
        if mine := [move for move in listed if move.component == component]:
            yield component, mine

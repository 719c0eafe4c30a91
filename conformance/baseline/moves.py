"""The moves between two baselines: each output in a class, with the number that moved furthest, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from goldformer.adapters.untrusted_text import LONGEST_MESSAGE, clip_text
from goldformer.conformance.baseline.array_files import StoredArray
from goldformer.conformance.baseline.model import Ended, Key
from goldformer.conformance.diagnosis.evidence import Match
from goldformer.conformance.judging.verdict import Element, Grid
from goldformer.conformance.reports.counting import count_noun
from goldformer.conformance.reports.text import format_ratio


class Kind(IntEnum):
    """The classes of a move, from the best to the worst.

    FORM is another dtype or shape, an output that is new or gone, or no longer a result: it is the worst class, since
    nothing is left to compare.
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

    `output` is empty if the call as a whole moved. `ratio` is the largest |new − old| ÷ tolerance, None without a
    tolerance; `furthest` is its place, with the old value as expected and the new one as got. `beyond` of `compared`
    elements moved by more than the tolerance; `grid` is a window of them. `matches` are the known mistakes and options
    that reproduce the new output, or, if `was` is set, the old one. `precision` is the lower precision that it looks
    like: all values of an output of the call, or of a part of the component, are numbers of that precision now.
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
    precision: str = ""
    grid: Grid | None = None

    @property
    def place(self) -> tuple[Key, str]:
        """The call and the output."""
        return self.key, self.output

    @property
    def reason(self) -> tuple[object, ...]:
        """Return the same for all moves that have one reason; the unexplained ones of a component share theirs."""
        if self.kind is Kind.UNEXPLAINED:
            return self.kind, self.component
        return self.kind, self.matches[0].causes if self.matches else self.precision or self.why, self.was


def sort_worst_first(moves: Iterable[Move]) -> list[Move]:
    """Sort moves by class, and within it by ratio; the parts of a component stay before it."""
    return sorted(moves, key=lambda move: (-move.kind, -(move.ratio or 0.0)))


@dataclass(frozen=True, slots=True)
class Tally:
    """The number of moves in each class, and the largest ratio."""

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


@dataclass(frozen=True, slots=True)
class MoveGroup:
    """Moves for the same reason; `shown` stands for all: the worst of the first component, whose parts did not move."""

    shown: Move
    moves: tuple[Move, ...]

    @property
    def extent(self) -> str:
        """Say how many outputs moved, of how many calls, and how far."""
        calls = len({move.key for move in self.moves})
        ratios = [move.ratio for move in self.moves if move.ratio is not None and move.furthest is not None]
        far = f", by up to {format_ratio(max(ratios))} times the tolerance" if ratios else ""
        return f"{count_noun(len(self.moves), 'output')} of {count_noun(calls, 'call')}{far}"

    @property
    def others(self) -> str:
        """The other moves, by their components; empty if there are none."""
        counts = Counter(move.component for move in self.moves if move is not self.shown)
        return ", ".join(f"{component} {count}" for component, count in counts.items())


def group_by_reason(moves: Iterable[Move]) -> list[MoveGroup]:
    """Return moves in groups, those of the worst class first; the parts of a component come before it."""
    groups: dict[tuple[object, ...], list[Move]] = {}
    for move in moves:
        groups.setdefault(move.reason, []).append(move)
    made = []
    for mine in groups.values():
        first = [move for move in mine if move.component == mine[0].component]
        made.append(MoveGroup(sort_worst_first(first)[0], tuple(mine)))
    return sorted(made, key=lambda group: -group.shown.kind)


def describe_form_change(before: StoredArray, after: StoredArray) -> str:
    """Return how an output's dtype and shape changed; empty if they did not."""
    changes = {"dtype": (before.dtype, after.dtype), "shape": (list(before.shape), list(after.shape))}
    return ", ".join(f"{name} {old} → {new}" for name, (old, new) in changes.items() if old != new)


def describe_end_change(before: Ended | None, after: Ended | None) -> str:
    """Return how the end of a call without a result changed; empty if it did not."""
    was = f"it was {_describe_end(before)}" if before is not None else ""
    if after is None:
        return f"gives a result now; {was}"
    ends = _describe_end(after)
    if before is None:
        return f"gives no result any more: {ends}"
    # The message of an error may hold anything; that of a wrong dtype or shape is ours.
    differs = after.reason in ("wrong-dtype", "wrong-shape") and before.message != after.message
    return f"{ends}; {was}" if before.reason != after.reason or differs else ""


def _describe_end(ended: Ended) -> str:
    """Return why a call gave no result: its reason in a word, unless the message begins with it."""
    text = ended.message if ended.message.startswith(ended.reason) else f"{ended.reason}: {ended.message}"
    return clip_text(text, LONGEST_MESSAGE)


def group_by_component(moves: Iterable[Move], components: Iterable[str]) -> Iterator[tuple[str, list[Move]]]:
    """Yield each component that has moves, in that order, with them."""
    listed = list(moves)
    for component in components:
        if mine := [move for move in listed if move.component == component]:
            yield component, mine

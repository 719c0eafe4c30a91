"""What an update makes of a baseline: each kind of change is asked for by its name, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from goldformer.conformance.baseline.model import Baseline, Entry, Key, Output
from goldformer.conformance.baseline.moves import Kind, Move

#: create adds what is new, trim takes away what is gone, fix replaces what moved further than allowed, update all that
#: moved.
Act = Literal["create", "trim", "fix", "update"]
ACTS: Final[tuple[Act, ...]] = ("create", "trim", "fix", "update")


@dataclass(frozen=True, slots=True)
class Change:
    """One move that an act accepts."""

    act: Act
    move: Move


def changes(old: Baseline, new: Baseline, moves: Iterable[Move], acts: Iterable[Act], allowed: Kind) -> list[Change]:
    """What the acts change."""
    wanted = set(acts)
    found = []
    for move in moves:
        act = _act(old, new, move, allowed, wanted)
        if act in wanted:
            found.append(Change(act, move))
    return found


def _act(old: Baseline, new: Baseline, move: Move, allowed: Kind, wanted: set[Act]) -> Act | None:
    """By which act a move is accepted; None where it is none."""
    before, after = _has(old, move), _has(new, move)
    if not before:
        return "create"
    if not after:
        return "trim"
    if move.kind is Kind.IDENTICAL:
        return None
    return "fix" if move.kind > allowed and "fix" in wanted else "update"


def _has(baseline: Baseline, move: Move) -> bool:
    entry = baseline.entries.get(move.key)
    return entry is not None and (not move.output or move.output in entry.outputs)


def updated(old: Baseline, new: Baseline, accepted: Iterable[Change]) -> Baseline:
    """The old baseline with the accepted changes, which refer to the new recording; the others stay as they are.

    What is identical is left with the recording that it has.
    """
    entries = dict(old.entries)
    index = len(old.recordings)
    for change in accepted:
        key, output = change.move.key, change.move.output
        mine, theirs = entries.get(key), new.entries.get(key)
        if change.act == "trim":
            left = {name: o for name, o in mine.outputs.items() if name != output} if mine and output else {}
            if mine is not None and left:
                entries[key] = replace(mine, outputs=left)
            else:
                entries.pop(key, None)
        elif theirs is not None:
            entries[key] = _taken(mine, theirs, output, index)
    made = replace(old, goldformer=new.goldformer, spec=new.spec, recordings=(*old.recordings, *new.recordings))
    return _compact(replace(made, entries=_ordered(entries, old, new)))


def _taken(mine: Entry | None, theirs: Entry, output: str, index: int) -> Entry:
    """An entry with one output of the new one, or all of it."""
    stamped = {name: replace(o, recording=index) for name, o in theirs.outputs.items()}
    if mine is None or not output:
        ended = replace(theirs.ended, recording=index) if theirs.ended else None
        return replace(theirs, outputs=stamped, ended=ended)
    taken: dict[str, Output] = {**mine.outputs, output: stamped[output]}
    return replace(mine, outputs={name: taken[name] for name in (*theirs.outputs, *taken) if name in taken})


def _ordered(entries: Mapping[Key, Entry], old: Baseline, new: Baseline) -> dict[Key, Entry]:
    """The entries by case as they are recorded now, and those that are recorded no more at the end."""
    order = list(dict.fromkeys((*new.entries, *old.entries)))
    return {key: entries[key] for key in order if key in entries}


def _compact(baseline: Baseline) -> Baseline:
    """Without recordings that nothing refers to, and with those that say the same as one."""
    used = [i for entry in baseline.entries.values() for i in entry.recordings]
    kept = list(dict.fromkeys(_frozen(baseline, i) for i in sorted(set(used))))
    place = {i: kept.index(_frozen(baseline, i)) for i in set(used)}
    first = {kept.index(_frozen(baseline, i)): i for i in sorted(set(used), reverse=True)}
    entries = {
        key: replace(
            entry,
            outputs={n: replace(o, recording=place[o.recording]) for n, o in entry.outputs.items()},
            ended=replace(entry.ended, recording=place[entry.ended.recording]) if entry.ended else None,
        )
        for key, entry in baseline.entries.items()
    }
    return replace(baseline, entries=entries, recordings=tuple(baseline.recordings[first[i]] for i in range(len(kept))))


def _frozen(baseline: Baseline, index: int) -> tuple[object, ...]:
    r = baseline.recordings[index]
    return (r.given, r.name, r.version, r.arrays, *sorted(r.conventions.items()), *sorted(r.environment.items()))


def counted(accepted: Iterable[Change]) -> Iterator[tuple[Act, dict[Kind, int]]]:
    """How many changes of each act there are, by class."""
    listed = list(accepted)
    for act in ACTS:
        mine = [change.move.kind for change in listed if change.act == act]
        if mine:
            yield act, {kind: mine.count(kind) for kind in Kind if kind in mine}

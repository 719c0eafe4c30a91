"""Updates of a baseline: each kind of change is asked for by its name, and the rest stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from goldformer.conformance.baseline.model import Baseline, Entry, Key, Output, Recording
from goldformer.conformance.baseline.moves import Kind, Move

#: create adds what is new, trim removes what is gone, fix replaces what moved further than allowed and what else moved
#: in the same calls, update replaces all that moved.
Act = Literal["create", "trim", "fix", "update"]
ACTS: Final[tuple[Act, ...]] = ("create", "trim", "fix", "update")


@dataclass(frozen=True, slots=True)
class Change:
    """One move that an act accepts."""

    act: Act
    move: Move


def list_changes(
    old: Baseline, new: Baseline, moves: Iterable[Move], acts: Iterable[Act], allowed: Kind
) -> list[Change]:
    """Return the moves that the acts accept.

    Outputs of one call that stayed within what is allowed would be left from code that no longer exists.
    """
    wanted, listed = set(acts), list(moves)
    fixed = {move.key for move in listed if move.kind > allowed} if "fix" in wanted else set()
    found = []
    for move in listed:
        act = _choose_act(old, new, move, fixed)
        if act in wanted:
            found.append(Change(act, move))
    return found


def _choose_act(old: Baseline, new: Baseline, move: Move, fixed: set[Key]) -> Act | None:
    """Return the act that accepts a move; None if nothing moved. `fixed` are the calls of which all that moved is."""
    before, after = _has(old, move), _has(new, move)
    if not before:
        return "create"
    if not after:
        return "trim"
    if move.kind is Kind.IDENTICAL:
        return None
    return "fix" if move.key in fixed else "update"


def _has(baseline: Baseline, move: Move) -> bool:
    entry = baseline.entries.get(move.key)
    return entry is not None and (not move.output or move.output in entry.outputs)


def apply_changes(old: Baseline, new: Baseline, accepted: Iterable[Change], reason: str = "") -> Baseline:
    """Return the old baseline with the accepted changes, which refer to the new recording and say why.

    Everything else keeps its recording.
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
            entries[key] = _replace_outputs(mine, theirs, output, index)
    recordings = (*old.recordings, *(one.model_copy(update={"reason": reason}) for one in new.recordings))
    made = replace(old, goldformer=new.goldformer, spec=new.spec, recordings=recordings)
    return _compact(replace(made, entries=_sort_entries(entries, old, new)))


def _replace_outputs(mine: Entry | None, theirs: Entry, output: str, index: int) -> Entry:
    """Return an entry with one output of the new one, or with all of them."""
    stamped = {name: replace(o, recording=index) for name, o in theirs.outputs.items()}
    if mine is None or not output:
        ended = theirs.ended.model_copy(update={"recording": index}) if theirs.ended else None
        return replace(theirs, outputs=stamped, ended=ended)
    outputs: dict[str, Output] = {**mine.outputs, output: stamped[output]}
    return replace(mine, outputs={name: outputs[name] for name in (*theirs.outputs, *outputs) if name in outputs})


def _sort_entries(entries: Mapping[Key, Entry], old: Baseline, new: Baseline) -> dict[Key, Entry]:
    """Return the entries in the order of the new recording; entries that it does not have come last."""
    order = list(dict.fromkeys((*new.entries, *old.entries)))
    return {key: entries[key] for key in order if key in entries}


def _compact(baseline: Baseline) -> Baseline:
    """Return a baseline without unused recordings, and with equal recordings merged."""
    used = sorted({i for entry in baseline.entries.values() for i in entry.recordings})
    kept: list[Recording] = []
    place = {}
    for i in used:
        if baseline.recordings[i] not in kept:
            kept.append(baseline.recordings[i])
        place[i] = kept.index(baseline.recordings[i])
    entries = {
        key: replace(
            entry,
            outputs={n: replace(o, recording=place[o.recording]) for n, o in entry.outputs.items()},
            ended=entry.ended.model_copy(update={"recording": place[entry.ended.recording]}) if entry.ended else None,
        )
        for key, entry in baseline.entries.items()
    }
    return replace(baseline, entries=entries, recordings=tuple(kept))


def count_changes(accepted: Iterable[Change]) -> Iterator[tuple[Act, dict[Kind, int]]]:
    """Yield each act with the number of its changes in each class."""
    listed = list(accepted)
    for act in ACTS:
        mine = [change.move.kind for change in listed if change.act == act]
        if mine:
            yield act, {kind: mine.count(kind) for kind in Kind if kind in mine}

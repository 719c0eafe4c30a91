"""Updates of a baseline: the calls in which something moved are replaced, and the rest stays as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from goldformer.conformance.baseline.model import Baseline, Entry, Key, Recording
from goldformer.conformance.baseline.moves import Kind, Move


def list_acceptable(moves: Iterable[Move], allowed: Kind) -> list[Move]:
    """Return the moves of all calls in which an output moved further than allowed.

    An output of such a call that stayed within what is allowed would be left from code that no longer exists.
    """
    moved = [move for move in moves if move.kind is not Kind.IDENTICAL]
    beyond = {move.key for move in moved if move.kind > allowed}
    return [move for move in moved if move.key in beyond]


def apply_moves(old: Baseline, new: Baseline, accepted: Iterable[Move], reason: str = "") -> Baseline:
    """Return the old baseline with the calls of the accepted moves as in the new recording, which says why.

    Calls that are gone are removed. Everything else keeps its recording.
    """
    entries = dict(old.entries)
    index = len(old.recordings)
    for key in dict.fromkeys(move.key for move in accepted):
        if key in new.entries:
            entries[key] = _stamp(new.entries[key], index)
        else:
            del entries[key]
    recordings = (*old.recordings, *(one.model_copy(update={"reason": reason}) for one in new.recordings))
    made = replace(old, goldformer=new.goldformer, spec=new.spec, recordings=recordings)
    return _compact(replace(made, entries=_sort_entries(entries, old, new)))


def _stamp(entry: Entry, index: int) -> Entry:
    """Return an entry of which everything refers to one recording."""
    outputs = {name: replace(output, recording=index) for name, output in entry.outputs.items()}
    ended = entry.ended.model_copy(update={"recording": index}) if entry.ended else None
    return replace(entry, outputs=outputs, ended=ended)


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

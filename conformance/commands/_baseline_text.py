"""The text of a recording, of a drift and of an update, for goldformer baseline."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from goldformer.adapters.untrusted_text import join_lines
from goldformer.conformance.baseline.drift import Drift, describe_cause, describe_move, explain_drift
from goldformer.conformance.baseline.drift_data import format_tally
from goldformer.conformance.baseline.model import Baseline, Key
from goldformer.conformance.baseline.moves import KINDS, Kind, Move, MoveGroup, group_by_reason, sort_worst_first
from goldformer.conformance.commands._console import plain_table, print_table, say
from goldformer.conformance.reports.text import format_ratio, format_remarks, wrap

#: The largest number of reasons that are shown without --all.
_SHOWN: Final = 10
#: The largest number of files that are named.
_FILES: Final = 4


def print_recording(made: Baseline) -> None:
    """Print the number of outputs and calls of a recording, and of calls without a result."""
    results = [entry for entry in made.entries.values() if entry.outputs]
    outputs = sum(len(entry.outputs) for entry in results)
    ended = len(made.entries) - len(results)
    without = f", {ended} calls without a result" if ended else ""
    say(f"{made.recordings[0].title}: {outputs} outputs of {len(results)} calls{without}")


def print_drift(drift: Drift, folder: Path, allow: Kind, *, everything: bool) -> None:
    """Print a drift: differences of the environment, moves by component, the worst ones, causes, and the outcome."""
    title = drift.new.recordings[-1].title
    say(f"{title} against {folder}", "bold")
    for name, then, now in drift.environment:
        say(f"Changed: {name}: {then} → {now}", "yellow")
    for reason, components in drift.accepted:
        say(f"Accepted earlier: {reason} ({components})", "dim")
    table = plain_table("component", *KINDS, "move÷tol.", right=(*KINDS, "move÷tol."))
    for name, tally in drift.ranked(allow):
        table.add_row(name, *format_tally(tally), style="red" if tally.worst > allow else "")
    print_table(table)
    moved = [move for move in drift.moves if move.kind > Kind.IDENTICAL]
    beyond = [move for move in moved if move.kind > allow]
    groups = [MoveGroup(move, (move,)) for move in sort_worst_first(beyond)] if everything else group_by_reason(beyond)
    shown = groups if everything else groups[:_SHOWN]
    # If all is allowed, the largest move is shown.
    for group in shown or [MoveGroup(move, (move,)) for move in sort_worst_first(moved)[:1]]:
        say("")
        for line in describe_group(group, drift):
            say(line)
    if len(shown) < len(groups):
        say(f"\n{len(groups) - len(shown)} more reasons for moves further than allowed")
    if len(groups) < len(beyond):
        say(f"\n{len(beyond)} outputs moved further than allowed: --all shows each, --json has them")
    _print_remarks(drift)
    verdict = "nothing moved" if not moved else f"worst: {drift.tally.worst}"
    say(f"\n{verdict}, allowed: {allow}", "bold")


def suggest_update(adapter: str, folder: Path) -> str:
    """Return the command that accepts what moved further than allowed."""
    return f"If this is intended, accept it: goldformer baseline update {shlex.join([adapter, str(folder)])}"


def describe_failed_calls(made: Baseline, adapter: str) -> Iterator[str]:
    """Yield a warning for each component with failing calls: such a call counts as unmoved while it fails so."""
    for component in dict.fromkeys(entry.component for entry in made.entries.values()):
        mine = [entry for entry in made.entries.values() if entry.component == component]
        failed = [entry.ended for entry in mine if entry.ended and entry.ended.reason != "not-implemented"]
        if failed:
            check = f"goldformer check {shlex.quote(adapter)} --component {component}"
            yield (
                f"Warning: {component}: {len(failed)} of {len(mine)} calls gave no result, and their failure is "
                f"recorded: {join_lines(failed[0].message)}. See: {check}"
            )


def describe_group(group: MoveGroup, drift: Drift) -> Iterator[str]:
    """Yield the lines of a group of moves: one in full, and how many others moved for the same reason."""
    move = group.shown
    key, furthest = move.key, move.furthest
    where = f"({move.component}, {key.dtype} on {key.device})"
    yield f"{str(move.kind).upper()}  {key.case}  {where}"
    yield from wrap(describe_move(move, drift.spec).partition(": ")[2] or "as it was", "  → ")
    if furthest is not None:
        bound = f"tolerance {move.tolerance:.3g}" if move.tolerance else "must be exact"
        ratio = f", move ÷ tolerance {format_ratio(move.ratio)}" if move.ratio is not None and move.tolerance else ""
        yield f"  {move.output}: {move.beyond} of {move.compared} moved further than the tolerance ({bound})"
        yield f"  furthest at {list(furthest.index)}: {furthest.expected!r} → {furthest.got!r}{ratio}"
    if group.others:
        yield from wrap(f"{group.extent}; others: {group.others}", "  Same reason ")
    if repeat := drift.repeat(key):
        yield f"  Repeat      {repeat}"


def _print_remarks(drift: Drift) -> None:
    """Print what explains the moves, if something does."""
    if lines := format_remarks(explain_drift(drift)):
        say("")
    for line in lines:
        say(line)


def print_changes(accepted: list[Move], drift: Drift) -> None:
    """Print what an update changes: the number of each class, and the moves by their cause."""
    kinds = [move.kind for move in accepted]
    if kinds:
        say("update: " + ", ".join(f"{kinds.count(kind)} {kind}" for kind in Kind if kind in kinds), "bold")
    for head, moves in _group_by_cause(accepted, drift):
        say(f"  {head}")
        by_call: defaultdict[Key, list[str]] = defaultdict(list)
        for move in moves:
            by_call[move.key].append(_format_distance(move))
        for key, outputs in by_call.items():
            say(f"    {key.case} ({key.dtype} on {key.device}): {', '.join(outputs)}")


def _group_by_cause(moves: list[Move], drift: Drift) -> Iterator[tuple[str, tuple[Move, ...]]]:
    """Yield a heading and the moves of a component and a class with the same cause."""
    for component in dict.fromkeys(move.component for move in moves):
        for group in group_by_reason(move for move in moves if move.component == component):
            # The worst fit holds for all of them.
            least = max(group.moves, key=lambda move: move.matches[0].ratio if move.matches else 0.0)
            measured = [move.ratio for move in group.moves if move.furthest is not None and move.ratio is not None]
            far = f"by up to {format_ratio(max(measured))} times the tolerance" if measured else ""
            parts = [part for part in (far, join_lines(describe_cause(least, drift.spec))) if part]
            yield f"{component}, {len(group.moves)} {least.kind}" + f": {'; '.join(parts)}" * bool(parts), group.moves


def _format_distance(move: Move) -> str:
    """Return an output with its move ÷ tolerance, if it has one."""
    far = format_ratio(move.ratio) if move.furthest is not None and move.ratio is not None else ""
    return f"{move.output or 'the call'} {far}".rstrip()


def describe_files(changed: list[Path]) -> str:
    """Return what follows "wrote the manifest": the files of arrays that changed, and their size."""
    if not changed:
        return ""
    size = f"{sum(path.stat().st_size for path in changed) / 2**20:.1f} MiB"
    if len(changed) > _FILES:
        return f" and {len(changed)} files of arrays ({size})"
    return f" and {', '.join(path.name for path in changed)} ({size})"

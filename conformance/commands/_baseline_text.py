"""The text of a drift and of an update, for goldformer baseline."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from goldformer.conformance.baseline.drift import Drift, describe_cause, headline, remarks
from goldformer.conformance.baseline.model import Key
from goldformer.conformance.baseline.moves import KINDS, Kind, Move, worst_first
from goldformer.conformance.baseline.report import cells
from goldformer.conformance.baseline.update import ACTS, Change, count_changes, list_changes
from goldformer.conformance.commands._console import plain_table, print_table, say
from goldformer.conformance.reports.text import format_remarks, number, wrap

#: The largest number of moves that are shown without --all, and of one component.
_SHOWN: Final = 10
_SHOWN_OF_ONE: Final = 2
#: The largest number of files that are named.
_FILES: Final = 4


def print_drift(drift: Drift, folder: Path, allow: Kind, *, everything: bool) -> None:
    """Print a drift: differences of the environment, moves by component, the worst ones, causes, and the outcome."""
    title = drift.new.recordings[-1].title
    say(f"{title} against {folder}", "bold")
    for name, then, now in drift.environment:
        say(f"Changed: {name}: {then} → {now}", "yellow")
    table = plain_table("component", *KINDS, "move÷tol.", right=(*KINDS, "move÷tol."))
    for name, tally in drift.tallies.items():
        table.add_row(name, *cells(tally), style="red" if tally.worst > allow else "")
    print_table(table)
    worst = [move for move in worst_first(drift.moves) if move.kind > Kind.IDENTICAL]
    beyond = [move for move in worst if move.kind > allow]
    shown = beyond if everything else _pick_worst(beyond)
    for move in shown or worst[:1]:
        say("")
        for line in move_lines(move, drift):
            say(line)
    if len(beyond) > len(shown):
        say(f"\n{len(beyond) - len(shown)} more moved further than allowed: --all shows them, --json has them")
    print_remarks(drift)
    verdict = "nothing moved" if not worst else f"worst: {drift.tally.worst}"
    say(f"\n{verdict}, allowed: {allow}", "bold")


def _pick_worst(moves: list[Move]) -> list[Move]:
    """Return the first moves of each component."""
    seen: Counter[str] = Counter()
    chosen = []
    for move in moves:
        seen[move.component] += 1
        if seen[move.component] <= _SHOWN_OF_ONE:
            chosen.append(move)
    return chosen[:_SHOWN]


def suggest_update(drift: Drift, adapter: str, folder: Path, allow: Kind) -> str:
    """Return the command that accepts what moved further than allowed."""
    beyond = [move for move in drift.moves if move.kind > allow]
    asked = {change.act for change in list_changes(drift.old, drift.new, beyond, ("create", "trim", "fix"), allow)}
    acts = [f"--{act}" for act in ACTS if act in asked]
    return f"If this is intended, accept it: goldformer baseline update {shlex.join([adapter, str(folder), *acts])}"


def move_lines(move: Move, drift: Drift) -> Iterator[str]:
    """Yield the lines of one move in full."""
    key, furthest = move.key, move.furthest
    where = f"({move.component}, {key.dtype} on {key.device})"
    yield f"{str(move.kind).upper()}  {key.case}  {where}"
    yield from wrap(headline(move, drift.spec).partition(": ")[2] or "as it was", "  → ")
    if furthest is not None:
        bound = f"tolerance {move.tolerance:.3g}" if move.tolerance else "must be exact"
        ratio = f", move ÷ tolerance {number(move.ratio)}" if move.ratio is not None and move.tolerance else ""
        yield f"  {move.output}: {move.beyond} of {move.compared} moved further than the tolerance ({bound})"
        yield f"  furthest at {list(furthest.index)}: {furthest.expected!r} → {furthest.got!r}{ratio}"
    if repeat := drift.repeat(key):
        yield f"  Repeat      {repeat}"


def print_remarks(drift: Drift) -> None:
    """Print what explains the moves, if something does."""
    if lines := format_remarks(remarks(drift)):
        say("")
    for line in lines:
        say(line)


def print_changes(accepted: list[Change], drift: Drift) -> None:
    """Print what an update changes: counts by act and class, and the changes by their cause."""
    for act, kinds in count_changes(accepted):
        say(f"{act}: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()), "bold")
        mine = [change.move for change in accepted if change.act == act]
        for head, moves in _group_by_cause(mine, drift):
            say(f"  {head}")
            by_call: defaultdict[Key, list[str]] = defaultdict(list)
            for move in moves:
                by_call[move.key].append(_format_distance(move))
            for key, outputs in by_call.items():
                say(f"    {key.case} ({key.dtype} on {key.device}): {', '.join(outputs)}")


def _group_by_cause(moves: list[Move], drift: Drift) -> Iterator[tuple[str, list[Move]]]:
    """Yield a heading and the moves of a component and a class with the same cause."""
    groups: defaultdict[tuple[object, ...], list[Move]] = defaultdict(list)
    for move in moves:
        causes = move.matches[0].causes if move.matches else move.why
        groups[move.component, move.kind, causes, move.was].append(move)
    for mine in groups.values():
        # The worst fit holds for all of them.
        least = max(mine, key=lambda move: move.matches[0].ratio if move.matches else 0.0)
        measured = [move.ratio for move in mine if move.furthest is not None and move.ratio is not None]
        far = f"by up to {number(max(measured))} times the tolerance" if measured else ""
        parts = [part for part in (far, describe_cause(least, drift.spec)) if part]
        yield f"{least.component}, {len(mine)} {least.kind}" + f": {'; '.join(parts)}" * bool(parts), mine


def _format_distance(move: Move) -> str:
    """Return an output with its move ÷ tolerance, if it has one."""
    far = number(move.ratio) if move.furthest is not None and move.ratio is not None else ""
    return f"{move.output or 'the call'} {far}".rstrip()


def describe_files(changed: list[Path]) -> str:
    """Return what follows "wrote the manifest": the files of arrays that changed, and their size."""
    if not changed:
        return ""
    size = f"{sum(path.stat().st_size for path in changed) / 2**20:.1f} MiB"
    if len(changed) > _FILES:
        return f" and {len(changed)} files of arrays ({size})"
    return f" and {', '.join(path.name for path in changed)} ({size})"

"""A drift: all that moved from one baseline to another, with what is said of it as a whole."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from goldformer.conformance.baseline.environment import differences
from goldformer.conformance.baseline.model import Baseline, Key
from goldformer.conformance.baseline.moves import Kind, Move, Tally, by_component
from goldformer.conformance.diagnosis.causes import find_cause
from goldformer.conformance.diagnosis.findings import Finding, describe_distance, describe_explanations
from goldformer.conformance.diagnosis.suspects import find_failing_roots, rank_explanations
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.reports.text import number
from goldformer.spec import Spec


@dataclass(frozen=True)
class Drift:
    """What moved from an old baseline to a new one; `command` begins the line that repeats a check."""

    old: Baseline
    new: Baseline
    moves: tuple[Move, ...]
    spec: Spec
    command: str = ""

    @cached_property
    def tally(self) -> Tally:
        """All of it in counts."""
        return Tally.of(self.moves)

    @cached_property
    def tallies(self) -> dict[str, Tally]:
        """Each component in counts, in the order of the spec."""
        return {name: Tally.of(mine) for name, mine in by_component(self.moves, self.spec.components)}

    @property
    def environment(self) -> list[tuple[str, str, str]]:
        """What is not as it was where something old was recorded: its name, then, and now."""
        used = {i for entry in self.old.entries.values() for i in entry.recordings}
        now = self.new.recordings[-1]
        found = dict.fromkeys(d for i in sorted(used) for d in differences(self.old.recordings[i], now))
        versions = (("goldformer", self.old.goldformer, self.new.goldformer), ("spec", self.old.spec, self.new.spec))
        own = [(name, then[:16], now_[:16]) for name, then, now_ in versions if then != now_]
        return [*own, *found]

    def repeat(self, key: Key) -> str:
        """The line that repeats the check of one call; empty where there is none."""
        if not self.command:
            return ""
        device = ["--device", key.device] if key.device != "cpu" else []
        return f"{self.command} {shlex.join(['--case', key.case, '--dtype', key.dtype, *device])}"


def sentence(move: Move, spec: Spec) -> str:
    """Why a move is of its class, in one sentence without its end."""
    if not move.matches:
        return move.why
    best = move.matches[0]
    titles = " and ".join(find_cause(id_, spec).title for id_ in best.causes)
    if move.was:
        return f"no longer {titles}, which it was, {describe_distance(best.ratio)}"
    return f"equals {titles}, {describe_distance(best.ratio)}"


def headline(move: Move, spec: Spec) -> str:
    """A move in one line: its class, what moved and by how much, and why."""
    what = f"{move.output} " if move.output else ""
    said = f"moved by {number(move.ratio)} times the tolerance" if move.ratio is not None else "moved"
    moved = f"{what}{said}" if move.furthest is not None else what.strip()
    parts = [part for part in (moved, sentence(move, spec)) if part]
    return f"{move.kind}: {'; '.join(parts)}"


def remarks(drift: Drift) -> Iterator[Finding]:
    """What the known mistakes and options that were found say of each component, and what moved along with it."""
    beyond = [move for move in drift.moves if move.kind > Kind.ROUNDING and move.kind is not Kind.FORM]
    if not any(move.matches for move in beyond):
        # Nothing known explains it: where it begins is worth saying all the same.
        yield from _began(beyond, drift.spec)
        return
    for was, label in ((False, "This is"), (True, "It was")):
        about = [move for move in beyond if move.was is was]
        if not any(move.matches for move in about):
            continue
        verdicts = _verdicts(about, drift.spec)
        roots, followers = find_failing_roots(verdicts, drift.spec)
        for component in roots:
            explained = [e for e in rank_explanations(verdicts, component, drift.spec) if 2 * e.equals >= e.case_count]
            found = describe_explanations(explained, "moved", was=was)
            if found:
                yield Finding("Moved first", component, inner=False)
            yield from (replace(r, label=label if r.label == "This is" else r.label) for r in found)
        if followers:
            yield Finding("These moved too, and are built of it", ", ".join(followers), inner=False)


def _began(beyond: list[Move], spec: Spec) -> Iterator[Finding]:
    """The components that moved though nothing that they are built of did, and those that moved along."""
    roots, followers = find_failing_roots(_verdicts(beyond, spec), spec)
    yield from (Finding("Moved first", component, inner=False) for component in roots)
    if followers:
        yield Finding("These moved too, and are built of it", ", ".join(followers), inner=False)


def _verdicts(moves: Iterable[Move], spec: Spec) -> list[Verdict]:
    """Each call that moved as a failing case, which is what the diagnosis reads."""
    found: dict[Key, Verdict] = {}
    for move in moves:
        key = move.key
        if key not in found or move.matches:
            case = spec.cases[key.case]
            found[key] = Verdict(
                key.case, "case", move.component, case.title, Status.FAILED, "wrong-value", move.why, key.dtype,
                key.device, case.clauses, "", case.kills, matches=move.matches,
            )  # fmt: skip
    return list(found.values())

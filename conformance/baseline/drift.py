"""A drift: all moves from one baseline to another, and their diagnosis."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from goldformer.adapters.untrusted_text import LONGEST_MESSAGE, clip_text, join_lines
from goldformer.conformance.baseline.environment import list_differences
from goldformer.conformance.baseline.model import Baseline, Key
from goldformer.conformance.baseline.moves import Kind, Move, Tally, group_by_component, group_by_reason
from goldformer.conformance.diagnosis.causes import find_cause
from goldformer.conformance.diagnosis.diagnosed import CheckDiagnosis, DiagnosedRun, Explained
from goldformer.conformance.diagnosis.finding import MISTAKE_FOUND, OPTION_FOUND, Finding
from goldformer.conformance.diagnosis.findings import describe_distance, describe_explanations
from goldformer.conformance.diagnosis.suspects import find_failing_roots, rank_explanations
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.conformance.reports.text import format_ratio
from goldformer.spec import Spec

#: The number of reasons that are given of a component.
_REASONS: Final = 3
#: The labels of reasons that are no mistake and no option, by the class of the moves.
_LABELS: Final = {
    Kind.PRECISION: "Precision", Kind.SEMANTIC: "Reason", Kind.UNEXPLAINED: "Cause unknown", Kind.FORM: "Form",
}  # fmt: skip
#: The labels of what explains the old results and no longer the new ones.
_REMOVED: Final = {MISTAKE_FOUND: "Mistake removed", OPTION_FOUND: "Option removed"}


@dataclass(frozen=True)
class Drift:
    """All moves from an old baseline to a new one; `command` begins the line that repeats a check."""

    old: Baseline
    new: Baseline
    moves: tuple[Move, ...]
    spec: Spec
    command: str = ""

    @cached_property
    def tally(self) -> Tally:
        """The counts of all moves."""
        return Tally.of(self.moves)

    @cached_property
    def tallies(self) -> dict[str, Tally]:
        """The counts of each component, in the order of the spec."""
        return {name: Tally.of(mine) for name, mine in group_by_component(self.moves, self.spec.components)}

    def ranked(self, allowed: Kind) -> list[tuple[str, Tally]]:
        """Return the counts of each component, those that moved further than allowed first."""
        return sorted(self.tallies.items(), key=lambda item: item[1].worst <= allowed)

    @property
    def environment(self) -> list[tuple[str, str, str]]:
        """The differences between the old environments and the new one: name, then, and now."""
        used = {i for entry in self.old.entries.values() for i in entry.recordings}
        now = self.new.recordings[-1]
        found = dict.fromkeys(d for i in sorted(used) for d in list_differences(self.old.recordings[i], now))
        versions = (("goldformer", self.old.goldformer, self.new.goldformer), ("spec", self.old.spec, self.new.spec))
        own = [(name, then[:16], now_[:16]) for name, then, now_ in versions if then != now_]
        return [(_shorten(name), _shorten(then), _shorten(now_)) for name, then, now_ in (*own, *found)]

    @property
    def accepted(self) -> list[tuple[str, str]]:
        """The reasons for which updates accepted old results, each with the components of these results."""
        found: dict[str, dict[str, None]] = {}
        for entry in self.old.entries.values():
            for reason in {self.old.recordings[i].reason for i in entry.recordings} - {""}:
                found.setdefault(reason, {})[entry.component] = None
        return [(_shorten(reason), ", ".join(components)) for reason, components in found.items()]

    def repeat(self, key: Key) -> str:
        """Return the line that repeats the check of one call; empty if there is none."""
        if not self.command:
            return ""
        device = ["--device", key.device] if key.device != "cpu" else []
        return f"{self.command} {shlex.join(['--case', key.case, '--dtype', key.dtype, *device])}"


def _shorten(text: str) -> str:
    """Return a text of a manifest on one line, clipped: somebody else may have written it."""
    return join_lines(clip_text(text, LONGEST_MESSAGE))


def describe_cause(move: Move, spec: Spec) -> str:
    """Return why a move is in its class, as a sentence without its full stop."""
    if not move.matches:
        return move.why
    best = move.matches[0]
    titles = " and ".join(find_cause(id_, spec).title for id_ in best.causes)
    if move.was:
        return f"no longer equals {titles}, as it did {describe_distance(best.ratio)}"
    return f"equals {titles}, {describe_distance(best.ratio)}"


def describe_move(move: Move, spec: Spec) -> str:
    """Return a move in one line: its class, what moved and by how much, and why."""
    far = f"moved by {format_ratio(move.ratio)} times the tolerance" if move.ratio is not None else "moved"
    cause = describe_cause(move, spec)
    if move.furthest is None:
        return f"{move.kind}: {f'{move.output} {cause}'.strip()}"
    moved = f"{move.output} {far}".lstrip()
    return f"{move.kind}: {'; '.join(part for part in (moved, cause) if part)}"


def explain_drift(drift: Drift) -> Iterator[Finding]:
    """Yield the components that moved first, why they did, and what moved with them."""
    known = [move for move in drift.moves if move.key.case in drift.spec.cases]
    beyond = [move for move in known if move.kind > Kind.ROUNDING]
    unmoved = _list_unmoved(known, drift.spec)
    for was in (False, True):
        about = [move for move in beyond if move.was is was]
        roots, followers = find_failing_roots(_make_run(about, drift.spec), drift.spec)
        # A call without a result refutes no mistake.
        moved = _make_run((move for move in about if move.kind is not Kind.FORM), drift.spec)
        run = replace(moved, verdicts=(*moved.verdicts, *unmoved))
        for component in roots:
            ranked = rank_explanations(run, component, drift.spec)
            explained = [e for e in ranked if 2 * e.equals >= e.case_count]
            found = describe_explanations(explained, "moved", was=was)
            yield Finding("Moved first", component, inner=False)
            yield from (replace(r, label=_REMOVED.get(r.label, r.label)) if was else r for r in found)
            if not found:
                yield from _describe_reasons([move for move in about if move.component == component])
        if followers:
            yield Finding("These moved too, and are built of it", ", ".join(followers), inner=False)


def _describe_reasons(moves: list[Move]) -> Iterator[Finding]:
    """Yield the reasons of the moves of one component that no mistake and no option explains, the commonest first."""
    groups = sorted(group_by_reason(moves), key=lambda group: -len(group.moves))
    for group in groups[:_REASONS]:
        shown = group.shown
        label = _LABELS[shown.kind]
        where = f" Worst: {shown.key.case} ({shown.key.dtype})." if shown.kind is Kind.UNEXPLAINED else ""
        yield Finding(label, f"{shown.why}. {len(group.moves)} of {len(moves)} outputs that moved.{where}")


def _list_unmoved(moves: Iterable[Move], spec: Spec) -> DiagnosedRun:
    """Return each call that gave the same result but for rounding, as a passing case: it rules out what it would show.

    A backward pass of the implementation's own may stay as it is when the forward pass changes: gradients are left out.
    """
    worst: dict[Key, Move] = {}
    for move in moves:
        if move.key not in worst or move.kind > worst[move.key].kind:
            worst[move.key] = move
    same = (move for move in worst.values() if move.output and move.kind <= Kind.ROUNDING)
    return _make_run((move for move in same if spec.cases[move.key.case].cotangent is None), spec, Status.PASSED)


def _make_run(moves: Iterable[Move], spec: Spec, status: Status = Status.FAILED) -> DiagnosedRun:
    """Return each call as a case with this status, which the diagnosis can read; those that moved are failing."""
    found: dict[Key, Explained] = {}
    for move in moves:
        key = move.key
        if key not in found or move.matches:
            case = spec.cases[key.case]
            verdict = Verdict(
                key.case, "case", move.component, case.title, status, "wrong-value", move.why, key.dtype,
                key.device, case.clauses, "", case.kills,
            )  # fmt: skip
            found[key] = Explained(verdict, CheckDiagnosis(move.matches))
    return DiagnosedRun.of(found.values())

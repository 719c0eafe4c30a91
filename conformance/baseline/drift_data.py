"""A drift as data, and as Markdown for the summary of a build."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

from goldformer.adapters.untrusted_text import printable
from goldformer.conformance.baseline.drift import Drift, describe_cause, describe_move, explain_drift
from goldformer.conformance.baseline.moves import KINDS, Kind, Move, Tally, group_by_reason, sort_worst_first
from goldformer.conformance.reports.markdown import list_remarks
from goldformer.conformance.reports.text import format_ratio
from goldformer.spec.markdown import escape, markdown_table

#: The number of reasons that a summary lists; the JSON has all moves.
_LISTED: Final = 20

SYMBOLS: Final = {
    Kind.IDENTICAL: "✓", Kind.ROUNDING: "≈", Kind.PRECISION: "▽", Kind.SEMANTIC: "✗", Kind.UNEXPLAINED: "?",
    Kind.FORM: "!",
}  # fmt: skip


def count_as_json(tally: Tally) -> dict[str, Any]:
    """Return a tally as plain data."""
    return {"worst": str(tally.worst), "ratio": tally.ratio, "counts": dict(zip(KINDS, tally.counts, strict=True))}


def as_json(drift: Drift, allowed: Kind) -> dict[str, Any]:
    """Return all of a drift but the identical outputs, as plain data."""
    return {
        "goldformer": drift.new.goldformer,
        "allowed": str(allowed),
        **count_as_json(drift.tally),
        "environment": [dict(zip(("name", "old", "new"), d, strict=True)) for d in drift.environment],
        "old": [recording.model_dump() for recording in drift.old.recordings],
        "new": drift.new.recordings[-1].model_dump(),
        "components": {name: count_as_json(tally) for name, tally in drift.tallies.items()},
        "diagnosis": [asdict(remark) for remark in explain_drift(drift)],
        "moves": [
            _move_as_json(move, drift) for move in sort_worst_first(drift.moves) if move.kind is not Kind.IDENTICAL
        ],
    }


def _move_as_json(move: Move, drift: Drift) -> dict[str, Any]:
    furthest = move.furthest
    return {
        **move.key._asdict(), "component": move.component, "output": move.output, "class": str(move.kind),
        "ratio": move.ratio, "tolerance": move.tolerance, "beyond": move.beyond, "compared": move.compared,
        "index": None if furthest is None else list(furthest.index),
        "old": None if furthest is None else furthest.expected,
        "new": None if furthest is None else furthest.got,
        "why": describe_move(move, drift.spec), "matches": [asdict(match) for match in move.matches],
        "repeat": drift.repeat(move.key),
    }  # fmt: skip


def format_tally(tally: Tally) -> list[str]:
    """Return a tally as the cells of a table under the classes and "move ÷ tolerance"."""
    ratio = "–" if tally.ratio is None else format_ratio(tally.ratio)
    return [*(str(count or "·") for count in tally.counts), ratio]


def markdown(drift: Drift, allowed: Kind) -> str:
    """Return the moves by component, the worst of them, and the differences of the environment."""
    return printable("\n".join(_write_markdown_lines(drift, allowed)) + "\n")


def _write_markdown_lines(drift: Drift, allowed: Kind) -> Iterator[str]:
    title = drift.new.recordings[-1].title
    symbol = "✓" if drift.tally.worst <= allowed else "✗"
    yield f"## {symbol} {escape(title)} against its baseline\n"
    yield f"Worst: {drift.tally.worst}; allowed: {allowed} (`goldformer baseline check`).\n"
    for name, then, now in drift.environment:
        yield f"- {escape(name)}: {escape(then)} → {escape(now)}"
    for reason, components in drift.accepted:
        yield f"- Accepted earlier: {escape(reason)} ({components})"
    yield ""
    lines = [[f"`{name}`", *format_tally(tally)] for name, tally in drift.ranked(allowed)]
    yield markdown_table(["component", *KINDS, "move ÷ tolerance"], lines)
    yield from list_remarks(explain_drift(drift))
    moved = [move for move in drift.moves if move.kind > allowed]
    groups = group_by_reason(moved)
    if moved:
        yield f"\n<details><summary>{len(moved)} moved further than allowed</summary>\n"
        for group in groups[:_LISTED]:
            move = group.shown
            why = describe_cause(move, drift.spec)
            yield f"- **{move.kind}**, {group.extent}" + f": {escape(why)}" * bool(why)
            yield f"  - worst: `{move.key.case}` ({move.key.dtype})"
            if group.others:
                yield f"  - others: {group.others}"
        if len(groups) > _LISTED:
            yield f"- and {len(groups) - _LISTED} more reasons"
        if repeat := drift.repeat(groups[0].shown.key):
            yield f"\n```console\n$ {repeat}\n```"
        yield "\n</details>"

"""A comparison as data, as Markdown for the summary of a build, and as a badge."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict
from typing import Any, Final

from goldformer.conformance.diagnosis.findings import diagnose
from goldformer.conformance.reports.comparison import Cell, Comparison, Implementation, Tally, environment
from goldformer.conformance.reports.text import number, stands_on
from goldformer.spec import Spec
from goldformer.spec.readme import escape, markdown_table

#: How many bad checks of an implementation a summary lists; the page and the JSON have all.
_LISTED: Final = 10

#: What is said first of a state, so that no colour is needed.
SYMBOLS: Final = {"conforms": "✓", "fails": "✗", "fails first": "✗"}


def in_brief(cell: Cell | None) -> str:
    """A cell in few characters: how many of the judged checks pass, and the worst ratio; or why there are none."""
    if cell is None:
        return "–"
    tally = cell.tally
    if not tally.judged:
        return f"– {cell.state}" if cell.state == "not implemented" else f"– {reasons(tally)}"
    worst = f" · {number(tally.worst)}" if tally.worst is not None else ""
    return f"{SYMBOLS[cell.state]} {tally.passed} of {tally.judged}{worst}"


def reasons(tally: Tally, among: Collection[str] | None = None) -> str:
    """Why checks were skipped, with how many, as "3 not implemented, 1 of another convention"."""
    words = {"convention": "of another convention", "dtype": "not in this dtype", "advice": "only advised"}
    chosen = {why: count for why, count in tally.skipped.items() if among is None or why in among}
    return ", ".join(f"{count} {words.get(why, why.replace('-', ' '))}" for why, count in chosen.items())


def ends(implementation: Implementation, spec: Spec) -> str:
    """How an implementation ended, in words."""
    if implementation.problem:
        return implementation.problem
    judged = [cell for cell in implementation.cells(spec).values() if cell.tally.judged]
    failing = sum(bool(cell.tally.bad) for cell in judged)
    if failing:
        return f"fails in {failing} of {_components(len(judged))}"
    apply = sum(cell.tally.judged for cell in judged)
    checks = apply + sum(sum(cell.tally.skipped.values()) for cell in judged)
    return " · ".join(filter(None, ("conforms", _components(len(judged)), stands_on(apply, checks))))


def _components(count: int) -> str:
    return f"{count} component{'s' if count != 1 else ''}"


# ── a badge ──


def badge(implementation: Implementation, spec: Spec) -> dict[str, Any]:
    """What shields.io reads from an endpoint, to draw a badge of one implementation."""
    colour = {"conforms": "brightgreen", "fails": "red", "unusable": "lightgrey"}[implementation.outcome]
    said = "not checked" if implementation.problem else ends(implementation, spec)
    return {"schemaVersion": 1, "label": "goldformer", "message": said, "color": colour}


# ── Markdown ──


def markdown(comparison: Comparison, spec: Spec) -> str:
    """A table of components, what to mend, and what it ran on."""
    cells = [i.cells(spec) for i in comparison.implementations]
    lines = [
        [f"`{component}`", *(escape(in_brief(mine.get(component))) for mine in cells)]
        for component in comparison.components(spec)
    ]
    parts = ["## Conformance to the Transformer\n"]
    for name, implementation in zip(comparison.names, comparison.implementations, strict=True):
        symbol = {"conforms": "✓", "fails": "✗", "unusable": "!"}[implementation.outcome]
        declared = [f"{key}: {option}" for key, option in implementation.conventions.items()]
        by = f" (declares {escape(', '.join(declared))})" if declared else ""
        title = f"{name} {implementation.version}".strip()
        parts.append(f"- {symbol} **{escape(title)}**: {escape(ends(implementation, spec))}{by}")
    if lines:
        parts.append("")
        parts.append(markdown_table(["component", *map(escape, comparison.names)], lines))
        parts.append(
            "Checks that pass, of those that were judged, and the worst error ÷ tolerance: up to 1 is rounding.\n"
        )
    for name, implementation in zip(comparison.names, comparison.implementations, strict=True):
        if implementation.bad:
            parts += [f"### {escape(name)}\n", *_failures(implementation, spec)]
    ran = [f"{key} {value}" for key, value in (environment() | libraries(comparison)).items()]
    parts.append(f"\n{escape(' · '.join([*ran, comparison.request.device, ', '.join(comparison.request.dtypes)]))}\n")
    return "\n".join(parts)


def _failures(implementation: Implementation, spec: Spec) -> Iterator[str]:
    for remark in diagnose(implementation.verdicts, spec):
        yield f"{'  ' if remark.inner else ''}- **{remark.label}**: {escape(remark.text)}"
    bad = implementation.bad
    yield f"\n<details><summary>{len(bad)} failing check{'s' if len(bad) != 1 else ''}</summary>\n"
    for verdict in bad[:_LISTED]:
        yield f"- `{verdict.check}` ({verdict.dtype}): {escape(verdict.message)}"
    if len(bad) > _LISTED:
        yield f"- and {len(bad) - _LISTED} more"
    yield f"\n```console\n$ {bad[0].reproduce}\n```\n\n</details>\n"


def libraries(comparison: Comparison) -> dict[str, str]:
    """What the implementations compute with, and its versions."""
    found: dict[str, str] = {}
    for implementation in comparison.implementations:
        found |= implementation.libraries
    return found


# ── data ──


def as_json(comparison: Comparison, spec: Spec) -> dict[str, Any]:
    """All of it but the verdicts that are not bad."""
    return {
        "environment": environment(),
        **asdict(comparison.request),
        "outcome": comparison.outcome,
        "implementations": [
            {
                "given": i.given, "name": i.name, "version": i.version, "outcome": i.outcome, "problem": i.problem,
                "libraries": dict(i.libraries), "conventions": dict(i.conventions), "hints": list(i.hints),
                "seconds": i.seconds,
                "components": [
                    {
                        "component": cell.component, "state": cell.state, **_tally(cell.tally),
                        "dtypes": {dtype: _tally(tally) for dtype, tally in cell.dtypes.items()},
                    }
                    for cell in i.cells(spec).values()
                ],
                "clauses": {id_: _tally(tally) for id_, tally in i.clauses(spec).items()},
                "diagnosis": [
                    {"label": remark.label, "text": remark.text, "inner": remark.inner}
                    for remark in diagnose(i.verdicts, spec)
                ],
                "failures": [verdict.as_json() for verdict in i.bad],
            }
            for i in comparison.implementations
        ],
    }  # fmt: skip


def _tally(tally: Tally) -> dict[str, Any]:
    return {
        "passed": tally.passed, "failed": tally.failed, "errored": tally.errored, "skipped": dict(tally.skipped),
        "worst_ratio": tally.worst,
    }  # fmt: skip

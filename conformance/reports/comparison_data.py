"""A comparison as data, and as Markdown for the summary of a build."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from typing import Any, Final

from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.reports.comparison import Comparison, Implementation
from goldformer.conformance.reports.counting import count_noun
from goldformer.conformance.reports.results import (
    COARSE,
    NOT_IMPLEMENTED,
    PARTIAL,
    ComponentResult,
    Counts,
)
from goldformer.conformance.reports.text import format_ratio, select_rows
from goldformer.spec import Spec
from goldformer.spec.readme import escape, markdown_table

#: The number of bad checks of an implementation that a summary lists; the page and the JSON have all.
_LISTED: Final = 10

#: The symbol of each state, so that no colour is needed.
SYMBOLS: Final = {"conforms": "✓", COARSE: "✓", PARTIAL: "◐", "fails": "✗", "fails first": "✗", "unusable": "!"}


def summarize_result(result: ComponentResult | None) -> str:
    """Return a component in few characters: the judged checks that pass and the worst ratio, or why there are 0."""
    if result is None:
        return "–"
    counts = result.counts
    if result.state == PARTIAL:
        return f"{SYMBOLS[PARTIAL]} {PARTIAL} · {result.stands_on}"
    if not counts.number_judged:
        return f"– {result.state if result.state == NOT_IMPLEMENTED else list_reasons(counts) or result.state}"
    worst = f" · {format_ratio(counts.worst)}" if counts.worst is not None else ""
    return f"{SYMBOLS[result.state]} {counts.passed} of {counts.number_judged}{worst}"


def list_reasons(counts: Counts, among: Collection[str] | None = None) -> str:
    """Return why checks were skipped, as "3 not implemented, 1 of another convention"."""
    words = {
        "convention": "of another convention", "dtype": "not in this dtype", "advice": "only advised",
        "precision": "right only to float32", "gpu": "would fail on a GPU",
    }  # fmt: skip
    chosen = {why: count for why, count in counts.skipped.items() if among is None or why in among}
    return ", ".join(f"{count} {words.get(why, why.replace('-', ' '))}" for why, count in chosen.items())


def describe_outcome(implementation: Implementation, spec: Spec) -> str:
    """Return the outcome of an implementation in words."""
    if implementation.problem:
        return implementation.problem
    results = implementation.results(spec).values()
    judged = [result for result in results if result.counts.number_judged or result.state == PARTIAL]
    failing = sum(bool(result.counts.bad) for result in judged)
    counts = Counts.of(implementation.verdicts)
    refuses = f"refuses {counts.refused} of {counts.refusals} bad inputs" if counts.refusals else ""
    if failing:
        return " · ".join(filter(None, (f"fails in {failing} of {count_noun(len(judged), 'component')}", refuses)))
    apply = sum(result.coverage.judged for result in judged)
    cases = sum(result.coverage.cases for result in judged)
    partial = sum(result.state == PARTIAL for result in judged)
    state = PARTIAL if partial else COARSE if counts.coarse else "conforms" if judged else ""
    stands_on = f"{apply} of {cases} cases apply" if cases else ""
    components = count_noun(len(judged), "component") if judged else ""
    few = f"too few in {count_noun(partial, 'component')}" if partial else ""
    return " · ".join(filter(None, (state, components, stands_on, few, refuses)))


# ── Markdown ──


def markdown(comparison: Comparison, spec: Spec) -> str:
    """Return a table of components, the diagnosis, and the environment."""
    cells = [i.results(spec) for i in comparison.implementations]
    lines = [
        [f"`{component}`", *(escape(summarize_result(mine.get(component))) for mine in cells)]
        for component in comparison.components(spec)
    ]
    parts = ["## Conformance to the Transformer\n"]
    for name, implementation in zip(comparison.names, comparison.implementations, strict=True):
        declared = [f"{key}: {option}" for key, option in implementation.conventions.items()]
        by = f" (declares {escape(', '.join(declared))})" if declared else ""
        title = f"{name} {implementation.version}".strip()
        symbol, outcome = SYMBOLS[implementation.outcome], describe_outcome(implementation, spec)
        parts.append(f"- {symbol} **{escape(title)}**: {escape(outcome)}{by}")
    if lines:
        parts.append("")
        parts.append(markdown_table(["component", *map(escape, comparison.names)], lines))
        parts.append(
            "Checks that pass, of those that were judged, and the worst error ÷ tolerance: up to 1 is rounding.\n"
        )
    for name, implementation in zip(comparison.names, comparison.implementations, strict=True):
        remarks = [*list_remarks(implementation.remarks(spec))]
        if remarks:
            parts += [f"### {escape(name)}\n", *remarks]
        if implementation.bad:
            parts += _list_failures(implementation)
    ran = [f"{key} {value}" for key, value in (comparison.environment(spec) | collect_libraries(comparison)).items()]
    parts.append(f"\n{escape(' · '.join([*ran, comparison.request.device, ', '.join(comparison.request.dtypes)]))}\n")
    return "\n".join(parts)


def _list_failures(implementation: Implementation) -> Iterator[str]:
    bad = implementation.bad
    yield f"\n<details><summary>{count_noun(len(bad), 'failing check')}</summary>\n"
    for verdict in bad[:_LISTED]:
        yield f"- `{verdict.check}` ({verdict.dtype}): {escape(verdict.message)}"
    if len(bad) > _LISTED:
        yield f"- and {len(bad) - _LISTED} more"
    yield f"\n```console\n$ {implementation.run.explain(bad[0]).reproduce}\n```\n\n</details>\n"


def list_remarks(remarks: Iterable[Finding]) -> Iterator[str]:
    """Yield remarks as a list in Markdown; remarks on a component are indented below it."""
    for remark in remarks:
        text = f"`{remark.text}`" if remark.is_code else escape(remark.text)
        yield f"{'  ' if remark.inner else ''}- **{remark.label}**: {text}"


def collect_libraries(comparison: Comparison) -> dict[str, str]:
    """Return the array libraries of the implementations, and their versions."""
    found: dict[str, str] = {}
    for implementation in comparison.implementations:
        found |= implementation.libraries
    return found


# ── data ──


def as_json(comparison: Comparison, spec: Spec) -> dict[str, Any]:
    """Return all of a comparison but the verdicts that pass, as plain data."""
    return {
        "environment": comparison.environment(spec),
        **asdict(comparison.request),
        "outcome": comparison.outcome,
        "implementations": [
            {
                "given": i.given, "name": i.name, "version": i.version, "outcome": i.outcome, "problem": i.problem,
                "libraries": dict(i.libraries), "conventions": dict(i.conventions), "hints": list(i.hints),
                "seconds": i.seconds,
                "components": [
                    {
                        "component": result.component, "state": result.state, **_count_as_json(result.counts),
                        **coverage_as_json(result),
                        "dtypes": {dtype: _count_as_json(counts) for dtype, counts in result.dtypes.items()},
                    }
                    for result in select_rows(i.results(spec).values())
                ],
                "not_implemented": [r.component for r in i.results(spec).values() if r.state == NOT_IMPLEMENTED],
                "clauses": {id_: _count_as_json(counts) for id_, counts in i.clauses(spec).items()},
                "diagnosis": diagnosis_as_json(i, spec),
                "failures": [i.run.explain(verdict).as_json() for verdict in i.bad],
                "tolerated": [i.run.explain(verdict).as_json() for verdict in i.verdicts if verdict.is_tolerated],
            }
            for i in comparison.implementations
        ],
    }  # fmt: skip


def diagnosis_as_json(implementation: Implementation, spec: Spec) -> list[dict[str, Any]]:
    """Return the sentences of the diagnosis and the other remarks, with the ids of the mistakes that they name."""
    return [asdict(finding) for finding in implementation.remarks(spec, whole=True)]


def _count_as_json(counts: Counts) -> dict[str, Any]:
    return {
        "passed": counts.passed, "failed": counts.failed, "errored": counts.errored, "skipped": dict(counts.skipped),
        "worst_ratio": counts.worst, "refused": counts.refused, "bad_inputs": counts.refusals,
    }  # fmt: skip


def coverage_as_json(result: ComponentResult) -> dict[str, Any]:
    """Return how many cases of a component were judged, how many must be, and what nothing could show."""
    coverage = result.coverage
    return {
        "cases_judged": coverage.judged, "cases_admitted": coverage.admitted, "cases_needed": coverage.needed,
        "cases": coverage.cases, "cases_lost": list(coverage.lost), "unseen_mistakes": list(coverage.unseen),
        "judged_up_to": dict(result.judged_up_to),
    }  # fmt: skip

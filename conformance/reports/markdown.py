"""A comparison as Markdown for the summary of a build, and the few words that all forms say of a component."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from goldformer.conformance.diagnosis.finding import Finding
from goldformer.conformance.reports.comparison import Comparison
from goldformer.conformance.reports.counting import count_noun
from goldformer.conformance.reports.record import RunRecord
from goldformer.conformance.reports.results import (
    COARSE,
    NOT_IMPLEMENTED,
    PARTIAL,
    ComponentResult,
    Counts,
)
from goldformer.conformance.reports.text import format_ratio
from goldformer.spec import Spec
from goldformer.spec.markdown import escape, markdown_table

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
    worst = f" · {format_ratio(counts.worst_ratio)}" if counts.worst_ratio is not None else ""
    return f"{SYMBOLS[result.state]} {counts.passed} of {counts.number_judged}{worst}"


def list_reasons(counts: Counts, among: Collection[str] | None = None) -> str:
    """Return why checks were skipped, as "3 not implemented, 1 of another convention"."""
    words = {
        "convention": "of another convention", "dtype": "not in this dtype", "advice": "only advised",
        "precision": "right only to float32", "gpu": "would fail on a GPU",
    }  # fmt: skip
    chosen = {why: count for why, count in counts.skipped.items() if among is None or why in among}
    return ", ".join(f"{count} {words.get(why, why.replace('-', ' '))}" for why, count in chosen.items())


def describe_outcome(record: RunRecord) -> str:
    """Return the outcome of an implementation in words."""
    if record.problem:
        return record.problem
    judged = [result for result in record.results.values() if result.counts.number_judged or result.state == PARTIAL]
    failing = sum(bool(result.counts.bad) for result in judged)
    counts = Counts.of(record.verdicts)
    refuses = f"refuses {counts.refused} of {counts.refusals} bad inputs" if counts.refusals else ""
    if failing:
        return " · ".join(filter(None, (f"fails in {failing} of {count_noun(len(judged), 'component')}", refuses)))
    apply = sum(result.coverage.judged for result in judged)
    cases = sum(result.coverage.cases for result in judged)
    partial = sum(result.state == PARTIAL for result in judged)
    state = PARTIAL if record.outcome == PARTIAL else COARSE if counts.coarse else "conforms" if judged else ""
    stands_on = f"{apply} of {cases} cases apply" if cases else ""
    components = count_noun(len(judged), "component") if judged else ""
    few = f"too few in {count_noun(partial, 'component')}" if partial else ""
    return " · ".join(filter(None, (state, components, stands_on, few, refuses)))


def markdown(comparison: Comparison, spec: Spec) -> str:
    """Return a table of components, the diagnosis, and the environment."""
    records = [*zip(comparison.names, comparison.records, strict=True)]
    lines = [
        [f"`{component}`", *(escape(summarize_result(record.results.get(component))) for _, record in records)]
        for component in comparison.components(spec)
    ]
    parts = ["## Conformance to the Transformer\n"]
    for name, record in records:
        declared = [f"{key}: {option}" for key, option in record.conventions.items()]
        by = f" (declares {escape(', '.join(declared))})" if declared else ""
        title = f"{name} {record.version}".strip()
        parts.append(f"- {SYMBOLS[record.outcome]} **{escape(title)}**: {escape(describe_outcome(record))}{by}")
    if lines:
        parts.append("")
        parts.append(markdown_table(["component", *map(escape, comparison.names)], lines))
        parts.append(
            "Checks that pass, of those that were judged, and the worst error ÷ tolerance: up to 1 is rounding.\n"
        )
    for name, record in records:
        if record.brief:
            parts += [f"### {escape(name)}\n", *list_remarks(record.brief)]
        if record.bad:
            parts += _list_failures(record)
    ran = [f"{key} {value}" for key, value in comparison.environment(spec).items()]
    parts.append(f"\n{escape(' · '.join([*ran, comparison.request.device, ', '.join(comparison.request.dtypes)]))}\n")
    return "\n".join(parts)


def _list_failures(record: RunRecord) -> Iterator[str]:
    yield f"\n<details><summary>{count_noun(len(record.bad), 'failing check')}</summary>\n"
    for verdict in record.bad[:_LISTED]:
        yield f"- `{verdict.check}` ({verdict.dtype}): {escape(verdict.message)}"
    if len(record.bad) > _LISTED:
        yield f"- and {len(record.bad) - _LISTED} more"
    yield f"\n```console\n$ {record.run.explain(record.bad[0]).reproduce}\n```\n\n</details>\n"


def list_remarks(remarks: Iterable[Finding]) -> Iterator[str]:
    """Yield remarks as a list in Markdown; remarks on a component are indented below it."""
    for remark in remarks:
        text = f"`{remark.text}`" if remark.is_code else escape(remark.text)
        yield f"{'  ' if remark.inner else ''}- **{remark.label}**: {text}"

"""Remarks on a run, below its table: the diagnosis, precision, coverage, robustness, and what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from goldformer.conformance.diagnosis.findings import Finding, diagnose, list_few
from goldformer.conformance.diagnosis.precision import find_precision
from goldformer.conformance.judging.verdict import Verdict
from goldformer.conformance.reports.results import NOT_IMPLEMENTED, ComponentResult, Counts
from goldformer.spec import Spec

#: The labels of the lines below the diagnosis.
FEW_CASES_APPLY: Final = "Few cases apply"
COULD_NOT_SHOW: Final = "Could not show"
ROBUSTNESS: Final = "Robustness"
MISSING: Final = "Not implemented"
#: What is no diagnosis of a failure.
NOTES: Final = frozenset({FEW_CASES_APPLY, COULD_NOT_SHOW, ROBUSTNESS, MISSING})


def make_remarks(
    verdicts: Sequence[Verdict], results: Sequence[ComponentResult], spec: Spec, *, whole: bool = False
) -> list[Finding]:
    """Return what is said of a run; `whole` names all known mistakes that could not show, and all that is missing."""
    return [
        *(finding for finding in diagnose(verdicts, spec) if finding.label != MISSING),
        *find_precision(verdicts, spec),
        *_explain_coverage(results),
        *_list_unseen(results, whole=whole),
        *_describe_robustness(verdicts),
        *_list_missing(results, whole=whole),
    ]


def _explain_coverage(results: Sequence[ComponentResult]) -> Iterator[Finding]:
    """Yield what took away the cases of each component of which few apply."""
    for result in results:
        if result.coverage.lost and result.state not in (NOT_IMPLEMENTED, "not checked"):
            text = f"{result.component}, {result.coverage}. Skipped: {'; '.join(result.coverage.lost)}"
            yield Finding(FEW_CASES_APPLY, text, inner=False)


def _list_unseen(results: Sequence[ComponentResult], *, whole: bool) -> Iterator[Finding]:
    """Yield the known mistakes that nothing which ran could have shown."""
    judged = [r for r in results if r.counts.number_judged and r.coverage.unseen]
    if not judged:
        return
    names = ", " if whole else None
    parts = []
    for result in judged:
        unseen = result.coverage.unseen
        listed = names.join(unseen) if names else list_few(unseen)
        known = f"known mistake{'s' if len(unseen) != 1 else ''} of {result.component}"
        parts.append(f"{len(unseen)} {known} ({listed})" if whole or len(judged) == 1 else f"{len(unseen)} {known}")
    why = "every check that shows them was skipped" + ("" if whole else "; -v names them all")
    yield Finding(COULD_NOT_SHOW, f"{', '.join(parts)}: {why}", inner=False)


def _describe_robustness(verdicts: Sequence[Verdict]) -> Iterator[Finding]:
    """Yield how many bad inputs were refused, and which were not."""
    counts = Counts.of(verdicts)
    if not counts.refusals:
        return
    accepted = dict.fromkeys(v.check for v in verdicts if v.asks == "refusal" and v.is_tolerated)
    text = f"refuses {counts.refused} of {counts.refusals} bad inputs"
    text += f"; accepts {list_few(accepted)} (-v shows each; only --strict fails them)" if accepted else ""
    yield Finding(ROBUSTNESS, text, inner=False)


def _list_missing(results: Sequence[ComponentResult], *, whole: bool) -> Iterator[Finding]:
    """Yield the components that the adapter does not have."""
    if missing := [result.component for result in results if result.state == NOT_IMPLEMENTED]:
        yield Finding(MISSING, ", ".join(missing) if whole else list_few(missing), inner=False)

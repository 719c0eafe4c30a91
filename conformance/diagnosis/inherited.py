"""The failures that a component inherits from its parts: a mistake that explains the part reproduces them.

A property, and a gradient that is too slow to imitate, is compared with no mistake. It is inherited if every failure
that was compared is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from goldformer.conformance.diagnosis.causes import Cause, find_cause
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.suspects import is_compared, rank_best
from goldformer.conformance.judging.verdict import CheckKey, Verdict
from goldformer.spec import Spec


def find_certain_causes(run: DiagnosedRun, component: str, spec: Spec) -> dict[str, Cause]:
    """Return the causes that reproduce every failing case of a component, by their headings.

    Several explanations may be equally good: the causes of all of them are returned.
    """
    best = rank_best(run, component, spec)
    return {cause.heading: cause for e in best if e.certain for cause in e.causes}


def find_inherited(run: DiagnosedRun, known: Mapping[str, Cause], spec: Spec) -> dict[CheckKey, tuple[Cause, ...]]:
    """Return the failures of a component that only causes of its parts reproduce, with those causes.

    `known` are the causes of its parts by their headings; the run is of this component.
    """
    bad = [v for v in run if v.bad]
    inherited: dict[CheckKey, tuple[Cause, ...]] = {}
    for verdict in bad:
        matches = (tuple(find_cause(id_, spec) for id_ in ids) for ids in run.evidence.list_equal(verdict.key))
        same = next((causes for causes in matches if all(_is_known(cause, known) for cause in causes)), None)
        if same:
            inherited[verdict.key] = same
    others = [v for v in bad if v.key not in inherited]
    if inherited and all(_is_undecided(v, run, known.values(), spec) for v in others):
        (most, *_) = inherited.values()
        inherited |= {v.key: most for v in others}
    return inherited


def _is_known(cause: Cause, known: Mapping[str, Cause]) -> bool:
    """Return True if a cause is among some: generated ones of two components may have one heading."""
    same = known.get(cause.heading)
    return same is not None and same.id == cause.id


def _is_undecided(verdict: Verdict, run: DiagnosedRun, causes: Iterable[Cause], spec: Spec) -> bool:
    """Return True for a failure that was not compared with these causes, and that one of them may have."""
    causes = list(causes)
    if verdict.kind == "property":
        return any(cause.id in run.list_catches(verdict) for cause in causes)
    return run.list_matches(verdict) == () and not is_compared(verdict, causes, spec)

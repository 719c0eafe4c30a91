"""Fits by chance of single cases, which are left out at the end of a run: functions of the evidence."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from goldformer.conformance.diagnosis.causes import Causes, find_cause
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.suspects import is_by_hand, list_explained, rank_best
from goldformer.conformance.judging.verdict import CheckKey
from goldformer.spec import Spec


def drop_chance_fits(run: DiagnosedRun, spec: Spec) -> DiagnosedRun:
    """Return a run without the entries of its evidence that hold by chance."""
    return _drop_disproven(_drop_single_fits(run, spec), spec)


def _drop_single_fits(run: DiagnosedRun, spec: Spec) -> DiagnosedRun:
    """Leave out solved numbers that fit one case only, and no new call."""
    bad = [v.key for v in run if v.bad]
    confirmed = {(key.component, causes) for key in bad for causes in run.evidence.list_redrawn(key, equal=True)}
    fits = Counter((key.component, causes) for key in bad for causes in run.evidence.list_equal(key))
    single = {
        (component, causes)
        for (component, causes), count in fits.items()
        if count == 1 and (component, causes) not in confirmed and any(find_cause(id_, spec).solved for id_ in causes)
    }
    if not single:
        return run
    return replace(run, evidence=run.evidence.select_equal(lambda key, ids: (key.component, ids) not in single))


def _drop_disproven(run: DiagnosedRun, spec: Spec) -> DiagnosedRun:
    """Leave out causes that fit some cases, where another explanation fits all of them."""
    kept: dict[str, set[Causes]] = {}
    for component in list_explained(run):
        best = rank_best(run, component, spec)
        if best[0].certain:
            kept[component] = {causes for e in best for causes in (e.ids, *e.twins)}
            # A case without gradients says nothing of a backward pass.
            kept[component] |= {tuple(id_ for id_ in ids if not _is_by_hand(id_, spec)) for ids in kept[component]}
    # A case that nothing else explains keeps what fits it.
    explained = {
        v.key for v in run if v.bad and not kept.get(v.component, set()).isdisjoint(run.evidence.list_equal(v.key))
    }

    def keeps(key: CheckKey, causes: Causes) -> bool:
        return key not in explained or causes in kept[key.component]

    return replace(run, evidence=run.evidence.select_equal(keeps)) if kept else run


def _is_by_hand(id_: str, spec: Spec) -> bool:
    """Return True for a cause in a backward pass that is written by hand."""
    cause = find_cause(id_, spec)
    return not cause.option and is_by_hand(cause.id)

"""Tell apart what explains failures equally well: by calls that raise, by unjudged elements, and in float64.

In float32 a fill of −20 and one of −100 give the same weights in most cases, and −1e9 added to a score leaves nothing
of it. The implementation is called again only with cases in which the explanations differ in float64. What gives the
same in every case, such as scores that are scaled twice and scores divided by d_k, is one mistake in other words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from goldformer.conformance.diagnosis.causes import Causes
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.evidence import Call, CallKind
from goldformer.conformance.diagnosis.failure import (
    FINEST,
    FailingCase,
    equals_whole,
    estimate_cost,
    list_quick_cases,
)
from goldformer.conformance.diagnosis.suspects import MOST_COMPARED, list_explained, rank_best, select_judgements
from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.invoke import BadResult, Result
from goldformer.conformance.judging.verdict import UNANSWERED
from goldformer.spec import Spec

if TYPE_CHECKING:
    from goldformer.conformance.diagnosis.imitation import Imitator

#: The most calls of one component.
_MOST_CALLS: Final = 4
#: The numbers of the cases in which explanations are compared, by their cost: a quarter of a second.
_MOST_NUMBERS: Final = 200_000
#: The fewest cases in which causes must be the same.
_FEWEST: Final = 5


def tell_apart(
    judgements: Sequence[Judgement], run: DiagnosedRun, imitator: Imitator, spec: Spec, *, calls: bool
) -> None:
    """Add which of the best explanations of a component's failures further looks at its cases contradict.

    A call that raises supports the causes that raise too. With `calls`, the implementation is called again in float64,
    unless it was judged in it or does not work in it.
    """
    for component in list_explained(run):
        mine = select_judgements(judgements, component)
        best = [e.ids for e in rank_best(run, component, spec) if not e.passing][:MOST_COMPARED]
        with run.keep_verdicts(next(j.verdict for j in mine if j.verdict.bad)):
            best = _leave_out_idle(best, mine, imitator)
            for judgement, causes in _find_raising(best, mine, imitator):
                run.evidence.add(Call(judgement.verdict.key, CallKind.RAISES), dict.fromkeys(causes, 0.0))
            for judgement, causes in _find_differing_in_rest(best, mine, imitator):
                run.evidence.contradict(Call(judgement.verdict.key, CallKind.UNJUDGED), causes)
                best = [ids for ids in best if ids not in causes]
            _add_twins(best, mine, run, imitator)
            if calls and best and all(j.bench.dtype != FINEST for j in mine):
                for judgement, causes in _find_refuted(best, mine, imitator):
                    run.evidence.contradict(Call(judgement.verdict.key, CallKind.EXACT), causes)


def _find_raising(
    causes: Sequence[Causes], judgements: Sequence[Judgement], imitator: Imitator
) -> Iterator[tuple[Judgement, list[Causes]]]:
    """Yield the calls that raise with some of these causes, but not with all, and those causes."""
    left = _MOST_NUMBERS if len(causes) > 1 else 0
    for judgement in judgements:
        failing = FailingCase.of(judgement)
        if failing is None or failing.case.full_size:
            continue
        if not (isinstance(failing.actual, BadResult) and failing.actual.reason == "raised"):
            continue
        left -= len(causes) * estimate_cost(failing.case)
        if left < 0:
            return
        made = {ids: imitator.imitate(ids, failing) for ids in causes}
        raising = [ids for ids, bad in made.items() if isinstance(bad, BadResult) and bad.reason == "raised"]
        if raising and len(raising) < len(causes):
            yield judgement, raising


def _find_differing_in_rest(
    causes: Sequence[Causes], judgements: Sequence[Judgement], imitator: Imitator
) -> Iterator[tuple[Judgement, list[Causes]]]:
    """Yield the failing cases, with the causes that differ in unjudged elements where others do not."""
    left = _MOST_NUMBERS if len(causes) > 1 else 0
    for judgement in judgements:
        failing = FailingCase.of(judgement) if judgement.verdict.bad else None
        if failing is None or failing.case.random or all(g.indices is None for g in failing.expected.values()):
            continue
        left -= len(causes) * estimate_cost(failing.case)
        if left < 0:
            return
        differing = [ids for ids in causes if failing.differs_in_rest(imitator.imitate(ids, failing))]
        if differing and len(differing) < len(causes):
            yield judgement, differing
            return


def _add_twins(
    causes: Sequence[Causes], judgements: Sequence[Judgement], run: DiagnosedRun, imitator: Imitator
) -> None:
    """Add with the best of some causes the others that give the same in every small case of the component."""
    if len(causes) < 2:
        return
    first, *others = causes
    explained = (j for j in judgements if j.verdict.bad and first in run.evidence.list_equal(j.verdict.key))
    failing = next((FailingCase.of(judgement) for judgement in explained), None)
    if failing is None:
        return
    left, count = _MOST_NUMBERS, 0
    for case in list_quick_cases(failing.case.component, imitator.spec):
        left -= len(causes) * estimate_cost(case)
        if left < 0 or not others:
            break
        seen = failing.put_exactly(case)
        result = imitator.imitate(first, seen)
        others = [ids for ids in others if equals_whole(result, imitator.imitate(ids, seen))]
        count += 1
    if others and count >= _FEWEST:
        run.evidence.add_twins(failing.case.component, first, others)


def _leave_out_idle(causes: Sequence[Causes], judgements: Sequence[Judgement], imitator: Imitator) -> list[Causes]:
    """Return some causes without those that give what fewer of them give: only rounding tells them apart."""
    cases = [
        (j.case.size, index) for index, j in enumerate(judgements) if j.verdict.bad and j.case and not j.case.cotangent
    ]
    seen = FailingCase.of(judgements[min(cases)[1]]) if cases else None
    return [
        ids for ids in causes if not any({*fewer} < {*ids} and is_idle(ids, fewer, seen, imitator) for fewer in causes)
    ]


def is_idle(causes: Causes, fewer: Causes, failure: FailingCase | None, imitator: Imitator) -> bool:
    """Return True if some causes give in float64 what fewer of them give, so that the others do nothing."""
    if failure is None or failure.case.cotangent is not None or causes == fewer:
        return False
    exact = replace(failure, dtype=FINEST)
    return equals_whole(imitator.imitate(causes, exact), imitator.imitate(fewer, exact))


def _find_refuted(
    causes: Sequence[Causes], judgements: Sequence[Judgement], imitator: Imitator
) -> Iterator[tuple[Judgement, list[Causes]]]:
    """Yield the cases whose results in float64 some of these causes do not give, with those causes."""
    possible, calls = list(causes), 0
    for judgement, bench, case in _select_cases(causes, judgements, imitator):
        made = {ids: imitator.imitate(ids, case) for ids in possible}
        groups = _group_same(made, case)
        # The right result is known without a call where every explanation gives it.
        if len(groups) < 2 and (judgement.verdict.bad or not _is_wrong(made[possible[0]], case)):
            continue
        if calls == _MOST_CALLS:
            return
        calls += 1
        actual = bench.call_case(case.case)
        if isinstance(actual, BadResult) and actual.reason in UNANSWERED:
            return
        if not isinstance(actual, Result | BadResult):
            continue
        seen = replace(case, actual=actual)
        fitting = [ids for ids in possible if _is_same(actual, made[ids], case)]
        right = isinstance(actual, Result) and not seen.wrong
        refuted = [ids for ids in possible if ids not in fitting and (bool(fitting) or seen.excludes(made[ids]))]
        # Code that computes in float32 gives neither the right result nor that of an explanation.
        if refuted and (fitting or right):
            possible = [ids for ids in possible if ids not in refuted]
            yield judgement, refuted
        if not possible:
            return


def _select_cases(
    causes: Sequence[Causes], judgements: Sequence[Judgement], imitator: Imitator
) -> Iterator[tuple[Judgement, Bench, FailingCase]]:
    """Yield the quick cases in float64: those that failed, then those that passed; those that list a cause first."""
    by_hand = all(imitator.are_by_hand(ids) for ids in causes)
    named = {id_ for ids in causes for id_ in ids}
    chosen = [
        (case.cotangent is not None, not judgement.verdict.bad, named.isdisjoint(case.kills), case.size, index, case)
        for index, judgement in enumerate(judgements)
        if (case := judgement.case) is not None and judgement.expected and isinstance(judgement.outcome, Result)
        if not (case.full_size or case.random or (judgement.verdict.by_hand and not by_hand))
    ]
    left = _MOST_NUMBERS
    for *_, index, case in sorted(chosen, key=lambda c: c[:5]):
        cost = len(causes) * estimate_cost(case)
        if cost > left:
            continue
        left -= cost
        failing, bench = FailingCase.of(judgements[index]), replace(judgements[index].bench, dtype=FINEST)
        if failing is None or bench.explain_unusable(case.component):
            return
        yield judgements[index], bench, replace(failing, dtype=FINEST)


def _group_same(made: Mapping[Causes, Result | BadResult | None], case: FailingCase) -> list[Causes]:
    """Return one of the causes for each different result."""
    groups: list[Causes] = []
    for ids, result in made.items():
        if not any(_is_same(made[other], result, case) for other in groups):
            groups.append(ids)
    return groups


def _is_same(one: Result | BadResult | None, other: Result | BadResult | None, case: FailingCase) -> bool:
    """Return True if two results differ by no more than rounding."""
    if one is None or other is None:
        return one is other
    seen = replace(case, actual=one)
    if isinstance(one, Result) and isinstance(other, Result) and not seen.wrong:
        return not _is_wrong(other, case)
    return seen.distance(other) is not None


def _is_wrong(result: Result | BadResult | None, case: FailingCase) -> bool:
    return isinstance(result, Result) and bool(replace(case, actual=result).wrong)

"""Tell apart what explains failures equally well: by calls that raise, by unjudged elements, and in float64.

In float32 a fill of −20 and one of −100 give the same weights in most cases, and −1e9 added to a score leaves nothing
of it. The implementation is called again only with cases in which the explanations differ in float64. What gives the
same in every case, such as scores that are scaled twice and scores divided by d_k, is one mistake in other words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from goldformer.conformance.diagnosis.causes import Causes
from goldformer.conformance.diagnosis.failure import FailingCase, estimate_cost
from goldformer.conformance.diagnosis.suspects import MOST_COMPARED, list_explained, rank_best, select_judgements
from goldformer.conformance.judging.cases import Bench, Judgement
from goldformer.conformance.judging.decision import report_fault
from goldformer.conformance.judging.invoke import BadResult, Result
from goldformer.conformance.judging.verdict import UNANSWERED, Match, Verdict
from goldformer.spec import Case, Spec

if TYPE_CHECKING:
    from goldformer.conformance.diagnosis.imitation import Imitator

FINEST: Final = "float64"
#: The most calls of one component.
_MOST_CALLS: Final = 4
#: The numbers of the cases in which explanations are compared, by their cost: a quarter of a second.
_MOST_NUMBERS: Final = 200_000

#: The fewest cases in which causes must be the same, and the rounding of two ways to compute one thing in float64.
_FEWEST: Final = 5
_ROUNDING: Final = float(np.sqrt(np.finfo(np.float64).eps))


def tell_apart(
    judgements: Sequence[Judgement | None], verdicts: list[Verdict], imitator: Imitator, spec: Spec, *, calls: bool
) -> None:
    """Note in the verdicts which of the best explanations of a component's failures are refuted.

    A verdict of a failing case loses its match, one of a passing case rules the causes out, and one of a call that
    raises has the causes that raise too. With `calls`, the implementation is called again in float64, unless it was
    judged in it or does not work in it.
    """
    for component in list_explained(verdicts):
        mine = select_judgements(judgements, component)
        best = [e.ids for e in rank_best(verdicts, component, spec) if not e.passing][:MOST_COMPARED]
        try:
            best = _leave_out_idle(best, mine, imitator)
            for index, causes in _find_raising(best, mine, imitator):
                verdicts[index] = replace(verdicts[index], matches=tuple(Match(ids, 0.0) for ids in causes))
            for index, causes in _find_differing_in_rest(best, mine, imitator):
                verdicts[index] = _note_refuted(verdicts[index], causes)
                best = [ids for ids in best if ids not in causes]
            _note_twins(best, mine, verdicts, imitator)
            if calls and best and all(j.bench.dtype != FINEST for j in mine.values()):
                for index, causes in _find_refuted(best, mine, imitator):
                    verdicts[index] = _note_refuted(verdicts[index], causes)
        except Exception as error:
            first = next(index for index in mine if verdicts[index].bad)
            verdicts[first] = report_fault(verdicts[first], error)


def _note_refuted(verdict: Verdict, causes: list[Causes]) -> Verdict:
    if verdict.bad:
        return replace(verdict, matches=tuple(m for m in verdict.matches or () if m.causes not in causes))
    return replace(verdict, rules_out=(*verdict.rules_out, *causes))


def _find_raising(
    causes: Sequence[Causes], judgements: Mapping[int, Judgement], imitator: Imitator
) -> Iterator[tuple[int, list[Causes]]]:
    """Yield the indices of calls that raise with some of these causes, but not with all, and those causes."""
    left = _MOST_NUMBERS if len(causes) > 1 else 0
    for index, judgement in judgements.items():
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
            yield index, raising


def _find_differing_in_rest(
    causes: Sequence[Causes], judgements: Mapping[int, Judgement], imitator: Imitator
) -> Iterator[tuple[int, list[Causes]]]:
    """Yield the indices of failing cases, with the causes that differ in unjudged elements where others do not."""
    left = _MOST_NUMBERS if len(causes) > 1 else 0
    for index, judgement in judgements.items():
        failing = FailingCase.of(judgement) if judgement.verdict.bad else None
        if failing is None or failing.case.random or all(g.indices is None for g in failing.expected.values()):
            continue
        left -= len(causes) * estimate_cost(failing.case)
        if left < 0:
            return
        differing = [ids for ids in causes if failing.differs_in_rest(imitator.imitate(ids, failing))]
        if differing and len(differing) < len(causes):
            yield index, differing
            return


def _note_twins(
    causes: Sequence[Causes], judgements: Mapping[int, Judgement], verdicts: list[Verdict], imitator: Imitator
) -> None:
    """Note with the best of some causes the others that give the same in every small case of the component."""
    if len(causes) < 2:
        return
    first, *others = causes
    index = next((i for i in judgements if any(m.causes == first for m in verdicts[i].matches or ())), None)
    failing = FailingCase.of(judgements[index]) if index is not None else None
    if index is None or failing is None:
        return
    left, count = _MOST_NUMBERS, 0
    for case in list_quick_cases(failing.case.component, imitator.spec):
        left -= len(causes) * estimate_cost(case)
        if left < 0 or not others:
            break
        seen = put_exactly(case, failing)
        result = imitator.imitate(first, seen)
        others = [ids for ids in others if equals_whole(result, imitator.imitate(ids, seen))]
        count += 1
    if others and count >= _FEWEST:
        matches = verdicts[index].matches or ()
        noted = tuple(replace(m, twins=tuple(others)) if m.causes == first else m for m in matches)
        verdicts[index] = replace(verdicts[index], matches=noted)


def list_quick_cases(component: str, spec: Spec) -> list[Case]:
    """Return the cases of a component whose results in float64 tell explanations apart, the smallest first."""
    cases = sorted(spec.cases_of(component), key=lambda case: case.size)
    return [case for case in cases if not (case.error or case.random or case.full_size or case.cotangent)]


def put_exactly(case: Case, failing: FailingCase) -> FailingCase:
    """Return another case in float64, of the implementation that fails one; what it gives there is not known."""
    return replace(failing, case=case, actual=BadResult("raised", ""), dtype=FINEST)


def _leave_out_idle(causes: Sequence[Causes], judgements: Mapping[int, Judgement], imitator: Imitator) -> list[Causes]:
    """Return some causes without those that give what fewer of them give: only rounding tells them apart."""
    cases = [
        (j.case.size, index) for index, j in judgements.items() if j.verdict.bad and j.case and not j.case.cotangent
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


def equals_whole(one: Result | BadResult | None, other: Result | BadResult | None) -> bool:
    """Return True if two results in float64 are the same but for rounding."""
    if not isinstance(one, Result) or not isinstance(other, Result):
        return type(one) is type(other)
    return all(
        one.outputs[name].shape == other.outputs[name].shape
        and np.allclose(one.outputs[name], other.outputs[name], rtol=_ROUNDING, atol=_ROUNDING, equal_nan=True)
        for name in one.outputs.keys() & other.outputs.keys()
    )


def _find_refuted(
    causes: Sequence[Causes], judgements: Mapping[int, Judgement], imitator: Imitator
) -> Iterator[tuple[int, list[Causes]]]:
    """Yield the indices of cases whose results in float64 some of these causes do not give, with those causes."""
    possible, calls = list(causes), 0
    for index, bench, case in _select_cases(causes, judgements, imitator):
        made = {ids: imitator.imitate(ids, case) for ids in possible}
        groups = _group_same(made, case)
        # The right result is known without a call where every explanation gives it.
        if len(groups) < 2 and (judgements[index].verdict.bad or not _is_wrong(made[possible[0]], case)):
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
            yield index, refuted
        if not possible:
            return


def _select_cases(
    causes: Sequence[Causes], judgements: Mapping[int, Judgement], imitator: Imitator
) -> Iterator[tuple[int, Bench, FailingCase]]:
    """Yield the quick cases in float64: those that failed, then those that passed; those that list a cause first."""
    by_hand = all(imitator.are_by_hand(ids) for ids in causes)
    named = {id_ for ids in causes for id_ in ids}
    chosen = [
        (case.cotangent is not None, not judgement.verdict.bad, named.isdisjoint(case.kills), case.size, index, case)
        for index, judgement in judgements.items()
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
        if failing is None or bench.explain_unusable():
            return
        yield index, bench, replace(failing, dtype=FINEST)


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

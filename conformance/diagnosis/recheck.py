"""The recheck of the best causes of each component: against passing cases, and in a call with other numbers.

The call is made in float64 if the code takes it: there a fill of −20 and one of −100 differ, which give the same
weights in float32. Causes that give the same in every small case are one mistake in other words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from goldformer.conformance.diagnosis.causes import Causes
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.evidence import Call, CallKind
from goldformer.conformance.diagnosis.failure import (
    CLEAR,
    FINEST,
    ROUNDINGS,
    FailingCase,
    equals_whole,
    estimate_cost,
    list_quick_cases,
)
from goldformer.conformance.diagnosis.suspects import MOST_COMPARED, list_explained, rank_best, select_judgements
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.invoke import Result
from goldformer.conformance.judging.verdict import Status
from goldformer.spec import Case, Spec
from goldformer.spec.draw import Argument, Dyadic, Uniform

if TYPE_CHECKING:
    from goldformer.conformance.diagnosis.imitation import Imitator

#: The numbers of the cases that causes are compared with, by their cost: a quarter of a second.
_MOST_NUMBERS: Final = 200_000
#: The fewest cases in which causes must be the same.
_FEWEST: Final = 5
#: The end of the id of a call with other numbers, and what is added to the seeds of its case.
_AGAIN: Final = "-again"
_OTHER_SEED: Final = 7_000_003


def recheck_causes(
    judgements: Sequence[Judgement],
    run: DiagnosedRun,
    imitator: Imitator,
    spec: Spec,
    compared: set[tuple[str, Causes]],
    *,
    calls: bool,
) -> None:
    """Add what contradicts the best causes of each component.

    With `calls`, the implementation is called again. `compared` are the causes, with their components, that were
    compared with such a call before; these are added to it.
    """
    for component in list_explained(run):
        mine = select_judgements(judgements, component)
        with run.keep_verdicts(next(j.verdict for j in mine if j.verdict.bad)):
            _compare_passing(component, mine, run, imitator, spec)
            best = [e.ids for e in rank_best(run, component, spec) if e.certain][:MOST_COMPARED]
            if calls and (fresh := [ids for ids in best if (component, ids) not in compared]):
                compared.update((component, ids) for ids in fresh)
                best = _compare_new_call(best, mine, run, imitator)
            _add_twins(best, mine, run, imitator)


def can_refute(judgement: Judgement) -> bool:
    """Return True for a passing case with values."""
    case, passed = judgement.case, judgement.verdict.status is Status.PASSED
    if case is None or not passed or not isinstance(judgement.outcome, Result):
        return False
    return not case.full_size and bool(judgement.expected)


def is_idle(causes: Causes, fewer: Causes, failure: FailingCase | None, imitator: Imitator) -> bool:
    """Return True if some causes give in float64 what fewer of them give, so that the others do nothing."""
    if failure is None or failure.case.cotangent is not None or causes == fewer:
        return False
    exact = replace(failure, dtype=FINEST)
    return equals_whole(imitator.imitate(causes, exact), imitator.imitate(fewer, exact))


def _compare_passing(
    component: str, judgements: Sequence[Judgement], run: DiagnosedRun, imitator: Imitator, spec: Spec
) -> None:
    """Add which passing cases the best causes would fail, until one remains that they contradict in none."""
    passing = [judgement for judgement in judgements if can_refute(judgement)]
    checked: set[Causes] = set()
    while passing and len(checked) < MOST_COMPARED:
        causes = next((e.ids for e in rank_best(run, component, spec) if e.ids not in checked), None)
        if causes is None:
            return
        checked.add(causes)
        if (refuting := _find_refuting_case(causes, passing, imitator)) is not None:
            run.evidence.contradict(Call(refuting.verdict.key), [causes])


def _find_refuting_case(causes: Causes, passing: Sequence[Judgement], imitator: Imitator) -> Judgement | None:
    """Return a passing case that these causes would fail; None if none is found among the quick ones."""
    # A gradient that passes may be that of a backward pass by hand, which says nothing of the forward pass.
    by_hand = imitator.are_by_hand(causes)
    cases = [(j.case, j) for j in passing if j.case is not None and (by_hand or j.case.cotangent is None)]
    left = _MOST_NUMBERS
    for case, judgement in sorted(cases, key=lambda c: ({*causes}.isdisjoint(c[0].kills), c[0].size)):
        left -= estimate_cost(case)
        if left < 0:
            break
        compared = FailingCase.of(judgement)
        assert compared is not None, "a passing case has a result"
        if imitator.would_fail(causes, compared):
            return judgement
    return None


def _compare_new_call(
    best: list[Causes], judgements: Sequence[Judgement], run: DiagnosedRun, imitator: Imitator
) -> list[Causes]:
    """Add which causes give another result than a call with other numbers, and return the rest."""
    judgement = _choose_case(best, judgements, run)
    failure = FailingCase.of(judgement) if judgement is not None else None
    if judgement is None or failure is None or judgement.case is None:
        return best
    call = Call(judgement.verdict.key, CallKind.REDRAWN)
    case = _draw_again(judgement.case)
    # Code that computes in float32 gives the result of no cause in float64.
    for dtype in dict.fromkeys((FINEST, judgement.bench.dtype)):
        bench = replace(judgement.bench, dtype=dtype)
        options = bench.options(case)
        if case.explain_unfit(options) or bench.explain_unusable(case.component):
            continue
        actual = bench.call_case(case.under(options))
        if not isinstance(actual, Result):
            continue
        seen = replace(failure, case=case.under(options), actual=actual, dtype=dtype)
        fitting = [ids for ids in best if _is_same(ids, seen, imitator)]
        # Elements without a golden value, such as rows of padding, are left to the code, and tell what it does.
        whole = replace(seen, expected={name: replace(one, indices=None) for name, one in seen.expected.items()})
        fitting = [ids for ids in fitting if _is_same(ids, whole, imitator)] or fitting
        if fitting or dtype != FINEST:
            run.evidence.contradict(call, [ids for ids in best if ids not in fitting])
            right = imitator.imitate((), seen)
            differs = isinstance(right, Result) and seen.measure_apart(right) > CLEAR
            run.evidence.add(call, dict.fromkeys(fitting, 0.0) if differs else {})
            return fitting
    return best


def _is_same(causes: Causes, seen: FailingCase, imitator: Imitator) -> bool:
    """Return True unless causes give another result than a call, further from it than their own rounding goes."""
    made, exact = imitator.imitate(causes, seen), imitator.imitate(causes, replace(seen, dtype=FINEST))
    if not isinstance(made, Result) or not isinstance(exact, Result):
        return True
    # A mistake may lose digits that the right formula keeps.
    own = replace(seen, actual=made).measure_apart(exact)
    apart = min(seen.measure_apart(made), seen.measure_seen(made))
    return apart <= CLEAR * max(1.0, ROUNDINGS * own)


def _choose_case(best: Sequence[Causes], judgements: Sequence[Judgement], run: DiagnosedRun) -> Judgement | None:
    """Return the cheapest failing case of drawn numbers that some causes explain, one with unjudged elements first."""
    explained = [
        (all(one.indices is None for one in judgement.expected.values()), judgement.case.size, place, judgement)
        for place, judgement in enumerate(judgements)
        if judgement.case is not None and judgement.verdict.bad and _can_be_drawn(judgement.case)
        if judgement.case.cotangent is None and judgement.case.size * len(best) <= _MOST_NUMBERS
        if isinstance(judgement.outcome, Result)
        if not {*best}.isdisjoint(run.evidence.list_equal(judgement.verdict.key))
    ]
    return min(explained, key=lambda one: one[:3])[-1] if explained else None


def _can_be_drawn(case: Case) -> bool:
    """Return True for a case with drawn numbers whose results are values."""
    drawn = any(isinstance(a.made_of, Dyadic | Uniform) for a in (*case.inputs.values(), *case.params.values()))
    return drawn and not (case.error or case.random or case.full_size or case.shape_only)


def _draw_again(case: Case) -> Case:
    whole = case.whole or case
    return replace(
        whole,
        id=whole.id + _AGAIN,
        inputs={name: _draw_other(argument) for name, argument in whole.inputs.items()},
        params={name: _draw_other(argument) for name, argument in whole.params.items()},
    )


def _draw_other(argument: Argument) -> Argument:
    recipe = argument.made_of
    if not isinstance(recipe, Dyadic | Uniform):
        return argument
    return replace(argument, made_of=recipe.model_copy(update={"seed": recipe.seed + _OTHER_SEED}))


def _add_twins(best: Sequence[Causes], judgements: Sequence[Judgement], run: DiagnosedRun, imitator: Imitator) -> None:
    """Add with the best of some causes the others that give the same in every small case of the component."""
    first, *others = best or [()]
    explained = (j for j in judgements if j.verdict.bad and first in run.evidence.list_equal(j.verdict.key))
    failing = next((FailingCase.of(judgement) for judgement in explained), None) if others else None
    if failing is None:
        return
    left, count = _MOST_NUMBERS, 0
    for case in list_quick_cases(failing.case.component, imitator.spec):
        left -= len(best) * estimate_cost(case)
        if left < 0 or not others:
            break
        seen = failing.put_exactly(case)
        result = imitator.imitate(first, seen)
        others = [ids for ids in others if equals_whole(result, imitator.imitate(ids, seen))]
        count += 1
    if others and count >= _FEWEST:
        run.evidence.add_twins(failing.case.component, first, others)

"""Compare explanations with new calls, of numbers that no case has: a true one gives the implementation's result too.

Few failing cases, or numbers that are alike, let a wrong explanation fit. The calls are those of failing cases with
their numbers drawn again. Gradients have few cases, so they are also taken of a call that is a case without them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Final

import numpy as np

from goldformer.conformance.diagnosis.causes import Causes
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.evidence import Call, CallKind
from goldformer.conformance.diagnosis.failure import CLEAR, FINEST, ROUNDINGS, FailingCase, estimate_cost
from goldformer.conformance.diagnosis.suspects import (
    MOST_COMPARED,
    Explanation,
    list_explained,
    rank_best,
    select_judgements,
)
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.invoke import Result
from goldformer.spec import Case, Spec
from goldformer.spec.draw import Dyadic, Recipe, Uniform
from goldformer.spec.model import GoldenArray

if TYPE_CHECKING:
    from goldformer.conformance.diagnosis.imitation import Imitator

#: The most calls of one component.
_MOST_CALLS: Final = 2
#: The numbers of the calls that one explanation is compared with, by their cost: at most half a second.
_MOST_NUMBERS: Final = 600_000
#: How much larger the error scale of a gradient may be than that of another one of the same call.
_WIDE: Final = 100.0
#: The end of the id of such a call, and what is added to the seeds of its case.
AGAIN: Final = "-again"
_OTHER_SEED: Final = 7_000_003


def confirm_causes(
    judgements: Sequence[Judgement],
    run: DiagnosedRun,
    imitator: Imitator,
    spec: Spec,
    compared: set[tuple[str, Causes]],
) -> None:
    """Add which of the best explanations new calls contradict or confirm.

    `compared` are the explanations, with their components, that were compared before; these are added to it.
    """
    for component in list_explained(run):
        certain = (e for e in rank_best(run, component, spec) if e.certain)
        best = [e for e in certain if (component, e.ids) not in compared][:MOST_COMPARED]
        compared.update((component, e.ids) for e in best)
        for judgement, seen in _make_calls(best, select_judgements(judgements, component), run, spec):
            call = Call(judgement.verdict.key, CallKind.REDRAWN)
            refuted = [e.ids for e in best if _is_refuted(e.ids, seen, imitator)]
            run.evidence.contradict(call, refuted)
            best = [e for e in best if e.ids not in refuted]
            solved = (e.ids for e in best if any(c.solved for c in e.causes))
            run.evidence.add(
                call, {ids: _measure(ids, seen, imitator) for ids in solved if _is_confirmed(ids, seen, imitator)}
            )


def _measure(causes: Causes, seen: FailingCase, imitator: Imitator) -> float:
    return seen.measure_apart(imitator.imitate(causes, seen))


def _is_refuted(causes: Causes, seen: FailingCase, imitator: Imitator) -> bool:
    """Return True if causes give another result than a new call, further from it than their own rounding goes."""
    made, exact = imitator.imitate(causes, seen), imitator.imitate(causes, replace(seen, dtype=FINEST))
    if not isinstance(made, Result) or not isinstance(exact, Result):
        return False
    # A mistake may lose digits that the right formula keeps.
    own = replace(seen, actual=made).measure_apart(exact)
    return seen.measure_apart(made) > CLEAR * max(1.0, ROUNDINGS * own)


def _is_confirmed(causes: Causes, seen: FailingCase, imitator: Imitator) -> bool:
    """Return True if causes give the result of a new call, and right code would give another one."""
    made, right = imitator.imitate(causes, seen), imitator.imitate((), seen)
    if not isinstance(right, Result) or not seen.measure_apart(made) <= 1.0:
        return False
    return replace(seen, actual=right).measure_apart(made) > CLEAR


def _make_calls(
    best: Sequence[Explanation], judgements: Sequence[Judgement], run: DiagnosedRun, spec: Spec
) -> Iterator[tuple[Judgement, FailingCase]]:
    """Yield results of calls with other numbers, each with the judgement of the failing case that it is made from."""
    named = {e.ids for e in best}
    explained = [
        j for j in judgements if j.verdict.bad and not named.isdisjoint(run.evidence.list_equal(j.verdict.key))
    ]
    left, calls = _MOST_NUMBERS, 0
    for judgement, case in _list_calls(explained, spec):
        failure = FailingCase.of(judgement)
        left -= len(best) * estimate_cost(case)
        if failure is None or left < 0 or calls == _MOST_CALLS:
            return
        options = judgement.bench.options(case)
        if case.explain_unfit(options):
            continue
        calls += 1
        actual = judgement.bench.call_case(case.under(options))
        if isinstance(actual, Result):
            expected = _widen(failure, actual) if case.cotangent is not None else failure.expected
            yield judgement, replace(failure, case=case.under(options), actual=actual, expected=expected)


def _widen(failure: FailingCase, actual: Result) -> dict[str, GoldenArray]:
    """Return the error scales of the gradients of a new call: those of the failing case, and wide ones for the others.

    Scales grow with the numbers; the values are compared with nothing.
    """
    inexact = {name: golden for name, golden in failure.expected.items() if golden.error_scale and golden.magnitude}
    known = {name: replace(golden, indices=None) for name, golden in inexact.items()}
    largest = max((golden.error_scale / golden.magnitude for golden in known.values()), default=1.0)
    one = GoldenArray(np.ones(1), _WIDE * max(largest, 1.0))
    return {name: known.get(name, one) for name in actual.outputs}


def _list_calls(explained: Sequence[Judgement], spec: Spec) -> Iterator[tuple[Judgement, Case]]:
    """Yield calls with other numbers, the cheapest first, with the failing cases that they are made from."""
    cases = [
        (judgement, judgement.case)
        for judgement in explained
        if judgement.case is not None and _can_be_drawn(judgement.case) and isinstance(judgement.outcome, Result)
    ]
    ranked = sorted(cases, key=lambda one: (one[1].cotangent is not None, one[1].size))
    forward = [(judgement, case) for judgement, case in ranked if case.cotangent is None]
    for judgement, case in ranked[:1]:
        yield judgement, _draw_again(case)
    for judgement, case in [one for one in ranked if one[1].cotangent is not None][:1]:
        if (chosen := _choose_for_gradient(case, spec)) is not None:
            yield judgement, _draw_gradient(chosen, spec)
    for judgement, case in forward[1:]:
        first = forward[0][1]
        if case.inputs.keys() != first.inputs.keys() or case.attributes != first.attributes:
            yield judgement, _draw_again(case)
            return


def _choose_for_gradient(like: Case, spec: Spec) -> Case | None:
    """Return a case without gradients that has the arguments of a gradient case, with axes of different sizes."""
    fitting = [
        case
        for case in spec.cases_of(like.component)
        if case.cotangent is None and _can_be_drawn(case)
        if like.inputs.keys() <= case.inputs.keys() and like.expect.keys() <= {*case.inputs, *case.params}
    ]
    return min(fitting, key=lambda case: (-_count_sizes(case), case.size), default=None)


def _can_be_drawn(case: Case) -> bool:
    """Return True for a case with drawn numbers whose results are values."""
    drawn = any(isinstance(recipe, Dyadic | Uniform) for recipe in (*case.inputs.values(), *case.params.values()))
    return drawn and not (case.error or case.random or case.full_size or case.shape_only)


def _count_sizes(case: Case) -> int:
    """Return the number of different sizes of a case that are no accident: neither 1 nor 2."""
    return len({size for size in (*case.sizes.values(), *case.lead) if size > 2})


def _draw_again(case: Case) -> Case:
    whole = case.whole or case
    return replace(
        whole,
        id=whole.id + AGAIN,
        inputs={name: _draw_other(recipe) for name, recipe in whole.inputs.items()},
        params={name: _draw_other(recipe) for name, recipe in whole.params.items()},
        cotangent=None if whole.cotangent is None else _draw_other(whole.cotangent),
    )


def _draw_other(recipe: Recipe) -> Recipe:
    return replace(recipe, seed=recipe.seed + _OTHER_SEED) if isinstance(recipe, Dyadic | Uniform) else recipe


def _draw_gradient(case: Case, spec: Spec) -> Case:
    """Return a case without gradients as one that asks for them."""
    output = next(iter(spec.contracts[case.component].outputs.values()))
    shape = output.shape.sizes(case.sizes, case.lead)
    cotangent = Dyadic(math.prod(shape) + _OTHER_SEED, Fraction(-1), Fraction(1), Fraction(1, 32), shape)
    return replace(_draw_again(case), cotangent=cotangent)

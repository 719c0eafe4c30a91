"""The passing cases that refute an explanation: the causes that explain the failures would fail them too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from goldformer.conformance.diagnosis.causes import Causes
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.evidence import Call
from goldformer.conformance.diagnosis.failure import FailingCase, estimate_cost
from goldformer.conformance.diagnosis.suspects import MOST_COMPARED, list_explained, rank_best, select_judgements
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.invoke import Result
from goldformer.conformance.judging.verdict import Status
from goldformer.spec import Spec

if TYPE_CHECKING:
    from goldformer.conformance.diagnosis.imitation import Imitator

#: The numbers of the passing cases that one explanation is compared with, by their cost: a quarter of a second.
_MOST_NUMBERS: Final = 200_000


def rule_out_causes(judgements: Sequence[Judgement], run: DiagnosedRun, imitator: Imitator, spec: Spec) -> None:
    """Add which passing cases contradict the best explanations of a component's failures."""
    for component in list_explained(run):
        passing = [j for j in select_judgements(judgements, component) if can_refute(j)]
        checked: set[Causes] = set()
        while passing and len(checked) < MOST_COMPARED:
            best = rank_best(run, component, spec)
            causes = next((e.ids for e in best if e.ids not in checked), None)
            if causes is None:
                break
            checked.add(causes)
            if (refuting := _find_refuting_case(causes, passing, imitator)) is not None:
                run.evidence.contradict(Call(refuting.verdict.key), [causes])


def can_refute(judgement: Judgement) -> bool:
    """Return True for a passing case with values."""
    case, passed = judgement.case, judgement.verdict.status is Status.PASSED
    if case is None or not passed or not isinstance(judgement.outcome, Result):
        return False
    return not case.full_size and bool(judgement.expected)


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

"""The passing cases that refute an explanation: the causes that explain the failures would fail them too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from goldformer.conformance.diagnosis.causes import Causes
from goldformer.conformance.diagnosis.failure import FailingCase, estimate_cost
from goldformer.conformance.diagnosis.suspects import MOST_COMPARED, list_explained, rank_best, select_judgements
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.invoke import Result
from goldformer.conformance.judging.verdict import Status, Verdict
from goldformer.spec import Spec

if TYPE_CHECKING:
    from goldformer.conformance.diagnosis.imitation import Imitator

#: The numbers of the passing cases that one explanation is compared with, by their cost: a quarter of a second.
_MOST_NUMBERS: Final = 200_000


def rule_out_causes(
    judgements: Sequence[Judgement | None], verdicts: list[Verdict], imitator: Imitator, spec: Spec
) -> None:
    """Note in passing verdicts which of the best explanations of a component's failures they refute.

    The judgement of a verdict is None if another process made it.
    """
    for component in list_explained(verdicts):
        passing = {i: j for i, j in select_judgements(judgements, component).items() if can_refute(j)}
        checked: set[Causes] = set()
        while passing and len(checked) < MOST_COMPARED:
            best = rank_best(verdicts, component, spec)
            causes = next((e.ids for e in best if e.ids not in checked), None)
            if causes is None:
                break
            checked.add(causes)
            if (index := _find_refuting_case(causes, passing, imitator)) is not None:
                verdicts[index] = replace(verdicts[index], rules_out=(*verdicts[index].rules_out, causes))


def can_refute(judgement: Judgement) -> bool:
    """Return True for a passing case with values."""
    case, passed = judgement.case, judgement.verdict.status is Status.PASSED
    if case is None or not passed or not isinstance(judgement.outcome, Result):
        return False
    return not case.full_size and bool(judgement.expected)


def _find_refuting_case(causes: Causes, passing: Mapping[int, Judgement], imitator: Imitator) -> int | None:
    """Return the index of a passing case that these causes would fail; None if none is found among the quick ones."""
    # A gradient that passes may be that of a backward pass by hand, which says nothing of the forward pass.
    by_hand = imitator.are_by_hand(causes)
    cases = {
        index: judgement.case
        for index, judgement in passing.items()
        if judgement.case is not None and (by_hand or judgement.case.cotangent is None)
    }

    def likely_first(index: int) -> tuple[bool, int]:
        return not any(id_ in cases[index].kills for id_ in causes), cases[index].size

    left = _MOST_NUMBERS
    for index in sorted(cases, key=likely_first):
        left -= estimate_cost(cases[index])
        if left < 0:
            break
        compared = FailingCase.of(passing[index])
        assert compared is not None, "a passing case has a result"
        if imitator.would_fail(causes, compared):
            return index
    return None

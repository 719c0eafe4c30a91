"""Neighbours that give the same as another candidate: one slip in other words, until a case tells them apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from goldformer.conformance.diagnosis.candidates import Candidate, Textbooks
from goldformer.conformance.diagnosis.failure import FailingCase, equals_whole, is_decoding, list_quick_cases
from goldformer.spec import Case, Spec

#: The most cases of a component, besides the failing one, in which twins give the same.
_CASES: Final = 8


class Twins:
    """Sets twins of candidates aside, so that later cases are compared with one of them only.

    A residual that is left out, and a norm that reads what comes before it, are such twins.
    """

    def __init__(self, spec: Spec, textbooks: Textbooks) -> None:
        self._spec, self._textbooks = spec, textbooks
        self._aside: defaultdict[Candidate, list[Candidate]] = defaultdict(list)

    def set_aside(self, found: Mapping[Candidate, float], failure: FailingCase) -> dict[Candidate, float]:
        """Return the candidates that explain a case without the neighbours that are twins of one before them."""
        case = failure.case
        # The words that a model writes, and draws, are the same by chance, and gradients take long.
        if len(found) < 2 or is_decoding(case) or case.random or case.cotangent is not None:
            return dict(found)
        cases = [failure.put_exactly(chosen) for chosen in (case, *self._choose_cases(case.component))]
        kept: dict[Candidate, float] = {}
        for candidate, distance in found.items():
            # A mistake of the catalogue is named in any case.
            others = kept if candidate.is_generated else ()
            twin = next((other for other in others if self._are_twins(candidate, other, cases)), None)
            if twin is None:
                kept[candidate] = distance
            else:
                self._aside[twin].append(candidate)
        return kept

    def list_aside(self, candidate: Candidate) -> list[Candidate]:
        """Return the twins of a candidate that are set aside."""
        return [*self._aside.get(candidate, ())]

    def release(self, twins: Iterable[Candidate]) -> None:
        """Take some twins back: a case told them apart."""
        released = {*twins}
        for aside in self._aside.values() if released else ():
            aside[:] = [twin for twin in aside if twin not in released]

    def _choose_cases(self, component: str) -> Sequence[Case]:
        """Return some of the smaller cases of a component, from the smallest to one of middling size."""
        quick = list_quick_cases(component, self._spec)
        smaller = quick[: -(-len(quick) // 2)]
        return smaller[:: max(1, -(-len(smaller) // _CASES))]

    def _are_twins(self, one: Candidate, other: Candidate, cases: Iterable[FailingCase]) -> bool:
        return all(
            equals_whole(self._textbooks.imitate(one, case), self._textbooks.imitate(other, case)) for case in cases
        )

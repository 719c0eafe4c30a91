"""Holds a failing output against what each catalogued mistake would give on the same inputs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Any, Final

import numpy as np

from goldformer.adapters.mistakes import Mistaken, implementations, together
from goldformer.adapters.protocol import Adapter
from goldformer.conformance.invoke import BadResult, NotImplementedHere, Result, arguments_of, invoke
from goldformer.conformance.judge import measure
from goldformer.conformance.statistics import statistics_of
from goldformer.conformance.verdict import Difference, Match
from goldformer.spec import Case, Contract, Spec
from goldformer.spec.model import GoldenArray

#: So many failing cases of a component are held against everything, those that nothing fits that fitted before.
_FULL_SEARCHES: Final = 3


class Imitator:
    """Finds mistakes that explain failing outputs; it remembers what fitted, so that later cases are quick.

    `left_out` are mistakes that it is not to know of.
    """

    def __init__(self, spec: Spec, left_out: Collection[str] = ()) -> None:
        self.spec = spec
        # What shows in gradients alone, or after other calls, gives in a single call what is right.
        plain = (case for case in spec.cases.values() if case.cotangent is None)
        self._shown = {id_ for case in plain for id_ in case.catches} - frozenset(left_out)
        self._adapters: dict[str, Adapter] = {}
        self._searches: dict[tuple[str, str], int] = defaultdict(int)
        self._fitted: dict[tuple[str, str], dict[str, Mistaken]] = defaultdict(dict)

    def matches(
        self, case: Case, given: Result | BadResult, expected: Mapping[str, GoldenArray], dtype: str
    ) -> tuple[Match, ...] | None:
        """The mistakes that give what `given` is, a component's own first; None where nobody looked."""
        if case.full_size or case.cotangent is not None or case.error is not None:
            return None
        key = (case.component, dtype)
        known = self._known(case.component, dtype)
        failure = _Failure(case, self.spec.contracts[case.component], given, expected, dtype)
        found = self._those_that_fit(known.values(), failure)
        if found or self._searches[key] >= _FULL_SEARCHES:
            return found if known else None
        self._searches[key] += 1
        singles = list(self._candidates(case.component))
        tried = singles
        found = self._those_that_fit(tried, failure)
        if not found:
            tried = list(self._pairs(case.component, singles))
            found = self._those_that_fit(tried, failure)
        fitting = {match.mistake for match in found}
        self._fitted[key].update({mistaken.id: mistaken for mistaken in tried if mistaken.id in fitting})
        return found

    def _known(self, component: str, dtype: str) -> dict[str, Mistaken]:
        """What explained earlier cases of a component, or of a part of it: parts come first in a run."""
        parts = (*reversed(self.spec.built_of(component)), component)
        return {id_: mistaken for part in parts for id_, mistaken in self._fitted[part, dtype].items()}

    def _candidates(self, component: str) -> Iterator[Mistaken]:
        """The mistakes that cases of a component list, and those of all that it is built of, its own first."""
        listed = {id_ for case in self.spec.cases_of(component) for id_ in case.catches}
        made = implementations()
        catalogue = [self.spec.mistakes[id_] for id_ in made if id_ in self._shown]
        yield from (made[m.id] for m in catalogue if m.component == component)
        yield from (made[m.id] for m in catalogue if m.component != component and m.id in listed)
        for name in self.spec.built_of(component):
            yield from (made[m.id] for m in catalogue if m.component == name and m.id not in listed)

    def _pairs(self, component: str, singles: list[Mistaken]) -> Iterator[Mistaken]:
        """Two mistakes at once, the first of which is the component's own."""
        for one, other in combinations(singles, 2):
            if self.spec.mistakes[one.id].component == component:
                try:
                    yield together(one, other)
                except TypeError:
                    continue

    def _those_that_fit(self, mistakes: Iterable[Mistaken], failure: _Failure) -> tuple[Match, ...]:
        ratios = ((mistaken.id, failure.distance(self._imitate(mistaken, failure))) for mistaken in mistakes)
        return tuple(Match(id_, ratio) for id_, ratio in ratios if ratio is not None)

    def _imitate(self, mistaken: Mistaken, failure: _Failure) -> Result | BadResult | None:
        if mistaken.id not in self._adapters:
            self._adapters[mistaken.id] = Adapter.from_object(mistaken.make(), mistaken.id, self.spec)
        adapter = self._adapters[mistaken.id]
        dtype = failure.dtype if failure.dtype in adapter.dtypes else "float32"
        try:
            with np.errstate(all="ignore"):
                return invoke(adapter, failure.contract, arguments_of(failure.case), dtype, "cpu", untouched=False)
        except BadResult as bad:
            return bad
        except NotImplementedHere:
            return None


@dataclass(frozen=True)
class _Failure:
    """A failing case, and what was given instead of what was expected."""

    case: Case
    contract: Contract
    given: Result | BadResult
    expected: Mapping[str, GoldenArray]
    dtype: str

    @cached_property
    def wrong(self) -> frozenset[str]:
        """The outputs that are wrong."""
        return self._wrong(self.given, self.expected) if isinstance(self.given, Result) else frozenset()

    def distance(self, imitation: Result | BadResult | None) -> float | None:
        """How far an imitation is from what was given, over the tolerance; None when it is no explanation."""
        if isinstance(self.given, BadResult):
            # A wrong shape or dtype is told in words, the same ones for the same fault. What raises tells by itself.
            same = isinstance(imitation, BadResult) and str(self.given) == str(imitation)
            return 0.0 if same and self.given.reason != "raised" else None
        if not isinstance(imitation, Result):
            return None
        both = self.given.outputs.keys() & imitation.outputs.keys()
        shared = {name: golden for name, golden in self.expected.items() if name in both}
        shown = self._wrong(imitation, shared)
        if not shown or not self.wrong <= shown:
            return None
        as_golden = {name: _as_golden(golden, imitation.outputs[name]) for name, golden in shared.items()}
        ratio = max(d.ratio for d in self._measure(self.given, as_golden))
        return ratio if ratio <= 1.0 else None

    def _wrong(self, result: Result, expected: Mapping[str, GoldenArray]) -> frozenset[str]:
        return frozenset(d.output for d in self._measure(result, expected) if d.wrong)

    def _measure(self, result: Result, expected: Mapping[str, GoldenArray]) -> list[Difference]:
        return measure(result, expected, self.case, self.contract, self.dtype)


def _as_golden(golden: GoldenArray, values: np.ndarray[Any, Any]) -> GoldenArray:
    """An imitation in the place of the golden values. Larger numbers have larger roundoffs."""
    if golden.within is not None:
        # Chance moves both what was given and the imitation.
        doubled = {name: 2 * width for name, width in golden.within.items()}
        return replace(golden, values=statistics_of(values, golden), within=doubled)
    made = replace(golden, values=golden.compared(values))
    grown = made.magnitude / golden.magnitude if golden.magnitude else 1.0
    return replace(made, error_scale=golden.error_scale * max(grown, 1.0) if math.isfinite(grown) else math.inf)

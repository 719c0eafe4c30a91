"""Holds a failing output against what each catalogued mistake would give on the same inputs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any, Final

import numpy as np

from goldformer.adapters.mistakes import Mistaken, implementations, together
from goldformer.adapters.protocol import Adapter
from goldformer.conformance.invoke import BadResult, NotImplementedHere, Result, arguments_of, invoke
from goldformer.conformance.judge import measure
from goldformer.conformance.statistics import statistics_of
from goldformer.conformance.verdict import Match
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
        self._left_out = frozenset(left_out)
        self._adapters: dict[str, Adapter] = {}
        self._searches: dict[tuple[str, str], int] = defaultdict(int)
        self._fitted: dict[tuple[str, str], dict[str, Mistaken]] = defaultdict(dict)

    def matches(
        self, case: Case, given: Result | BadResult, expected: Mapping[str, GoldenArray], dtype: str
    ) -> tuple[Match, ...] | None:
        """The mistakes that give what `given` is, best first; None where nobody looked."""
        if case.full_size or case.cotangent is not None or case.error is not None:
            return None
        key = (case.component, dtype)
        known = self._known(case.component, dtype)
        found = self._those_that_fit(known.values(), case, given, expected, dtype)
        if found or self._searches[key] >= _FULL_SEARCHES:
            return found if known else None
        self._searches[key] += 1
        singles = list(self._candidates(case.component))
        found = self._those_that_fit(singles, case, given, expected, dtype)
        pool = {m.id: m for m in singles}
        if not found:
            pairs = {m.id: m for m in self._pairs(case.component, singles)} | known
            found = self._those_that_fit(pairs.values(), case, given, expected, dtype)
            pool |= pairs
        self._fitted[key].update({match.mistake: pool[match.mistake] for match in found})
        return found

    def _known(self, component: str, dtype: str) -> dict[str, Mistaken]:
        """What explained earlier cases of a component, or of a part of it: parts come first in a run."""
        parts = reversed(self._built_of(component))
        return {id_: mistaken for part in parts for id_, mistaken in self._fitted[part, dtype].items()}

    def _candidates(self, component: str) -> Iterator[Mistaken]:
        """The mistakes that cases of a component list, and those of all that it is built of, its own first."""
        listed = {id_ for case in self.spec.cases_of(component) for id_ in case.catches}
        below = self._built_of(component)
        made = implementations()
        catalogue = [self.spec.mistakes[id_] for id_ in made if id_ not in self._left_out]
        yield from (made[m.id] for m in catalogue if m.component == component)
        yield from (made[m.id] for m in catalogue if m.component != component and m.id in listed)
        for name in below[1:]:
            yield from (made[m.id] for m in catalogue if m.component == name and m.id not in listed)

    def _pairs(self, component: str, singles: list[Mistaken]) -> Iterator[Mistaken]:
        """Two mistakes at once, the first of which is the component's own."""
        for one, other in combinations(singles, 2):
            if self.spec.mistakes[one.id].component == component:
                try:
                    yield together(one, other)
                except TypeError:
                    continue

    def _built_of(self, component: str) -> list[str]:
        names, waiting = [component], [component]
        while waiting:
            for name in self.spec.contracts[waiting.pop(0)].depends_on:
                if name not in names:
                    names.append(name)
                    waiting.append(name)
        return names

    def _those_that_fit(
        self,
        mistakes: Any,
        case: Case,
        given: Result | BadResult,
        expected: Mapping[str, GoldenArray],
        dtype: str,
    ) -> tuple[Match, ...]:
        contract = self.spec.contracts[case.component]
        found = []
        for mistaken in mistakes:
            imitation = self._imitate(mistaken, case, contract, dtype)
            ratio = _distance(given, imitation, expected, case, contract, dtype)
            if ratio is not None:
                found.append(Match(mistaken.id, ratio))
        return tuple(found)

    def _imitate(self, mistaken: Mistaken, case: Case, contract: Contract, dtype: str) -> Result | BadResult | None:
        if mistaken.id not in self._adapters:
            self._adapters[mistaken.id] = Adapter.from_object(mistaken.make(), mistaken.id, self.spec)
        adapter = self._adapters[mistaken.id]
        working = dtype if dtype in adapter.dtypes else "float32"
        try:
            with np.errstate(all="ignore"):
                return invoke(adapter, contract, arguments_of(case), working, "cpu", untouched=False)
        except BadResult as bad:
            return bad
        except NotImplementedHere:
            return None


def _distance(
    given: Result | BadResult,
    imitation: Result | BadResult | None,
    expected: Mapping[str, GoldenArray],
    case: Case,
    contract: Contract,
    dtype: str,
) -> float | None:
    """How far an imitation is from what was given, over the tolerance; None when it is no explanation."""
    if isinstance(given, BadResult) or not isinstance(imitation, Result):
        # A wrong shape or dtype is told in words, the same ones for the same fault. What raises tells by itself.
        same = isinstance(given, BadResult) and isinstance(imitation, BadResult) and str(given) == str(imitation)
        return 0.0 if same and given.reason != "raised" else None  # type: ignore[union-attr]
    shared = {n: g for n, g in expected.items() if n in given.outputs and n in imitation.outputs}
    wrong = {d.output for d in measure(given, dict(expected), case, contract, dtype) if d.wrong}
    shown = {d.output for d in measure(imitation, shared, case, contract, dtype) if d.wrong}
    if not shown or not wrong <= shown:
        return None
    as_golden = {name: _as_golden(golden, imitation.outputs[name]) for name, golden in shared.items()}
    ratio = max(d.ratio for d in measure(given, as_golden, case, contract, dtype))
    return ratio if ratio <= 1.0 else None


def _as_golden(golden: GoldenArray, values: np.ndarray[Any, Any]) -> GoldenArray:
    """An imitation in the place of the golden values. Larger numbers have larger roundoffs."""
    if golden.within is not None:
        # Chance moves both what was given and the imitation.
        doubled = {name: 2 * width for name, width in golden.within.items()}
        return replace(golden, values=statistics_of(values, golden), within=doubled)
    if golden.indices is not None:
        values = values[tuple(np.array(golden.indices).T)]
    made = replace(golden, values=values)
    grown = made.magnitude / golden.magnitude if golden.magnitude else 1.0
    return replace(made, error_scale=golden.error_scale * max(grown, 1.0) if math.isfinite(grown) else math.inf)

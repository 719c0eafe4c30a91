"""The evidence of a run, in one table: what each cause gives in each call, compared with what the code gives there.

    evidence[causes, call] = the distance ÷ tolerance of two equal results, CONTRADICTED, or None: not comparable

A call is a golden case as it was judged, or one like it with other numbers. Whatever is said of a cause is read off
this table; nothing else remembers a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from goldformer.conformance.diagnosis.causes import Causes
from goldformer.conformance.judging.verdict import CheckKey

#: The distance of a result that is clearly not that of the causes.
CONTRADICTED: Final = math.inf


class CallKind(Enum):
    """The ways in which a case is called."""

    #: A golden case as it was judged, failing or passing.
    CASE = "case"
    #: A call like it with other numbers.
    REDRAWN = "redrawn"


class Call(NamedTuple):
    """A call of the implementation: the check that it belongs to, and the way in which it is made."""

    key: CheckKey
    kind: CallKind = CallKind.CASE


@dataclass(frozen=True, slots=True)
class Match:
    """Causes that together reproduce a wrong output; `ratio` is the distance between the two ÷ tolerance.

    A cause is the id of a mistake, or "residual-missing in the decoder layer's cross-attention" if it is made in one
    place only, or an option of a convention, such as "norm_placement: pre". `twins` are other causes that give the same
    in every case of the component.
    """

    causes: Causes
    ratio: float
    twins: tuple[Causes, ...] = ()


class Evidence:
    """A table of causes by calls. Entries are added; none is changed."""

    def __init__(self) -> None:
        #: The columns of each check: most passing checks have none.
        self._columns: dict[CheckKey, dict[CallKind, dict[Causes, float]]] = {}
        #: Causes that give the same in every case of a component, by the component and the first of them.
        self._twins: dict[tuple[str, Causes], tuple[Causes, ...]] = {}

    def add(self, call: Call, distances: Mapping[Causes, float]) -> None:
        """Add what some causes give in a call, which is searched from then on."""
        self._columns.setdefault(call.key, {}).setdefault(call.kind, {}).update(distances)

    def add_matches(self, key: CheckKey, matches: Iterable[Match]) -> bool:
        """Add causes that give the result of a case as it was judged; return True if one of them is new."""
        before = len(self._find_column(Call(key)))
        self.add(Call(key), {match.causes: match.ratio for match in matches})
        for match in matches:
            if match.twins:
                self.add_twins(key.component, match.causes, match.twins)
        return len(self._find_column(Call(key))) > before

    def contradict(self, call: Call, causes: Iterable[Causes]) -> None:
        """Add that some causes give another result than a call."""
        self.add(call, dict.fromkeys(causes, CONTRADICTED))

    def add_twins(self, component: str, causes: Causes, twins: Iterable[Causes]) -> None:
        """Add that other causes give the same as some in every case of a component."""
        self._twins[component, causes] = tuple(twins)

    def __getitem__(self, place: tuple[Causes, Call]) -> float | None:
        causes, call = place
        return self._find_column(call).get(causes)

    def _find_column(self, call: Call) -> Mapping[Causes, float]:
        return self._columns.get(call.key, {}).get(call.kind, {})

    def is_searched(self, key: CheckKey) -> bool:
        """Return True if a case as it was judged was compared with causes: those without an entry contradict it."""
        return CallKind.CASE in self._columns.get(key, {})

    def supports(self, causes: Causes, key: CheckKey) -> float | None:
        """Return the distance of causes from a failing case that they reproduce; None if they do not."""
        if self.contradicts(causes, key):
            return None
        return self[causes, Call(key)]

    def contradicts(self, causes: Causes, key: CheckKey) -> bool:
        """Return True if causes give another result than a case."""
        return self[causes, Call(key)] == CONTRADICTED

    def list_equal(self, key: CheckKey) -> list[Causes]:
        """Return the causes that reproduce a failing case, in the order in which they were found."""
        return [causes for causes, distance in self._find_column(Call(key)).items() if distance != CONTRADICTED]

    def list_matches(self, key: CheckKey) -> tuple[Match, ...] | None:
        """Return the causes that reproduce a failing case, with their distances; None if the search was skipped."""
        if not self.is_searched(key):
            return None
        equal = self.list_equal(key)
        return tuple(Match(ids, self.supports(ids, key) or 0.0, self.list_twins(key.component, ids)) for ids in equal)

    def list_twins(self, component: str, causes: Causes) -> tuple[Causes, ...]:
        """Return other causes that give the same as some in every case of a component."""
        return self._twins.get((component, causes), ())

    def list_ruled_out(self, key: CheckKey) -> tuple[Causes, ...]:
        """Return the causes that a passing case contradicts."""
        return tuple(causes for causes in self._find_column(Call(key)) if self.contradicts(causes, key))

    def list_redrawn(self, key: CheckKey, *, equal: bool) -> tuple[Causes, ...]:
        """Return the causes that give the result of a call like a case with other numbers, or that do not."""
        column = self._find_column(Call(key, CallKind.REDRAWN))
        return tuple(causes for causes, distance in column.items() if (distance < CONTRADICTED) is equal)

"""Keep of each check what a grade, its pages and its programs need: the rest stands in the spec, or is repeated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from goldformer.conformance.grading.model import Assignment, Check
from goldformer.spec import Spec

#: The number of failing checks of a component whose wrong outputs are kept as windows, to be drawn.
WINDOWS: Final = 3


def compact_checks(checks: Sequence[Check], assignment: Assignment, spec: Spec) -> tuple[Check, ...]:
    """Return the checks without what nothing reads again.

    A check that passes keeps its id and its ratio. A failing one loses its windows, except the first failing checks of
    a component that students may see.
    """
    drawn = {
        id(check)
        for part in assignment.parts
        for check in _select_drawn(list_public_failures(checks, part.component, assignment, spec))
    }
    return tuple(_compact(check, drawn=id(check) in drawn) for check in checks)


def list_public_failures(checks: Iterable[Check], component: str, assignment: Assignment, spec: Spec) -> list[Check]:
    """Return the failing checks of a component except fresh cases, the earliest in the flow of data first."""
    mine = (check for check in checks if check.verdict.component == component and check.is_shown)
    bad = [check for check in mine if check.origin != "fresh"]
    return sorted(bad, key=lambda check: find_place(check, spec)) if assignment.feedback.first_wrong else bad


def find_place(check: Check, spec: Spec) -> int:
    """Return the place of the first wrong output in the flow of data; other failures come last."""
    flow = spec.contracts[check.verdict.component].flow
    outputs = [difference.output for difference in check.verdict.differences[:1]]
    return flow.index(outputs[0]) if outputs and outputs[0] in flow else len(flow)


def _select_drawn(failing: Iterable[Check]) -> Iterable[Check]:
    """Return the first failing checks, each in the first dtype in which it fails."""
    first: dict[str, Check] = {}
    for check in failing:
        first.setdefault(check.verdict.check, check)
    return list(first.values())[:WINDOWS]


def _compact(check: Check, *, drawn: bool) -> Check:
    less: dict[str, Any] = {"catches": ()}
    if check.outcome == "correct":
        less |= {"title": "", "clauses": (), "source": "", "reproduce": ""}
    elif not drawn:
        less["differences"] = tuple(replace(d, grid=None) for d in check.verdict.differences)
    return replace(check, verdict=replace(check.verdict, **less))

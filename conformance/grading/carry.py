"""Find the checks that fail only because a component inherits a mistake that costs points elsewhere already.

Such checks cost nothing themselves, unless the assignment says `carry: every`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from goldformer.conformance.diagnosis.causes import Cause
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.inherited import find_certain_causes, find_inherited
from goldformer.conformance.grading.model import Assignment, CarriedMistake, Check
from goldformer.conformance.grading.score import Carried, CheckKinds
from goldformer.conformance.judging.verdict import CheckKey, Verdict
from goldformer.spec import Spec


@dataclass
class _Costs:
    """The causes that cost points in a component, by their headings, with the name of the component."""

    causes: dict[str, Cause] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    loses_digits: bool = False


def find_carried(
    assignment: Assignment, checks: Sequence[Check], run: DiagnosedRun, kinds: CheckKinds, spec: Spec
) -> Mapping[str, Carried]:
    """Return what each component inherits from its parts; `run` has what explains the checks.

    A mistake is carried only from a component that loses points for it: it is worth points, and one of its own checks
    fails because of that mistake.
    """
    points = {part.component: part.points for part in assignment.parts}
    counted = {check.verdict.key for check in checks if kinds.counts(check)}
    run = run.select(lambda verdict: verdict.key in counted)
    lost = {check.verdict.key for check in checks if check.outcome == "imprecise"}
    costs: dict[str, _Costs] = {}
    carried: dict[str, Carried] = {}
    # Parts come before what is built of them.
    for component in (name for name in spec.components if name in points):
        mine = run.select(partial(_is_of, component))
        known = _Costs()
        imprecise: list[str] = []
        for part in spec.list_dependencies(component):
            if part in costs:
                known.causes |= costs[part].causes
                known.places |= costs[part].places
                imprecise += [part] * costs[part].loses_digits
        inherited = find_inherited(mine, known.causes, spec) if known.causes else {}
        # No imitation rounds as the code does: what loses digits in a part loses them in all that is built of it.
        digits = {v.key for v in mine if v.key in lost and v.key not in inherited} if imprecise else set()
        carried[component] = _describe(inherited, known, digits, imprecise)
        if points[component]:
            costs[component] = _find_costs(component, run, inherited, spec)
            costs[component].loses_digits = any(v.key in lost - inherited.keys() - digits for v in mine)
    return carried


def _is_of(component: str, verdict: Verdict) -> bool:
    return verdict.component == component


def _describe(
    inherited: Mapping[CheckKey, tuple[Cause, ...]], known: _Costs, digits: Set[CheckKey], imprecise: Sequence[str]
) -> Carried:
    """Describe the failures that known causes explain, and those in which only `digits` are lost, as in these parts."""
    counts = Counter(inherited.values())
    mistakes = tuple(
        CarriedMistake(
            tuple(c.id for c in causes), tuple(dict.fromkeys(known.places[c.heading] for c in causes)), count
        )
        for causes, count in counts.most_common()
    )
    if digits:
        mistakes += (CarriedMistake((), tuple(imprecise), len(digits)),)
    return Carried(frozenset(inherited) | digits, mistakes)


def _find_costs(
    component: str, run: DiagnosedRun, inherited: Mapping[CheckKey, tuple[Cause, ...]], spec: Spec
) -> _Costs:
    """Return the causes of the failures that a component does not inherit, each with the component."""
    own = run.select(lambda v: v.component == component and v.key not in inherited)
    found = find_certain_causes(own, component, spec)
    # Among thousands of generated changes some leave nothing of a result, such as "0 everywhere" or weights that are
    # rounded: these would explain whatever is built of it.
    causes = {heading: cause for heading, cause in found.items() if not cause.generated}
    return _Costs(causes, dict.fromkeys(causes, component))

"""Which catalogued mistakes explain what failed, by what was got, or else by what failed and what passed.

A mistake explains a failing case when it gives, on the same inputs, what was got. Where none does, every
case still lists the mistakes that it reveals: one that a passing case would have revealed is ruled out, and
among the rest those that account for the most failing cases come first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from goldformer.conformance.verdict import Status, Verdict
from goldformer.spec import Mistake, Spec


@dataclass(frozen=True, slots=True)
class Suspect:
    """A mistake that fits: it would show in `explains` of the `failing` failing cases."""

    mistake: Mistake
    explains: int
    failing: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Mistakes that, made together, give what was got in `equals` of the `examined` failing cases.

    `ratio` is the largest distance in these, over the tolerance; `spared` counts passing cases that they would fail.
    """

    mistakes: tuple[Mistake, ...]
    equals: int
    examined: int
    ratio: float
    spared: int


def explanations(verdicts: Iterable[Verdict], component: str, spec: Spec) -> list[Explanation]:
    """The mistakes that give what one component gave, those that explain the most failing cases first."""
    judged = [v for v in verdicts if v.component == component and v.kind == "case"]
    examined = [v for v in judged if v.bad and v.matches is not None]
    equal: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    ratios: defaultdict[str, float] = defaultdict(float)
    for verdict in examined:
        for match in verdict.matches or ():
            equal[match.mistake].add((verdict.check, verdict.dtype))
            ratios[match.mistake] = max(ratios[match.mistake], match.ratio)
    passed = Counter(m for v in judged if v.status is Status.PASSED for m in v.catches)
    found = []
    for ids, checks in equal.items():
        mistakes = tuple(spec.mistakes[id_] for id_ in ids.split("+"))
        spared = sum(passed[m.id] for m in mistakes)
        found.append(Explanation(mistakes, len(checks), len(examined), ratios[ids], spared))
    order = {name: place for place, name in enumerate(spec.components)}

    def rank(e: Explanation) -> tuple[int, int, int, int, str]:
        own = -max(order[m.component] for m in e.mistakes)
        return e.spared - e.equals, len(e.mistakes), own, e.spared, e.mistakes[0].id

    return sorted(found, key=rank)


def suspects(verdicts: Iterable[Verdict], component: str, spec: Spec) -> list[Suspect]:
    """The mistakes that fit the golden cases of one component, best first."""
    judged = [v for v in verdicts if v.component == component and v.kind == "case"]
    passed = {m for v in judged if v.status is Status.PASSED for m in v.catches}
    failed = [v for v in judged if v.bad]
    counts = Counter(m for v in failed for m in v.catches if m not in passed)
    found = [Suspect(spec.mistakes[m], count, len(failed)) for m, count in counts.items()]
    return sorted(found, key=lambda s: (-s.explains, s.mistake.id))


def failing_roots(verdicts: Iterable[Verdict], spec: Spec) -> tuple[list[str], list[str]]:
    """Components that fail though all they depend on holds, and those that fail along with one of these."""
    failing = {v.component for v in verdicts if v.bad}

    ordered = [c for c in spec.components if c in failing]
    roots = [c for c in ordered if failing.isdisjoint(spec.built_of(c))]
    return roots, [c for c in ordered if c not in roots]

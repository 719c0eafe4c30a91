"""Which causes explain what failed, by what was got, or else by what failed and what passed.

A cause explains a failing case when it gives, on the same inputs, what was got. Where none does, every
check still lists the mistakes that it reveals: one that a passing check would have revealed is ruled out, and
among the rest those that account for the most failing checks come first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from goldformer.conformance.diagnosis.causes import Cause, cause
from goldformer.conformance.judging.verdict import ERRORS, Status, Verdict
from goldformer.spec import Mistake, Spec

#: Dtypes so coarse that a mistake may hide in rounding: what passes in them rules nothing out.
_COARSE: Final = frozenset({"float16", "bfloat16"})


@dataclass(frozen=True, slots=True)
class Suspect:
    """A mistake that fits: it would show in `explains` of the `failing` failing checks."""

    mistake: Mistake
    explains: int
    failing: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Causes that, together, give what was got in `equals` of the failing cases that were examined.

    `ratio` is the largest distance in these, over the tolerance; `spared` counts passing cases that they would fail.
    `refuting` are the failing cases, by id, in which they give something else.
    """

    causes: tuple[Cause, ...]
    equals: int
    ratio: float
    spared: int
    refuting: tuple[str, ...] = ()

    @property
    def examined(self) -> int:
        """Return how many failing cases were compared with what the causes give."""
        return self.equals + len(self.refuting)

    @property
    def certain(self) -> bool:
        """Return True if no failing case refutes it."""
        return not self.refuting

    def is_other_option_of(self, nearer: Explanation) -> bool:
        """Return True if both are one option of the same convention, of which only the nearer one is told."""
        ones = [e.causes[0].convention for e in (self, nearer) if len(e.causes) == 1]
        return len(ones) == 2 and ones[0] == ones[1] != ""


def explanations(verdicts: Iterable[Verdict], component: str, spec: Spec) -> list[Explanation]:
    """The causes that give what one component gave, those that explain the most failing cases first."""
    judged = [v for v in verdicts if v.component == component and v.kind == "case"]
    examined = [v for v in judged if v.bad and v.matches is not None]
    equal: defaultdict[tuple[str, ...], set[tuple[str, str]]] = defaultdict(set)
    ratios: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for verdict in examined:
        for match in verdict.matches or ():
            equal[match.causes].add((verdict.check, verdict.dtype))
            ratios[match.causes] = max(ratios[match.causes], match.ratio)
    passed = Counter(m for v in judged for m in _ruled_out(v))
    found = []
    for ids, checks in equal.items():
        causes = tuple(cause(id_, spec) for id_ in ids)
        spared = sum(passed[id_] for id_ in ids)
        refuting = tuple(v.check for v in examined if (v.check, v.dtype) not in checks)
        found.append(Explanation(causes, len(checks), ratios[ids], spared, refuting))
    order = {name: place for place, name in enumerate(spec.components)}
    dtypes = {v.dtype for v in examined}
    catalogue = {id_: place for place, id_ in enumerate(spec.mistakes)}

    def rank(e: Explanation) -> tuple[int, int, int, int, int, int, float, str]:
        # What a convention allows is no mistake; what the component does itself comes before what its parts do.
        own = -max(order[c.component] if c.component else len(order) for c in e.causes)
        faint = sum(not _shows(c.id, dtype) for c in e.causes for dtype in dtypes)
        # Of those that nothing compared tells apart, the catalogue has the more common one first.
        first = catalogue.get(e.causes[0].id, -1)
        # Of two options, the nearer one.
        far = e.ratio if all(c.convention for c in e.causes) else 0.0
        return e.spared - e.equals, len(e.causes), faint, own, e.spared, first, far, e.causes[0].id

    return sorted(found, key=rank)


def suspects(verdicts: Iterable[Verdict], component: str, spec: Spec) -> list[Suspect]:
    """The mistakes that fit the checks of one component and that nothing rules out, best first.

    A passing check rules out those that it would show; so does a failing case that was held against them in vain.
    """
    from goldformer.conformance.diagnosis.mistakes import implementations  # what passes needs no catalogue

    judged = [v for v in verdicts if v.component == component]
    examined = [v for v in judged if v.bad and v.kind == "case" and v.matches is not None]
    fitting = {id_ for v in examined for match in v.matches or () for id_ in match.causes}
    in_vain = {m for v in examined for m in v.catches if m in implementations()} - fitting
    # A property that knows no mistake fails for any. An exception is no sign of a mistake in the values: it may have
    # any cause.
    failed = [v for v in judged if v.bad and v.reason not in ERRORS and (v.kind == "case" or v.catches)]
    passed = {(m, v.dtype) for v in judged for m in _ruled_out(v)}
    counts = Counter(m for v in failed for m in v.catches if m not in in_vain and (m, v.dtype) not in passed)
    found = [Suspect(spec.mistakes[m], count, len(failed)) for m, count in counts.items()]
    return sorted(found, key=lambda s: (-s.explains, s.mistake.id))


def _ruled_out(verdict: Verdict) -> Iterator[str]:
    """The mistakes that a check would have shown and did not, in the dtypes in which they show."""
    if verdict.status is not Status.PASSED or verdict.dtype in _COARSE:
        return
    yield from (id_ for id_ in verdict.catches if _shows(id_, verdict.dtype))


def _shows(mistake: str, dtype: str) -> bool:
    """Whether a mistake is one in a dtype, and not in others alone."""
    from goldformer.conformance.diagnosis.mistakes import implementations

    made = implementations().get(mistake)
    return made is None or made.shown_in(dtype) == dtype


def failing_roots(verdicts: Iterable[Verdict], spec: Spec) -> tuple[list[str], list[str]]:
    """Components that fail though all they depend on holds, and those that fail along with one of these."""
    failing = {v.component for v in verdicts if v.bad}

    ordered = [c for c in spec.components if c in failing]
    roots = [c for c in ordered if failing.isdisjoint(spec.list_dependencies(c))]
    return roots, [c for c in ordered if c not in roots]

"""The causes that explain failures: by their results, or else by the checks that failed and passed.

A cause explains a failing case if it gives the same result on the same inputs. If no cause does, every check still
lists the mistakes that it reveals: a mistake that a passing check would have revealed is ruled out, and among the
others those that account for the most failing checks come first.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from goldformer.conformance.diagnosis.causes import IN, Cause, Causes, find_cause
from goldformer.conformance.diagnosis.failure import RUNS_BACKWARD
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.verdict import ERRORS, Status, Verdict
from goldformer.spec import Mistake, Spec
from goldformer.spec.oracle.rounding import is_half

#: Mistakes that round to float32: together with another one, they change nothing in a call in float32.
TO_FLOAT32: Final = frozenset({"pe-float32", "scale-float32"})
#: The reason of a call that should have been refused: it says nothing about values.
ACCEPTED: Final = "no-error"
#: What the id of a neighbour has that changes the eps of one norm only.
_OF_ONE_NORM: Final = re.compile(r"\.norm_\d+\.eps\.")
#: The most explanations of a component that are compared with further cases and calls.
MOST_COMPARED: Final = 8


@dataclass(frozen=True, slots=True)
class Suspect:
    """A mistake that fits: it would show in `explains` of the `failing` failing checks."""

    mistake: Mistake
    explains: int
    failing: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """Causes that together reproduce the result in `equals` of the failing cases that were examined.

    `ratio` is the largest distance in these cases ÷ the tolerance. `refuting` are the ids of the failing cases in which
    the causes give another result, `passing` those of passing cases that they would fail, and `new_calls` those of
    cases that refuted them when called again with other numbers. `spared` counts the last two, and the passing cases
    that list one of the causes. `faint` counts the dtypes of the failing cases in which one of the causes does not
    show. `backward` are failing gradients from a backward pass of the implementation's own: causes in the forward pass
    say nothing about them. `uncompared` counts the other failing cases with values, of which nothing is known. `twins`
    are other causes that give the same in every case.
    """

    ids: Causes
    causes: tuple[Cause, ...]
    equals: int
    ratio: float
    spared: int
    refuting: tuple[str, ...] = ()
    passing: tuple[str, ...] = ()
    faint: int = 0
    backward: tuple[str, ...] = ()
    uncompared: int = 0
    twins: frozenset[Causes] = frozenset()
    new_calls: tuple[str, ...] = ()
    #: True if it also gives the result of a new call, in which it differs from right code.
    confirmed: bool = False
    #: True if it names an option of a convention, and another component follows the declared one.
    contradicted: bool = False

    @property
    def case_count(self) -> int:
        """The number of failing cases that were compared with the causes."""
        return self.equals + len(self.refuting)

    @property
    def failing_count(self) -> int:
        """The number of all failing cases with values, those that were not compared too."""
        return self.case_count + len(self.backward) + self.uncompared

    @property
    def certain(self) -> bool:
        """Return True if nothing refutes it: no failing case, no passing one, and no new call."""
        return not (self.refuting or self.passing or self.new_calls)

    @property
    def generated(self) -> bool:
        """Return True if one of its causes is a neighbour of the textbook, which has no entry in the catalogue."""
        return any(c.generated for c in self.causes)

    def adds_nothing_to(self, better: Explanation) -> bool:
        """Return True if it has the causes of a better one and more, or only other options of its conventions."""
        mine, others = ({(c.id, c.heading) for c in e.causes if not c.option} for e in (self, better))
        conventions, named = ({c.convention for c in e.causes if c.option} for e in (self, better))
        return others <= mine and named <= conventions


def _find_explanations(verdicts: Sequence[Verdict], component: str, spec: Spec) -> list[Explanation]:
    """Return the causes that reproduce one component's results, with the cases that speak for them and against them."""
    judged = [v for v in verdicts if v.component == component and v.kind == "case"]
    examined = [v for v in judged if v.bad and v.matches is not None]
    bad = (v for v in judged if v.bad and v.reason != ACCEPTED)
    valued = {(v.check, v.dtype) for v in bad if v.matches is not None or v.differences}
    equal: defaultdict[Causes, set[tuple[str, str]]] = defaultdict(set)
    ratios: defaultdict[Causes, float] = defaultdict(float)
    twins: defaultdict[Causes, set[Causes]] = defaultdict(set)
    for verdict in examined:
        for match in verdict.matches or ():
            twins[match.causes].update(match.twins)
            equal[match.causes].add((verdict.check, verdict.dtype))
            ratios[match.causes] = max(ratios[match.causes], match.ratio)
    named = {id_ for ids in equal for id_ in ids}
    passed = Counter(m for v in judged if not named.isdisjoint(v.catches) for m in _rule_out(v))
    dtypes = {v.dtype for v in examined}
    # A result that is right only to a coarser dtype differs from an exact imitation by more than rounding.
    coarser = {v.dtype for v in judged if v.reason == "precision"}
    exact = [v for v in examined if v.dtype not in coarser]
    known = {id_: find_cause(id_, spec) for id_ in named}
    has_options = any(cause.option for cause in known.values())
    kept = _list_kept_conventions(verdicts, component, spec) if has_options else set()
    large = {v.check for v in examined if v.check in spec.cases and spec.cases[v.check].is_computed}
    found = []
    for ids, checks in equal.items():
        causes = tuple(known[id_] for id_ in ids)
        if len(ids) > 1 and not TO_FLOAT32.isdisjoint(ids) and "float64" not in dtypes:
            continue  # it only takes the place of rounding
        runs_backward = component in RUNS_BACKWARD or any(_has_gradients(check, spec) for check, _ in checks)
        if not runs_backward and any(is_by_hand(c.id) for c in causes if not c.option):
            continue  # no gradient was compared
        passing = tuple(v.check for v in judged if ids in v.rules_out)
        new_calls = tuple(v.check for v in judged if ids in v.refutes)
        spared = sum(passed[id_] for id_ in ids) + len(passing) + len(new_calls)
        differing = [v for v in exact if (v.check, v.dtype) not in checks]
        refuting = tuple(v.check for v in differing if is_compared(v, causes, spec))
        if not large.issuperset(check for check, _ in checks):
            # Of a large call a part is imitated, by few candidates: what explains small ones may mix the rest with it.
            refuting = tuple(check for check in refuting if check not in large)
        backward = tuple(v.check for v in differing if v.by_hand and v.check not in refuting)
        faint = sum(not _shows(c.id, dtype) for c in causes for dtype in dtypes)
        same = frozenset(twins[ids])
        found.append(
            Explanation(
                ids,
                causes,
                len(checks),
                ratios[ids],
                spared,
                refuting,
                passing,
                faint,
                backward,
                len(valued - checks) - len(refuting) - len(backward),
                same,
                new_calls,
                confirmed=any(ids in v.confirms for v in judged),
                contradicted=any(c.convention in kept for c in causes),
            )
        )
    return found


def _has_gradients(check: str, spec: Spec) -> bool:
    return check in spec.cases and spec.cases[check].cotangent is not None


def rank_explanations(verdicts: Iterable[Verdict], component: str, spec: Spec) -> list[Explanation]:
    """Return the causes that reproduce one component's results, those that explain the most failing cases first.

    What passes in other components decides between equals: they may have code of their own.
    """
    verdicts = list(verdicts)
    found = _find_explanations(verdicts, component, spec)
    named = {id_ for e in found for id_ in e.ids}
    others = [v for v in verdicts if v.component != component and not named.isdisjoint(v.catches)]
    passed_elsewhere = Counter(m for v in others for m in _rule_out(v))
    order = {name: place for place, name in enumerate(spec.components)}
    catalogue = {id_: place for place, id_ in enumerate((*spec.mistakes, *_order_generated(found)))}

    def rank(e: Explanation) -> tuple[int, int, int, bool, bool, bool, int, int, bool, int, float, str]:
        # Options come before mistakes, unless another component has the declared one; the catalogue before what is
        # generated; what is done everywhere before what is done in one place; and mistakes of the component itself
        # before those of its parts.
        in_one_place = any(IN in id_ or _OF_ONE_NORM.search(id_) for id_ in e.ids)
        own = -max(order[c.component] if c.component else len(order) for c in e.causes)
        # The catalogue lists the more common mistake first: it decides between equals.
        first = next((catalogue[c.id] for c in e.causes if not c.option), -1)
        # The nearer one of two options comes first.
        far = e.ratio if all(c.convention for c in e.causes) else 0.0
        elsewhere = any(passed_elsewhere[c.id] for c in e.causes)
        likely = (e.contradicted, e.generated, in_one_place, own)
        return e.spared - e.equals, len(e.causes), e.faint, *likely, e.spared, elsewhere, first, far, e.causes[0].id

    return sorted(found, key=rank)


def rank_best(verdicts: Iterable[Verdict], component: str, spec: Spec) -> list[Explanation]:
    """Return the explanations of a component that are as good as the best one, in their order."""
    ranked = rank_explanations(verdicts, component, spec)
    return [e for e in ranked if is_as_good(e, ranked[0])]


def list_explained(verdicts: Iterable[Verdict]) -> list[str]:
    """Return the components that have a failing case which something explains."""
    return list(dict.fromkeys(v.component for v in verdicts if v.bad and v.matches))


def select_judgements(judgements: Iterable[Judgement | None], component: str) -> dict[int, Judgement]:
    """Return the judgements of a component by their indices, without those that other processes made."""
    return {i: j for i, j in enumerate(judgements) if j is not None and j.verdict.component == component}


def _list_kept_conventions(verdicts: Iterable[Verdict], component: str, spec: Spec) -> set[str]:
    """Return the conventions whose declared option another component follows, in cases that depend on it.

    A declaration holds for all components: with another option these cases would fail.
    """
    passing: defaultdict[str, set[str]] = defaultdict(set)
    for verdict in verdicts:
        case = spec.cases.get(verdict.check) if verdict.kind == "case" and verdict.component != component else None
        if case is not None and verdict.bad:
            passing[verdict.component].add("")
        elif case is not None and verdict.status is Status.PASSED:
            passing[verdict.component].update(case.conventions)
    return {name for names in passing.values() if "" not in names for name in names}


def _order_generated(found: Iterable[Explanation]) -> list[str]:
    """Return the ids of the neighbours among some causes in their own order: they come after the catalogue."""
    if not (named := {cause.id for e in found for cause in e.causes if cause.generated}):
        return []
    from goldformer.conformance.diagnosis.edits.edit import rank_generated
    from goldformer.conformance.diagnosis.neighbours import neighbours  # hundreds, which few reports need
    from goldformer.conformance.diagnosis.neighbours.results import is_read_off

    listed = [id_ for id_ in neighbours() if id_ in named]
    return [*listed, *sorted(named.difference(listed), key=lambda id_: (is_read_off(id_), rank_generated(id_)))]


def is_as_good(one: Explanation, best: Explanation) -> bool:
    """Return True if an explanation is as good as the best one, but for what decides between equals."""
    return (one.equals, one.spared) == (best.equals, best.spared)


def is_compared(verdict: Verdict, causes: Iterable[Cause], spec: Spec) -> bool:
    """Return True if a failing case was compared with what these causes give."""
    if verdict.reason == ACCEPTED:
        # An implementation that also accepts a bad call has a second fault. It does not disprove the first.
        return False
    # The gradients of a stack take too long to form for each mistake; they are known for options.
    case = spec.cases.get(verdict.check)
    if verdict.reason == "wrong-shape" and any(c.generated for c in causes):
        # A neighbour keeps the shape, and does nothing where it cannot; the slip that it stands for does something.
        return False
    if case is None or case.cotangent is None:
        return True
    made = [c.id for c in causes if not c.option]
    if verdict.by_hand and made and not any(map(is_by_hand, made)):
        # A wrong forward pass says nothing about a backward pass written by hand.
        return False
    # Where a gradient is not finite, frameworks differ in the numbers that they give in its place.
    compared = verdict.reason != "not-finite"
    return compared and (not spec.contracts[verdict.component].layers or not made)


def rank_suspects(verdicts: Iterable[Verdict], component: str, spec: Spec) -> list[Suspect]:
    """Return the mistakes that fit the checks of one component and that nothing rules out, best first.

    A passing check rules out the mistakes that it reveals. A failing case rules out those that do not reproduce it.
    """
    from goldformer.conformance.diagnosis.mistakes import implementations  # a run that passes needs no catalogue

    judged = [v for v in verdicts if v.component == component]
    examined = [v for v in judged if v.bad and v.kind == "case" and v.matches is not None]
    fitting = {id_ for v in examined if v.reason != ACCEPTED for match in v.matches or () for id_ in match.causes}
    in_vain = {m for v in examined for m in v.catches if m in implementations()} - fitting
    # A property that lists no mistake says nothing about one. An exception may have any cause, and a bad call that is
    # accepted says nothing about the values of good ones.
    failed = [v for v in judged if v.bad and v.reason not in (*ERRORS, ACCEPTED) and (v.kind == "case" or v.catches)]
    passed = {(m, v.dtype) for v in judged for m in _rule_out(v)}
    # Without a bias in any call, none is missing.
    biased = any(_has_bias(v, spec) for v in failed)
    likely = (m for v in failed for m in _select_own(v, spec) if m not in in_vain and (m, v.dtype) not in passed)
    counts = Counter(m for m in likely if biased or "bias" not in m)
    found = [Suspect(spec.mistakes[m], count, len(failed)) for m, count in counts.items()]
    return sorted(found, key=lambda s: (-s.explains, s.mistake.id))


def _select_own(verdict: Verdict, spec: Spec) -> Sequence[str]:
    """Return the mistakes that a check reveals; of a law of all components those of this one or its parts, if any."""
    if verdict.kind == "case":
        return verdict.catches
    mine = {verdict.component, *spec.list_dependencies(verdict.component)}
    return [m for m in verdict.catches if spec.mistakes[m].component in mine] or verdict.catches


def _has_bias(verdict: Verdict, spec: Spec) -> bool:
    """Return True unless a check is a case whose call has no bias."""
    case = spec.cases.get(verdict.check) if verdict.kind == "case" else None
    return case is None or any(name.rpartition(".")[2].startswith("b_") for name in case.params)


def _rule_out(verdict: Verdict) -> Iterator[str]:
    """Yield the mistakes that a passing check rules out, in the dtypes in which they show."""
    if verdict.status is not Status.PASSED or is_half(verdict.dtype):
        return
    # A mistake in only the forward pass does not show in a backward pass written by hand.
    seen = (id_ for id_ in verdict.catches if not verdict.by_hand or is_by_hand(id_))
    yield from (id_ for id_ in seen if _shows(id_, verdict.dtype))


def is_by_hand(id_: str) -> bool:
    """Return True if a mistake or a neighbour is made in a backward pass that is written by hand."""
    # A run that passes needs neither.
    from goldformer.conformance.diagnosis.mistakes import implementations
    from goldformer.conformance.diagnosis.neighbours import find_neighbour

    if id_ in implementations():
        return implementations()[id_].by_hand
    # A neighbour has the name of its component before a full stop, which no mistake of the catalogue has.
    return "." in id_ and find_neighbour(id_).backward


@cache
def _shows(mistake: str, dtype: str) -> bool:
    """Return True if a mistake shows in a dtype."""
    from goldformer.conformance.diagnosis.mistakes import implementations

    made = implementations().get(mistake)
    return made is None or made.find_dtype(dtype) == dtype


def find_failing_roots(verdicts: Iterable[Verdict], spec: Spec) -> tuple[list[str], list[str]]:
    """Split failing components into those whose parts all pass, and those with a failing part."""
    failing = {v.component for v in verdicts if v.bad}

    ordered = [c for c in spec.components if c in failing]
    roots = [c for c in ordered if failing.isdisjoint(spec.list_dependencies(c))]
    return roots, [c for c in ordered if c not in roots]

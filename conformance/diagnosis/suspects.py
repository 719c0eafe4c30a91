"""The causes that explain failures: by their results, or else by the checks that failed and passed.

A cause explains a failing case if it gives the same result on the same inputs. If no cause does, every check still
lists the mistakes that it reveals: a mistake that a passing check would have revealed is ruled out, and among the
others those that account for the most failing checks come first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from goldformer.conformance.diagnosis.causes import IN, Cause, Causes, find_cause
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.evidence import CONTRADICTED, Call, CallKind
from goldformer.conformance.diagnosis.failure import RUNS_BACKWARD
from goldformer.conformance.judging.cases import Judgement
from goldformer.conformance.judging.verdict import ERRORS, CheckKey, Status, Verdict
from goldformer.spec import Mistake, Spec
from goldformer.spec.oracle.rounding import is_half

#: Mistakes that round to float32: together with another one, they change nothing in a call in float32.
TO_FLOAT32: Final = frozenset({"pe-float32", "scale-float32"})
#: The reason of a call that should have been refused: it says nothing about values.
ACCEPTED: Final = "no-error"
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
        """Return True if one of its causes is an edit of the formula, which has no entry in the catalogue."""
        return any(c.generated for c in self.causes)

    @property
    def fits_by_chance(self) -> bool:
        """Return True for one of thousands of generated changes that no more cases speak for than against."""
        return self.generated and len(self.refuting) >= self.equals

    def adds_nothing_to(self, better: Explanation) -> bool:
        """Return True if it has the causes of a better one and more, or only other options of its conventions."""
        mine, others = ({(c.id, c.heading) for c in e.causes if not c.option} for e in (self, better))
        conventions, named = ({c.convention for c in e.causes if c.option} for e in (self, better))
        return others <= mine and named <= conventions


@dataclass(frozen=True)
class _Cases:
    """The golden cases of one component, and what they say of causes."""

    run: DiagnosedRun
    component: str
    spec: Spec
    judged: list[Verdict]
    #: The failing cases that were compared with causes.
    examined: list[Verdict]

    @classmethod
    def of(cls, run: DiagnosedRun, component: str, spec: Spec) -> _Cases:
        judged = [v for v in run if v.component == component and v.kind == "case"]
        examined = [v for v in judged if v.bad and run.evidence.is_searched(v.key)]
        return cls(run, component, spec, judged, examined)

    @cached_property
    def equal(self) -> dict[Causes, list[Verdict]]:
        """The failing cases that causes reproduce, by the causes."""
        found: defaultdict[Causes, list[Verdict]] = defaultdict(list)
        for verdict in self.examined:
            for causes in self.run.evidence.list_equal(verdict.key):
                found[causes].append(verdict)
        return found

    @cached_property
    def known(self) -> dict[str, Cause]:
        """The causes by their ids."""
        return {id_: find_cause(id_, self.spec) for ids in self.equal for id_ in ids}

    @cached_property
    def _kept_conventions(self) -> set[str]:
        return _list_kept_conventions(self.run, self.component, self.spec)

    @cached_property
    def dtypes(self) -> set[str]:
        return {v.dtype for v in self.examined}

    @cached_property
    def _valued(self) -> set[CheckKey]:
        """The failing cases with values."""
        searched = {v.key for v in self.examined}
        bad = (v for v in self.judged if v.bad and v.reason != ACCEPTED)
        return {v.key for v in bad if v.key in searched or v.differences}

    @cached_property
    def _exact(self) -> list[Verdict]:
        """The examined cases in dtypes to which results are right: others differ from an imitation by rounding."""
        coarser = {v.dtype for v in self.judged if v.reason == "precision"}
        return [v for v in self.examined if v.dtype not in coarser]

    @cached_property
    def _large(self) -> set[str]:
        """The large cases: of such a call a part is imitated, by few candidates."""
        return {v.check for v in self.examined if v.check in self.spec.cases and self.spec.cases[v.check].is_computed}

    @cached_property
    def _passed(self) -> Counter[str]:
        """The number of passing cases that list each mistake."""
        return Counter(m for v in self.judged if not self.known.keys().isdisjoint(v.catches) for m in _rule_out(v))

    def can_explain(self, ids: Causes) -> bool:
        """Return False for causes that only take the place of rounding, or whose gradients were not compared."""
        if len(ids) > 1 and not TO_FLOAT32.isdisjoint(ids) and "float64" not in self.dtypes:
            return False
        equal = self.equal[ids]
        runs_backward = self.component in RUNS_BACKWARD or any(_has_gradients(v.check, self.spec) for v in equal)
        causes = (self.known[id_] for id_ in ids)
        return runs_backward or not any(is_by_hand(c.id) for c in causes if not c.option)

    def explain(self, ids: Causes) -> Explanation:
        """Return causes with the cases that speak for them and against them."""
        evidence, causes = self.run.evidence, tuple(self.known[id_] for id_ in ids)
        checks = {v.key for v in self.equal[ids]}
        passing = tuple(v.check for v in self.judged if not v.bad and evidence.contradicts(ids, v.key))
        redrawn = [(v, evidence[ids, Call(v.key, CallKind.REDRAWN)]) for v in self.judged if v.bad]
        new_calls = tuple(v.check for v, distance in redrawn if distance == CONTRADICTED)
        differing = [v for v in self._exact if v.key not in checks]
        refuting = tuple(v.check for v in differing if is_compared(v, causes, self.spec))
        if not self._large.issuperset(key.check for key in checks):
            # What explains small calls may mix the rest of a large one with its part.
            refuting = tuple(check for check in refuting if check not in self._large)
        backward = tuple(v.check for v in differing if v.by_hand and v.check not in refuting)
        return Explanation(
            ids,
            causes,
            equals=len(checks),
            ratio=max(evidence.supports(ids, key) or 0.0 for key in checks),
            spared=sum(self._passed[id_] for id_ in ids) + len(passing) + len(new_calls),
            refuting=refuting,
            passing=passing,
            faint=sum(not _shows(c.id, dtype) for c in causes for dtype in self.dtypes),
            backward=backward,
            uncompared=len(self._valued - checks) - len(refuting) - len(backward),
            twins=frozenset(evidence.list_twins(self.component, ids)),
            new_calls=new_calls,
            confirmed=any(distance is not None and distance < CONTRADICTED for _, distance in redrawn),
            contradicted=any(c.option and c.convention in self._kept_conventions for c in causes),
        )


def _has_gradients(check: str, spec: Spec) -> bool:
    return check in spec.cases and spec.cases[check].cotangent is not None


def rank_explanations(run: DiagnosedRun, component: str, spec: Spec) -> list[Explanation]:
    """Return the causes that reproduce one component's results, those that explain the most failing cases first.

    What passes in other components decides between equals: they may have code of their own.
    """
    cases = _Cases.of(run, component, spec)
    found = [cases.explain(ids) for ids in cases.equal if cases.can_explain(ids)]
    named = {id_ for e in found for id_ in e.ids}
    others = [v for v in run if v.component != component and not named.isdisjoint(v.catches)]
    passed_elsewhere = Counter(m for v in others for m in _rule_out(v))
    order = {name: place for place, name in enumerate(spec.components)}
    catalogue = {id_: place for place, id_ in enumerate((*spec.mistakes, *_order_generated(found)))}

    def rank(e: Explanation) -> tuple[int, int, int, bool, bool, bool, int, int, bool, int, float, str]:
        # Options come before mistakes, unless another component has the declared one; the catalogue before what is
        # generated; what is done everywhere before what is done in one place; and mistakes of the component itself
        # before those of its parts.
        in_one_place = any(IN in id_ for id_ in e.ids) or any(map(_is_in_one_call, e.causes))
        own = -max(order[c.component] if c.component else len(order) for c in e.causes)
        # The catalogue lists the more common mistake first: it decides between equals.
        first = next((catalogue[c.id] for c in e.causes if not c.option), -1)
        # The nearer one of two options comes first.
        far = e.ratio if all(c.convention for c in e.causes) else 0.0
        elsewhere = any(passed_elsewhere[c.id] for c in e.causes)
        likely = (e.contradicted, e.generated, in_one_place, own)
        return e.spared - e.equals, len(e.causes), e.faint, *likely, e.spared, elsewhere, first, far, e.causes[0].id

    return sorted(found, key=rank)


def rank_best(run: DiagnosedRun, component: str, spec: Spec) -> list[Explanation]:
    """Return the explanations of a component that are as good as the best one, in their order."""
    ranked = rank_explanations(run, component, spec)
    return [e for e in ranked if is_as_good(e, ranked[0])]


def list_explained(run: DiagnosedRun) -> list[str]:
    """Return the components that have a failing case which something explains."""
    return list(dict.fromkeys(v.component for v in run if v.bad and run.evidence.list_equal(v.key)))


def select_judgements(judgements: Iterable[Judgement], component: str) -> list[Judgement]:
    """Return the judgements of a component."""
    return [judgement for judgement in judgements if judgement.verdict.component == component]


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
    """Return the ids of the edits among some causes in their own order: they come after the catalogue."""
    if not (named := {cause.id for e in found for cause in e.causes if cause.generated}):
        return []
    from goldformer.conformance.diagnosis.edits.edit import rank_generated

    return sorted(named, key=rank_generated)


def _is_in_one_call(cause: Cause) -> bool:
    """Return True for an edit that is made in one of several calls of a step."""
    if not cause.generated:
        return False
    from goldformer.conformance.diagnosis.edits.edit import is_in_one_call

    return is_in_one_call(cause.id)


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
        # An edit keeps the shape, and does nothing where it cannot; the slip that it stands for does something.
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


def rank_suspects(run: DiagnosedRun, component: str, spec: Spec) -> list[Suspect]:
    """Return the mistakes that fit the checks of one component and that nothing rules out, best first.

    A passing check rules out the mistakes that it reveals. A failing case rules out those that do not reproduce it.
    """
    from goldformer.conformance.diagnosis.mistakes import implementations  # a run that passes needs no catalogue

    judged = [v for v in run if v.component == component]
    examined = [v for v in judged if v.bad and v.kind == "case" and run.evidence.is_searched(v.key)]
    equal = (run.evidence.list_equal(v.key) for v in examined if v.reason != ACCEPTED)
    fitting = {id_ for found in equal for causes in found for id_ in causes}
    in_vain = {m for v in examined for m in v.catches if m in implementations()} - fitting
    # A property that lists no mistake says nothing about one. An exception may have any cause, and a bad call that is
    # accepted says nothing about the values of good ones.
    failed = [
        v for v in judged if v.bad and v.reason not in (*ERRORS, ACCEPTED) and (v.kind == "case" or run.list_catches(v))
    ]
    passed = {(m, v.dtype) for v in judged for m in _rule_out(v)}
    # Without a bias in any call, none is missing.
    biased = any(_has_bias(v, spec) for v in failed)
    likely = (m for v in failed for m in _select_own(v, run, spec) if m not in in_vain and (m, v.dtype) not in passed)
    counts = Counter(m for m in likely if biased or "bias" not in m)
    found = [Suspect(spec.mistakes[m], count, len(failed)) for m, count in counts.items()]
    return sorted(found, key=lambda s: (-s.explains, s.mistake.id))


def _select_own(verdict: Verdict, run: DiagnosedRun, spec: Spec) -> Sequence[str]:
    """Return the mistakes that a check reveals; of a law of all components those of this one or its parts, if any."""
    catches = run.list_catches(verdict)
    if verdict.kind == "case":
        return catches
    mine = {verdict.component, *spec.list_dependencies(verdict.component)}
    return [m for m in catches if spec.mistakes[m].component in mine] or catches


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
    """Return True if a mistake is made in a backward pass that is written by hand."""
    # A run that passes does not need it.
    from goldformer.conformance.diagnosis.mistakes import implementations

    return id_ in implementations() and implementations()[id_].by_hand


@cache
def _shows(mistake: str, dtype: str) -> bool:
    """Return True if a mistake shows in a dtype."""
    from goldformer.conformance.diagnosis.mistakes import implementations

    made = implementations().get(mistake)
    return made is None or made.shows(dtype)


def find_failing_roots(verdicts: Iterable[Verdict], spec: Spec) -> tuple[list[str], list[str]]:
    """Split failing components into those whose parts all pass, and those with a failing part."""
    failing = {v.component for v in verdicts if v.bad}

    ordered = [c for c in spec.components if c in failing]
    roots = [c for c in ordered if failing.isdisjoint(spec.list_dependencies(c))]
    return roots, [c for c in ordered if c not in roots]

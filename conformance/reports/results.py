"""The results of one implementation by component: counts of checks, cases that apply, what perhaps did not show."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil
from types import MappingProxyType
from typing import Final, Literal, get_args

from goldformer.adapters.protocol import NEED_NOT, RAISES_NOT_IMPLEMENTED, TAKES_NO, TO_BE_WRITTEN
from goldformer.conformance.diagnosis.diagnosed import DiagnosedRun
from goldformer.conformance.diagnosis.suspects import find_failing_roots
from goldformer.conformance.judging.verdict import Reason, Status, Verdict
from goldformer.conformance.reports.counting import count_noun
from goldformer.spec import Spec
from goldformer.spec.load import FEWEST_CASES
from goldformer.spec.oracle.declared import AS_DECLARED

#: The least share of judged cases on which a component conforms, of those that its declared options admit.
_LEAST_SHARE: Final = Fraction(6, 10)

#: The number of reasons that are given for cases that were not judged.
_MOST_REASONS: Final = 3

#: A component that the adapter does not have: it is named, and is no row.
NOT_IMPLEMENTED: Final = "not implemented"

#: Calls of it were not made, because the process had not answered those of other components.
NOT_RUN: Final = "not run"

#: All that was judged of it is right, some of it only to a coarser dtype.
COARSE: Final = "conforms to float32"

#: Nothing wrong was found, in too few cases, or in none that uses its cache.
PARTIAL: Final = "partial"

#: What was judged is right, and enough was.
CONFORMING: Final = ("conforms", COARSE)


@dataclass(frozen=True, slots=True)
class Counts:
    """The number of checks by their end, of skipped ones by reason, and the worst ratio.

    Refusals of bad input are counted apart: `refused` of `refusals`, each once for all dtypes. One that is required
    and fails is among the failed ones too.
    """

    passed: int = 0
    failed: int = 0
    errored: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    worst_ratio: float | None = None
    refused: int = 0
    refusals: int = 0

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> Counts:
        """Count verdicts; one that a fault of goldformer lost counts as skipped."""
        listed = list(verdicts)
        asking = [v for v in listed if v.asks != "refusal"]
        bad = Counter(v.status for v in listed if v.bad)
        passed = sum(v.status is Status.PASSED for v in asking)
        skipped = Counter(str(v.reason) for v in asking if v.status is not Status.PASSED and not v.bad)
        worst = max((v.ratio for v in asking if v.ratio is not None and not v.is_tolerated), default=None)
        tried = [v for v in listed if v.asks == "refusal" and v.is_judged and v.reason != "not-implemented"]
        refusals, accepted = {v.check for v in tried}, {v.check for v in tried if v.status is not Status.PASSED}
        failed, errored = bad[Status.FAILED], bad[Status.ERRORED]
        return cls(passed, failed, errored, dict(skipped), worst, len(refusals - accepted), len(refusals))

    @property
    def bad(self) -> int:
        """The number of checks that failed or errored."""
        return self.failed + self.errored

    @property
    def coarse(self) -> int:
        """The number of checks that are right only to a coarser dtype."""
        return self.skipped.get("precision", 0)

    @property
    def number_judged(self) -> int:
        """The number of checks that decide the verdict."""
        return self.passed + self.bad + self.coarse

    @property
    def absent(self) -> int:
        """The number of checks that the implementation declined as not implemented."""
        return self.skipped.get("not-implemented", 0)


#: The ways in which a case with golden values ends, the one first that counts where dtypes differ. Excluded cases are
#: for other options than the declared ones, or for settings that the function does not take. Unreachable ones are
#: lost to the dtype or the device of the run.
_End = Literal["judged", "declined", "excluded", "unreachable", "no gradient"]
_ENDS: Final[tuple[_End, ...]] = get_args(_End)


def _find_end(verdict: Verdict) -> _End:
    """Return how a case with golden values ends."""
    if verdict.is_judged and verdict.reason != "not-implemented":
        return "judged"
    if verdict.asks == "gradients":
        # A gradient is a function of its own, and most code outside PyTorch and JAX does not have it.
        return "no gradient"
    if verdict.reason == "not-implemented" and not verdict.message.endswith(NEED_NOT):
        return "declined"
    return "excluded" if verdict.reason in ("convention", "not-implemented") else "unreachable"


@dataclass(frozen=True, slots=True)
class CaseCoverage:
    """The number of judged cases of a component with golden values, in the dtype in which the fewest were judged.

    Advice is not counted. `admitted` are those that the declared options admit: the judged and the declined ones. A
    gradient that is declined is not counted, nor is what the dtype or the device of the run cannot hold. `needed` is
    the number of judged cases on which the component conforms. If fewer are judged, `lost` says why, the declined ones
    first; if the dtype or the device took most away, it says that. `unseen` are the known mistakes that no check which
    ran is known to show.
    """

    judged: int = 0
    admitted: int = 0
    needed: int = 0
    cases: int = 0
    lost: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @classmethod
    def of(cls, verdicts: Iterable[Verdict], unseen: Iterable[str] = ()) -> CaseCoverage:
        """Count the cases of one component that have golden values; each dtype is counted by itself."""
        by_dtype: defaultdict[str, list[Verdict]] = defaultdict(list)
        usable = set()
        for verdict in verdicts:
            if verdict.reason != "dtype":
                usable.add(verdict.dtype)
            if verdict.asks in ("values", "gradients"):
                by_dtype[verdict.dtype].append(verdict)
        # In a dtype in which the implementation does not work at all, nothing is missing: it says so itself.
        found = [cls._of_dtype(mine, tuple(unseen), usable=dtype in usable) for dtype, mine in by_dtype.items()]
        found = found or [cls._of_dtype((), tuple(unseen), usable=False)]
        # A dtype that can hold no case, and need not, says nothing.
        telling = [coverage for coverage in found if coverage.judged or not coverage.is_enough] or found
        return min(telling, key=lambda coverage: (coverage.judged - coverage.needed, coverage.judged))

    @classmethod
    def _of_dtype(cls, verdicts: Sequence[Verdict], unseen: tuple[str, ...], *, usable: bool) -> CaseCoverage:
        """Count the cases of one component in one dtype, `usable` if the implementation works in it."""
        ends: dict[_End, list[Verdict]] = {end: [] for end in _ENDS}
        for verdict in {v.check: v for v in sorted(verdicts, key=lambda v: -_ENDS.index(_find_end(v)))}.values():
            ends[_find_end(verdict)].append(verdict)
        judged, admitted = len(ends["judged"]), len(ends["judged"]) + len(ends["declined"])
        narrow = sum(v.reason == "dtype" for v in ends["unreachable"]) if usable else 0
        needed = _count_needed(admitted, len(ends["excluded"]), len(ends["unreachable"]), narrow)
        lost: list[_End] = []
        if judged < needed:
            lost = [*_ENDS[1:-1]] if admitted < needed else ["declined"]
        elif judged < _LEAST_SHARE * (admitted + len(ends["unreachable"])):
            lost = ["unreachable"]
        losses = tuple(loss for end in lost for loss in _list_losses(ends[end]))
        return cls(judged, admitted, needed, sum(map(len, ends.values())), losses, unseen)

    @property
    def is_enough(self) -> bool:
        """Return True if the component conforms on the cases that were judged."""
        return self.judged >= self.needed

    def __str__(self) -> str:
        """Return how many cases apply, in words; "" if there are no cases."""
        return f"{self.judged} of {self.cases} cases apply" if self.cases else ""


def _count_needed(admitted: int, excluded: int, unreachable: int, narrow: int) -> int:
    """Return how many cases must be judged: 6 in 10 of the admitted ones, and 10, or all if the spec has fewer.

    If the declared options leave fewer than 10, too few can be judged, and so they can in a dtype that is too narrow
    for all but a few. Otherwise what the dtype or the device of the run cannot hold is not missing: it is not the
    implementation's choice.
    """
    reachable = admitted + unreachable
    if admitted + narrow >= FEWEST_CASES or reachable < FEWEST_CASES <= reachable + excluded:
        return max(ceil(_LEAST_SHARE * admitted), FEWEST_CASES)
    return max(ceil(_LEAST_SHARE * admitted), min(FEWEST_CASES, admitted), 0 if unreachable else 1)


#: The remedy for cases that are not judged, by reason.
_REMEDIES: Final[Mapping[Reason, str]] = {
    "not-implemented": "if your code can do it, let the adapter call that; if a convention has it, declare it",
    "dtype": "add a dtype with --dtype",
    "device": "run it on another device",
}


def _list_losses(verdicts: Iterable[Verdict]) -> Iterable[str]:
    """Yield why cases were not judged, with their number and what to do, the most frequent reason first."""
    listed = list(verdicts)
    dtypes = ", ".join(sorted({v.dtype for v in listed}))
    # Cases are out of reach of a dtype each for numbers of its own. The report says elsewhere what was not wrapped.
    words = {"dtype": f"not in {dtypes}", "not-wrapped": "not wrapped"}
    groups = Counter((v.reason, words.get(v.reason) or v.message or str(v.reason)) for v in listed)
    for (reason, message), count in groups.most_common(_MOST_REASONS):
        # A message that a function has no such parameter needs no remedy.
        remedy = "" if TAKES_NO in message else _REMEDIES.get(reason, "")
        yield f"{count} {message}" + (f" ({remedy})" if remedy else "")
    if more := sum(count for _, count in groups.most_common()[_MOST_REASONS:]):
        yield f"{more} for other reasons"


@dataclass(frozen=True, slots=True)
class ComponentResult:
    """One component of one implementation: its state, its counts, also by dtype, and the cases that apply.

    `judged_up_to` is the largest size of each axis among the cases whose values were judged. `unused_cache` is a cache
    of keys and values that no golden case used.
    """

    component: str
    state: str
    counts: Counts = field(default_factory=Counts)
    coverage: CaseCoverage = field(default_factory=CaseCoverage)
    dtypes: Mapping[str, Counts] = field(default_factory=dict)
    judged_up_to: Mapping[str, int] = field(default_factory=dict)
    unused_cache: str = ""

    @property
    def conforms(self) -> bool:
        """Return True if what was judged is right, and enough was."""
        return self.state in CONFORMING

    @property
    def verdict(self) -> str:
        """The state, and the number of cases that it stands on."""
        if self.state == PARTIAL:
            cache = ", and its cache was not judged" if self.unused_cache else ""
            return f"{PARTIAL}: nothing wrong was found in {self.stands_on}{cache}"
        if self.conforms and not self.coverage.judged:
            return f"{self.state}, on properties only"
        has_number = self.stands_on and (self.conforms or self.state.startswith("fails"))
        return f"{self.state} ({self.stands_on})" if has_number else self.state

    @property
    def stands_on(self) -> str:
        """The number of judged cases: of those that the declared options admit if they are too few, else of all."""
        few = f"{self.coverage.judged} of {count_noun(self.coverage.admitted, 'case')}"
        return few if self.state == PARTIAL else str(self.coverage)


def summarize(
    run: DiagnosedRun,
    spec: Spec,
    implemented: Collection[str],
    absent: Iterable[str] = (),
    caches: Mapping[str, object] = MappingProxyType({}),
    *,
    chosen: bool = False,
) -> dict[str, ComponentResult]:
    """Return the result of each component that was asked for, by name in the order of dependency.

    `implemented` are the components that the adapter has, `absent` those that were asked for and that it does not
    have, and `caches` those caches that no golden case used, by component. With `chosen`, the user chose single checks,
    and few of them are enough.
    """
    by_component: defaultdict[str, list[Verdict]] = defaultdict(list)
    for verdict in run:
        by_component[verdict.component].append(verdict)
    missing = {name for name, mine in by_component.items() if _is_absent(mine, implemented=name in implemented)}
    answers = (v for v in run if v.component not in missing and v.was_asked)
    roots, followers = find_failing_roots(answers, spec)
    unseen = find_unseen(run)
    results: dict[str, ComponentResult] = {}
    for component in (name for name in spec.components if name in by_component or name in {*absent}):
        mine = by_component.get(component, [])
        if not mine or component in missing:
            results[component] = ComponentResult(component, NOT_IMPLEMENTED, Counts.of(mine))
            continue
        coverage = CaseCoverage.of(mine, unseen.get(component, ()))
        state = "fails first" if component in roots else "fails" if component in followers else ""
        if all(v.reason == "not-implemented" for v in mine if v.is_judged):
            # Under --strict, declining a call fails, but says nothing of values.
            state = ""
        state = state or _name_state(mine, coverage, chosen=chosen)
        cache = str(caches.get(component, "")) if any(v.is_judged for v in mine) else ""
        if cache and state in CONFORMING:
            state = PARTIAL
        dtypes = {d: Counts.of(v for v in mine if v.dtype == d) for d in dict.fromkeys(v.dtype for v in mine)}
        sizes = _find_largest_sizes(component, mine, spec)
        results[component] = ComponentResult(component, state, Counts.of(mine), coverage, dtypes, sizes, cache)
    return results


def _find_largest_sizes(component: str, verdicts: Iterable[Verdict], spec: Spec) -> dict[str, int]:
    """Return the largest size of each axis among the cases of the spec whose values were judged."""
    judged = {v.check for v in verdicts if v.asks == "values" and _find_end(v) == "judged"}
    largest: dict[str, int] = {}
    for case in spec.cases_of(component) if judged else ():
        if case.id in judged and not case.random:
            largest |= {name: max(size, largest.get(name, 0)) for name, size in case.sizes.items()}
    return largest


def _is_absent(verdicts: Sequence[Verdict], *, implemented: bool) -> bool:
    """Return True if the adapter does not have a component, or only the function that is still to be written."""
    missing = all(v.reason == "not-implemented" for v in verdicts if v.is_judged)
    written = not any(v.message.endswith((TO_BE_WRITTEN, RAISES_NOT_IMPLEMENTED)) for v in verdicts)
    return missing and not (implemented and written) and not any(v.is_fault for v in verdicts)


def _name_state(verdicts: Sequence[Verdict], coverage: CaseCoverage, *, chosen: bool) -> str:
    """Return the state of a component in which nothing fails."""
    if not all(v.was_asked for v in verdicts):
        return NOT_RUN
    counts = Counts.of(verdicts)
    judged = bool(counts.passed or counts.coarse)
    if not judged and any(v.is_fault for v in verdicts):
        return "fault in goldformer"
    if not coverage.is_enough and not chosen:
        return PARTIAL
    if judged:
        return COARSE if counts.coarse else "conforms"
    # If only the dtype, the device or a wrapper is in the way, nothing was asked of it.
    return "not checked" if coverage.is_enough else "nothing to judge"


def find_unseen(run: DiagnosedRun) -> dict[str, tuple[str, ...]]:
    """Return the known mistakes that no check which ran is known to show: every check that lists them was skipped.

    A check need not list all that it shows, so one that ran may show them: what the run itself found is left out. Each
    stands under the first component that has such a check. Which mistakes a case shows that was derived for the
    adapter is not measured, so components with such cases are left out.
    """
    listed = run.verdicts
    seen = {id_ for v in listed if v.is_judged for id_ in v.catches}
    seen |= {id_.partition(" ")[0] for v in listed if v.bad for ids in run.evidence.list_equal(v.key) for id_ in ids}
    unmeasured = {v.component for v in listed if v.is_judged and v.check.endswith(AS_DECLARED)}
    found: dict[str, str] = {}
    for verdict in listed:
        if not verdict.is_judged and verdict.component not in unmeasured:
            for id_ in verdict.catches:
                if id_ not in seen:
                    found.setdefault(id_, verdict.component)
    unseen: defaultdict[str, list[str]] = defaultdict(list)
    for id_, component in found.items():
        unseen[component].append(id_)
    return {component: tuple(ids) for component, ids in unseen.items()}


def nothing_was_checked(verdicts: Iterable[Verdict]) -> bool:
    """Return True if every check was skipped, so that a green run would mean nothing."""
    return not any(v.is_judged or v.is_fault for v in verdicts)

"""The results of one implementation by component: counts of checks, cases that apply, what perhaps did not show."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from goldformer.adapters.protocol import RAISES_NOT_IMPLEMENTED, TO_BE_WRITTEN
from goldformer.conformance.diagnosis.suspects import find_failing_roots
from goldformer.conformance.judging.verdict import Reason, Status, Verdict
from goldformer.conformance.reports.counting import count_noun
from goldformer.spec import Spec
from goldformer.spec.oracle.declared import AS_DECLARED

#: If fewer cases of a component are judged than this, the report says so even if it conforms.
FEW_CASES: Final = 5

#: The share of cases below which a report says what took the others away.
_MOST_APPLY: Final = 0.6

#: The number of reasons that are given for it.
_MOST_REASONS: Final = 3

#: A component that the adapter does not have: it is named, and is no row.
NOT_IMPLEMENTED: Final = "not implemented"

#: Calls of it were not made, because the process had not answered those of other components.
NOT_RUN: Final = "not run"

#: All that was judged of it is right, some of it only to a coarser dtype.
COARSE: Final = "conforms to float32"


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
    worst: float | None = None
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


@dataclass(frozen=True, slots=True)
class CaseCoverage:
    """The number of judged cases of a component with golden values, each counted once for all dtypes.

    `lost` says why the others were not, most frequent reason first, if they are many. `unseen` are the known mistakes
    that no check which ran is known to show.
    """

    judged: int = 0
    cases: int = 0
    lost: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()

    @classmethod
    def of(cls, verdicts: Iterable[Verdict], unseen: Iterable[str] = ()) -> CaseCoverage:
        """Count the cases of one component that ask for values."""
        cases: dict[str, Verdict] = {}
        for verdict in verdicts:
            if verdict.asks == "values" and not (verdict.check in cases and cases[verdict.check].is_judged):
                cases[verdict.check] = verdict
        declined = {v.check for v in cases.values() if not v.is_judged or v.reason == "not-implemented"}
        judged = len(cases) - len(declined)
        few = judged < _MOST_APPLY * len(cases)
        lost = tuple(_list_losses(cases[check] for check in cases if check in declined)) if few else ()
        return cls(judged, len(cases), lost, tuple(unseen))

    def __str__(self) -> str:
        """Return how many cases apply, in words; "" if there are no cases."""
        return f"{self.judged} of {self.cases} cases apply" if self.cases else ""


#: The remedy for cases that are skipped, by reason.
_REMEDIES: Final[Mapping[Reason, str]] = {
    "not-implemented": "if your code can do it, let the adapter call that; if a convention has it, declare it",
    "dtype": "add a dtype with --dtype",
    "device": "run it on another device",
}


def _list_losses(verdicts: Iterable[Verdict]) -> Iterable[str]:
    """Yield why cases were not judged, with their number and what to do, the most frequent reason first."""
    listed = list(verdicts)
    # Cases are out of reach of a dtype each for numbers of its own.
    # The report says elsewhere why a case was not wrapped.
    groups = Counter((v.reason, v.reason if v.reason in ("dtype", "not-wrapped") else v.message) for v in listed)
    for (reason, message), count in groups.most_common(_MOST_REASONS):
        words = {"not-wrapped": "not wrapped", "dtype": f"not in {', '.join(sorted({v.dtype for v in listed}))}"}.get(
            reason, message or str(reason)
        )
        # A message that says what to do, or that a function has no such parameter, needs no remedy.
        has_remedy = reason == "not-implemented" and ("provide" in message or " takes no " in message)
        remedy = _REMEDIES.get(reason, "")
        yield f"{count} {words}" + (f" ({remedy})" if remedy and not has_remedy else "")
    if more := sum(count for _, count in groups.most_common()[_MOST_REASONS:]):
        yield f"{more} for other reasons"


@dataclass(frozen=True, slots=True)
class ComponentResult:
    """One component of one implementation: its state, its counts, also by dtype, and the cases that apply."""

    component: str
    state: str
    counts: Counts = field(default_factory=Counts)
    coverage: CaseCoverage = field(default_factory=CaseCoverage)
    dtypes: Mapping[str, Counts] = field(default_factory=dict)

    @property
    def conforms(self) -> bool:
        """Return True if what was judged is right."""
        return self.state in ("conforms", COARSE)

    @property
    def verdict(self) -> str:
        """The state, and the number of cases that it stands on."""
        judged, whole = self.coverage.judged, str(self.coverage)
        if not (self.conforms or self.state.startswith("fails")):
            return self.state
        if self.conforms and judged < FEW_CASES:
            least = f"{count_noun(judged, 'case')} only" if judged else "properties only"
            few = whole if judged < self.coverage.cases else ""
            return f"{self.state}, on {least}" + (f" ({few})" if few else "")
        return f"{self.state} ({whole})" if whole else self.state


def summarize(verdicts: Sequence[Verdict], spec: Spec, implemented: Collection[str]) -> list[ComponentResult]:
    """Return the result of each component that was run, in the order of dependency.

    `implemented` are the components that the adapter has.
    """
    by_component: defaultdict[str, list[Verdict]] = defaultdict(list)
    for verdict in verdicts:
        by_component[verdict.component].append(verdict)
    absent = [name for name, mine in by_component.items() if _is_absent(mine, implemented=name in implemented)]
    answers = (v for v in verdicts if v.component not in absent and v.was_asked)
    roots, followers = find_failing_roots(answers, spec)
    unseen = find_unseen(verdicts)
    results = []
    for component in (name for name in spec.components if name in by_component):
        mine = by_component[component]
        counts = Counts.of(mine)
        state = "fails first" if component in roots else "fails" if component in followers else ""
        if all(v.reason == "not-implemented" for v in mine if v.is_judged):
            # Under --strict, declining a call fails, but says nothing of values.
            state = ""
        state = NOT_IMPLEMENTED if component in absent else state or _name_state(mine, counts)
        dtypes = {d: Counts.of(v for v in mine if v.dtype == d) for d in dict.fromkeys(v.dtype for v in mine)}
        coverage = CaseCoverage.of(mine, unseen.get(component, ()))
        results.append(ComponentResult(component, state, counts, coverage, dtypes))
    return results


def _is_absent(verdicts: Sequence[Verdict], *, implemented: bool) -> bool:
    """Return True if the adapter does not have a component, or only the function that is still to be written."""
    missing = all(v.reason == "not-implemented" for v in verdicts if v.is_judged)
    written = not any(v.message.endswith((TO_BE_WRITTEN, RAISES_NOT_IMPLEMENTED)) for v in verdicts)
    return missing and not (implemented and written) and not any(v.is_fault for v in verdicts)


def _name_state(verdicts: Sequence[Verdict], counts: Counts) -> str:
    """Return the state of a component in which nothing fails."""
    if not all(v.was_asked for v in verdicts):
        return NOT_RUN
    if counts.passed or counts.coarse:
        return COARSE if counts.coarse else "conforms"
    if any(v.is_fault for v in verdicts):
        return "fault in goldformer"
    # If the dtype or the device is missing, nothing was asked of it.
    asked = any(v.reason not in ("dtype", "device") for v in verdicts)
    return "nothing to judge" if asked else "not checked"


def find_unseen(verdicts: Iterable[Verdict]) -> dict[str, tuple[str, ...]]:
    """Return the known mistakes that no check which ran is known to show: every check that lists them was skipped.

    A check need not list all that it shows, so one that ran may show them: what the run itself found is left out. Each
    stands under the first component that has such a check. Which mistakes a case shows that was derived for the
    adapter is not measured, so components with such cases are left out.
    """
    listed = list(verdicts)
    seen = {id_ for v in listed if v.is_judged for id_ in v.catches}
    seen |= {cause.partition(" ")[0] for v in listed for match in v.matches or () for cause in match.causes}
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

"""The types of grading, frozen: the assignment, the submission, and its grade."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from goldformer.conformance.diagnosis.diagnosed import CheckDiagnosis
from goldformer.conformance.diagnosis.finding import (
    MISTAKE_FOUND,
    NOTHING_KNOWN,
    OPTION_FOUND,
    POSSIBLE_CAUSES,
    Finding,
)
from goldformer.conformance.grading.sandbox import WAITS, Isolation, Limits
from goldformer.conformance.judging.verdict import NO_MISTAKE, TOLERATED, WITHHELD, Reason, Status, Verdict
from goldformer.spec.oracle.rounding import UNIT_ROUNDOFF
from goldformer.spec.strict import Id, StrictModel

#: The outcome of a check or of a whole submission. `imprecise` is right but for its last digits, `missing` was not
#: written or not returned, `not-judged` is code that waits instead of computing. `grader-error` is never the
#: submission's fault and costs it nothing.
Outcome = Literal[
    "correct", "imprecise", "wrong", "missing", "error", "timeout", "not-judged", "memory", "output-limit", "killed",
    "protocol", "tampered", "grader-error",
]  # fmt: skip

#: The outcomes in the order of their importance, the most important last.
SEVERITY: Final[tuple[Outcome, ...]] = (
    "correct", "imprecise", "wrong", "missing", "error", "protocol", "output-limit", "timeout", "not-judged", "memory",
    "killed", "tampered", "grader-error",
)  # fmt: skip

#: The origin of a check: a published golden case, one drawn with the assignment's seed, or a property.
Origin = Literal["published", "fresh", "property"]

#: The kind of a golden case: ordinary numbers, those of scores that overflow a plain exponential, or an error.
Kind = Literal["value", "extreme", "refusal"]

#: The outcomes of checks that got no result.
_OUTCOMES: Final[Mapping[Reason, Outcome]] = {
    "raised": "error",
    "wrong-parameters": "error",
    "crashed": "killed",
    "timeout": "timeout",
    "protocol": "protocol",
    "memory": "memory",
    "output-limit": "output-limit",
    "killed": "killed",
    "tampered": "tampered",
    "not-implemented": "missing",
    WITHHELD: "missing",
}


#: The reasons that cost nothing: those of checks that pass or are skipped, those of missing components, which have no
#: points to lose, and those of what grading does not ask for: baselines, PyTorch's transformations, equal bits.
_NO_FAULT: Final = frozenset(
    {
        "",
        "not-implemented",
        "convention",
        "dtype",
        "device",
        *TOLERATED,
        "not-checkable",
        "not-wrapped",
        "moved",
        "fault",
        *NO_MISTAKE,
    }
)

#: The reasons that may cost points.
REASONS: Final[tuple[str, ...]] = tuple(reason for reason in get_args(Reason) if reason not in _NO_FAULT)

#: Bounded, so that no sum of them overflows and every limit is one that the system can set.
MOST_POINTS: Final = 1e6
Points = Annotated[float, Field(ge=0, le=MOST_POINTS, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1 << 30)]
#: The most numbers of processes that Linux has, and so the largest limit of a control group.
MOST_PROCESSES: Final = 1 << 22


class Worth(StrictModel):
    """The points of a component; `golden` and `properties` are weights.

    Rule `share` gives the share of checks that pass; `all` gives nothing unless all pass. `visible` and `hidden` are
    the weights of published and of fresh cases; without them the smaller of the two shares counts. `large_scores` are
    the points of the cases whose scores overflow a plain exponential.
    """

    points: Points
    golden: Points = 1.0
    properties: Points = 0.0
    rule: Literal["share", "all"] = "share"
    visible: Points | None = None
    hidden: Points | None = None
    large_scores: Points | None = None


class GradedComponent(Worth):
    """A component that the assignment asks for, and the title of its question, if the assignment has questions."""

    component: str
    question: str = ""


_PROCESS: Final = Limits()


class SubmissionLimits(StrictModel):
    """The limits of a submission: times in seconds, sizes in MiB.

    Without `cpu`, a process may use as much as all components together; without `memory`, what its library needs and
    as much again as small arrays need. `total` is the processor time of all answers of one component together, so that
    no component takes time from another. `size` is that of all files, and `files` their number.
    """

    call: Seconds = _PROCESS.call
    start: Seconds = _PROCESS.start
    total: Seconds = 120.0
    wait: Seconds = _PROCESS.wait
    cpu: Seconds | None = None
    memory: Count | None = None
    processes: Annotated[int, Field(ge=1, le=MOST_PROCESSES)] = _PROCESS.processes
    output: Count = _PROCESS.output
    file: Count = _PROCESS.file
    size: Count = 16
    files: Count = 200

    @property
    def of_process(self) -> Limits:
        """Those of a process."""
        return Limits(**self.model_dump(exclude={"total", "size", "files"}, exclude_none=True))


class Deduction(StrictModel):
    """The points that a mistake, or a reason why checks fail, costs once, never below 0 for its component.

    The student reads `note`.
    """

    points: Points
    mistake: Id | None = None
    reason: Annotated[str | None, Field(json_schema_extra={"enum": list(REASONS)})] = None
    note: str = ""


class Feedback(StrictModel):
    """The parts of the feedback that a student sees."""

    diagnosis: bool = True
    first_wrong: bool = True
    expected: bool = True
    reproduction: bool = True
    stderr: bool = True


@dataclass(frozen=True, slots=True)
class Assignment:
    """An assignment as assignment.yaml describes it, validated.

    `adapter` is the file that imports `submission` and maps it to the contracts; `starter` is the file that students
    start from. `fresh` is the number of cases to draw for each component. `seed` is None if grading draws one and
    keeps it. `without` are the ids of published cases and properties that are left out. `carry` says whether a mistake
    costs points once, or in every component that inherits it. `forbid` are names that submissions may not use.
    """

    path: Path
    title: str
    adapter: Path
    starter: Path | None
    parts: tuple[GradedComponent, ...]
    dtypes: tuple[str, ...]
    fresh: int
    seed: str | None
    limits: SubmissionLimits = field(default_factory=SubmissionLimits)
    deductions: tuple[Deduction, ...] = ()
    feedback: Feedback = field(default_factory=Feedback)
    without: tuple[str, ...] = ()
    carry: Literal["once", "every"] = "once"
    forbid: tuple[str, ...] = ()

    @property
    def points(self) -> float:
        """The points of a correct submission."""
        return sum(part.points for part in self.parts)

    @property
    def questions(self) -> Mapping[str, tuple[str, ...]]:
        """The components of each question by its title; empty if the assignment has no questions."""
        titles = dict.fromkeys(part.question for part in self.parts if part.question)
        return {title: tuple(p.component for p in self.parts if p.question == title) for title in titles}


@dataclass(frozen=True, slots=True)
class Submission:
    """The files of one submission by their relative names with forward slashes.

    `problem` says why it cannot be graded: nothing in it, too much, or a bad archive.
    """

    id: str
    files: Mapping[str, bytes]
    digest: str
    problem: str = ""


_NO_DIAGNOSIS: Final = CheckDiagnosis()


@dataclass(frozen=True, slots=True)
class Check:
    """One judged check of a submission.

    It is `inherited` if it fails only because of a mistake in a component that its own is built of.
    """

    origin: Origin
    outcome: Outcome
    verdict: Verdict
    inherited: bool = False
    diagnosis: CheckDiagnosis = _NO_DIAGNOSIS

    @property
    def counts(self) -> bool:
        """True if it decides about points: a skipped check does only if its component was not written."""
        return self.outcome != "grader-error" and (
            self.verdict.status is not Status.SKIPPED or self.outcome == "missing"
        )

    @property
    def has_outcome(self) -> bool:
        """True unless it was skipped: it decides about points, or grading broke down over it."""
        return self.counts or self.outcome == "grader-error"

    @property
    def is_shown(self) -> bool:
        """True for a failure with something to show, which a component that was not written has not."""
        return self.outcome not in ("correct", "missing", "grader-error") or self.verdict.reason == WITHHELD


@dataclass(frozen=True, slots=True)
class CarriedMistake:
    """Causes that cost points in other `components`, and the number of checks that fail here only because of them.

    A cause is the id of a mistake, or an option such as "norm_placement: pre"; none where only last digits are lost.
    """

    causes: tuple[str, ...]
    components: tuple[str, ...]
    checks: int


@dataclass(frozen=True, slots=True)
class ComponentGrade:
    """The points of a component. `shares` are the numbers of passed and of counted checks by their origin.

    Checks that fail only because of a mistake in `carried` cost nothing; `shares` counts them as failed. `kinds`
    are the numbers of passed and of counted golden cases of each kind by their origin, from which the points follow:
    failures that cost nothing count as passed, and results that are right but for their last digits count 3/4.
    `outcome` is the worst of its checks.
    """

    component: str
    points: float
    earned: float
    shares: Mapping[Origin, tuple[int, int]]
    deductions: tuple[Deduction, ...] = ()
    carried: tuple[CarriedMistake, ...] = ()
    kinds: Mapping[Kind, Mapping[Origin, tuple[int | float, int]]] = field(default_factory=dict)
    outcome: Outcome = "correct"

    @property
    def passes_only_published(self) -> bool:
        """True if every published case passes and every fresh case fails."""
        published, drawn = self.shares.get("published", (0, 0)), self.shares.get("fresh", (0, 0))
        return 0 < published[1] == published[0] and drawn[1] > 0 == drawn[0]


@dataclass(frozen=True, slots=True)
class ForbiddenUse:
    """A line of a submission that uses a forbidden name, as its source reads; what runs may differ.

    A `private` name is not forbidden, and may be the same function: only the staff read of it.
    """

    file: str
    line: int
    name: str
    private: bool = False


@dataclass(frozen=True, slots=True)
class Grade:
    """The points of a submission, and why. Nothing in it depends on the clock, the machine's load or the order.

    `outcome` is the worst of its checks; `message` says it in a sentence for the student. `key` is the digest of
    everything that decides about it: submission, assignment, fresh cases, spec, and the version of goldformer.
    `left_out` says what of a notebook is not read and may be needed. `failed` are the failing checks by their origin
    and id, except those that fail only because of another component: pages of a class need no other of its checks.
    """

    submission: str
    key: str
    outcome: Outcome
    message: str
    points: float
    earned: float
    parts: tuple[ComponentGrade, ...]
    said: tuple[Finding, ...]
    checks: tuple[Check, ...]
    isolation: Isolation
    forbidden: tuple[ForbiddenUse, ...] = ()
    left_out: tuple[str, ...] = ()
    failed: tuple[tuple[Origin, str], ...] = ()

    @property
    def mistakes(self) -> tuple[str, ...]:
        """The mistakes that the diagnosis is certain of."""
        return tuple(dict.fromkeys(id_ for line in self.said if line.label in CERTAIN_LABELS for id_ in line.mistakes))

    @property
    def maybe(self) -> tuple[str, ...]:
        """The mistakes that the diagnosis calls possible."""
        named = dict.fromkeys(id_ for line in self.said for id_ in line.mistakes)
        return tuple(id_ for id_ in named if id_ not in self.mistakes)

    @property
    def diagnosis(self) -> str:
        """The first sentence of the diagnosis that says what is wrong."""
        return next((line.text for line in self.said if line.label in _TELLING), "")


#: The labels of the diagnosis that name a mistake for certain, and those of lines that say what is wrong.
CERTAIN_LABELS: Final = frozenset({MISTAKE_FOUND, OPTION_FOUND})
_TELLING: Final = CERTAIN_LABELS | {POSSIBLE_CAUSES, "Convention", NOTHING_KNOWN}

#: The beginning of the message of a submission that could not be called.
NOT_STARTED: Final = "It cannot be started"

#: The error of an adapter that uses a name which the submission does not define, and why a notebook lacks it.
UNDEFINED: Final = re.compile(
    r"raised AttributeError: module 'submission' has no attribute '(\w+)'( \(code cell .*?\)(?= \(|$))?"
)


def mark_imprecise(checks: Sequence[Check]) -> tuple[Check, ...]:
    """Return checks in which wrong results that are right but for their last digits are `imprecise`.

    At least half of the digits of the dtype are right, in each dtype that fails: what rounding loses shrinks with the
    dtype, and what a wrong formula loses does not.
    """
    far = {c.verdict.check for c in checks if c.outcome == "wrong" and not _is_near(c.verdict)}
    return tuple(
        replace(check, outcome="imprecise") if check.outcome == "wrong" and check.verdict.check not in far else check
        for check in checks
    )


def _is_near(verdict: Verdict) -> bool:
    """Return True if at least half of the digits that rounding leaves are right."""
    ratio = verdict.ratio if verdict.kind == "case" and verdict.reason == "wrong-value" else None
    return ratio is not None and ratio**2 * UNIT_ROUNDOFF[verdict.dtype] <= 1


def derive_outcome(verdict: Verdict) -> Outcome:
    """Return what a verdict means for a grade."""
    if verdict.status is Status.ERRORED and UNDEFINED.search(verdict.message):
        return "missing"
    if verdict.reason == "timeout" and WAITS in verdict.message:
        return "not-judged"
    if verdict.reason in _OUTCOMES:
        return _OUTCOMES[verdict.reason]
    return "wrong" if verdict.status is Status.FAILED else "correct"

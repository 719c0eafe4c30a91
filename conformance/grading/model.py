"""The nouns of grading, frozen: what is asked for, what came in, and what it is worth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from goldformer.conformance.judging.verdict import WITHHELD, Reason, Status, Verdict

#: How a check, or a whole submission, came out. `missing` is a component that was not written, or an output that was
#: not returned; `grader-error` is never the submission's fault and costs it nothing.
Outcome = Literal[
    "correct",
    "wrong",
    "missing",
    "error",
    "timeout",
    "memory",
    "output-limit",
    "killed",
    "protocol",
    "tampered",
    "grader-error",
]

#: From what is worth saying least to what is worth saying most.
SEVERITY: Final[tuple[Outcome, ...]] = (
    "correct",
    "wrong",
    "missing",
    "error",
    "protocol",
    "output-limit",
    "timeout",
    "memory",
    "killed",
    "tampered",
    "grader-error",
)

#: What a check is: a published golden case, one drawn with the assignment's seed, or a property.
Origin = Literal["published", "fresh", "property"]

#: How far a submission is kept from everything else; each level has what those before it have.
#: `process`: a disposable process with limits, without privileges, with nothing inherited.
#: `files`: it reads only the interpreter and itself, and writes only to a folder of its own.
#: `full`: a file system of its own and of limited size, no network, no other process in sight, its number of processes
#: limited.
Level = Literal["process", "files", "full"]

LEVELS: Final[tuple[Level, ...]] = ("process", "files", "full")

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


@dataclass(frozen=True, slots=True)
class Limits:
    """What a submission may use. Times in seconds, sizes in MiB.

    `call` is a single call and `start` what happens until the first one (importing it); `total` is all that a
    submission takes, on the clock; `cpu` bounds each of its processes. `memory` is address space, `output` what it
    prints, `file` one file that it writes, `size` and `files` what is handed in.
    """

    call: float = 5.0
    start: float = 20.0
    total: float = 120.0
    cpu: float = 120.0
    memory: int = 2048
    processes: int = 16
    output: int = 1
    file: int = 16
    size: int = 16
    files: int = 200


@dataclass(frozen=True, slots=True)
class Part:
    """A component that is asked for.

    Golden cases and properties share its points by their weights; properties count in so far as golden cases pass.
    """

    component: str
    points: float
    golden: float = 1.0
    properties: float = 0.0
    #: `share` gives the share of checks that pass, `all` nothing unless all do.
    rule: Literal["share", "all"] = "share"


@dataclass(frozen=True, slots=True)
class Deduction:
    """Points that a named mistake, or a reason for which checks fail, costs once; never below 0 for its component."""

    points: float
    mistake: str | None = None
    reason: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Feedback:
    """What a student is shown."""

    diagnosis: bool = True
    first_wrong: bool = True
    expected: bool = True
    reproduction: bool = True
    stderr: bool = True


@dataclass(frozen=True, slots=True)
class Assignment:
    """What is asked of students, and how it is graded: assignment.yaml, checked.

    `adapter` is the file that maps what students were asked to write, and imports `submission`; `starter` what they
    are given. `fresh` cases are drawn for each component. `seed` is None where grading draws one and keeps it.
    `without` are published cases and properties that are left out, by their ids: what was not asked for.
    """

    path: Path
    title: str
    adapter: Path
    starter: Path | None
    parts: tuple[Part, ...]
    dtypes: tuple[str, ...]
    fresh: int
    seed: str | None
    limits: Limits = field(default_factory=Limits)
    deductions: tuple[Deduction, ...] = ()
    feedback: Feedback = field(default_factory=Feedback)
    without: tuple[str, ...] = ()

    @property
    def points(self) -> float:
        """What a correct submission earns."""
        return sum(part.points for part in self.parts)


@dataclass(frozen=True, slots=True)
class Student:
    """Who handed something in, as the course's system knows them; empty where it does not say."""

    name: str = ""
    email: str = ""
    number: str = ""


@dataclass(frozen=True, slots=True)
class Submission:
    """What one student handed in: files by their names relative to its folder, with forward slashes.

    `problem` says why it cannot be graded: nothing there, too much, or a bad archive.
    """

    id: str
    files: Mapping[str, bytes]
    digest: str
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Isolation:
    """How a submission was kept apart: the level reached, and each thing in force, such as `landlock` or `rlimits`.

    `missing` says, for each thing that is not in force, why.
    """

    level: Level
    features: tuple[str, ...]
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Check:
    """One judged check of a submission."""

    origin: Origin
    outcome: Outcome
    verdict: Verdict

    @property
    def counts(self) -> bool:
        """Whether it decides about points: what was skipped does not, unless because it was not written."""
        return self.outcome != "grader-error" and (
            self.verdict.status is not Status.SKIPPED or self.outcome == "missing"
        )

    @property
    def shown(self) -> bool:
        """Return True for a failure that has something to show: what was not written at all has nothing."""
        return self.outcome not in ("correct", "missing", "grader-error") or self.verdict.reason == WITHHELD


@dataclass(frozen=True, slots=True)
class PartGrade:
    """What a component earned. `shares` are passed and counted checks by their origin."""

    component: str
    points: float
    earned: float
    shares: Mapping[Origin, tuple[int, int]]
    deductions: tuple[Deduction, ...] = ()


@dataclass(frozen=True, slots=True)
class Said:
    """A sentence of the diagnosis: its label ("Mistake found", "Fix first", …), and the mistakes that it names."""

    label: str
    text: str
    inner: bool = True
    mistakes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grade:
    """What a submission is worth, and why. Nothing in it depends on the clock, the machine's load or the order.

    `outcome` is the worst that happened; `message` says it in a sentence for the student. `key` tells what it was
    made of: submission, assignment, fresh cases, spec, and the version of goldformer. `checks` are all in order.
    """

    submission: str
    key: str
    outcome: Outcome
    message: str
    points: float
    earned: float
    parts: tuple[PartGrade, ...]
    said: tuple[Said, ...]
    checks: tuple[Check, ...]
    isolation: Isolation


#: How the message of a submission begins of which nothing could be called.
NOT_STARTED: Final = "It cannot be started"

#: What an adapter raises that asks a submission for what it does not define.
LACKS: Final = re.compile(r"raised AttributeError: module 'submission' has no attribute '(\w+)'")


def outcome_of(verdict: Verdict) -> Outcome:
    """What a verdict means for a grade."""
    if verdict.status is Status.ERRORED and LACKS.search(verdict.message):
        return "missing"
    if verdict.reason in _OUTCOMES:
        return _OUTCOMES[verdict.reason]
    return "wrong" if verdict.status is Status.FAILED else "correct"

"""Where a submission becomes what is kept of it: graded in a jail of its own desk, and written up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from goldformer.conformance.grading.grader import Graded, Grader, failed
from goldformer.conformance.grading.model import Outcome, Submission
from goldformer.conformance.grading.outputs import Outputs
from goldformer.conformance.grading.records import to_json
from goldformer.conformance.grading.results import feedback, staff
from goldformer.conformance.grading.sandbox._sandbox import Jail
from goldformer.conformance.grading.store import GRADE, PROBLEM
from goldformer.conformance.grading.task import Exam
from goldformer.conformance.run import Numerics
from goldformer.spec import Spec

TRANSCRIPT: Final = "transcript.jsonl.gz"


@dataclass(frozen=True, slots=True)
class Finished:
    """What is kept of one submission: files by their names, and what is said of it at once.

    `outputs` are those that it returned, by component and check.
    """

    id: str
    files: dict[str, str | bytes]
    outcome: Outcome
    earned: float
    points: float
    outputs: Outputs = field(default_factory=dict)

    @property
    def line(self) -> str:
        """In a line."""
        return f"{self.id}: {self.earned:g} of {self.points:g} ({self.outcome})"


class Desk:
    """Grades and writes up one submission after the other. Not for several threads at once."""

    def __init__(self, exam: Exam, spec: Spec, boxes: Path | None = None) -> None:
        """Make the jail; JailError where it does not keep apart what the exam requires."""
        # The cases are small, and several desks share the cores.
        Numerics().apply("numpy")
        self._exam = exam
        grader = Grader(exam, spec)
        # The time of all answers together is kept where they are written down.
        limits = replace(exam.assignment.limits, total=math.inf)
        self._jail = Jail(limits, grader.declared.arrays, exam.require)
        self._grader = grader.within(self._jail, boxes)

    def finish(self, submission: Submission) -> Finished:
        """Grade it and write it up."""
        return written_up(self._grader.grade(submission), self._exam, self._grader.spec)

    def close(self) -> None:
        """End what was started."""
        self._jail.close()


def written_up(graded: Graded, exam: Exam, spec: Spec) -> Finished:
    """What is kept of a graded submission."""
    grade, assignment = graded.grade, exam.assignment
    files: dict[str, str | bytes] = {
        GRADE: to_json(grade),
        "feedback.html": feedback.html(grade, assignment, spec),
        "feedback.md": feedback.markdown(grade, assignment, spec),
        "staff.html": staff.html(grade, assignment, spec),
        TRANSCRIPT: graded.transcript,
    }
    if graded.problem:
        files[PROBLEM] = graded.problem
    return Finished(grade.submission, files, grade.outcome, grade.earned, grade.points, graded.outputs)


def given_up(submission: Submission, why: str, exam: Exam, spec: Spec) -> Finished:
    """What is kept of a submission on which those who grade break down."""
    return written_up(failed(exam, submission, why), exam, spec)

"""Grade a submission in a sandbox and write its result files; this is the work of one worker."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from goldformer.conformance.grading.answers import NOTHING_REQUIRED, Answers
from goldformer.conformance.grading.grader import GradedSubmission, Grader, fail_submission
from goldformer.conformance.grading.model import Outcome, Submission
from goldformer.conformance.grading.results.pages import write_pages
from goldformer.conformance.grading.sandbox import Sandbox
from goldformer.conformance.grading.store import GRADE, PROBLEM, TRANSCRIPT, pack_grade
from goldformer.conformance.grading.task import GradingTask
from goldformer.conformance.selection import Numerics
from goldformer.spec import Spec

#: What Python says if a user has as many processes and threads as it may. Without a namespace or a group of their own,
#: those of all submissions that an ordinary user grades count together.
_NO_PROCESS: Final = re.compile(r"can't start new thread|\[Errno 11\] Resource temporarily unavailable")


@dataclass(frozen=True, slots=True)
class ResultFiles:
    """The result files of one submission by their names, and what the terminal prints about it.

    `answers` are what it answered. `disturbed` is true if a check may have failed because others ran meanwhile.
    """

    id: str
    files: dict[str, str | bytes]
    outcome: Outcome
    earned: float
    points: float
    answers: Answers = NOTHING_REQUIRED
    disturbed: bool = False

    @property
    def line(self) -> str:
        """The result in one line."""
        return f"{self.id}: {self.earned:g} of {self.points:g} ({self.outcome})"


class Worker:
    """Grades one submission after the other. Only one thread may use it."""

    def __init__(self, task: GradingTask, spec: Spec, running: Path | None = None) -> None:
        """Start the sandbox; SandboxError if it does not isolate as the task requires."""
        # The cases are small, and several workers share the cores.
        Numerics().apply("numpy")
        self._task = task
        grader = Grader(task, spec)
        arrays, forbid = grader.declarations.arrays, task.assignment.forbid
        self._sandbox = Sandbox(task.assignment.limits, arrays, task.require, forbid=forbid)
        self._grader = grader.use_sandbox(self._sandbox, running or self._sandbox.folder)

    def finish(self, submission: Submission) -> ResultFiles:
        """Grade a submission and write its result files."""
        return write_results(self._grader.grade(submission), submission, self._task, self._grader.spec)

    def close(self) -> None:
        """End the sandbox."""
        self._sandbox.close()


def write_results(graded: GradedSubmission, submission: Submission, task: GradingTask, spec: Spec) -> ResultFiles:
    """Return the result files of a graded submission."""
    grade, assignment = graded.grade, task.assignment
    files: dict[str, str | bytes] = {
        GRADE: pack_grade(grade),
        **write_pages(grade, submission.files, task.adapter, assignment, spec),
        TRANSCRIPT: graded.transcript,
    }
    if graded.problem:
        files[PROBLEM] = graded.problem
    disturbed = any(
        check.outcome == "timeout" or _NO_PROCESS.search(check.verdict.message) for check in grade.checks
    ) or bool(_NO_PROCESS.search(grade.message))
    return ResultFiles(grade.submission, files, grade.outcome, grade.earned, grade.points, graded.answers, disturbed)


def give_up(submission: Submission, why: str, task: GradingTask, spec: Spec) -> ResultFiles:
    """Return the result files of a submission over which workers end."""
    return write_results(fail_submission(task, submission, why), submission, task, spec)

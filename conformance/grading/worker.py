"""Grade a submission in a sandbox and write its result files; this is the work of one worker."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from goldformer.conformance.grading.grader import GradedSubmission, Grader, fail_submission
from goldformer.conformance.grading.model import NOT_STARTED, Grade, Submission
from goldformer.conformance.grading.results import feedback, staff
from goldformer.conformance.grading.results.source import SubmissionSource
from goldformer.conformance.grading.results.words import shorten_to_line
from goldformer.conformance.grading.sandbox import Sandbox
from goldformer.conformance.grading.store import GRADE, PROBLEM, pack_grade
from goldformer.conformance.grading.task import GradingTask
from goldformer.conformance.selection import Numerics
from goldformer.spec import Spec

#: What Python says if a user has as many processes and threads as it may. Without a namespace or a group of their own,
#: those of all submissions that an ordinary user grades count together.
_NO_PROCESS: Final = re.compile(r"can't start new thread|\[Errno 11\] Resource temporarily unavailable")
#: The most characters of the reason of an error, which stands in the terminal.
_LONGEST_REASON: Final = 200


class Worker:
    """Grades one submission after the other. Only one thread may use it."""

    def __init__(self, task: GradingTask, spec: Spec, running: Path | None = None) -> None:
        """Start the sandbox; SandboxError if it does not isolate as the task requires."""
        # The cases are small, and several workers share the cores.
        Numerics().apply("numpy")
        grader = Grader(task, spec)
        self._sandbox = Sandbox(task.assignment.limits.of_process, grader.declarations.arrays, task.require)
        self._task = task.limit_memory(self._sandbox.memory)
        self._grader = grader.use_sandbox(self._sandbox, running or self._sandbox.folder)

    def finish(self, submission: Submission) -> GradedSubmission:
        """Grade a submission and write its result files."""
        return write_results(self._grader.grade(submission), submission, self._task, self._grader.spec)

    def close(self) -> None:
        """End the sandbox."""
        self._sandbox.close()


def write_results(graded: GradedSubmission, submission: Submission, task: GradingTask, spec: Spec) -> GradedSubmission:
    """Return a graded submission with its result files."""
    grade, assignment = graded.grade, task.assignment
    page, text = feedback.write_both(grade, assignment, spec)
    source = SubmissionSource(submission.files, task.adapter, grade)
    files: dict[str, str | bytes] = {
        GRADE: pack_grade(grade),
        "feedback.html": page,
        "feedback.md": text,
        "staff.html": staff.html(grade, assignment, spec, source),
    }
    if graded.problem:
        files[PROBLEM] = graded.problem
    said = (grade.message, *(check.verdict.message for check in grade.checks))
    disturbed = any(map(_NO_PROCESS.search, said))
    row = replace(grade, checks=())
    return replace(graded, grade=row, files=files, disturbed=disturbed, reason=_explain_error(grade))


def _explain_error(grade: Grade) -> str:
    """Return in one line why a submission ends in an error: it is not started, or the first call that raises."""
    if grade.outcome != "error":
        return ""
    raised = next((check.verdict.message for check in grade.checks if check.outcome == "error"), "")
    text = grade.message if grade.message.startswith(NOT_STARTED) or not raised else raised
    return shorten_to_line(text.removeprefix(f"{NOT_STARTED}: "), _LONGEST_REASON)


def give_up(submission: Submission, why: str, task: GradingTask, spec: Spec) -> GradedSubmission:
    """Return the result files of a submission over which workers end."""
    return write_results(fail_submission(task, submission, why), submission, task, spec)

"""Run an assignment's solution before a class is graded, to know what submissions have to answer, and what not."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from goldformer.conformance.commands._console import err, say
from goldformer.conformance.commands._grade_session import grade_all
from goldformer.conformance.grading.answers import NOTHING_REQUIRED, Answers, summarize
from goldformer.conformance.grading.model import NOT_STARTED, Assignment, Submission
from goldformer.conformance.grading.pool import Unusable
from goldformer.conformance.grading.python_files import MAIN
from goldformer.conformance.grading.score import find_declined, summarize_outcomes
from goldformer.conformance.grading.store import ASSIGNMENT, GRADE, PROBLEM, Store, unpack_grade
from goldformer.conformance.grading.task import CheckPlan, GradingTask
from goldformer.spec import Spec
from goldformer.spec.files import read_regular_file

#: The file of the answers of the solution, in the folder of results.
ANSWERS: Final = f"{ASSIGNMENT}/answers.json"

#: The most bytes of this file.
_LARGEST: Final = 64 << 20

_NO_SOLUTION: Final = (
    " has no solution.py, so nobody knows what it answers: a submission that returns None instead of the attention "
    "weights, or raises NotImplementedError for some inputs of a property, loses nothing. Name the solution with "
    "--solution FILE"
)


@dataclass(frozen=True, slots=True)
class Solution:
    """The solution of an assignment, which lies in a file and is graded like a submission."""

    path: Path
    submission: Submission

    @classmethod
    def of(cls, assignment: Assignment, named: Path | None) -> Solution | None:
        """Read the file that --solution names, or solution.py in the assignment's folder if there is one."""
        path = named or assignment.path.parent / "solution.py"
        if named is None and not path.is_file():
            return None
        try:
            data = read_regular_file(path, assignment.limits.size << 20)
        except OSError as error:
            raise Unusable(f"{path}: the solution cannot be read: {error.strerror}") from error
        return cls(path, Submission("solution", {MAIN: data}, hashlib.sha256(data).hexdigest()))


def can_withhold(assignment: Assignment, spec: Spec) -> bool:
    """Return True if submissions could leave something out: outputs but the first, or some calls of a property."""
    return any(len(spec.contracts[part.component].outputs) > 1 or part.properties for part in assignment.parts)


def require_answers(
    task: GradingTask, solution: Solution | None, spec: Spec, store: Store, scheduler: str | None, *, quiet: bool
) -> tuple[GradingTask, CheckPlan]:
    """Return the task that requires what the solution answers and leaves out what it declines, and its plan.

    The answers are stored for the next run.
    """
    key, answers = "", NOTHING_REQUIRED
    if solution is not None:
        key = task.key(solution.submission)
        stored_key, answers = _read(store.folder / ANSWERS)
        if stored_key != key:
            answers = _grade_solution(solution, task, spec, store, scheduler)
        if not quiet and (returned := summarize(answers.outputs, spec)):
            say(f"required, because {solution.path.name} returns it: {returned}")
    elif can_withhold(task.assignment, spec):
        err.print(f"goldformer: {task.assignment.path.parent}{_NO_SOLUTION}", style="yellow", markup=False)
    store.write(ANSWERS, json.dumps({"key": key, **answers.as_json()}, indent=1, sort_keys=True) + "\n")
    task = task.require_answers(answers)
    plan = CheckPlan.of(task, spec)
    if not quiet and (left_out := plan.describe_left_out()):
        say(left_out)
    for warning in plan.warn_of_tables():
        err.print(f"goldformer: {warning}", style="yellow", markup=False)
    return task, plan


def _read(path: Path) -> tuple[str, Answers]:
    """Read the key of the solution that was graded, and its answers; both are empty if there is no such file."""
    try:
        stored: Any = json.loads(read_regular_file(path, _LARGEST))
        return str(stored["key"]), Answers.read(stored)
    except FileNotFoundError:
        return "", NOTHING_REQUIRED
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Unusable(f"{path}: is no record of required answers ({error}): remove it, and grade again") from error


def _grade_solution(solution: Solution, task: GradingTask, spec: Spec, store: Store, scheduler: str | None) -> Answers:
    """Grade the solution, and return its answers; Unusable if it does not run."""
    (finished,) = grade_all(task, [solution.submission], store, 1, scheduler)
    packed = finished.files[GRADE]
    assert isinstance(packed, bytes), "grades are compressed"
    grade = unpack_grade(packed)
    if grade.outcome == "grader-error":
        raise Unusable(f"{solution.path}: grading the solution failed: {finished.files.get(PROBLEM, grade.message)!s}")
    if grade.message.startswith(NOT_STARTED):
        why = f"{solution.path}: the solution does not run: {grade.message}"
        raise Unusable(f"{why} (fix it, or see: goldformer assignment check)")
    kinds = CheckPlan.of(task, spec).kinds
    answers = replace(finished.answers, left_out=find_declined(grade.checks, kinds))
    asked = [c for c in grade.checks if not answers.leaves_out(c.verdict.component, c.verdict.check)]
    outcome, _ = summarize_outcomes(asked)
    if outcome != "correct":
        fails = f"fails {sum(c.outcome != 'correct' for c in asked)} of {len(asked)} checks"
        what = "a submission need not return what it does not return"
        err.print(
            f"goldformer: {solution.path} {fails} ({outcome}), and {what}; see: goldformer assignment check",
            style="yellow",
            markup=False,
        )
    return answers

"""Runs an assignment's solution before a class is graded, to know which outputs submissions have to return."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from goldformer.conformance.commands._console import err, say
from goldformer.conformance.commands._grade_session import grade_all
from goldformer.conformance.grading.model import NOT_STARTED, Assignment, Submission
from goldformer.conformance.grading.outputs import OPTIONAL, Outputs, summarize
from goldformer.conformance.grading.pool import Unusable
from goldformer.conformance.grading.python_files import MAIN
from goldformer.conformance.grading.store import GRADE, PROBLEM, Store, unpack_grade
from goldformer.conformance.grading.task import GradingTask
from goldformer.conformance.grading.worker import ResultFiles
from goldformer.spec import Spec

#: The file of the outputs that the solution returned, in the folder of results.
OUTPUTS: Final = "assignment/outputs.json"

_NO_SOLUTION: Final = (
    " has no solution.py, so every output but the first is optional: a submission that returns None instead of the "
    "attention weights, for instance, loses nothing. Name the solution with --solution FILE"
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
            data = path.read_bytes()
        except OSError as error:
            raise Unusable(f"{path}: the solution cannot be read: {error.strerror}") from error
        return cls(path, Submission("solution", {MAIN: data}, hashlib.sha256(data).hexdigest()))


def has_optional_outputs(assignment: Assignment, spec: Spec) -> bool:
    """Return True if a component of the assignment has more than one output: all but the first are optional."""
    return any(len(spec.contracts[part.component].outputs) > 1 for part in assignment.parts)


def require_outputs(
    exam: GradingTask, solution: Solution | None, spec: Spec, store: Store, scheduler: str | None, *, quiet: bool
) -> GradingTask:
    """Return the exam that requires the outputs that the solution returns, and store them for the next run."""
    key, outputs = "", OPTIONAL
    if has_optional_outputs(exam.assignment, spec) and solution is None:
        err.print(f"goldformer: {exam.assignment.path.parent}{_NO_SOLUTION}", style="yellow", markup=False)
    elif has_optional_outputs(exam.assignment, spec) and solution is not None:
        key = exam.key(solution.submission)
        stored_key, stored = _read(store.folder / OUTPUTS)
        outputs = stored if stored_key == key else _grade_solution(solution, exam, store, scheduler)
        if not quiet and (returned := summarize(outputs, spec)):
            say(f"required, because {solution.path.name} returns it: {returned}")
    store.write(OUTPUTS, json.dumps({"key": key, "outputs": outputs}, indent=1, sort_keys=True) + "\n")
    return exam.require_outputs(outputs)


def read_outputs(folder: Path) -> Outputs:
    """Return the outputs that were required when a folder of results was graded."""
    return _read(folder / OUTPUTS)[1]


def _read(path: Path) -> tuple[str, Outputs]:
    """Read the key of the solution that was graded, and its outputs; both are empty if there is no such file."""
    try:
        stored: Any = json.loads(path.read_text("utf-8"))
        outputs = {
            component: {check: tuple(names) for check, names in checks.items()}
            for component, checks in stored["outputs"].items()
        }
        return str(stored["key"]), outputs
    except FileNotFoundError:
        return "", OPTIONAL
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Unusable(f"{path}: is no record of required outputs ({error}): remove it, and grade again") from error


def _grade_solution(solution: Solution, exam: GradingTask, store: Store, scheduler: str | None) -> Outputs:
    """Grade the solution, and return its outputs; Unusable if it does not run."""
    finished: ResultFiles
    (finished,) = grade_all(exam, [solution.submission], store, 1, scheduler)
    packed = finished.files[GRADE]
    assert isinstance(packed, bytes), "grades are compressed"
    grade = unpack_grade(packed)
    if grade.outcome == "grader-error":
        raise Unusable(f"{solution.path}: grading the solution failed: {finished.files.get(PROBLEM, grade.message)!s}")
    if grade.message.startswith(NOT_STARTED):
        why = f"{solution.path}: the solution does not run: {grade.message}"
        raise Unusable(f"{why} (fix it, or see: goldformer assignment check)")
    if grade.outcome != "correct":
        earned = f"earns {grade.earned:g} of {grade.points:g} points"
        what = "a submission need not return what it does not return"
        err.print(
            f"goldformer: {solution.path} {earned} ({grade.outcome}), and {what}; see: goldformer assignment check",
            style="yellow",
            markup=False,
        )
    return finished.outputs

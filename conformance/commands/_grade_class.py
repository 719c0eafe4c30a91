"""Write what goldformer grade says of a whole class."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from goldformer.conformance.commands._console import CannotRun
from goldformer.conformance.grading.model import Grade
from goldformer.conformance.grading.results import classroom, gradebook, words
from goldformer.conformance.grading.store import Store
from goldformer.conformance.grading.submissions import ClassList
from goldformer.conformance.grading.task import CheckPlan, GradingTask
from goldformer.conformance.reports.counting import count_noun
from goldformer.spec import Spec
from goldformer.spec.files import read_regular_file

_GRADES: Final = "grades.json"
#: The most submissions that a message names.
_LISTED: Final = 12
#: The most bytes of grades.json: a hundred thousand students.
_LARGEST_GRADES: Final = 64 << 20


def require_graded(store: Store, found: ClassList) -> None:
    """Raise CannotRun if a submission that the gradebook has is no longer there: its grade would leave unasked."""
    there = {words.shorten_to_line(handed.id) for handed in found.handed}
    if missing := [id_ for id_ in _list_graded(store) if id_ not in there]:
        few = ", ".join(missing[:_LISTED]) + ("…" if len(missing) > _LISTED else "")
        raise CannotRun(
            f"{store.folder / _GRADES} has the grades of {count_noun(len(missing), 'submission')} that "
            f"{'is' if len(missing) == 1 else 'are'} no longer there: {few}. To keep them, name the whole class (with "
            "--only ID to grade a part of it); to take them out of the gradebook, add --drop-missing"
        )


def _list_graded(store: Store) -> list[str]:
    """Return the ids in the gradebook of the run before; none if it cannot be read."""
    try:
        book = json.loads(read_regular_file(store.folder / _GRADES, _LARGEST_GRADES))
        return [str(entry["id"]) for entry in book["students"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def write_class(lines: Sequence[Grade], task: GradingTask, plan: CheckPlan, spec: Spec, store: Store) -> list[str]:
    """Write the files of the whole class, and return those that the staff read first."""
    assignment, left_out = task.assignment, plan.describe_left_out()
    store.write("grades.csv", gradebook.to_csv(lines, assignment))
    store.write("class.html", classroom.class_page(lines, assignment, spec, left_out))
    store.write("class-anonymous.html", classroom.anonymous_page(lines, assignment, spec, left_out))
    store.write(_GRADES, gradebook.to_json(lines, assignment))
    return ["class.html", "grades.csv"]

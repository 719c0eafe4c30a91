"""Write what goldformer grade says of a whole class, with what the staff say about submissions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from goldformer.adapters.notebook import read_source
from goldformer.conformance.commands._console import CannotRun, err, say
from goldformer.conformance.grading.adjustments import adjust_grade, read_adjustments
from goldformer.conformance.grading.likeness import AlikePair, find_alike, take_fingerprints
from goldformer.conformance.grading.model import Adjustment, Assignment, Grade, Submitter
from goldformer.conformance.grading.results import classroom, gradebook, platforms, words
from goldformer.conformance.grading.results.bundle import make_feedback_zip
from goldformer.conformance.grading.results.changes import GradeChange, changes_to_csv, find_changes
from goldformer.conformance.grading.results.gradebook import GradeSummary
from goldformer.conformance.grading.results.pages import write_pages
from goldformer.conformance.grading.results.platform_table import BadTable, fill_table
from goldformer.conformance.grading.store import Store
from goldformer.conformance.grading.submissions import ClassList
from goldformer.conformance.grading.task import CheckPlan, GradingTask
from goldformer.conformance.reports.counting import count_noun
from goldformer.spec import Spec
from goldformer.spec.files import read_regular_file

#: The file of adjustments in the folder of results; grading reads it and never writes it.
ADJUSTMENTS: Final = "adjustments.yaml"
#: The names that are written by mistake instead, such as adjustments.yml and adjustments.yaml.txt.
_LIKE_ADJUSTMENTS: Final = re.compile(r"adjustments?(\.ya?ml)?(\.txt)?", re.IGNORECASE)
_GRADES: Final = "grades.json"
_CHANGES: Final = "changes.csv"
_UPLOAD: Final = "upload.csv"
#: The most changes that are printed; the file has all.
_LISTED: Final = 12
#: The most bytes of a table of a platform, or of grades.json: a hundred thousand students.
_LARGEST_TABLE: Final = 64 << 20
#: The most bytes of a page of a student.
_LARGEST_PAGE: Final = 64 << 20


def find_adjustments(named: Path | None, out: Path, assignment: Assignment, found: ClassList) -> dict[str, Adjustment]:
    """Return the adjustments of the file that an option names, or of the one in the folder of results, if any."""
    path = named or out / ADJUSTMENTS
    if named is None:
        _refuse_other_names(path)
        if not os.path.lexists(path):
            return {}
    return read_adjustments(path, assignment, [handed.id for handed in found.handed])


def _refuse_other_names(path: Path) -> None:
    """Raise CannotRun if a file next to the adjustments has almost their name: it would not be read."""
    for other in sorted(path.parent.iterdir()) if path.parent.is_dir() else ():
        if other.name == path.name or not _LIKE_ADJUSTMENTS.fullmatch(other.name):
            continue
        # A file system that ignores case finds it under the right name.
        if not (path.exists() and other.exists() and other.samefile(path)):
            raise CannotRun(
                f"{other}: is not read, because its name is not {path.name}: rename it, remove it, or name it with "
                "--adjustments"
            )


def require_graded(store: Store, found: ClassList) -> None:
    """Raise CannotRun if a submission that the gradebook has is no longer there: its grade would leave unasked."""
    there = {words.shorten_to_line(handed.id) for handed in found.handed}
    if missing := [entry["id"] for entry in _read_gradebook(store).get("students", ()) if entry["id"] not in there]:
        few = ", ".join(missing[:_LISTED]) + ("…" if len(missing) > _LISTED else "")
        raise CannotRun(
            f"{store.folder / _GRADES} has the grades of {count_noun(len(missing), 'submission')} that "
            f"{'is' if len(missing) == 1 else 'are'} no longer there: {few}. To keep them, name the whole class (with "
            "--only ID to grade a part of it); to take them out of the gradebook, add --drop-missing"
        )


def _read_gradebook(store: Store) -> dict[str, Any]:
    """Return the gradebook of the run before; nothing if it cannot be read."""
    try:
        book = json.loads(read_regular_file(store.folder / _GRADES, _LARGEST_TABLE))
        find_changes(book, book)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    return dict(book)


@dataclass
class ClassResults:
    """The grades of a class with the adjustments of the staff, and the files that show them."""

    task: GradingTask
    plan: CheckPlan
    found: ClassList
    spec: Spec
    store: Store
    adjustments: Mapping[str, Adjustment]
    changes: list[GradeChange] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    def adjust(self, grade: Grade) -> Grade:
        """Return a grade with what the staff say now, and write the pages again if they said something else before."""
        assignment = self.task.assignment
        adjustment = self.adjustments.get(grade.submission)
        adjusted = adjust_grade(grade, adjustment, assignment)
        text = json.dumps(asdict(adjustment), sort_keys=True) + "\n" if adjustment else ""
        if text != self.store.read_adjustment(grade.submission):
            (handed,) = (handed for handed in self.found.handed if handed.id == grade.submission)
            files = self.found.read(handed, assignment.limits).files
            pages = write_pages(adjusted, files, self.task.adapter, assignment, self.spec)
            self.store.keep_adjusted(grade.submission, pages, text)
        return adjusted

    def write(self, lines: Sequence[GradeSummary]) -> None:
        """Write the files of the whole class, and find what has changed since the run before."""
        assignment = self.task.assignment
        people = list_people(self.found)
        before, now = _read_gradebook(self.store), gradebook.make_gradebook(lines, assignment, people)
        pairs, left_out = self._find_similar_pairs(), self.plan.describe_left_out()
        self.store.write("grades.csv", gradebook.to_csv(lines, assignment, people))
        self.store.write("class.html", classroom.class_page(lines, assignment, self.spec, pairs, left_out))
        self.store.write("class-anonymous.html", classroom.anonymous_page(lines, assignment, self.spec, left_out))
        self.store.write("junit.xml", platforms.junit_xml(lines, assignment))
        self.store.write("feedback.zip", make_feedback_zip(self._read_feedback(lines)))
        self.changes = find_changes(before, now) if before else []
        if self.changes:
            self.store.write(_CHANGES, changes_to_csv(self.changes))
        # Write it last: the next run compares with it to find the changes.
        self.store.write(_GRADES, gradebook.to_json(lines, assignment, people))
        self.written += ["class.html", "grades.csv", "feedback.zip"]

    def fill(self, table: Path, lines: Sequence[GradeSummary]) -> None:
        """Write the points into a table that Canvas or Moodle exported."""
        try:
            data = read_regular_file(table, _LARGEST_TABLE)
            filled = fill_table(data, lines, self.task.assignment, self.found.students)
        except OSError as error:
            raise CannotRun(f"--gradebook {table}: cannot be read: {error.strerror}") from error
        except BadTable as error:
            raise CannotRun(f"--gradebook {table}: {error}") from error
        self.store.write(_UPLOAD, filled.text)
        self.written.append(_UPLOAD)
        if filled.scales:
            most, ours = ", ".join(filled.scales[:_LISTED]), words.points(self.task.assignment.points)
            self._warn_of_table(
                f"{table} gives at most {most} points, and the assignment {ours}: the points are not converted. Make "
                "them the same, there or in assignment.yaml"
            )
        if filled.missing:
            few = ", ".join(filled.missing[:_LISTED]) + ("…" if len(filled.missing) > _LISTED else "")
            self._warn_of_table(
                f"{count_noun(len(filled.missing), 'submission')} without a clear row in {table}: {few}. Enter "
                "these points by hand. A row is clear if its login, address or number is the submission's id, and no "
                "other row or submission has that"
            )

    def _warn_of_table(self, what: str) -> None:
        err.print(f"goldformer: --gradebook: {what}", style="yellow", markup=False)

    def report_ungraded(self, lines: Sequence[GradeSummary]) -> None:
        """Print which questions of the staff have no points yet."""
        for question in self.task.assignment.manual:
            left = sum(line.adjustment is None or question.title not in line.adjustment.points for line in lines)
            if left:
                where = f"give them in {self.store.folder / ADJUSTMENTS}"
                say(f"{question.title}: {count_noun(left, 'submission')} without points yet; {where}")

    def report_changes(self) -> None:
        """Print what has changed since the run before."""
        if not self.changes:
            return
        known = [change for change in self.changes if change.before is not None]
        new = len(self.changes) - len(known)
        counts = f"{count_noun(len(known), 'grade')} changed" + (f", {new} new" if new else "")
        say(f"since the last run, {counts} ({self.store.folder / _CHANGES})")
        for change in known[:_LISTED]:
            say(f"- {change}")
        if more := known[_LISTED:]:
            say(f"- and {len(more)} more")

    def _read_feedback(self, lines: Sequence[GradeSummary]) -> Iterator[tuple[str, bytes]]:
        for line in gradebook.sort_by_id(lines):
            page = self.store.student(line.submission) / "feedback.html"
            yield line.submission, read_regular_file(page, _LARGEST_PAGE)

    def _find_similar_pairs(self) -> list[AlikePair]:
        """Return the submissions that share code which was not handed out."""
        assignment = self.task.assignment
        given = {"adapter.py": self.task.adapter}
        if assignment.starter is not None:
            given["starter.py"] = read_source(assignment.starter)
        prints = {
            handed.id: take_fingerprints(self.found.read(handed, assignment.limits).files)
            for handed in self.found.handed
        }
        return find_alike(prints, take_fingerprints(given))


def list_people(found: ClassList) -> Mapping[str, Submitter]:
    """Return the students of each submission, as the gradebook names them; those of a group share a cell."""
    return {
        id_: Submitter(name="; ".join(s.name for s in students), email="; ".join(s.email for s in students))
        for id_, students in found.students.items()
        if students
    }

"""Summarize the grades of a class, as a table for spreadsheets and as data."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from sys import intern
from typing import Any, Final

from goldformer.conformance.diagnosis.finding import NOTHING_KNOWN, POSSIBLE_CAUSES
from goldformer.conformance.grading.model import (
    CERTAIN_LABELS,
    NOT_STARTED,
    Assignment,
    Check,
    ComponentGrade,
    DiagnosisLine,
    Grade,
    Origin,
    Outcome,
)
from goldformer.conformance.grading.results import words
from goldformer.conformance.grading.sandbox import Isolation

#: The beginnings of a formula for spreadsheets, which accept full-width forms too.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")

_HEAD: Final = ("id", "points", "earned")
_TAIL: Final = ("outcome", "mistakes", "diagnosis", "message")

#: The labels of lines that say what is wrong; the older words are in grades that were written before these.
_TELLING: Final = CERTAIN_LABELS | {POSSIBLE_CAUSES, "Convention", NOTHING_KNOWN}

#: The longest sentence that is kept.
_LONGEST: Final = 400


@dataclass(frozen=True, slots=True)
class ComponentSummary:
    """A component: its points, and the worst of its checks.

    `only_published` is True if published cases pass and drawn ones do not. `said` describes in a few words how its
    checks came out.
    """

    component: str
    points: float
    earned: float
    outcome: Outcome
    said: str
    only_published: bool = False


@dataclass(frozen=True, slots=True)
class GradeSummary:
    """A student's grade without its checks: everything that tables and pages of a class need, in little memory.

    The diagnosis is certain of `mistakes` and not of `maybe`; `failed` are the failing checks by their origin and id,
    except those that fail only because of another component; `diagnosis` is its first sentence that says
    what is wrong.
    """

    submission: str
    key: str
    outcome: Outcome
    message: str
    points: float
    earned: float
    parts: tuple[ComponentSummary, ...]
    mistakes: tuple[str, ...]
    maybe: tuple[str, ...]
    failed: tuple[tuple[Origin, str], ...]
    diagnosis: str
    isolation: Isolation

    @classmethod
    def of(cls, grade: Grade) -> GradeSummary:
        """Summarize a grade."""
        certain = _list_mistakes(line for line in grade.said if line.label in CERTAIN_LABELS)
        telling = next((line.text for line in grade.said if line.label in _TELLING), "")
        return cls(
            submission=grade.submission, key=grade.key, outcome=grade.outcome,
            message=words.shorten_to_line(grade.message, _LONGEST), points=grade.points, earned=grade.earned,
            parts=tuple(_summarize_component(part, grade) for part in grade.parts),
            mistakes=certain,
            maybe=tuple(id_ for id_ in _list_mistakes(grade.said) if id_ not in certain),
            # All students share these ids in memory.
            failed=tuple(dict.fromkeys((c.origin, intern(c.verdict.check)) for c in _list_causes(grade))),
            diagnosis=words.shorten_to_line(telling, _LONGEST), isolation=grade.isolation,
        )  # fmt: skip


def _list_causes(grade: Grade) -> Iterator[Check]:
    """Yield the failing checks whose cause is in their own component; none if the submission could not be called."""
    if grade.message.startswith(NOT_STARTED):
        return
    # An exception of one component ends the calls of those that are built of it too.
    raised: dict[str, str] = {}
    for check in grade.checks:
        if check.outcome == "error":
            raised.setdefault(check.verdict.message, check.verdict.component)
    for check in grade.checks:
        verdict = check.verdict
        own = raised.get(verdict.message, verdict.component) == verdict.component
        if check.is_shown and own and not check.inherited:
            yield check


def find_outcome(component: str, grade: Grade) -> Outcome:
    """Return the worst outcome in a component, or the submission's own if nothing of the component was checked."""
    mine = [check for check in grade.checks if check.verdict.component == component and check.has_outcome]
    return words.find_worst(mine) if mine else grade.outcome


def _summarize_component(part: ComponentGrade, grade: Grade) -> ComponentSummary:
    counts = [f"{passed} of {among} {words.ORIGINS[o]}" for o, (passed, among) in part.shares.items() if among]
    outcome = find_outcome(part.component, grade)
    text = ", ".join([words.BRIEF[outcome], *counts])
    only_published = words.passes_only_published(grade, part.component)
    return ComponentSummary(part.component, part.points, part.earned, outcome, text, only_published)


def _list_mistakes(lines: Iterable[DiagnosisLine]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(intern(id_) for line in lines for id_ in line.mistakes))


def to_csv(summaries: Iterable[GradeSummary], assignment: Assignment) -> str:
    """Return a table (RFC 4180) with one row for each student and one column for each component.

    No field begins a formula.
    """
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\r\n")
    components = [part.component for part in assignment.parts]
    writer.writerow([*_HEAD, *components, *_TAIL])
    for student in make_gradebook(summaries, assignment)["students"]:
        earned = [student["components"].get(name, 0.0) for name in components]
        numbers = [words.points(value) for value in (student["points"], student["earned"], *earned)]
        texts = (student["outcome"], " ".join(student["mistakes"]), student["diagnosis"], student["message"])
        writer.writerow([escape_formula(student["id"]), *numbers, *map(escape_formula, texts)])
    return file.getvalue()


def escape_formula(text: str) -> str:
    """Return a text that a spreadsheet shows and does not compute."""
    line = words.shorten_to_line(text, 2000)
    # Spreadsheets themselves mark text like this and do not show the quote.
    return f"'{line}" if line.startswith(_FORMULA) else line


def make_gradebook(summaries: Iterable[GradeSummary], assignment: Assignment) -> dict[str, Any]:
    """Return the grades as data for JSON, in the order of the students' ids."""
    return {
        "assignment": assignment.title,
        "points": assignment.points,
        "components": {part.component: part.points for part in assignment.parts},
        "questions": {title: list(components) for title, components in assignment.questions.items()},
        "students": [_make_entry(s) for s in sort_by_id(summaries)],
    }


def _make_entry(summary: GradeSummary) -> dict[str, Any]:
    return {
        "id": words.shorten_to_line(summary.submission),
        "points": summary.points,
        "earned": summary.earned,
        "outcome": summary.outcome,
        "components": {part.component: part.earned for part in summary.parts},
        "mistakes": list(summary.mistakes),
        "could_be": list(summary.maybe),
        "diagnosis": summary.diagnosis,
        "message": summary.message,
        "isolation": summary.isolation.level,
        "key": summary.key,
    }


def sort_by_id(summaries: Iterable[GradeSummary]) -> list[GradeSummary]:
    """Sort by the students' ids, so that nothing depends on the order of grading."""
    return sorted(summaries, key=lambda summary: summary.submission)


def to_json(summaries: Iterable[GradeSummary], assignment: Assignment) -> str:
    """Return the grades as JSON."""
    return json.dumps(make_gradebook(summaries, assignment), ensure_ascii=False, indent=2) + "\n"

"""Read what the staff say about submissions in a file that no run overwrites, and add it to grades."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from goldformer.conformance.grading.assignment import MOST_POINTS, Points
from goldformer.conformance.grading.model import Adjustment, Assignment, Grade
from goldformer.conformance.grading.score import round_points
from goldformer.spec import SpecError
from goldformer.spec.errors import Problem
from goldformer.spec.strict import StrictModel, Text
from goldformer.spec.yamlfile import YamlFile


class AdjustmentModel(StrictModel):
    """The entry of the staff for one submission.

    `points` are those of the questions that they grade, and of components instead of the graded ones. `add` is added to
    the sum, or taken from it. The student reads `comment`; only the staff read `note`.
    """

    points: dict[Text, Points] = Field(default_factory=dict)
    add: Annotated[float, Field(ge=-MOST_POINTS, le=MOST_POINTS, allow_inf_nan=False)] = 0.0
    comment: str = ""
    note: str = ""


class AdjustmentsFile(StrictModel):
    """The contents of adjustments.yaml: what the staff say, by the ids of submissions; nothing if none is left."""

    submissions: dict[Text, AdjustmentModel] | None = None


def read_adjustments(path: Path, assignment: Assignment, ids: Collection[str]) -> dict[str, Adjustment]:
    """Return the adjustments of a file by submission; SpecError lists every problem with its line."""
    file = YamlFile.read_unless_empty(path)
    if file is None or file.data is None:
        return {}
    entries = file.parse(AdjustmentsFile).submissions or {}
    if problems := list(_check(file, entries, assignment, ids)):
        raise SpecError(problems)
    return {id_: Adjustment(**entry.model_dump()) for id_, entry in entries.items()}


def _check(
    file: YamlFile, entries: Mapping[str, AdjustmentModel], assignment: Assignment, ids: Collection[str]
) -> Iterator[Problem]:
    from goldformer.conformance.reports.did_you_mean import describe_unknown  # only needed for an error

    most = {part.component: part.points for part in assignment.parts}
    most |= {question.title: question.points for question in assignment.manual}
    for id_, entry in entries.items():
        if message := describe_unknown((id_,), tuple(ids), "unknown submission"):
            yield file.problem(("submissions", id_), message)
        for name, points in entry.points.items():
            if message := describe_unknown((name,), tuple(most), "unknown component or question"):
                yield file.problem(("submissions", id_, "points", name), message)
            elif points > most[name]:
                message = f"is {points:g}, more than its {most[name]:g} points; `add` gives more"
                yield file.problem(("submissions", id_, "points", name), message)


def adjust_grade(grade: Grade, adjustment: Adjustment | None, assignment: Assignment) -> Grade:
    """Return a grade with what the staff say about it."""
    if adjustment is None:
        return grade
    parts = tuple(
        replace(part, earned=round_points(adjustment.points[part.component]), automatic=part.earned)
        if part.component in adjustment.points
        else part
        for part in grade.parts
    )
    manual = sum(adjustment.points.get(question.title, 0.0) for question in assignment.manual)
    earned = sum(part.earned for part in parts) + manual + adjustment.add
    return replace(grade, parts=parts, earned=round_points(max(earned, 0.0)), adjustment=adjustment)

"""Fill in the points of a class in a table that Canvas or Moodle exported, to be uploaded there again."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from goldformer.conformance.grading.model import Assignment, Submitter
from goldformer.conformance.grading.results.gradebook import GradeSummary
from goldformer.conformance.grading.results.words import points

#: The student's number in the name of a file that Canvas exports, and of a folder that Moodle exports.
_CANVAS: Final = re.compile(r"^[^_]+_(?:LATE_)?(\d+)_\d+_")
_MOODLE: Final = re.compile(r"_(\d+)_assignsubmission_")

#: The columns by which students of each platform are found, in addition to its own number.
_CANVAS_COLUMNS: Final = ("SIS User ID", "SIS Login ID")
_MOODLE_COLUMNS: Final = ("Email address", "ID number", "Username")
#: The row of Canvas and the column of Moodle with the most points.
_POSSIBLE: Final = "Points Possible"
_MAXIMUM: Final = "Maximum Grade"
_ADVICE: Final = "save it as CSV UTF-8, with commas between the columns"
#: The most rows and cells of a table: those of a hundred thousand students fit.
_MOST_ROWS: Final = 200_000
_MOST_CELLS: Final = 10_000_000


class BadTable(ValueError):
    """The file is no table of Canvas or Moodle; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class FilledTable:
    """The table with points, and what is not clear in it.

    `missing` are the ids of submissions of which a student has no row, has several, or has one that another submission
    claims too. `scales` are the points that the platform gives at most, where they are not those of the assignment.
    """

    text: str
    filled: int
    missing: tuple[str, ...]
    scales: tuple[str, ...] = ()


def fill_table(
    data: bytes, summaries: Iterable[GradeSummary], assignment: Assignment, people: Mapping[str, tuple[Submitter, ...]]
) -> FilledTable:
    """Write the points into the column of the assignment; everything else stays as it is. BadTable if it is none."""
    rows = _read_rows(data)
    head = rows[0] if rows else []
    columns: tuple[str, ...]
    if "Identifier" in head and "Grade" in head:
        columns, column = ("Identifier", *_MOODLE_COLUMNS), head.index("Grade")
        scales = {row[head.index(_MAXIMUM)] for row in rows[1:] if _MAXIMUM in head[: len(row)]}
    elif "Student" in head and "ID" in head:
        columns, column = ("ID", *_CANVAS_COLUMNS), _find_column(rows, assignment)
        scales = {row[column] for row in rows[1:] if row[:1] and row[0].strip() == _POSSIBLE and len(row) > column}
    else:
        message = (
            "expected the columns Student and ID (Canvas's gradebook) or Identifier and Grade (Moodle's worksheet)"
        )
        raise BadTable(f"{message}; its first line is: {', '.join(head)[:200]}. If a spreadsheet wrote it, {_ADVICE}")
    listed = list(summaries)
    claimed = _find_rows(rows, columns, listed, people)
    claims = Counter(row for students in claimed.values() for row in set().union(*students))
    missing: list[str] = []
    count = 0
    for summary in listed:
        students = claimed[summary.submission]
        clear = {row for found in students if len(found) == 1 for row in found if claims[row] == 1}
        for number in clear:
            rows[number].extend([""] * (column + 1 - len(rows[number])))
            rows[number][column] = points(summary.earned)
        count += len(clear)
        if clear != set().union(*students) or len(clear) < max(1, len(people.get(summary.submission, ()))):
            missing.append(summary.submission)
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\r\n").writerows(rows)
    others = sorted(scale.strip() for scale in scales if _is_other_number(scale, assignment.points))
    return FilledTable(out.getvalue(), count, tuple(sorted(missing)), tuple(others))


def _read_rows(data: bytes) -> list[list[str]]:
    """Return the rows of a table; BadTable if it is none, or too large for a course."""
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""))
        rows = list(islice(reader, _MOST_ROWS + 1))
    except UnicodeDecodeError as error:
        raise BadTable(f"is no text in UTF-8: {_ADVICE}") from error
    except csv.Error as error:
        raise BadTable(f"is no table of comma-separated values: {error}; export it again") from error
    # Every row becomes as long as the first one.
    if len(rows) > _MOST_ROWS or (rows and len(rows) * len(rows[0]) > _MOST_CELLS):
        raise BadTable(f"has more than {_MOST_ROWS} rows, or than {_MOST_CELLS} cells: is it the table of a course?")
    return rows


def _find_column(rows: list[list[str]], assignment: Assignment) -> int:
    """Return the column of the assignment in Canvas's table; add one if there is none, with its points."""
    title = re.compile(rf"{re.escape(assignment.title)}( \(\d+\))?")
    found = [column for column, name in enumerate(rows[0]) if title.fullmatch(name.strip())]
    if len(found) > 1:
        names = ", ".join(rows[0][column].strip() for column in found)
        raise BadTable(
            f"has {len(found)} columns with the title of the assignment: {names}. Delete from the table those that are "
            "not meant: Canvas keeps the points of columns that it does not import"
        )
    if found:
        return found[0]
    width = len(rows[0])
    for row in rows:
        row.extend([""] * (width + 1 - len(row)))
        if row[0].strip() == _POSSIBLE:
            row[width] = points(assignment.points)
    rows[0][width] = assignment.title
    return width


def _is_other_number(text: str, number: float) -> bool:
    """Return True for another number; a text such as (read only) is none."""
    try:
        return float(text) != number
    except ValueError:
        return False


def _find_rows(
    rows: list[list[str]],
    columns: Iterable[str],
    summaries: Iterable[GradeSummary],
    people: Mapping[str, tuple[Submitter, ...]],
) -> dict[str, list[set[int]]]:
    """Return the numbers of the rows that may be meant by each submission: by its id, and by each of its students."""
    by_key: defaultdict[str, set[int]] = defaultdict(set)
    for number, row in enumerate(rows[1:], start=1):
        cells = dict(zip(rows[0], row, strict=False))
        for name in columns:
            by_key[_fold(_read_key(name, cells))].add(number)
    by_key.pop("", None)
    return {
        summary.submission: [
            set().union(*(by_key.get(_fold(key), ()) for key in keys)) for keys in _list_keys(summary, people)
        ]
        for summary in summaries
    }


def _list_keys(summary: GradeSummary, people: Mapping[str, tuple[Submitter, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield what a row may name a submission by: its id with the number in the name of its file, and each student."""
    canvas, moodle = _CANVAS.match(summary.submission), _MOODLE.search(summary.submission)
    numbers = (f"ID {canvas[1]}" if canvas else "", f"Identifier {moodle[1]}" if moodle else "")
    yield (summary.submission, *numbers)
    for person in people.get(summary.submission, ()):
        yield (person.email, person.number)


def _read_key(column: str, cells: Mapping[str, str]) -> str:
    """Return what a cell names its student by. A number of the platform is not taken for one of the school."""
    text = cells.get(column, "").strip()
    if text and column == "ID":
        return f"ID {text}"
    if text and column == "Identifier":
        return f"Identifier {text.rpartition(' ')[2]}"
    return text


def _fold(text: str) -> str:
    return text.strip().casefold()

"""Fill in the points of a class in a table that Canvas or Moodle exported, to be uploaded there again."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
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
_POSSIBLE: Final = "Points Possible"
#: The most rows and cells of a table: those of a hundred thousand students fit.
_MOST_ROWS: Final = 200_000
_MOST_CELLS: Final = 10_000_000


class BadTable(ValueError):
    """The file is no table of Canvas or Moodle; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class FilledTable:
    """The table with points; `missing` are the ids of submissions that no row has, or whose row others claim too."""

    text: str
    filled: int
    missing: tuple[str, ...]


def fill_table(
    text: str, summaries: Iterable[GradeSummary], assignment: Assignment, people: Mapping[str, tuple[Submitter, ...]]
) -> FilledTable:
    """Write the points into the column of the assignment; everything else stays as it is. BadTable if it is none."""
    rows = _read_rows(text)
    head = rows[0] if rows else []
    columns: tuple[str, ...]
    if "Identifier" in head and "Grade" in head:
        columns, column = ("Identifier", *_MOODLE_COLUMNS), head.index("Grade")
    elif "Student" in head and "ID" in head:
        columns, column = ("ID", *_CANVAS_COLUMNS), _find_column(rows, assignment)
    else:
        message = (
            "expected the columns Student and ID (Canvas's gradebook) or Identifier and Grade (Moodle's worksheet)"
        )
        raise BadTable(f"{message}; its first line is: {', '.join(head)[:200]}")
    listed = list(summaries)
    by_key: defaultdict[str, list[GradeSummary]] = defaultdict(list)
    for summary in listed:
        for key in {_fold(key) for key in _list_keys(summary, people)} - {""}:
            by_key[key].append(summary)
    filled: set[str] = set()
    count = 0
    for row in rows[1:]:
        cells = dict(zip(head, row, strict=False))
        found = {s.submission: s for name in columns for s in by_key.get(_fold(_read_key(name, cells)), ())}
        if len(found) == 1:
            (summary,) = found.values()
            row.extend([""] * (column + 1 - len(row)))
            row[column] = points(summary.earned)
            filled.add(summary.submission)
            count += 1
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\r\n").writerows(rows)
    missing = tuple(sorted(s.submission for s in listed if s.submission not in filled))
    return FilledTable(out.getvalue(), count, missing)


def _read_rows(text: str) -> list[list[str]]:
    """Return the rows of a table; BadTable if it is none, or too large for a course."""
    try:
        reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""))
        rows = list(islice(reader, _MOST_ROWS + 1))
    except csv.Error as error:
        raise BadTable(f"is no table of comma-separated values: {error}; export it again") from error
    # Every row becomes as long as the first one.
    if len(rows) > _MOST_ROWS or (rows and len(rows) * len(rows[0]) > _MOST_CELLS):
        raise BadTable(f"has more than {_MOST_ROWS} rows, or than {_MOST_CELLS} cells: is it the table of a course?")
    return rows


def _find_column(rows: list[list[str]], assignment: Assignment) -> int:
    """Return the column of the assignment in Canvas's table; add one if there is none, with its points."""
    for column, name in enumerate(rows[0]):
        if re.fullmatch(rf"{re.escape(assignment.title)}( \(\d+\))?", name.strip()):
            return column
    width = len(rows[0])
    for row in rows:
        row.extend([""] * (width + 1 - len(row)))
        if row[0].strip() == _POSSIBLE:
            row[width] = points(assignment.points)
    rows[0][width] = assignment.title
    return width


def _list_keys(summary: GradeSummary, people: Mapping[str, tuple[Submitter, ...]]) -> Iterator[str]:
    """Yield what a row may name a submission by: its id, its students, and the number in the name of its file."""
    yield summary.submission
    for person in people.get(summary.submission, ()):
        yield from (person.email, person.number)
    if found := _CANVAS.match(summary.submission):
        yield f"ID {found[1]}"
    if found := _MOODLE.search(summary.submission):
        yield f"Identifier {found[1]}"


def _read_key(column: str, cells: Mapping[str, str]) -> str:
    """Return what a cell names its student by. A number of the platform is not taken for one of the school."""
    text = cells.get(column, "").strip()
    if column == "ID":
        return f"ID {text}"
    if column == "Identifier":
        return f"Identifier {text.rpartition(' ')[2]}"
    return text


def _fold(text: str) -> str:
    return text.strip().casefold()

"""Points are filled into the tables of Canvas and Moodle, and nothing else in them changes."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

import pytest

import grades
from goldformer.conformance.grading.model import Submitter
from goldformer.conformance.grading.results.gradebook import GradeSummary
from goldformer.conformance.grading.results.platform_table import BadTable, fill_table
from grades import ASSIGNMENT

CANVAS = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Warm-up (11),\"Attention, from scratch (12)\",Final\r\n"
    "    Points Possible,,,,,5,10,(read only)\r\n"
    "\"Lovelace, Ada\",101,u1,ada@example.org,A,5,,\r\n"
    "\"=Ben, Ō\",102,u2,ben,A,4,1,\r\n"
    "Cai,103,u3,cai@example.org,A,,,\r\n"
)  # fmt: skip
MOODLE = (
    "Identifier,Full name,Email address,Status,Grade,Maximum Grade,Last modified (grade),Feedback comments\r\n"
    "Participant 501,Ada Lovelace,ada@example.org,Submitted,,10.00,-,\r\n"
    "Participant 502,Ben,ben@example.org,Submitted,,10.00,-,\r\n"
)


@pytest.fixture(scope="module")
def summary():
    return GradeSummary.of(grades.failing())


def fill(table, *summaries, **people):
    data = table if isinstance(table, bytes) else table.encode()
    filled = fill_table(data, summaries, ASSIGNMENT, {id_: (person,) for id_, person in people.items()})
    return filled, list(csv.DictReader(io.StringIO(filled.text, newline="")))


def test_canvas_names_its_files_by_the_number_of_the_student(summary):
    one = replace(summary, submission="lovelaceada_101_9001_hw1", earned=7.5)
    late = replace(summary, submission="ben_LATE_102_9002_submission-1", earned=3.0)
    filled, rows = fill(CANVAS, one, late)
    assert [row["Attention, from scratch (12)"] for row in rows] == ["10", "7.5", "3", ""]
    assert (filled.filled, filled.missing) == (2, ())
    before = list(csv.DictReader(io.StringIO(CANVAS, newline="")))
    for name in before[0].keys() - {"Attention, from scratch (12)"}:
        assert [row[name] for row in rows] == [row[name] for row in before]


def test_students_are_found_by_address_login_and_number_of_the_school(summary):
    ada, ben = replace(summary, submission="7", earned=1.0), replace(summary, submission="BEN", earned=2.0)
    _, rows = fill(CANVAS, ada, ben, **{"7": Submitter("Ada", "ADA@example.org", "")})
    assert [row["Attention, from scratch (12)"] for row in rows[1:]] == ["1", "2", ""]
    _, rows = fill(CANVAS, ada, **{"7": Submitter("Cai", "", "u3")})
    assert [row["Attention, from scratch (12)"] for row in rows[1:]] == ["", "1", "1"]


def test_a_row_that_two_submissions_claim_is_left_alone_and_said(summary):
    first = replace(summary, submission="ben_102_9002_a", earned=7.5)
    filled, rows = fill(CANVAS, first, replace(summary, submission="ben_102_9003_b"))
    assert rows[2]["Attention, from scratch (12)"] == "1"
    assert filled.missing == ("ben_102_9002_a", "ben_102_9003_b")


@pytest.mark.parametrize(
    "ben",
    ['"Ben",102,u2,u1@example.org,A,,,', '"Ben",102,u2,U1,A,,,', '"Ben",102,u1,ben,A,,,'],
    ids=["address", "login", "number"],
)
def test_a_submission_that_two_rows_claim_is_left_out_and_said(summary, ben):
    table = CANVAS.replace('"=Ben, Ō",102,u2,ben,A,4,1,', ben).replace("ada@example.org", "u1@example.org")
    id_ = "u1@example.org" if "@" in ben else "u1"
    filled, rows = fill(table, replace(summary, submission=id_, earned=7.5))
    assert [row["Attention, from scratch (12)"] for row in rows[1:]] == ["", "", ""]
    assert (filled.filled, filled.missing) == (0, (id_,))


def test_each_student_of_a_group_has_a_row_or_the_group_is_said(summary):
    group = {"7": (Submitter("Ada", "ada@example.org"), Submitter("Ben", "", "u2"))}
    filled = fill_table(CANVAS.encode(), [replace(summary, submission="7")], ASSIGNMENT, group)
    assert (filled.filled, filled.missing) == (2, ())
    group = {"7": (Submitter("Ada", "ada@example.org"), Submitter("Dan", "dan@example.org", "u9"))}
    filled = fill_table(CANVAS.encode(), [replace(summary, submission="7")], ASSIGNMENT, group)
    assert (filled.filled, filled.missing) == (1, ("7",))


def test_a_row_without_a_number_is_nobodys(summary):
    filled, rows = fill(CANVAS, replace(summary, submission="ID"))
    assert (rows[0]["Attention, from scratch (12)"], filled.missing) == ("10", ("ID",))


def test_two_columns_with_the_title_are_refused(summary):
    table = CANVAS.replace("Warm-up (11)", '"Attention, from scratch (11)"')
    with pytest.raises(BadTable) as raised:
        fill(table, summary)
    assert str(raised.value) == (
        "has 2 columns with the title of the assignment: Attention, from scratch (11), Attention, from scratch (12). "
        "Delete from the table those that are not meant: Canvas keeps the points of columns that it does not import"
    )


@pytest.mark.parametrize(
    ("table", "scales"),
    [
        (CANVAS, ()),
        (CANVAS.replace(",5,10,", ",5,50.0,"), ("50.0",)),
        (CANVAS.replace(",5,10,", ",5,10.0,"), ()),
        (CANVAS.replace("Attention", "Other"), ()),
        (MOODLE, ()),
        (MOODLE.replace("10.00", "100.00"), ("100.00",)),
    ],
)
def test_points_of_another_scale_are_said(summary, table, scales):
    assert fill(table, summary)[0].scales == scales


@pytest.mark.parametrize(
    "data",
    [CANVAS.encode("utf-16"), CANVAS.replace("Ō", "Ö").encode("latin-1"), CANVAS.replace(",", ";").encode()],
    ids=["utf-16", "latin-1", "semicolons"],
)
def test_a_table_that_a_spreadsheet_wrote_is_refused_with_advice(summary, data):
    with pytest.raises(BadTable, match="save it as CSV UTF-8, with commas between the columns"):
        fill(data, summary)


def test_a_number_of_the_school_is_not_taken_for_one_of_canvas(summary):
    _, rows = fill(CANVAS, replace(summary, submission="101"))
    assert [row["Attention, from scratch (12)"] for row in rows[1:]] == ["", "1", ""]


def test_moodle_names_its_folders_by_the_number_of_the_participant(summary):
    one = replace(summary, submission="Ada Lovelace_501_assignsubmission_file", earned=7.5)
    other = replace(summary, submission="12", earned=0.0)
    filled, rows = fill("\ufeff" + MOODLE, one, other, **{"12": Submitter("Ben", "ben@example.org")})
    assert [row["Grade"] for row in rows] == ["7.5", "0"]
    assert filled.missing == ()


@pytest.mark.parametrize("text", ["", "a,b\n", "Student,Name\n", "Identifier,Full name\n"])
def test_another_table_is_refused(summary, text):
    with pytest.raises(BadTable, match="expected the columns Student and ID"):
        fill(text, summary)


@pytest.mark.parametrize("rest", ["\n" * 300_000, f"{',' * 200_000}\n" + "a\n" * 100])
def test_a_table_larger_than_that_of_any_course_is_refused_before_it_takes_memory(summary, rest):
    with pytest.raises(BadTable, match="has more than 200000 rows, or than 10000000 cells"):
        fill(f"Student,ID{rest}", summary)


def test_a_cell_that_is_too_long_is_refused(summary):
    with pytest.raises(BadTable, match="is no table of comma-separated values: field larger than field limit"):
        fill(f"Student,ID\n{'x' * 200_000},1\n", summary)

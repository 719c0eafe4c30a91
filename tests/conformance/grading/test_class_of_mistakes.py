"""A class that made the catalogue's mistakes: what its page says of each student, and of all of them together."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.conformance.grading.store import unpack_grade
from students import MISTAKES, a_class

# A class of all mistakes takes a minute; smaller classes run each time.
pytestmark = pytest.mark.sample(0)

#: So many students; every third one is right.
SIZE = 60
CLASS = {name: mistake for name, mistake, _ in a_class(SIZE)}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class")
    (folder / "handed-in").mkdir()
    for name, _, source in a_class(SIZE):
        (folder / "handed-in" / f"{name}.py").write_text(source, encoding="utf-8")
    assignment = folder / "course" / "assignment.yaml"
    words = ["assignment", "new", str(folder / "course"), "--kind", "attention"]
    assert CliRunner().invoke(main, words, catch_exceptions=False).exit_code == 0
    text = assignment.read_text(encoding="utf-8").replace("[float64, float32]", "[float32]")  # in half the time
    assignment.write_text(text, encoding="utf-8")
    words = ["grade", str(folder / "handed-in"), "--assignment", str(assignment), "--out", str(folder / "out")]
    done = CliRunner().invoke(main, [*words, "--jobs", "2", "--seed", "a class of mistakes"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return folder / "out"


@pytest.fixture(scope="module")
def grades(graded):
    return {name: unpack_grade((graded / "students" / name / "grade.json.gz").read_bytes()) for name in CLASS}


def named(grade):
    """Return the first mistake that is named or possible."""
    return next((said.mistakes for said in grade.said if said.mistakes), ())


def test_right_code_earns_all_and_wrong_code_does_not(grades):
    assert {name for name, grade in grades.items() if grade.earned == grade.points} == {
        name for name, mistake in CLASS.items() if mistake is None
    }


def test_nobody_is_said_to_have_made_another_mistake(grades):
    wrong = {CLASS[name]: named(grade) for name, grade in grades.items() if named(grade)}
    assert {mistake: ids for mistake, ids in wrong.items() if mistake not in ids} == {}


def test_every_mistake_is_named(grades):
    made = {mistake for mistake in CLASS.values() if mistake}
    assert len(made) >= 30
    assert made - {CLASS[name] for name, grade in grades.items() if CLASS[name] in named(grade)} == set()


def test_the_page_of_the_class_names_them_with_who_made_them(graded):
    page = (graded / "class.html").read_text(encoding="utf-8")
    for name, mistake in CLASS.items():
        if mistake:
            assert mistake in page, mistake
            assert name in page
    told = json.loads((graded / "grades.json").read_text(encoding="utf-8"))
    assert re.search("student-0002", json.dumps(told))
    assert set(MISTAKES) >= {mistake for mistake in CLASS.values() if mistake}

"""A class that hands in notebooks: they are read, not run, and what is said of them names the cell."""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

from goldformer.conformance.grading.grader import GradedSubmission, Grader
from goldformer.conformance.grading.submissions import find_submissions
from goldformer.spec import Spec
from homework import NORM, SOFTMAX, OpenSandbox, make_task

NUMPY = "%matplotlib inline\nimport numpy as np\nwhile True: pass"
CELL = SOFTMAX.replace("import numpy as np\n", "")


@pytest.fixture(scope="module")
def graded(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> dict[str, GradedSubmission]:
    folder = tmp_path_factory.mktemp("course")
    handed = {
        "alice": (NUMPY, CELL, NORM, "layer_norm(1)"),
        "bob": (NUMPY, CELL),
        "carol": (NUMPY, CELL, "def layer_norm(x, gamma:\n    pass"),
        "dave": (NUMPY, CELL, "!ls\n" + NORM.replace("x.mean(axis=-1, keepdims=True)", "x.means()")),
        "eva": (),
        "finn": ("# EXPORT\nimport numpy as np\n" + CELL, "layer_norm = 3", "# EXPORT\n" + NORM),
    }
    (folder / "class").mkdir()
    for name, cells in handed.items():
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        nbformat.write(made, folder / "class" / f"{name}.ipynb")
    grader = Grader(make_task(folder, spec), spec).use_sandbox(OpenSandbox(spec))
    found = find_submissions(folder / "class")
    limits = make_task(folder, spec).assignment.limits
    return {one.id: grader.grade(found.read(one, limits)) for one in found.handed}


def test_each_notebook_is_graded_by_its_functions(graded: dict[str, GradedSubmission]) -> None:
    assert {name: (one.grade.earned, one.grade.outcome) for name, one in graded.items()} == {
        "alice": (20.0, "correct"),
        "bob": (10.0, "missing"),
        "carol": (0.0, "error"),
        "dave": (10.0, "error"),
        "eva": (0.0, "missing"),
        "finn": (20.0, "correct"),
    }


def test_a_cell_that_is_no_python_is_named(graded: dict[str, GradedSubmission]) -> None:
    said = graded["carol"].grade.message
    assert said.startswith("It cannot be graded: carol.ipynb, code cell 3, line 1: '(' was never closed")


def test_an_exception_names_the_cell_and_its_line(graded: dict[str, GradedSubmission]) -> None:
    details = {check.verdict.detail for check in graded["dave"].grade.checks if check.verdict.reason == "raised"}
    place = re.compile(r'File "submission.py", line \d+ \(code cell 3, line 3\), in layer_norm')
    assert details
    assert [detail for detail in details if not place.search(detail)] == []


def test_a_single_notebook_is_a_submission(tmp_path: Path) -> None:
    path = tmp_path / "lab.ipynb"
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x = 1\nf()")])
    path.write_text(json.dumps(made), encoding="utf-8")
    (found,) = find_submissions(path).handed
    assert (found.id, found.kind) == ("lab", "file")

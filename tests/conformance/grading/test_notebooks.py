"""A class that hands in notebooks: they are read, not run, and what is said of them names the cell."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import nbformat
import pytest

from goldformer.conformance.grading.grader import GradedSubmission, Grader
from goldformer.conformance.grading.model import Submission
from goldformer.conformance.grading.results import staff, student
from goldformer.conformance.grading.results.feedback import write_both
from goldformer.conformance.grading.results.source import SubmissionSource
from goldformer.conformance.grading.submissions import find_submissions
from goldformer.conformance.grading.task import GradingTask
from goldformer.spec import Spec
from homework import ADAPTER, NORM, SOFTMAX, OpenSandbox, make_task

NUMPY = "%matplotlib inline\nimport numpy as np\nwhile True: pass"
CELL = SOFTMAX.replace("import numpy as np\n", "")
#: An adapter that uses its names without a look, as most do.
DIRECT = ADAPTER.replace('getattr_or_missing("softmax")', "submission.softmax").replace(
    'getattr_or_missing("layer_norm")', "submission.layer_norm"
)
COLAB = """from google.colab import drive
import seaborn as sns, numpy as np
import pandas as pd
from ipywidgets import interact
from tqdm.nowhere import tqdm
drive.mount("/content/drive")
sns.set()
inputs = np.random.randn(3)
scaled = inputs * 2"""
DEVICE = 'import numpy as np\nkind = np.dtype("float64")'
ON_DEVICE = CELL.replace("return e /", "return e.astype(kind) /")
METHOD = "class Norm: pass\n" + NORM.replace("layer_norm", "run")
CALLED = "def layer_norm(*args, **named): return Norm.run(*args, **named)"
HOW = "but a notebook is read and not run: begin every cell that your code needs with # EXPORT"


@pytest.fixture(scope="module")
def task(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> GradingTask:
    return make_task(tmp_path_factory.mktemp("course"), spec, adapter=DIRECT)


@pytest.fixture(scope="module")
def submissions(task: GradingTask, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Submission]:
    folder = tmp_path_factory.mktemp("class")
    handed = {
        "alice": (NUMPY, CELL, NORM, "layer_norm(1)"),
        "bob": (NUMPY, CELL),
        "carol": (NUMPY, CELL, "def layer_norm(x, gamma:\n    pass"),
        "dave": (NUMPY, CELL, "!ls\n" + NORM.replace("x.mean(axis=-1, keepdims=True)", "x.means()")),
        "eva": (),
        "finn": ("# EXPORT\nimport numpy as np\n" + CELL, "layer_norm = 3", "# EXPORT\n" + NORM),
        "gina": (COLAB, CELL, NORM),
        "hugo": (NUMPY, "\n".join(f"    {line}" for line in (CELL + NORM).splitlines())),
        "ines": (DEVICE, ON_DEVICE, NORM),
        "jack": ("# EXPORT\n" + DEVICE, "# EXPORT\n" + ON_DEVICE, "# EXPORT\n" + NORM),
        "kira": (NUMPY, CELL, NORM, "layer_norm(1"),
        "lars": ("%%writefile submission.py\n" + SOFTMAX, NORM, "print(1)"),
        "nils": (NUMPY, CELL + METHOD, "Norm.run = staticmethod(run)", CALLED),
        "olga": (NUMPY, CELL + METHOD, "Norm.run = jit(run)", CALLED),
        "mona": (NUMPY + '\neps0 = float("1e-9") * 0', CELL, NORM.replace("+ eps)", "+ eps + eps0)")),
    }
    for name, cells in handed.items():
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        nbformat.write(made, folder / f"{name}.ipynb")
    found = find_submissions(folder)
    return {one.id: one.read(task.assignment.limits) for one in found.handed}


@pytest.fixture(scope="module")
def graded(submissions: dict[str, Submission], task: GradingTask, spec: Spec) -> dict[str, GradedSubmission]:
    grader = Grader(task, spec).use_sandbox(OpenSandbox(spec))
    return {name: grader.grade(submission) for name, submission in submissions.items()}


def test_each_notebook_is_graded_by_its_functions(graded: dict[str, GradedSubmission]) -> None:
    assert {name: (one.grade.earned, one.grade.outcome) for name, one in graded.items()} == {
        "alice": (20.0, "correct"),
        "bob": (10.0, "missing"),
        "carol": (10.0, "missing"),
        "dave": (10.0, "error"),
        "eva": (0.0, "missing"),
        "finn": (20.0, "correct"),
        "gina": (20.0, "correct"),
        "hugo": (20.0, "correct"),
        "ines": (10.0, "error"),
        "jack": (20.0, "correct"),
        "kira": (20.0, "correct"),
        "lars": (20.0, "correct"),
        "mona": (20.0, "correct"),
        "nils": (20.0, "correct"),
        "olga": (10.0, "error"),
    }


def test_the_student_reads_which_cell_is_no_python(
    graded: dict[str, GradedSubmission], task: GradingTask, spec: Spec
) -> None:
    (_, norm) = student.build_feedback(graded["carol"].grade, task.assignment, spec).rows
    assert norm.note == (
        "There is no layer_norm in submission.py (code cell 3, which defines layer_norm, is left out: its line 1 is "
        "not valid Python: '(' was never closed)."
    )


def test_the_student_reads_which_line_was_left_out(
    graded: dict[str, GradedSubmission], task: GradingTask, spec: Spec
) -> None:
    (softmax, _) = student.build_feedback(graded["ines"].grade, task.assignment, spec).rows
    said = f"raised NameError: name 'kind' is not defined (code cell 1, line 2 defines kind, {HOW})"
    assert softmax.failures[0].said.startswith(said)


def test_the_student_reads_which_change_was_left_out(
    graded: dict[str, GradedSubmission], task: GradingTask, spec: Spec
) -> None:
    said = f"Code cell 3, line 1 defines Norm.run, {HOW}."
    for name, reasons in (("olga", (said,)), ("nils", ()), ("mona", ())):
        feedback = student.build_feedback(graded[name].grade, task.assignment, spec)
        assert feedback.left_out == reasons
    for text in write_both(graded["olga"].grade, task.assignment, spec):
        assert said in html.unescape(text).replace("\\", "")


def test_the_staff_read_what_was_left_out(
    graded: dict[str, GradedSubmission], submissions: dict[str, Submission], task: GradingTask, spec: Spec
) -> None:
    for name, line in (
        ("ines", '# not read, but used: code cell 1, line 2 (kind): kind = np.dtype("float64")'),
        ("kira", "# not valid Python: code cell 4, line 1: '(' was never closed"),
        ("carol", "# not valid Python: code cell 3, line 1 (layer_norm): '(' was never closed"),
        ("gina", "# not read: code cell 1, line 1 (drive): from google.colab import drive"),
    ):
        source = SubmissionSource(submissions[name].files, b"", graded[name].grade)
        assert line in html.unescape(staff.html(graded[name].grade, task.assignment, spec, source))


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

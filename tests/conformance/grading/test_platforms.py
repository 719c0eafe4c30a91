"""The recipes of docs/gradebook.md and of examples/grading for other platforms do what they say."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

import grades
from goldformer.conformance.grading.results.gradebook import to_csv, to_json
from goldformer.conformance.grading.results.words import points
from goldformer.conformance.grading.score import note_failures
from grades import ASSIGNMENT
from repository import REPOSITORY

EXAMPLES = REPOSITORY / "examples" / "grading"
SCRIPTS = [EXAMPLES / "gradescope" / name for name in ("setup.sh", "run_autograder")]
WORKFLOW = EXAMPLES / "github-classroom.yml"
PAGE = (REPOSITORY / "docs" / "gradebook.md").read_text(encoding="utf-8")
ATTENTION = "scaled_dot_product_attention"

needs_jq = pytest.mark.skipif(shutil.which("jq") is None, reason="no jq on PATH")


# ── Canvas and Moodle ──


@pytest.mark.parametrize(
    ("id_", "export", "nth"),
    [
        ("ben_LATE_7_42_work", "Student,ID,Attention (42)\nAda,8,1\nBen,7,\n", 0),
        ("Ben B_7_assignsubmission_file", "Identifier,Grade\nParticipant 8,1\nParticipant 7,\n", 1),
        ("7", "SIS Login ID,Attention (42)\n8,1\n7,\n", 2),
    ],
)
def test_the_script_fills_the_points_into_a_table_of_a_platform(id_, export, nth, tmp_path):
    (code,) = re.findall(r"```python\n(# fill\.py\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "graded").mkdir()
    lines = [replace(note_failures(grades.failing()), submission=name) for name in (id_, "nobody")]
    (tmp_path / "graded" / "grades.csv").write_text(to_csv(lines, ASSIGNMENT), encoding="utf-8", newline="")
    (tmp_path / "export.csv").write_text(export, encoding="utf-8-sig")
    words = shlex.split(re.findall(r"^\$ python fill\.py (.*) > upload\.csv", PAGE, re.MULTILINE)[nth])
    done = subprocess.run(
        [sys.executable, "-c", code, "export.csv", *words[1:]],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row[words[2]] for row in rows] == ["1", points(grades.earned_by_failing()[0])]
    assert done.stderr == "submissions without a row: nobody\n"


# ── Gradescope ──


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_bash_that_can_be_run(script):
    assert script.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True, timeout=30)


@pytest.fixture
def autograder(tmp_path):
    """Run run_autograder in a folder of its own with a goldformer of the given lines of bash."""

    def run(goldformer):
        (tmp_path / "bin").mkdir()
        program = tmp_path / "bin" / "goldformer"
        program.write_text(f"#!/usr/bin/env bash\n{goldformer}\n", encoding="utf-8")
        program.chmod(0o755)
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        environment = {**os.environ, "AUTOGRADER": str(tmp_path), "PATH": path}
        subprocess.run([SCRIPTS[1]], env=environment, check=False, timeout=30, capture_output=True)
        return json.loads((tmp_path / "results" / "results.json").read_text(encoding="utf-8"))

    return run


@needs_jq
def test_the_autograder_grades_the_submission_into_the_result(autograder, tmp_path):
    (tmp_path / "made").mkdir()
    earned, attention = grades.earned_by_failing()
    text = to_json([note_failures(grades.failing())], ASSIGNMENT)
    (tmp_path / "made" / "grades.json").write_text(text, encoding="utf-8")
    found = autograder(
        'printf "%s\\n" "$@" >"$AUTOGRADER/called"; mkdir -p "$AUTOGRADER/graded/students/ben"\n'
        'cp "$AUTOGRADER/made/grades.json" "$AUTOGRADER/graded"; '
        'echo well >"$AUTOGRADER/graded/students/ben/feedback.md"'
    )
    assert found == {
        "score": earned, "output": "well\n", "output_format": "md", "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [
            {"name": "softmax", "score": 4.0, "max_score": 4.0, "visibility": "visible"},
            {"name": ATTENTION, "score": attention, "max_score": 6.0, "visibility": "visible"},
        ],
    }  # fmt: skip
    assert (tmp_path / "called").read_text(encoding="utf-8").splitlines() == [
        "grade", f"{tmp_path}/submission", "--one",
        "--assignment", f"{tmp_path}/source/assignment/assignment.yaml",
        "--out", f"{tmp_path}/graded",
    ]  # fmt: skip


def test_where_grading_does_not_end_there_is_a_result_that_says_so(autograder):
    found = autograder("exit 137")
    assert found["score"] == 0
    assert "nothing has been decided about your submission" in found["output"]
    assert found["stdout_visibility"] == "hidden"


# ── GitHub Classroom ──


@pytest.fixture
def steps():
    """The step of the workflow that grades, and the one that reports."""
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    # The reporter looks for a check of this name.
    assert workflow["name"] == "Autograding Tests"
    ((_, job),) = workflow["jobs"].items()
    (graded,) = [step for step in job["steps"] if "goldformer grade" in step.get("run", "")]
    (report,) = [step for step in job["steps"] if "autograding-grading-reporter" in step.get("uses", "")]
    return graded, report


@needs_jq
@pytest.mark.parametrize(
    ("make", "statuses"),
    [
        (grades.passing, ["pass", "pass", "pass"]),
        (grades.failing, ["fail", "pass", "fail"]),
        (lambda: replace(grades.passing(), outcome="grader-error"), ["error", "pass", "pass"]),
    ],
    ids=["passing", "failing", "grader error"],
)
def test_the_workflow_makes_what_the_reporter_decodes(steps, make, statuses, tmp_path):
    """It takes base64 of JSON, adds up the tests' scores, and fails the job where the status is fail."""
    grade = make()
    (tmp_path / "graded").mkdir()
    text = to_json([note_failures(grade)], ASSIGNMENT)
    (tmp_path / "graded" / "grades.json").write_text(text, encoding="utf-8")
    run = steps[0]["run"].replace("goldformer grade", "true")
    environment = {**os.environ, "GITHUB_OUTPUT": str(tmp_path / "output")}
    subprocess.run(["bash", "-e", "-c", run], cwd=tmp_path, env=environment, check=True, timeout=30)
    name, _, value = (tmp_path / "output").read_text(encoding="utf-8").rstrip("\n").partition("=")
    found = json.loads(base64.b64decode(value, validate=True))
    assert (name, found["max_score"]) == ("result", 10.0)
    assert [found["status"], *(test["status"] for test in found["tests"])] == statuses
    assert sum(test["score"] for test in found["tests"]) == pytest.approx(grade.earned)


def test_the_workflow_hands_the_result_to_the_reporter(steps):
    graded, report = steps
    runner = report["with"]["runners"]
    assert report["env"] == {f"{runner.upper()}_RESULTS": f"${{{{ steps.{graded['id']}.outputs.result }}}}"}

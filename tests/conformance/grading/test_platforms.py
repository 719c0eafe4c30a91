"""The results that Gradescope and GitHub Classroom read, and the files that an instructor gives them."""

from __future__ import annotations

import base64
import json
import math
import os
import shlex
import subprocess
from dataclasses import replace

import pytest
import yaml

import grades
from goldformer.conformance.grading.results.platforms import github_output, gradescope_pending, gradescope_results
from grades import ASSIGNMENT, HOSTILE
from repository import REPOSITORY

EXAMPLES = REPOSITORY / "examples" / "grading"
SCRIPTS = [EXAMPLES / "gradescope" / name for name in ("setup.sh", "run_autograder")]
WORKFLOW = EXAMPLES / "github-classroom.yml"
ATTENTION = "scaled_dot_product_attention"

#: What Gradescope knows, at the top and of a test.
TOP = {"score", "output", "output_format", "visibility", "stdout_visibility", "extra_data", "tests"}
TEST = {"name", "score", "max_score", "status", "output", "output_format", "visibility"}


@pytest.fixture
def read(spec):
    return lambda grade: json.loads(gradescope_results(grade, ASSIGNMENT, spec))


# ── Gradescope ──


@pytest.mark.parametrize("make", [grades.passing, grades.failing, grades.cheating, grades.hostile])
def test_the_result_has_what_gradescope_knows_and_nothing_else(read, make):
    found = read(make())
    assert set(found) == TOP
    assert (found["visibility"], found["stdout_visibility"], found["output_format"]) == ("visible", "hidden", "md")
    for test in found["tests"]:
        assert set(test) == TEST
        assert test["status"] in ("passed", "failed")
        assert (test["visibility"], test["output_format"]) == ("visible", "md")


def test_scores_are_numbers_and_add_up(read):
    found = read(grades.failing())
    assert [(test["name"], test["score"], test["max_score"], test["status"]) for test in found["tests"]] == [
        ("softmax", 4.0, 4.0, "passed"),
        (ATTENTION, 0.95, 6.0, "failed"),
    ]
    assert isinstance(found["score"], float)
    assert found["score"] == sum(test["score"] for test in found["tests"]) == 4.95
    assert found["extra_data"] == {"key": "key-ben", "outcome": "wrong", "mistakes": ["scale-missing"]}


def test_feedback_is_in_the_output(read):
    found = read(grades.failing())
    assert "4.95 of 10 points." in found["output"]
    assert "Divide QKᵀ by √d_k before the softmax." in found["output"]
    assert found["tests"][1]["output"].startswith("wrong values, 16 of 101 published cases, 3 of 4 cases drawn")
    assert "The first output that is wrong is scaled_scores" in found["tests"][1]["output"]


def test_nothing_that_is_not_a_number_is_written(spec):
    with pytest.raises(ValueError, match="Out of range float values"):
        gradescope_results(replace(grades.passing(), earned=math.nan), ASSIGNMENT, spec)


def test_what_stands_there_while_grading_says_so():
    found = json.loads(gradescope_pending(ASSIGNMENT))
    assert found["score"] == 0
    assert "Your submission is being graded." in found["output"]
    assert [(test["name"], test["max_score"]) for test in found["tests"]] == [("softmax", 4.0), (ATTENTION, 6.0)]
    assert set(found) <= TOP


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


def test_the_autograder_grades_the_submission_into_the_result(autograder, tmp_path):
    found = autograder('printf "%s\\n" "$@" >"$AUTOGRADER/called"; echo "{\\"score\\": 7}" >"${@: -1}"')
    assert found == {"score": 7}
    assert (tmp_path / "called").read_text(encoding="utf-8").splitlines() == [
        "grade", f"{tmp_path}/submission",
        "--assignment", f"{tmp_path}/source/assignment/assignment.yaml",
        "--out", f"{tmp_path}/graded",
        "--gradescope-results", f"{tmp_path}/results/results.json",
    ]  # fmt: skip


def test_where_grading_does_not_end_there_is_a_result_that_says_so(autograder):
    found = autograder("exit 137")
    assert found["score"] == 0
    assert "nothing has been decided about your submission" in found["output"]
    assert found["stdout_visibility"] == "hidden"


# ── GitHub Classroom ──


def decode(line):
    """Decode the line as the reporter does."""
    name, _, value = line.rstrip("\n").partition("=")
    assert name == "result"
    assert "\n" not in value
    return json.loads(base64.b64decode(value, validate=True))


def test_the_result_is_what_the_reporter_decodes(spec):
    """It takes base64 of JSON, adds up the tests' scores, and fails the job where the status is fail."""
    found = decode(github_output(grades.failing(), ASSIGNMENT, spec))
    assert found["max_score"] == 10.0
    assert found["status"] == "fail"
    assert [(test["name"], test["status"], test["score"]) for test in found["tests"]] == [
        ("softmax", "pass", 4.0),
        (ATTENTION, "fail", 0.95),
    ]
    assert found["tests"][0]["message"] == ""
    assert found["tests"][1]["message"].startswith("wrong values; The first output that is wrong is scaled_scores")


@pytest.mark.parametrize(
    ("make", "status"),
    [
        (grades.passing, "pass"),
        (grades.cheating, "fail"),
        (lambda: replace(grades.passing(), outcome="grader-error"), "error"),
    ],
)
def test_the_status_is_one_of_three(spec, make, status):
    assert decode(github_output(make(), ASSIGNMENT, spec))["status"] == status


def test_no_message_begins_a_line_of_the_log(spec):
    """The runner takes lines that begin with two colons for commands."""
    found = decode(github_output(grades.hostile(), ASSIGNMENT, spec))
    messages = [test["message"] for test in found["tests"]]
    assert any("::error::" in message for message in messages)
    assert not [message for message in messages if message.startswith(":") or not message.isprintable()]
    assert HOSTILE not in json.dumps(found)


def test_the_workflow_hands_the_result_to_the_reporter():
    workflow = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    # The reporter looks for a check of this name.
    assert workflow["name"] == "Autograding Tests"
    ((_, job),) = workflow["jobs"].items()
    (graded,) = [step for step in job["steps"] if "goldformer grade" in step.get("run", "")]
    (report,) = [step for step in job["steps"] if "autograding-grading-reporter" in step.get("uses", "")]
    runner = report["with"]["runners"]
    assert report["env"] == {f"{runner.upper()}_RESULTS": f"${{{{ steps.{graded['id']}.outputs.result }}}}"}
    assert shlex.split(graded["run"])[-2:] == ["--github-output", "$GITHUB_OUTPUT"]

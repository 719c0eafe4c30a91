"""Refuse to write, as a full disk does: a sentence, status 2, nothing lost, and then the same command works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from disks import full_disk
from goldformer.conformance.cli import main
from goldformer.conformance.grading.grader import GradedSubmission
from goldformer.conformance.grading.model import Submission
from goldformer.conformance.grading.task import GradingTask
from goldformer.spec import Spec
from goldformer.spec.files import replace_file
from homework import CORRECT, grade_in_this_process, write_assignment, write_class

ONE = ("--case", "sm-one-row-by-hand")
#: Each command writes more than a full disk takes into the file or folder that is named next to it.
COMMANDS = {
    "check --html": (["check", "textbook", *ONE, "--html", "out.html"], "out.html"),
    "check --markdown": (["check", "wrong.py", *ONE, "--markdown", "out.md"], "out.md"),
    "check --junit": (["check", "textbook", *ONE, "--junit", "out.xml"], "out.xml"),
    "baseline record": (["baseline", "record", "textbook", "--component", "causal_mask", "--out", "base"], "base"),
    "new": (["new", "mine.py"], "mine.py"),
    "assignment new": (["assignment", "new", "course"], "course"),
}
WRONG = """
import numpy as np
ARRAYS = "numpy"
def softmax(scores): return np.exp(scores)
"""
TOO_LARGE = "File too large"
ADVICE = "; free some space, and run the same command again\n"


def goldformer(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own to work in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_cannot_be_written_is_a_sentence_and_status_2(place: Path, command: str) -> None:
    """Status 1 would mean that the implementation does not conform."""
    words, name = COMMANDS[command]
    old = place / name
    if name.startswith("out."):
        old.write_text("old, by goldformer", encoding="utf-8")
    before = {path for path in place.rglob("*") if path.is_file()}
    with full_disk():
        full = goldformer(*words)
    assert (full.exit_code, full.stderr.count("\n")) == (2, 1), full.output
    assert full.stderr.startswith(f"goldformer: {name}")
    assert TOO_LARGE in full.stderr
    # The old content is whole, and nothing stands next to it.
    assert {path for path in place.rglob("*") if path.is_file()} - before == set()
    assert not old.is_file() or old.read_text(encoding="utf-8") == "old, by goldformer"
    again = goldformer(*words)
    assert (again.exit_code, again.stderr) == (1 if "wrong.py" in words else 0, "")
    assert old.exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no full device here")
@pytest.mark.parametrize("buffered", ["", "1"])
def test_an_output_that_cannot_be_written_is_a_sentence_and_status_2(buffered: str) -> None:
    words = [sys.executable, "-m", "goldformer", "check", "textbook", *ONE]
    environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            words, stdout=full, stderr=subprocess.PIPE, text=True, env=environment, timeout=60, check=False
        )
        assert done.stderr == f"goldformer: standard output: No space left on device{ADVICE}"
        assert done.returncode == 2
        nowhere = subprocess.run(words, stdout=full, stderr=full, env=environment, timeout=60, check=False)
    assert nowhere.returncode == 2


@pytest.mark.parametrize("gone", ["stdout", "stderr"])
@pytest.mark.parametrize(("adapter", "status"), [("wrong.py", 1), ("nothing.py", 2)])
def test_an_output_that_nothing_reads_ends_no_command(gone: str, adapter: str, status: int, place: Path) -> None:
    """`check wrong.py --html page.html | head -1` saved no page, and `check textbook | head -1` ended with 1."""
    words = [sys.executable, "-m", "goldformer", "check", adapter, *ONE, "--junit", "out.xml"]
    reader, writer = os.pipe()
    os.close(reader)
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | {gone: writer}
    done = subprocess.run(words, **streams, timeout=60, check=False)  # type: ignore[call-overload]
    os.close(writer)
    assert (done.returncode, (place / "out.xml").exists()) == (status, status == 1)


def test_a_class_goes_on_where_the_disk_was_full(place: Path, spec: Spec, monkeypatch: pytest.MonkeyPatch) -> None:
    def graded(
        task: GradingTask, submissions: Iterable[Submission], jobs: int, running: Path
    ) -> Iterator[GradedSubmission]:
        return grade_in_this_process(task, submissions, spec, running)

    monkeypatch.setattr("goldformer.conformance.commands._grade_session.grade_in_pool", graded)
    write_assignment(place)
    (place / "solution.py").write_text(CORRECT, encoding="utf-8")
    # Pages show the source, and take more than it does.
    write_class(place / "class", alice=CORRECT, bob=CORRECT + "# a line\n" * 2500)
    words = ["grade", "class", "--assignment", "assignment.yaml", "--out", "out", "--jobs", "1"]
    assert goldformer(*words, "--only", "alice").exit_code == 0
    grade = place / "out" / "students" / "alice" / "grade.json.gz"
    before = grade.read_bytes()
    with full_disk(40_000):
        full = goldformer(*words)
    assert (full.exit_code, full.stderr.count("\n")) == (2, 1), full.output
    assert full.stderr.startswith(f"goldformer: {place / 'out' / 'students' / 'bob'}")
    assert full.stderr.endswith(f": {TOO_LARGE}{ADVICE}")
    assert grade.read_bytes() == before
    assert not [path for path in (place / "out").rglob(".*") if path.name != ".lock"]
    again = goldformer(*words)
    assert (again.exit_code, again.stderr) == (0, "")
    assert again.stdout.startswith("[2/2] bob: 20 of 20")
    assert len(json.loads((place / "out" / "grades.json").read_text())["students"]) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="submissions are kept apart on Linux")
@pytest.mark.usefixtures("unread_spec")
def test_a_class_whose_files_cannot_be_written_is_not_graded(place: Path) -> None:
    """Where submissions run there is no space for them: nobody gets a grade for that."""
    write_assignment(place)
    (place / "solution.py").write_text(CORRECT, encoding="utf-8")
    write_class(place / "class", alice=CORRECT + "#" * 200_000)
    words = ["grade", "class", "--assignment", "assignment.yaml", "--out", "out", "--jobs", "1"]
    with full_disk(100_000):
        full = goldformer(*words)
    assert (full.exit_code, full.stderr.count("\n")) == (2, 1), full.output
    assert full.stderr.endswith(f"submission.py: {TOO_LARGE}{ADVICE}")
    assert not any((place / "out" / "students").iterdir())
    again = goldformer(*words)
    assert (again.exit_code, again.stdout.startswith("[1/1] alice: 20 of 20")) == (0, True)


def test_a_file_that_cannot_be_replaced_is_named(place: Path) -> None:
    """And not the temporary file, of which nobody knows."""
    path = place / "page.html"
    with full_disk(), pytest.raises(OSError, match=TOO_LARGE) as raised:
        replace_file(path, "x" * 1000)
    assert raised.value.filename == str(path)
    assert not path.exists()

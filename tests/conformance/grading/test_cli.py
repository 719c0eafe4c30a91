"""goldformer grade from outside: options, files and exit statuses. Nothing here runs in a process of its own."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner, Result

from goldformer.conformance.cli import main
from goldformer.conformance.commands._console import PrintableConsole
from goldformer.conformance.commands._grade_session import Session
from goldformer.conformance.grading.grader import GradedSubmission
from goldformer.conformance.grading.model import Submission
from goldformer.conformance.grading.pool import Unusable
from goldformer.conformance.grading.task import GradingTask
from goldformer.spec import Spec
from homework import CORRECT, SOFTMAX, UNSTABLE, YAML, grade_in_this_process, write_assignment, write_class

Run = Callable[..., Result]


@pytest.fixture
def broken() -> set[str]:
    """The submissions over which grading breaks down."""
    return set()


@pytest.fixture
def run(spec: Spec, tmp_path: Path, broken: set[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command, on a class of three."""
    write_assignment(tmp_path)
    (tmp_path / "solution.py").write_text(CORRECT)
    write_class(tmp_path / "class", alice=CORRECT, bob=UNSTABLE, carol=SOFTMAX)

    def graded(
        exam: GradingTask, submissions: Iterable[Submission], jobs: int, running: Path
    ) -> Iterator[GradedSubmission]:
        return grade_in_this_process(exam, submissions, spec, running, broken)

    monkeypatch.setattr("goldformer.conformance.commands._grade_session.grade_in_pool", graded)

    def invoke(*options: str, submissions: str = "class") -> Result:
        words = [str(tmp_path / submissions), "--assignment", str(tmp_path / "assignment.yaml")]
        return CliRunner().invoke(main, ["grade", *words, "--out", str(tmp_path / "out"), *options])

    return invoke


def test_a_class_leaves_its_files(run: Run, tmp_path: Path) -> None:
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    assert "[1/3] alice: 20 of 20 (correct)" in result.stdout
    assert "3 submissions: 1 correct, 1 missing, 1 wrong" in result.stdout
    out = tmp_path / "out"
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert files == {
        ".lock", "assignment/adapter.py", "assignment/assignment.yaml", "assignment/answers.json",
        "class-anonymous.html", "class.html", "fresh/cases.yaml", "fresh/drawn-for.json", "fresh/seed",
        "grades.csv", "grades.json",
        *(f"students/{id_}/{name}" for id_ in ("alice", "bob", "carol")
          for name in ("feedback.html", "feedback.md", "grade.json.gz", "staff.html")),
    }  # fmt: skip
    with (out / "grades.csv").open(newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    assert (rows["alice"]["earned"], rows["bob"]["mistakes"], rows["carol"]["layer_norm"]) == (
        "20",
        "softmax-unstable",
        "0",
    )


def test_json_is_all_that_is_printed(run: Run) -> None:
    book = json.loads(run("--json", "-").stdout)
    assert [student["earned"] for student in book["students"]] == [20.0, pytest.approx(15, abs=5), 10.0]


def read_earned(out: Path) -> dict[str, str]:
    with (out / "grades.csv").open(newline="") as file:
        return {row["id"]: row["earned"] for row in csv.DictReader(file)}


def test_the_number_of_checks_is_said_beforehand(run: Run) -> None:
    first, *_ = run("--jobs", "2").stdout.splitlines()
    assert re.fullmatch(
        r"3 to grade in 2 processes, \d+ checks each; "
        r"a component that never answers takes up to \d+ s more",
        first,
    )
    assert "to grade in" not in run().stdout
    assert "2 to grade" not in run("--only", "bob", "--again").stdout


def test_no_grade_leaves_the_gradebook_unasked(run: Run, tmp_path: Path) -> None:
    run()
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    (tmp_path / "class" / "carol.py").unlink()
    for submissions, left in [("class", "1 submission that is no longer there: carol."),
                              ("class/bob.py", "2 submissions that are no longer there: alice, carol.")]:  # fmt: skip
        result = run(submissions=submissions)
        said = f"{tmp_path}/out/grades.json has the grades of {left} To keep them, name the whole class"
        assert (result.exit_code, result.stdout) == (2, "")
        assert said.replace(" ", "") in "".join(result.stderr.split())
        assert "add --drop-missing" in " ".join(result.stderr.split())
        assert {path: path.read_bytes() for path in before} == before
    assert run("--drop-missing").exit_code == 0
    assert list(read_earned(tmp_path / "out")) == ["alice", "bob"]
    assert run().exit_code == 0


@pytest.mark.parametrize("stray", ["submission.py", "__init__.py"])
def test_one_stray_file_does_not_turn_a_class_into_one_student(run: Run, stray: str, tmp_path: Path) -> None:
    run()
    (tmp_path / "class" / stray).write_text(CORRECT)
    result = run()
    said = (
        f"{tmp_path / 'class'}: holds {stray} and what it does not import: alice.py, bob.py, carol.py. "
        "Is this one submission, or a class of 4? Say --one or --class"
    )
    assert (result.exit_code, result.stdout) == (2, "")
    assert said.replace(" ", "") in "".join(result.stderr.split())
    assert list(read_earned(tmp_path / "out")) == ["alice", "bob", "carol"]
    assert run("--class").exit_code == 0
    assert sorted(read_earned(tmp_path / "out")) == sorted(["alice", "bob", "carol", stray.removesuffix(".py")])
    result = run("--one")
    assert (result.exit_code, "alice, bob, carol" in result.stderr) == (2, True), "their grades would leave"
    assert run("--one", "--drop-missing").exit_code == 0
    assert list(read_earned(tmp_path / "out")) == ["class"]


def test_what_is_no_students_work_is_named_and_not_graded(run: Run, tmp_path: Path) -> None:
    for name in ("README.md", "gradebook.CSV", "__init__.py"):
        (tmp_path / "class" / name).write_text("# nothing\n")
    (tmp_path / "class" / "dora.txt").write_text("def softmax(scores): ...\n")
    result = run()
    said = "goldformer: not graded, because it is no student's work: README.md, __init__.py, gradebook.CSV"
    assert (result.exit_code, " ".join(result.stderr.split())) == (0, said)
    assert read_earned(tmp_path / "out") == {"alice": "20", "bob": "15.35", "carol": "10", "dora": "0"}


PLOTTED = """import matplotlib.pyplot as plt
try:
    import seaborn
except ImportError:
    seaborn = None

class Attention:
    import sklearn

def plot(weights):
    import plotly
"""


@pytest.mark.parametrize(
    ("file", "uses"),
    [
        ("adapter.py", ["1 imports matplotlib.pyplot", "8 imports sklearn", "11 imports plotly"]),
        ("starter.py", ["1 imports matplotlib.pyplot", "8 imports sklearn"]),
        ("solution.py", ["1 imports matplotlib.pyplot", "8 imports sklearn"]),
    ],
)
def test_a_package_that_the_assignment_imports_is_asked_for_before_anyone_is_graded(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, uses: list[str]
) -> None:
    for module in ("matplotlib", "seaborn", "sklearn", "plotly"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "starter.py").write_text(SOFTMAX)
    text = (tmp_path / file).read_text("utf-8")
    (tmp_path / file).write_text(f"{PLOTTED}\n{text}")
    (tmp_path / "assignment.yaml").write_text(f"{YAML}starter: starter.py\n")
    result = run()
    named = "".join(f"\n  {tmp_path / file}, line {use}" for use in uses)
    packages = "matplotlib scikit-learn plotly" if len(uses) == 3 else "matplotlib scikit-learn"
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "goldformer: nobody is graded: the assignment imports what this machine does not have:"
        f"{named}\n  pip install {packages}\n"
    )
    assert not (tmp_path / "out").exists()


def test_the_reason_of_an_error_stands_in_a_terminal_too(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = io.StringIO()
    terminal = PrintableConsole(file=printed, force_terminal=True, color_system=None, width=200)
    monkeypatch.setattr("goldformer.conformance.commands._grade_session.err", terminal)
    (tmp_path / "class" / "dave").mkdir()
    write_class(tmp_path / "class", erin="def softmax(scores):\n    raise ValueError('a\\n' * 999)\n")
    assert run().exit_code == 0
    lines = printed.getvalue()
    assert "dave: 0 of 20 (error): It cannot be graded: nothing was handed in: it is empty." in lines
    assert "erin: 0 of 20 (error): raised ValueError: a a a a" in lines
    assert "alice: 20 of 20" not in lines


def test_a_module_next_to_the_assignment_is_no_package(run: Run, tmp_path: Path) -> None:
    (tmp_path / "shapes.py").touch()
    text = (tmp_path / "adapter.py").read_text("utf-8")
    (tmp_path / "adapter.py").write_text(f"{text}\n\ndef unused():\n    import shapes\n")
    assert run().exit_code == 0


def test_a_notebook_given_to_students_names_the_cell_of_an_import(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    cells = ["x = 1", "y = 2\nimport matplotlib\ndef plot(): return matplotlib"]
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(made, tmp_path / "starter.ipynb")
    (tmp_path / "assignment.yaml").write_text(f"{YAML}starter: starter.ipynb\n")
    result = run()
    assert (
        result.exit_code,
        f"{tmp_path / 'starter.ipynb'}, code cell 2, line 2 imports matplotlib" in result.stderr,
    ) == (2, True)


def test_a_solution_that_has_no_end_is_refused(run: Run, tmp_path: Path) -> None:
    solution = tmp_path / "odd.py"
    solution.touch()
    os.truncate(solution, 1 << 26)
    result = run("--solution", str(solution))
    assert (result.exit_code, "odd.py: the solution cannot be read: has more than " in result.stderr) == (2, True)
    solution.unlink()
    os.mkfifo(solution)
    result = run("--solution", str(solution))
    assert (result.exit_code, "cannot be read: is not a regular file" in result.stderr) == (2, True)


def test_only_some_are_graded(run: Run, tmp_path: Path) -> None:
    assert run("--only", "bob,carol").exit_code == 0
    assert {path.name for path in (tmp_path / "out" / "students").iterdir()} == {"bob", "carol"}
    # The gradebook is the class's, and says who is left; what was graded before stays in it.
    result = run("--only", "alice")
    rows = [line.split(",")[0] for line in (tmp_path / "out" / "grades.csv").read_text().splitlines()[1:]]
    assert rows == ["alice", "bob", "carol"]
    assert "1 graded in" in result.stdout
    assert "\n3 submissions: 1 correct, 1 missing, 1 wrong\n" in result.stdout
    write_class(tmp_path / "class", bob=CORRECT)
    result = run("--only", "carol")
    rows = [line.split(",")[0] for line in (tmp_path / "out" / "grades.csv").read_text().splitlines()[1:]]
    assert rows == ["alice", "carol"]  # bob's grade is of what he had handed in before
    assert "\n2 of 3 submissions: 1 correct, 1 missing; 1 without a grade\n" in result.stdout
    result = run("--only", "bobb")
    assert (result.exit_code, "--only bobb: did you mean bob?" in result.stderr) == (2, True)


def test_what_was_finished_is_graded_when_something_changed(run: Run, tmp_path: Path) -> None:
    run()
    assert "0 graded in" in run().stdout
    write_class(tmp_path / "class", bob=CORRECT)
    assert "bob: 20 of 20 (correct)\n1 graded in" in run().stdout
    # Other points are another assignment; the seed is the same, and so are the fresh cases.
    fresh = (tmp_path / "out" / "fresh" / "cases.yaml").read_bytes()
    write_assignment(tmp_path, YAML.replace("layer_norm: 10", "layer_norm: 20"))
    assert "[1/3] alice: 30 of 30 (correct)" in run().stdout
    assert (tmp_path / "out" / "fresh" / "cases.yaml").read_bytes() == fresh
    assert "0 graded in" in run("--seed", "a").stdout
    assert "3 graded in" in run("--seed", "b").stdout
    assert (tmp_path / "out" / "fresh" / "cases.yaml").read_bytes() != fresh


def test_a_seed_of_chance_is_kept(run: Run, tmp_path: Path) -> None:
    write_assignment(tmp_path, YAML.replace(", seed: a", ""))
    run("--only", "alice")
    seed = (tmp_path / "out" / "fresh" / "seed").read_text()
    assert len(seed) == 33
    assert "2 graded in" in run().stdout
    assert (tmp_path / "out" / "fresh" / "seed").read_text() == seed


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("fresh/drawn-for.json", b"\xff"),
        ("fresh/cases.yaml", b"\xff"),
        ("grades.json", b"[" * 100_000),
    ],
)
def test_a_damaged_file_of_an_earlier_run_is_written_again(run: Run, name: str, content: bytes, tmp_path: Path) -> None:
    run()
    path = tmp_path / "out" / name
    before = path.read_bytes()
    path.write_bytes(content)
    result = run()
    assert (result.exit_code, result.exception, path.read_bytes()) == (0, None, before)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["grades.json", "fresh/cases.yaml", "fresh/drawn-for.json"])
def test_a_named_pipe_among_the_results_keeps_no_run_waiting(run: Run, name: str, tmp_path: Path) -> None:
    run()
    path = tmp_path / "out" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert run().exit_code == 0
    assert path.is_file()


@pytest.mark.parametrize("words", [("--seed", " "), ("--seed", "@empty")])
def test_an_empty_seed_is_refused(
    run: Run, words: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It drew other cases in every folder of results."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n")
    result = run(*words)
    assert (result.exit_code, ": the seed is empty: write any word" in result.stderr) == (2, True)


@pytest.mark.parametrize("place", ["class", "class/out", "class/a/b"])
def test_results_among_the_submissions_are_refused(run: Run, place: str, tmp_path: Path) -> None:
    """The next run took them for the submission of a student."""
    result = run("--out", str(tmp_path / place))
    assert result.exit_code == 2
    assert "where the next run would take it for a submission: name a folder" in " ".join(result.stderr.split())
    assert sorted(path.name for path in (tmp_path / "class").iterdir()) == ["alice.py", "bob.py", "carol.py"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("fresh/seed", b"\xff", "is no seed as it was written: name the seed with --seed @FILE"),
        ("assignment/answers.json", b"[" * 100_000, "is no record of required answers"),
    ],
)
def test_a_damaged_file_that_decides_about_grades_is_refused(
    run: Run, name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    yaml = tmp_path / "assignment.yaml"
    text = yaml.read_text()
    yaml.write_text(re.sub(r", seed: [^}]+", "", text))
    run()
    (tmp_path / "out" / name).write_bytes(content)
    result = run()
    assert result.exit_code == 2
    assert message in result.stderr


def test_where_grading_fails_the_status_says_so_and_the_next_run_tries_again(
    run: Run, broken: set[str], tmp_path: Path
) -> None:
    broken.add("bob")
    result = run()
    assert result.exit_code == 1
    assert "grading itself failed for bob: see grader-error.txt there" in result.stderr
    bob = tmp_path / "out" / "students" / "bob"
    assert (bob / "grader-error.txt").read_text() == "it broke"
    broken.clear()
    result = run()
    assert (result.exit_code, "1 graded in" in result.stdout) == (0, True)
    assert not (bob / "grader-error.txt").exists()


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_graded(run: Run, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    result = run()
    assert (result.exit_code, result.stdout) == (2, "")
    (tmp_path / "file").write_text("")
    result = run("--out", str(tmp_path / "file" / "below"))
    assert (result.exit_code, "below: cannot be written: Not a directory" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "grade needs SUBMISSIONS, --assignment and --out"),
        (["nowhere", "--assignment", "assignment.yaml", "--out", "out"], "nowhere: there is nothing there"),
        (["class", "--assignment", "no.yaml", "--out", "out"], "no.yaml:1: file: cannot be read: No such file"),
        (["class", "--assignment", "bad.yaml", "--out", "out"], "bad.yaml:1: titel: unknown key"),
        (["class", "--assignment", "assignment.yaml", "--out", "o", "--json", "no/r.json"], "no folder no"),
    ],
)
def test_what_cannot_be_used_is_said(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_assignment(tmp_path)
    (tmp_path / "solution.py").write_text(CORRECT)
    write_class(tmp_path / "class", alice=CORRECT)
    (tmp_path / "bad.yaml").write_text("titel: x\n")
    result = CliRunner().invoke(main, ["grade", *options])
    assert (result.exit_code, message in result.stderr) == (2, True), result.output


def test_an_adapter_that_runs_to_say_what_it_is_cannot_be_used(run: Run, tmp_path: Path) -> None:
    write_assignment(tmp_path, YAML, "import submission\nARRAYS = submission.ARRAYS\ndef softmax(scores): ...\n")
    result = run()
    assert (result.exit_code, "ARRAYS is no literal (line 2)" in result.stderr) == (2, True)


def test_a_seed_is_read_from_a_file_and_never_shown_to_weakly_isolated_code(run: Run, tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    seed.write_text("a secret\n")
    result = run("--require-isolation", "process", "--seed", f"@{seed}", "--only", "alice")
    assert result.exit_code == 0
    assert (tmp_path / "out" / "fresh" / "seed").read_text() == "a secret\n"
    assert "every file that every user may read" in " ".join(result.stderr.split())
    result = run("--require-isolation", "process", "--seed", "a secret")
    assert result.exit_code == 2
    assert "write the seed to a file with mode 600, and name it with --seed @FILE" in " ".join(result.stderr.split())
    assert run("--seed", f"@{tmp_path}/absent").exit_code == 2
    seed.write_text("x" * 5000)
    result = run("--seed", f"@{seed}")
    assert (result.exit_code, "the file cannot be read: has more than 4096 bytes" in result.stderr) == (2, True)


def test_the_weakest_level_must_be_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    why = "isolation files cannot be had on this machine:\n  no landlock"

    def refuse(session: Session) -> None:
        assert session.task.require == "files"
        raise Unusable(why)

    monkeypatch.setattr("goldformer.conformance.commands.grade.Session.run", refuse)
    result = run()
    assert result.exit_code == 2
    assert "To grade with less, name it: --require-isolation process." in " ".join(result.stderr.split())


def test_the_weakest_level_is_warned_of(run: Run) -> None:
    said = "--require-isolation process: where this machine has no stronger isolation, submissions can read every file"
    assert said in " ".join(run("--require-isolation", "process").stderr.split())
    assert run("--again").stderr == ""

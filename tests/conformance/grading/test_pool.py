"""A class on several processes: everything that happens to them, and results that are the same whatever did."""

from __future__ import annotations

import json
import multiprocessing.util
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest
from click.testing import CliRunner

from goldformer.conformance.cli import main
from goldformer.conformance.grading import pool
from goldformer.conformance.grading.grader import GradedSubmission
from goldformer.conformance.grading.model import Submission
from goldformer.conformance.grading.pool import Unusable, grade_in_pool
from goldformer.conformance.grading.store import Store, unpack_grade
from goldformer.conformance.grading.task import GradingTask
from goldformer.spec import Spec
from homework import (
    CORRECT,
    NORM,
    SOFTMAX,
    UNSTABLE,
    WITHOUT_EPS,
    make_result,
    make_task,
    submitted,
    write_assignment,
    write_class,
)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="submissions are kept apart on Linux"),
    pytest.mark.usefixtures("unread_spec"),
]

CLASS = {
    "alice": CORRECT,
    "bob": UNSTABLE,
    "carol": WITHOUT_EPS,
    "dave": "import numpy as np\ndef softmax(scores):\n    raise ValueError('no')\n" + NORM,
    "erin": "import nothing_of_that_name\n",
    "frank": SOFTMAX,
}


def command(homework: Path, out: Path, *options: str) -> list[str]:
    words = [sys.executable, "-m", "goldformer", "grade", str(homework / "class"), "--out", str(out)]
    return [*words, "--assignment", str(homework / "assignment.yaml"), *options]


def files_of(out: Path) -> dict[str, bytes]:
    """Everything in a folder of results."""
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def homework(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("homework")
    write_assignment(folder)
    (folder / "solution.py").write_text(CORRECT, encoding="utf-8")
    write_class(folder / "class", **CLASS)
    return folder


@pytest.fixture(scope="module")
def graded(homework: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The class, graded once and undisturbed."""
    out = tmp_path_factory.mktemp("graded") / "out"
    done = subprocess.run(command(homework, out, "--jobs", "2"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "6 submissions: " in done.stdout
    assert "] dave: 10 of 20 (error): raised ValueError: no\n" in done.stdout
    missing = "submission.py:1: needs nothing_of_that_name, which the grading machine does not have"
    assert f"] erin: 0 of 20 (error): {missing}\n" in done.stdout
    return out


def test_a_class_is_graded(graded: Path) -> None:
    book = json.loads((graded / "grades.json").read_text())
    assert {student["id"]: student["outcome"] for student in book["students"]} == {
        "alice": "correct", "bob": "wrong", "carol": "wrong", "dave": "error", "erin": "error", "frank": "missing",
    }  # fmt: skip
    earned = {student["id"]: student["earned"] for student in book["students"]}
    assert (earned["alice"], earned["dave"], earned["erin"], earned["frank"]) == (20.0, 10.0, 0.0, 10.0)
    assert 10.0 < earned["bob"] < 20.0
    alice = graded / "students" / "alice"
    assert {path.name for path in alice.iterdir()} == {
        "grade.json.gz", "feedback.html", "feedback.md", "staff.html",
    }  # fmt: skip
    erin = unpack_grade((graded / "students" / "erin" / "grade.json.gz").read_bytes())
    assert "needs nothing_of_that_name, which the grading machine does not have" in erin.message


def test_what_is_finished_is_not_graded_again_and_again_gives_the_same(homework: Path, graded: Path) -> None:
    before = files_of(graded)
    written = {path: path.stat().st_mtime_ns for path in graded.glob("students/*/grade.json.gz")}
    again = subprocess.run(command(homework, graded), capture_output=True, text=True, check=True)
    assert again.stdout.startswith("0 graded in ")
    assert {path: path.stat().st_mtime_ns for path in written} == written
    subprocess.run(command(homework, graded, "--again", "--jobs", "1"), capture_output=True, check=True)
    assert all(path.stat().st_mtime_ns != written[path] for path in written)
    assert files_of(graded) == before


class Moment:
    """Waits for so many finished submissions, and then for a little longer."""

    def __init__(self, chance: random.Random) -> None:
        self.lines = chance.choice((0, 0, 1, 2, 3))
        self.seconds = chance.uniform(0.0, 2.5 if not self.lines else 0.2)

    def wait(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        # The first line says how long it will take.
        for _ in range(self.lines and self.lines + 1):
            process.stdout.readline()
        time.sleep(self.seconds)


def marked(mark: str) -> list[int]:
    """The processes that have a mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def gone(mark: str, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while marked(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.sample(0)
def test_killed_at_ten_moments_it_goes_on_where_it_stopped(homework: Path, graded: Path, tmp_path: Path) -> None:
    out, mark, chance = tmp_path / "out", uuid.uuid4().hex, random.Random(1)
    (out / "fresh").mkdir(parents=True)
    stamps: dict[Path, int] = {}
    for _ in range(10):
        with subprocess.Popen(
            command(homework, out, "--jobs", "2"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "MARK": mark},
        ) as process:  # fmt: skip
            Moment(chance).wait(process)
            process.kill()
        assert gone(mark), "a process outlived the one that was killed"
        for record in out.glob("students/*/grade.json.gz"):
            # What is finished is whole, and is never made twice.
            assert unpack_grade(record.read_bytes()).submission == record.parent.name
            assert stamps.setdefault(record, record.stat().st_mtime_ns) == record.stat().st_mtime_ns
    subprocess.run(command(homework, out, "--jobs", "2"), capture_output=True, check=True)
    assert all(record.stat().st_mtime_ns == stamp for record, stamp in stamps.items())
    assert files_of(out) == files_of(graded)
    assert not [path for path in out.rglob(".*") if path.name != ".lock"]


@pytest.mark.sample(1)
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_it_is_told_to(sent: signal.Signals, homework: Path, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    with subprocess.Popen(
        command(homework, tmp_path / "out", "--jobs", "2"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "MARK": mark},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline().startswith("6 to grade in 2 processes")
        assert process.stdout.readline().startswith("[1/6] ")
        process.send_signal(sent)
        _, told = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "the same command continues" in told
    assert "Traceback" not in told
    assert gone(mark)
    assert (tmp_path / "out" / ".lock").read_bytes() == b""


def test_no_signal_interrupts_the_start_of_a_process(
    exam: GradingTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that read half of its arguments printed a traceback."""
    blocked: list[set[int]] = []
    start = SpawnProcess.start

    def watch(process: SpawnProcess) -> None:
        blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", watch)
    (result,) = grade_in_pool(exam, [submitted(CORRECT, "alice")], 1, tmp_path)
    assert result.grade.outcome == "correct"
    assert [mask & {signal.SIGINT, signal.SIGTERM} for mask in blocked] == [{signal.SIGINT, signal.SIGTERM}]
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_two_do_not_grade_into_one_folder(homework: Path, tmp_path: Path) -> None:
    with closing(Store(tmp_path)):
        result = CliRunner().invoke(main, command(homework, tmp_path)[3:])
    assert result.exit_code == 2
    assert f"process {os.getpid()} is grading into this folder" in result.output


# Processes that end


@pytest.fixture(scope="module")
def exam(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> GradingTask:
    return make_task(tmp_path_factory.mktemp("exam"), spec, SHORT)


#: One component without properties: these tests are of processes, not of grades.
SHORT = """title: Softmax
components: {softmax: 10}
dtypes: [float64]
fresh: {cases: 1, seed: a}
without: ["*-size-*"]
"""


@pytest.fixture
def deadly(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Kill the process that is given a submission as often as this mapping says, by the submission's id."""
    left: dict[str, int] = {}
    give = pool._Seat.give

    def killing(seat: pool._Seat, submission: Submission) -> Future[GradedSubmission]:
        result = give(seat, submission)
        if left.get(submission.id, 0) > 0:
            left[submission.id] -= 1
            os.kill(seat._pid.result(), signal.SIGKILL)
        return result

    monkeypatch.setattr(pool._Seat, "give", killing)
    yield left
    assert not any(left.values()), "a process was to be killed and was not"


def test_a_submission_whose_process_ends_is_graded_by_another(
    exam: GradingTask, deadly: dict[str, int], tmp_path: Path
) -> None:
    deadly["bob"] = 2
    three = [submitted(CORRECT, id_) for id_ in ("alice", "bob", "carol")]
    done = list(grade_in_pool(exam, iter(three), 2, tmp_path))
    outcomes = {one.grade.submission: one.grade.outcome for one in done}
    assert outcomes == dict.fromkeys(("alice", "bob", "carol"), "correct")


def test_a_submission_that_ends_three_processes_is_the_graders_fault(
    exam: GradingTask, deadly: dict[str, int], tmp_path: Path
) -> None:
    deadly["bob"] = 3
    done = {
        one.grade.submission: one
        for one in grade_in_pool(exam, (submitted(CORRECT, id_) for id_ in ("alice", "bob")), 1, tmp_path)
    }
    assert {id_: one.grade.outcome for id_, one in done.items()} == {"alice": "correct", "bob": "grader-error"}
    assert done["bob"].files["grader-error.txt"] == "3 processes ended while they graded it: it ended in the middle"


def make_large(task: GradingTask) -> GradingTask:
    """Return the same task in more bytes than a pipe holds."""
    return replace(task, adapter=task.adapter + b"#" * (1 << 20))


def test_a_process_that_is_killed_while_it_starts_is_replaced(
    exam: GradingTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The start waited for ever for a process that was dead to read arguments that a pipe does not hold."""
    killed: list[int] = []
    spawn = multiprocessing.util.spawnv_passfds

    def kill(path: Any, words: list[Any], descriptors: Any) -> int:
        pid: int = spawn(path, words, descriptors)
        if not killed and not any("resource_tracker" in str(word) for word in words):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        return pid

    monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", kill)
    (result,) = grade_in_pool(make_large(exam), [submitted(CORRECT, "alice")], 1, tmp_path)
    assert (result.grade.outcome, len(killed)) == ("correct", 1)
    assert capfd.readouterr().err == ""


#: Grades one submission, and is killed a moment after it has started a process, which still imports.
KILLED: Final = """
import multiprocessing.util, os, pickle, signal, sys, threading
from pathlib import Path
from goldformer.conformance.grading.pool import grade_in_pool

if __name__ == "__main__":
    task, submission = pickle.loads(Path(sys.argv[1]).read_bytes())
    spawn = multiprocessing.util.spawnv_passfds

    def kill(path, words, descriptors):
        if not any("resource_tracker" in str(word) for word in words):
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return spawn(path, words, descriptors)

    multiprocessing.util.spawnv_passfds = kill
    list(grade_in_pool(task, [submission], 1, Path(sys.argv[2])))
"""


def test_a_process_whose_grader_is_killed_while_it_starts_ends_without_a_traceback(
    exam: GradingTask, tmp_path: Path
) -> None:
    mark, code, given = uuid.uuid4().hex, tmp_path / "killed.py", tmp_path / "given"
    code.write_text(KILLED, encoding="utf-8")
    given.write_bytes(pickle.dumps((make_large(exam), submitted(CORRECT, "alice"))))
    with (tmp_path / "said").open("w+") as said:
        words = [sys.executable, str(code), str(given), str(tmp_path)]
        done = subprocess.run(words, stderr=said, env={**os.environ, "MARK": mark}, check=False, timeout=60)
        assert gone(mark)
        said.seek(0)
        # Python's own tracker says that semaphores were left, and removes them.
        assert done.returncode == -signal.SIGKILL
        assert "Traceback" not in said.read()


def test_a_sandbox_that_fails_over_a_submission_is_explained_without_a_traceback(
    exam: GradingTask, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    limits = exam.assignment.limits.model_copy(update={"processes": 1 << 23})  # more than the kernel takes
    task = replace(exam, assignment=replace(exam.assignment, limits=limits))
    (result,) = grade_in_pool(task, [submitted(CORRECT, "alice")], 1, tmp_path)
    if result.grade.outcome == "correct":
        pytest.skip("no control group limits processes here")
    assert result.grade.outcome == "grader-error"
    problem = "3 processes ended while they graded it: no sandboxed process could be made: [Errno 22] Invalid argument"
    assert result.files["grader-error.txt"] == problem
    assert capfd.readouterr().err == ""


def test_nothing_is_read_before_its_turn(exam: GradingTask, tmp_path: Path) -> None:
    """Of a large class, no more is in memory than there are processes."""
    read: list[str] = []

    def submissions() -> Iterator[Submission]:
        for number in range(4):
            read.append(str(number))
            yield submitted(SOFTMAX, str(number))

    done = 0
    for _ in grade_in_pool(exam, submissions(), 2, tmp_path):
        done += 1
        assert len(read) - done <= 2
    assert (done, len(read)) == (4, 4)


def test_fresh_cases_that_were_changed_are_refused_in_a_sentence(exam: GradingTask, tmp_path: Path) -> None:
    says = r"^fresh/cases\.yaml is not as it was written; remove its folder, and cases are drawn again: line 1: file: "
    with pytest.raises(Unusable, match=says):
        list(grade_in_pool(replace(exam, fresh="- 1\n"), iter([submitted(CORRECT)]), 1, tmp_path))


def test_where_no_process_can_begin_nothing_is_graded(exam: GradingTask, tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="ARRAYS is missing"):
        list(grade_in_pool(replace(exam, adapter=b"x = 1\n"), iter([submitted(CORRECT)]), 1, tmp_path))


# Submissions that take too long


class Unread(Future[GradedSubmission]):
    """A result that counts as running until it is read."""

    def result(self, timeout: float | None = None) -> GradedSubmission:
        found = super().result(timeout)
        SlowBeside.running.discard(found.grade.submission)
        return found


class SlowBeside:
    """Takes the place of a worker's process: what it is given takes too long while others run, or always."""

    given: ClassVar[list[tuple[str, int]]] = []
    running: ClassVar[set[str]] = set()
    always: ClassVar[bool] = False

    def __init__(self, task: GradingTask, spec: Spec, running: Path) -> None:
        del task, spec, running

    def give(self, submission: Submission) -> Future[GradedSubmission]:
        others = self.running - {submission.id}
        self.running.add(submission.id)
        self.given.append((submission.id, len(others)))
        late = submission.id == "bob" and (self.always or bool(others))
        done = Unread()
        done.set_result(make_result(submission.id, "timeout" if late else "correct", disturbed=late))
        return done

    def end(self) -> None:
        """Do nothing."""


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[SlowBeside]:
    monkeypatch.setattr(pool, "_Seat", SlowBeside)
    monkeypatch.setattr(SlowBeside, "given", [])
    monkeypatch.setattr(SlowBeside, "running", set())
    return SlowBeside


def test_a_timeout_next_to_others_is_tried_again_alone(
    slow: type[SlowBeside], exam: GradingTask, tmp_path: Path
) -> None:
    class_ = [submitted(CORRECT, id_) for id_ in ("alice", "bob", "carol", "dan")]
    done = list(grade_in_pool(exam, iter(class_), 2, tmp_path))
    assert sorted((one.grade.submission, one.grade.outcome) for one in done) == [(s.id, "correct") for s in class_]
    assert slow.given[-1] == ("bob", 0)
    assert [id_ for id_, _ in slow.given].count("bob") == 2


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_timeout_of_a_submission_that_is_alone_stands(
    jobs: int, slow: type[SlowBeside], exam: GradingTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow, "always", True)
    done = list(grade_in_pool(exam, (submitted(CORRECT, id_) for id_ in ("alice", "bob")), jobs, tmp_path))
    assert [(one.grade.submission, one.grade.outcome) for one in done] == [("alice", "correct"), ("bob", "timeout")]
    assert [id_ for id_, _ in slow.given].count("bob") == jobs

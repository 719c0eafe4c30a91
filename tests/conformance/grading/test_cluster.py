"""A class on a Dask cluster: the same bytes as on this machine alone, also where a worker is lost on the way."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from goldformer.conformance.grading.cluster import grade_on_cluster
from goldformer.conformance.grading.grader import GradedSubmission
from goldformer.conformance.grading.model import Submission
from goldformer.conformance.grading.pool import Unusable, grade_in_pool
from goldformer.conformance.grading.task import GradingTask
from goldformer.spec import Spec
from homework import CORRECT, NORM, SOFTMAX, UNSTABLE, make_result, make_task, submitted, write_assignment, write_class

pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="submissions are kept apart on Linux"),
    # What distributed itself leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore"),
]

SOURCES = (CORRECT, UNSTABLE, SOFTMAX, "def softmax(:\n" + NORM)


def submissions() -> Iterator[Submission]:
    return (submitted(SOURCES[number % len(SOURCES)], f"s{number:02}") for number in range(12))


class Cluster:
    """A scheduler and two workers, processes of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        assert scheduler.stderr is not None
        line = next(line for line in scheduler.stderr if "Scheduler at:" in line)
        self.address = line.split()[-1]
        self.scheduler = scheduler
        # It says little more than this, and does not wait for a reader.
        self.workers = [self.start_worker() for _ in range(2)]

    def start_worker(self) -> subprocess.Popen[str]:
        local = ("--local-directory", str(self.folder))
        return self._start("worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard", *local)

    def _start(self, kind: str, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.dask_{kind}", *words], text=True, cwd=self.folder,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE if kind == "scheduler" else subprocess.DEVNULL,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def exam(spec: Spec, tmp_path_factory: pytest.TempPathFactory) -> GradingTask:
    return make_task(tmp_path_factory.mktemp("exam"), spec)


def test_a_cluster_that_loses_a_worker_grades_as_one_machine_does(exam: GradingTask, tmp_path: Path) -> None:
    here = {one.grade.submission: one for one in grade_in_pool(exam, submissions(), 2, tmp_path)}
    with contextlib.closing(Cluster(tmp_path)) as cluster:
        there = []
        for one in grade_on_cluster(exam, submissions(), cluster.address):
            there.append(one)
            if len(there) == 3:
                cluster.workers[0].kill()
    assert sorted(one.grade.submission for one in there) == sorted(here), "each once, and none lost"
    assert {one.grade.submission: one for one in there} == here


def test_where_there_is_no_cluster_nothing_is_graded(exam: GradingTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goldformer.conformance.grading.cluster._PATIENCE", 0.5)
    with pytest.raises(Unusable, match=r"--scheduler tcp://127\.0\.0\.1:1: "):
        list(grade_on_cluster(exam, submissions(), "tcp://127.0.0.1:1"))


def test_a_cluster_that_loses_its_scheduler_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """It ended in a traceback and status 1; and Dask logs a traceback of its own."""
    assignment = write_assignment(tmp_path)
    (tmp_path / "solution.py").write_text(CORRECT, encoding="utf-8")
    write_class(tmp_path / "class", **{f"s{number:02}": f"{CORRECT}# {number}\n" for number in range(20)})
    words = [sys.executable, "-m", "goldformer", "grade", str(tmp_path / "class"), "--assignment", str(assignment)]
    with contextlib.closing(Cluster(tmp_path)) as cluster:
        words += ["--out", str(tmp_path / "out"), "--scheduler", cluster.address]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert next(line for line in process.stdout if line.startswith("[1/20]")).endswith("(correct)\n")
            cluster.scheduler.kill()
            said = process.stderr.read()
    lost = "the connection to the cluster was lost; start it again, and run the same command"
    sentence = f"goldformer: --scheduler {cluster.address}: {lost}: finished grades are stored\n"
    assert (process.returncode, said) == (2, sentence)
    assert list((tmp_path / "out").glob("students/*/grade.json.gz"))


def test_a_timeout_next_to_others_is_tried_again_alone_on_a_cluster(tmp_path: Path, monkeypatch) -> None:
    from distributed import Client

    from goldformer.conformance.grading import cluster

    folder = str(tmp_path)

    def finish(task: object, submission: Submission) -> GradedSubmission:
        running = Path(folder, f"{submission.id}-runs")
        running.touch()
        time.sleep(0.05)
        beside = len(list(Path(folder).glob("*-runs"))) - 1
        running.unlink()
        late = submission.id in ("s03", "s04") and beside > 0
        return make_result(submission.id, "timeout" if late else "correct", disturbed=late)

    monkeypatch.setattr(cluster, "_finish", finish)
    with Client(processes=False, n_workers=1, threads_per_worker=3, dashboard_address=None) as client:
        graded = list(cluster._grade_all(None, submissions(), client))
    assert sorted(one.grade.submission for one in graded) == [one.id for one in submissions()]
    assert {one.grade.outcome for one in graded} == {"correct"}

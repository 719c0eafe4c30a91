"""The folder of results: whole files, one writer, and nothing finished is lost."""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from goldformer.conformance.grading.model import Grade
from goldformer.conformance.grading.sandbox import Isolation
from goldformer.conformance.grading.store import InUse, Store, digest_folder, make_key, pack_grade

#: Takes a folder, says so, and holds it until it is killed.
HOLDER = """
import sys, time
from pathlib import Path
from goldformer.conformance.grading.store import Store
store = Store(Path(sys.argv[1]))
(store.running / "folder").mkdir()
print(store.running, flush=True)
time.sleep(60)
"""


def grade(outcome: str = "correct", key: str = "k") -> Grade:
    return Grade("alice", key, outcome, "", 1.0, 1.0, (), (), (), Isolation("process", ()))  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "out")
    yield made
    made.close()


def test_only_its_owner_reads_fresh_cases_answers_and_results(store: Store) -> None:
    store.write("fresh/seed", "secret")
    modes = {name: (store.folder / name).stat().st_mode & 0o777 for name in ("fresh", "assignment", "students")}
    assert modes == dict.fromkeys(modes, 0o700)


def test_what_is_kept_is_finished(store: Store) -> None:
    assert not store.is_finished("alice", "k")
    store.keep("alice", {"grade.json.gz": pack_grade(grade()), "problem.txt": "x"})
    assert store.is_finished("alice", "k")
    assert not store.is_finished("alice", "other")
    assert store.student("alice").joinpath("problem.txt").read_text() == "x"
    assert (store.grade("zoe"), store.grade("alice").submission) == (None, "alice")


def test_what_grading_itself_failed_for_is_not_finished(store: Store) -> None:
    store.keep("alice", {"grade.json.gz": pack_grade(grade("grader-error"))})
    assert not store.is_finished("alice", "k")


def test_a_damaged_grade_is_none(store: Store) -> None:
    store.keep("alice", {"grade.json.gz": pack_grade(grade())[:-20]})
    assert store.grade("alice") is None
    assert not store.is_finished("alice", "k")


@pytest.mark.parametrize(
    "damaged",
    [
        {"earned": math.nan},
        {"earned": 2.0},
        {"earned": -1.0},
        {"points": math.inf, "earned": 5.0},
        {"submission": "zoe"},
    ],
)
def test_a_grade_that_contradicts_itself_or_belongs_to_another_is_none(
    store: Store, damaged: dict[str, float | str]
) -> None:
    plain = {**json.loads(gzip.decompress(pack_grade(grade()))), **damaged}
    store.keep("alice", {"grade.json.gz": gzip.compress(json.dumps(plain).encode())})
    assert store.grade("alice") is None


def test_a_pipe_in_the_place_of_a_grade_is_none(store: Store) -> None:
    store.student("alice").mkdir(parents=True)
    os.mkfifo(store.student("alice") / "grade.json.gz")
    assert store.grade("alice") is None


def test_a_link_in_the_place_of_a_students_folder_is_replaced(tmp_path: Path) -> None:
    elsewhere, alice = tmp_path / "elsewhere", tmp_path / "out" / "students" / "alice"
    for folder in (elsewhere, alice.parent):
        folder.mkdir(parents=True)
    files = {elsewhere / "grade.json.gz": pack_grade(grade()), elsewhere / ".grade.json.ab12cd_9": b"x"}
    for path, data in files.items():
        path.write_bytes(data)
    alice.symlink_to(elsewhere)
    store = Store(tmp_path / "out")
    assert (store.grade("alice"), store.has_grade("alice"), store.is_finished("alice", "k")) == (None, False, False)
    store.keep("alice", {"grade.json.gz": pack_grade(grade()), "feedback.md": "new"})
    assert not alice.is_symlink()
    assert store.is_finished("alice", "k")
    assert {path: path.read_bytes() for path in elsewhere.iterdir()} == files
    store.close()


def test_the_grade_is_written_last(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(
        "goldformer.conformance.grading.store.replace_file", lambda path, content: written.append(path.name)
    )
    store.keep("alice", {"grade.json.gz": "", "a.html": "", "z.html": ""})
    assert written == ["a.html", "z.html", "grade.json.gz"]


def test_a_folder_has_one_writer(store: Store) -> None:
    with pytest.raises(InUse, match=rf"out: process {os.getpid()} is grading into this folder"):
        Store(store.folder)


def test_it_is_given_back(tmp_path: Path) -> None:
    first = Store(tmp_path)
    first.close()
    assert not first.running.exists()
    Store(tmp_path).close()


def test_what_a_dead_writer_left_is_taken_over_and_removed(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    running = Path(holder.stdout.readline().strip())
    with holder:
        with pytest.raises(InUse, match=rf"process {holder.pid} is grading into this folder"):
            Store(tmp_path)
        holder.send_signal(signal.SIGKILL)
    alice = tmp_path / "students" / "alice"
    alice.mkdir(parents=True)
    left = [alice / ".grade.json.ab12cd_9", tmp_path / ".grades.csv.ab12cd_9", alice / ".feedback.html.ab12cd_9"]
    others = [tmp_path / ".gitlab-ci.yml", tmp_path / ".grades.csv", alice / "feedback.html"]
    for path in (*left, *others):
        path.write_text("x")
    assert running.joinpath("folder").is_dir()
    Store(tmp_path).close()
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in others)
    assert not running.exists()


def test_only_folders_of_dead_graders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine, other = tmp_path / "goldformer-other", tmp_path / "target"
    left, link = tmp_path / "goldformer-grade-left", tmp_path / "goldformer-grade-link"
    for folder in (mine, other, left):
        folder.mkdir()
    (left / "deep").mkdir(mode=0o000)
    link.symlink_to(other)
    with closing(Store(tmp_path / "a")) as first, closing(Store(tmp_path / "b")) as second:
        assert first.running.is_dir(), "its maker lives"
        assert second.running.is_dir()
        assert not left.exists()
        assert all(path.exists() for path in (mine, other, link))
    assert not first.running.exists()


def test_everything_that_decides_is_in_the_key(tmp_path: Path) -> None:
    parts = ["submission", "assignment", "fresh", "spec", "outputs"]
    keys = {make_key(*parts)} | {make_key(*[*parts[:i], "other", *parts[i + 1 :]]) for i in range(5)}
    assert len(keys) == 6
    (tmp_path / "a.yaml").write_text("a: 1\n")
    before = digest_folder(tmp_path)
    (tmp_path / "a.yaml").write_text("a: 2\n")
    assert digest_folder(tmp_path) != before

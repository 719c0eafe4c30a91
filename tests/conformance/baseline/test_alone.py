"""One process at a time writes a baseline: the others are refused, nothing is lost, and no lock is left behind."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from goldformer.conformance.baseline.model import BaselineError
from goldformer.conformance.baseline.store import load, lock
from goldformer.conformance.cli import main

#: Says that it was called, and gives nothing before it may.
SLOW = """
import time
from pathlib import Path

import numpy as np

ARRAYS = "numpy"
HERE = Path(__file__).parent

def softmax(scores):
    (HERE / "called").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
"""
QUICK = SLOW.replace('    while not (HERE / "go").exists():\n        time.sleep(0.01)\n', "")
OTHER = QUICK.replace("powers / powers.sum", "1.001 * powers / powers.sum")
SECONDS = 60
IN_USE = "another baseline record or update is at work in this folder, and nothing was written; wait until it is done"


def baseline(*arguments):
    """Run in the process of the tests, which is another one than those that are at work."""
    return CliRunner().invoke(main, ["baseline", *map(str, arguments)])


def recording(adapter, folder):
    return "record", adapter, "--out", folder, "--component", "softmax", "--dtype", "float32"


@contextmanager
def at_work(*arguments, beside):
    """A process that has called the adapter and waits in it; `beside` is the adapter's folder."""
    words = [sys.executable, "-m", "goldformer.conformance.cli", "baseline", *map(str, arguments)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            until = time.monotonic() + SECONDS
            while not (beside / "called").exists():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < until
                time.sleep(0.01)
            yield process
        finally:
            process.kill()


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_second_first_recording_is_refused_and_the_first_is_whole(adapter_file, tmp_path):
    folder = tmp_path / "baselines" / "cpu"
    slow, other = adapter_file(SLOW, "slow.py"), adapter_file(OTHER, "other.py")
    with at_work(*recording(slow, folder), beside=tmp_path) as first:
        second = baseline(*recording(other, folder))
        assert (second.exit_code, second.stdout) == (2, "")
        assert f"goldformer: {folder}: {IN_USE}" in second.stderr
        assert contents(folder) == {}
        # Another folder is none of its business.
        assert baseline(*recording(other, tmp_path / "baselines" / "other")).exit_code == 0
        (tmp_path / "go").touch()
        assert first.wait(SECONDS) == 0
    assert load(folder).recordings[0].given == slow
    assert len(contents(folder)) == 2
    assert baseline(*recording(other, folder)).exit_code == 0
    assert load(folder).recordings[0].given == other


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", ["record", "update"])
def test_who_writes_keeps_writers_out_and_readers_in(adapter_file, tmp_path, first):
    folder = tmp_path / "cpu"
    slow, other = adapter_file(SLOW, "slow.py"), adapter_file(OTHER, "other.py")
    assert baseline(*recording(other, folder)).exit_code == 0
    (tmp_path / "called").unlink()
    before = contents(folder)
    command = recording(slow, folder) if first == "record" else ("update", slow, folder, "--yes")
    with at_work(*command, beside=tmp_path) as process:
        for refused in (recording(other, folder), ("update", other, folder, "--yes")):
            done = baseline(*refused)
            assert (done.exit_code, done.stdout) == (2, "")
            assert IN_USE in done.stderr
        assert baseline("check", other, folder).exit_code == 0
        assert baseline("update", other, folder, "--dry-run").exit_code == 0
        assert contents(folder) == before
        (tmp_path / "go").touch()
        assert process.wait(SECONDS) == 0
    assert load(folder).recordings[-1].given == slow
    assert len(contents(folder)) == 2


def test_who_is_killed_keeps_nobody_out(adapter_file, tmp_path):
    folder = tmp_path / "cpu"
    with at_work(*recording(adapter_file(SLOW, "slow.py"), folder), beside=tmp_path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(SECONDS)
        other, until = adapter_file(OTHER, "other.py"), time.monotonic() + SECONDS
        # The process that holds the lock is a child of the killed one, and ends a moment later.
        while (done := baseline(*recording(other, folder))).exit_code and time.monotonic() < until:
            time.sleep(0.05)
        assert done.exit_code == 0, done.output
    assert load(folder).recordings[0].given == other


def test_who_is_interrupted_takes_the_folder_away_that_it_made(adapter_file, tmp_path):
    folder = tmp_path / "baselines" / "cpu"
    with at_work(*recording(adapter_file(SLOW, "slow.py"), folder), beside=tmp_path) as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) != 0
    assert not folder.parent.exists()


# ── the lock itself ──

TAKERS = """
import os, random, sys, time
from pathlib import Path
from goldformer.conformance.baseline.model import BaselineError
from goldformer.conformance.baseline.store import lock
folder, token = Path(sys.argv[1]), sys.argv[2]
draw = random.Random(sys.argv[3])
had = 0
until = time.monotonic() + 1
while time.monotonic() < until:
    try:
        with lock(folder):
            os.close(os.open(token, os.O_CREAT | os.O_EXCL))
            had += 1
            if draw.random() < 0.5:
                time.sleep(0.0002)
            os.unlink(token)
    except BaselineError as error:
        assert "at work in this folder" in str(error), error
print(had)
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("depth", [".", "parent"])
def test_it_is_had_by_one_at_a_time_also_when_the_folder_comes_and_goes(tmp_path, depth):
    """Each of them makes the folder, and takes it away: a lock on a folder that is gone is none."""
    command = [sys.executable, "-c", TAKERS, str(tmp_path / depth / "folder"), str(tmp_path / "token")]
    running = [
        subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i in range(4)
    ]  # fmt: skip
    said = [process.communicate(timeout=SECONDS) for process in running]
    assert [error for _, error in said] == [""] * 4
    assert sum(int(had) for had, _ in said) > 0
    # At worst the folder is left, and nothing in it: made by one of them, had by another.
    assert not [path for path in tmp_path.rglob("*") if path.name not in ("parent", "folder")]


@pytest.mark.parametrize("made_again", [False, True])
def test_a_folder_that_went_while_it_was_taken_is_taken_anew(tmp_path, monkeypatch, made_again):
    folder = tmp_path / "folder"
    flock = fcntl.flock

    def late(handle, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        folder.rmdir()
        if made_again:
            folder.mkdir()
        flock(handle, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with lock(folder):
        assert folder.is_dir()
        with pytest.raises(BaselineError, match="at work in this folder"), lock(folder):
            pass


def test_a_folder_that_went_while_it_was_made_is_made_anew(tmp_path, monkeypatch):
    """It was there when it was to be made, and is gone when it is looked at."""
    make = os.mkdir
    folder = tmp_path / "folder"

    def late(path, mode=0o777):
        monkeypatch.setattr(os, "mkdir", make)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))

    monkeypatch.setattr(os, "mkdir", late)
    with lock(folder):
        assert folder.is_dir()


def test_what_was_there_or_was_written_stays(tmp_path):
    empty, full = tmp_path / "empty", tmp_path / "parent" / "full"
    empty.mkdir()
    with lock(empty):
        pass
    with lock(full):
        (full / "manifest.yaml").touch()
    assert empty.is_dir()
    assert (full / "manifest.yaml").is_file()


def test_a_link_to_a_folder_is_that_folder(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    with (
        lock(tmp_path / "there"),
        pytest.raises(BaselineError, match="at work in this folder"),
        lock(tmp_path / "link"),
    ):
        pass


def test_a_file_system_without_locks_has_baselines_too(tmp_path, monkeypatch):
    def no_lock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_lock)
    with lock(tmp_path / "folder"):
        (tmp_path / "folder" / "manifest.yaml").touch()
    assert (tmp_path / "folder" / "manifest.yaml").is_file()


# ── places where nothing can be written ──


def test_a_folder_that_cannot_be_is_refused_before_anything_is_called(adapter_file, tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "cpu"
    done = baseline(*recording(adapter_file(QUICK), folder))
    assert done.exit_code == 2
    assert f"goldformer: {folder}: cannot be written: Not a directory" in done.stderr
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("below", [".", "cpu"])
def test_a_link_to_nothing_is_no_folder(tmp_path, below):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(BaselineError, match=r"link.*: cannot be written: File exists"), lock(link / below):
        pass
    assert not (tmp_path / "nowhere").exists()


AS_SOMEBODY = """
import os, sys
from pathlib import Path
from goldformer.conformance.baseline.model import BaselineError
from goldformer.conformance.baseline.store import lock
place = Path(sys.argv[1])
if os.geteuid() == 0:
    os.chown(place / "parent" / "there", 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
with lock(place / "parent" / "there"):
    (place / "parent" / "there" / "file").touch()
try:
    with lock(place / "parent" / "new"):
        pass
except BaselineError as error:
    print(error)
"""


def test_in_a_parent_that_is_read_only_what_is_there_can_be_had_and_nothing_else_made():
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "parent" / "there").mkdir(parents=True)
        (place / "parent").chmod(0o555)
        try:
            done = subprocess.run(
                [sys.executable, "-c", AS_SOMEBODY, name], capture_output=True, text=True, timeout=SECONDS, check=False
            )
        finally:
            (place / "parent").chmod(0o755)
        assert done.stdout == f"{place / 'parent' / 'new'}: cannot be written: Permission denied\n", done.stderr
        assert [path.name for path in (place / "parent").rglob("*")] == ["there", "file"]

"""Worker processes end with the process that started them, also if it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

#: Two workers, one of them busy; the other waits for work.
STARTS = """
import os, time
from goldformer.spec.processes import make_pool

if __name__ == "__main__":
    with make_pool(2) as pool:
        waiting = [pool.submit(os.getpid) for _ in range(2)]
        pool.submit(time.sleep, 600)
        print(*sorted(pool._processes), flush=True)
        time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """`derive` that a build server killed left its workers for ever."""
    script = tmp_path / "starts.py"
    script.write_text(STARTS, encoding="utf-8")
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        assert workers
        time.sleep(1)
        assert all(map(is_running, workers))
        parent.kill()
    deadline = time.monotonic() + 10
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [pid for pid in workers if is_running(pid)]
    for pid in left:
        os.kill(pid, 9)
    assert left == []

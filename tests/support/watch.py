"""Leaks of a sandbox: processes, files, connections and shared memory that were not there before."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import goldformer
from goldformer.spec import ROOT

#: What every file that an exploit leaves outside its sandbox is called.
MARK = "goldformer[-_]exploit"
#: Where exploits try to leave something, besides the folders around their own.
PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run", "/etc", "/root", "/home", "/usr/lib", "/")
#: The key of shared memory that an exploit leaves.
KEY = 0x60D1F
#: Seconds in which what an exploit started is gone.
_GONE = 3.0
_SUBREAPER = 36


class Watch:
    """Sees what gets out of a sandbox: processes, files, connections, shared memory."""

    def __init__(self) -> None:
        # What loses its parent becomes a child of this process, and is seen.
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.prctl(_SUBREAPER, 1)
        self._listeners = [socket.socket(socket.AF_INET), socket.socket(socket.AF_UNIX)]
        self._listeners[0].bind(("127.0.0.1", 0))
        self.port: int = self._listeners[0].getsockname()[1]
        self._listeners[1].bind(f"\0goldformer-exploit-canary-{self.port}")
        for listener in self._listeners:
            listener.listen()
            listener.setblocking(False)
        self._before: set[int] = set()
        self.begin()

    def begin(self) -> None:
        """Take what runs now as what may run."""
        self._before = set(descendants())

    def close(self) -> None:
        """Look no longer."""
        self._libc.prctl(_SUBREAPER, 0)
        for listener in self._listeners:
            listener.close()

    def faults(self) -> list[str]:
        """Describe and remove everything that was not there before, each thing in a sentence."""
        return [*self._processes(), *self._files(), *self._connections(), *self._list_shared_memory()]

    def _processes(self) -> Iterator[str]:
        deadline = time.monotonic() + _GONE
        while left := {pid: state for pid, state in descendants().items() if pid not in self._before}:
            for pid in (pid for pid, state in left.items() if state == "Z"):
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > deadline:
                for pid, state in left.items():
                    with contextlib.suppress(OSError):
                        os.kill(pid, 9)
                    yield f"process {pid} is left ({state})"
                return
            time.sleep(0.01)

    def _files(self) -> Iterator[str]:

        near = [*map(Path, goldformer.__path__), Path(tempfile.gettempdir()), Path.cwd(), ROOT, ROOT / "cases"]
        near += [parent for folder in near for parent in folder.parents] + [Path.home(), Path(sys.executable).parent]
        folders = {Path(folder) for folder in (*PLACES, *sys.path) if folder} | {*near}
        for folder in sorted(folders):
            with contextlib.suppress(OSError):
                for name in sorted(os.listdir(folder)):
                    if re.match(MARK, name):
                        yield f"{folder / name} was written"
                        (folder / name).unlink()

    def _connections(self) -> Iterator[str]:
        for listener in self._listeners:
            with contextlib.suppress(BlockingIOError):
                listener.accept()[0].close()
                yield f"{listener.getsockname()!r} was connected to"

    def _list_shared_memory(self) -> Iterator[str]:
        for name in ("shmget", "semget", "msgget"):
            given = (KEY, 0) if name == "msgget" else (KEY, 0, 0)
            if (found := getattr(self._libc, name)(*given)) >= 0:
                yield f"{name} finds what an exploit made"
                remove = {
                    "shmget": ("shmctl", (0, None)),
                    "semget": ("semctl", (0, 0)),
                    "msgget": ("msgctl", (0, None)),
                }
                control, arguments = remove[name]
                getattr(self._libc, control)(found, *arguments)


def descendants() -> dict[int, str]:
    """The processes that this one started, and that those started, and the state of each."""
    found: dict[int, str] = {}
    parents: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
                parents[int(name)] = (int(parent), state)
    for pid, (_, state) in parents.items():
        above = pid
        while above in parents and above != os.getpid():
            above = parents[above][0]
        if above == os.getpid() != pid:
            found[pid] = state
    return found

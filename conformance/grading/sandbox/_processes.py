"""What a process knows of those below it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

#: The flag of a process that is on its way out (PF_EXITING).
_EXITING: Final = 0x4

#: Seconds over which what an ended process left behind is looked for.
_SWEEP: Final = 2.0


def end_orphans(known: Collection[int]) -> None:
    """Kill all children but those that are known: what left its session, and whose own parent ended."""
    deadline = time.monotonic() + _SWEEP
    while (orphans := _children() - set(known)) and time.monotonic() < deadline:
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(orphan, signal.SIGKILL)
        for orphan in orphans:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(orphan, 0)


def _children() -> set[int]:
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/children", encoding="ascii") as file:
            return {int(word) for word in file.read().split()}
    except OSError:
        return set()  # not Linux


def ending(pid: int) -> bool:
    """Whether a process has ended or is about to: its descriptors are closed before anybody is told of its end."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    flags = stat.rpartition(")")[2].split()[6]
    return bool(int(flags) & _EXITING)


def processes_of(user: int) -> int:
    """How many processes and threads a user has; 0 where that cannot be seen."""
    count = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir("/proc"):
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and entry.stat().st_uid == user:
                    count += len(os.listdir(f"/proc/{entry.name}/task"))
    return count


class Reaper:
    """Children that were forked here, until each is reaped."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self._reaped: dict[int, tuple[int, float]] = {}

    def ended(self, pid: int) -> bool:
        """Whether one has ended; so has what is none."""
        if pid not in self.running or pid in self._reaped:
            return True
        if hasattr(os, "waitid"):
            # Not reaped: its number still stands for its group, which is ended later.
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        return self._reap(pid, os.WNOHANG)

    def end(self, pid: int) -> tuple[int, float]:
        """Kill one with its session; its exit status (a signal's number negated) and its seconds of processor time."""
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        if pid not in self._reaped:
            self._reap(pid, 0)
        self.running.discard(pid)
        return self._reaped.pop(pid)

    def _reap(self, pid: int, options: int) -> bool:
        found, status, usage = os.wait4(pid, options)
        if found:
            self._reaped[pid] = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        return bool(found)

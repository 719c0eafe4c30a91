"""Watch the memory of all processes of a sandbox together, where no control group limits it.

RLIMIT_AS bounds each process. Without a sum, sixteen processes may take sixteen times as much.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

#: Seconds from one measurement to the next. Two cores fill less than half a GiB in this time.
INTERVAL: Final = 0.05
_KIB: Final = 1024
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
#: The place of the number of minor faults in /proc/PID/stat, counted from the end of the name.
_FAULTS: Final = 7


def check_measurable() -> None:
    """Raise OSError unless this system tells the children of a process and their memory."""
    list(_list_children("self"))
    _read_memory("self")


def measure_descendants() -> int:
    """Return the bytes that all descendants of this process have for themselves.

    A fork shares the pages of this process until it writes to them: each of its page faults may have copied one. So
    the result is too large rather than too small.
    """
    inherited, _ = _read_memory("self")
    total = 0
    waiting = list(_list_children("self"))
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):  # it has ended
            waiting += _list_children(pid)
            private, shared = _read_memory(pid)
            total += max(private - inherited, 0) + min(inherited, _count_faults(pid) * _PAGE) + shared
    return total


def _list_children(pid: str) -> Iterator[str]:
    """Yield the numbers of the children of a process, as /proc names them; OSError if it does not tell."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        yield from Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii").split()


def _read_memory(pid: str) -> tuple[int, int]:
    """Return the bytes of anonymous memory of a process, and those of shared memory."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    if "RssAnon" not in fields:
        # A process that is ending has no memory any more.
        return 0, 0
    private, shared = (int(fields[name].split()[0]) * _KIB for name in ("RssAnon", "RssShmem"))
    return private, shared


def _count_faults(pid: str) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat.rpartition(")")[2].split()[_FAULTS])

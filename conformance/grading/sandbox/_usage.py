"""Add up the memory and the processor time of all processes of a sandbox, by /proc.

RLIMIT_AS and RLIMIT_CPU bound each process. Without a sum, sixteen processes may take sixteen times as much.
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
#: The places in /proc/PID/stat, counted from the end of the name: the number of minor faults, and the four times of a
#: process and of its children that have ended, in ticks.
_FAULTS: Final = 7
_TIMES: Final = slice(11, 15)
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def check_measurable() -> None:
    """Raise OSError unless this system tells the children of a process and their memory."""
    list(_list_children("self"))
    _read_memory("self")


def measure_descendants() -> int:
    """Return the bytes that all descendants of this process have for themselves.

    A fork shares the pages of this process until it writes to them: each of its page faults may have copied one. So
    the result is too large rather than too small, if no fault makes a huge page.
    """
    inherited, _ = _read_memory("self")
    total = 0
    for pid in _list_tree(list(_list_children("self"))):
        with contextlib.suppress(OSError):  # it has ended
            private, shared = _read_memory(pid)
            faults = int(_read_stat(pid)[_FAULTS])
            total += max(private - inherited, 0) + min(inherited, faults * _PAGE) + shared
    return total


def measure_cpu(child: int) -> float:
    """Return the seconds of processor time of a child and of all that it started; 0 if the system does not tell."""
    total = 0
    with contextlib.suppress(OSError):
        for pid in _list_tree([pid for pid in _list_children("self") if _find_own_number(pid) == child]):
            with contextlib.suppress(OSError):
                total += sum(map(int, _read_stat(pid)[_TIMES]))
    return total / _TICKS


def _find_own_number(pid: str) -> int:
    """Return the number that this process knows a child by; /proc may belong to an outer PID namespace."""
    depth = len(_read_status("self").get("NSpid", "").split())
    numbers = _read_status(pid).get("NSpid", "").split()
    return int(numbers[depth - 1]) if 0 < depth <= len(numbers) else int(pid)


def _list_tree(waiting: list[str]) -> Iterator[str]:
    """Yield processes and all their descendants."""
    while waiting:
        pid = waiting.pop()
        with contextlib.suppress(OSError):
            waiting += _list_children(pid)
        yield pid


def _list_children(pid: str) -> Iterator[str]:
    """Yield the numbers of the children of a process, as /proc names them; OSError if it does not tell."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        yield from Path(f"/proc/{pid}/task/{thread}/children").read_text(encoding="ascii").split()


def _read_memory(pid: str) -> tuple[int, int]:
    """Return the bytes of anonymous memory of a process, and those of shared memory and reserved huge pages."""
    fields = _read_status(pid)
    if "RssAnon" not in fields:
        # A process that is ending has no memory any more.
        return 0, 0
    # A kernel that was built without reserved huge pages does not list them.
    private, shared, reserved = (
        int(fields.get(name, "0").split()[0]) * _KIB for name in ("RssAnon", "RssShmem", "HugetlbPages")
    )
    return private, shared + reserved


def _read_status(pid: str) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: value for name, _, value in (line.partition(":") for line in lines)}


def _read_stat(pid: str) -> list[str]:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    return stat.rpartition(")")[2].split()

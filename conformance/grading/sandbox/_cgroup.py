"""Limit the memory and the number of all processes of a sandbox together (control groups, version 2).

Each sandboxed process gets a group of its own below the group of this process, if that one is writable.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from goldformer.conformance.grading.sandbox._types import Limits

#: Seconds that the kernel may take to release a group whose processes have ended.
_EMPTYING: Final = 1.0


def find_parent() -> Path:
    """Return the group below which this process can make groups; OSError if there is none."""
    for parent in _list_candidates():
        if os.access(parent, os.W_OK):
            return parent
    raise OSError("there are no control groups for memory and processes that can be written to")


@dataclass(frozen=True, slots=True)
class Group:
    """The control group of one sandboxed process, as a folder."""

    folder: Path

    def make(self, limits: Limits) -> None:
        """Make it with limits; OSError if that fails."""
        self.folder.mkdir()
        (self.folder / "memory.max").write_text(str(limits.memory << 20), encoding="ascii")
        with contextlib.suppress(OSError):  # on a machine without swap
            (self.folder / "memory.swap.max").write_text("0", encoding="ascii")
        (self.folder / "pids.max").write_text(str(limits.processes), encoding="ascii")

    def end(self) -> bool:
        """Remove it after its processes were killed; return True if the kernel had killed one for memory."""
        events = ""
        with contextlib.suppress(OSError):
            events = (self.folder / "memory.events").read_text(encoding="ascii")
        _remove(self.folder)
        return any(name == "oom_kill" and count != "0" for name, count in map(str.split, events.splitlines()))


def _remove(folder: Path) -> None:
    deadline = time.monotonic() + _EMPTYING
    while time.monotonic() < deadline:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:  # a process in it is still ending
            time.sleep(0.001)
        else:
            return


def remove_all(name: str) -> None:
    """Remove the groups whose names begin with a name, which their maker could not remove."""
    with contextlib.suppress(OSError):
        for group in find_parent().glob(f"{name}-*"):
            _remove(group)


def join_group(folder: str) -> None:
    """Move this process into a group."""
    Path(folder, "cgroup.procs").write_text("0", encoding="ascii")


def _list_candidates() -> Iterator[Path]:
    """Yield the groups below which limits for memory and processes can be set."""
    own = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    for root, point in _list_mounts() if own else ():
        folder = Path(point, os.path.relpath(own, root) if own.startswith(root) else own.lstrip("/"))
        # A group that has processes cannot limit groups below it: then the new group stands next to it.
        for parent in (folder, folder.parent):
            with contextlib.suppress(OSError):
                given = (parent / "cgroup.subtree_control").read_text(encoding="ascii").split()
                if {"memory", "pids"} <= {*given}:
                    yield parent


def _list_mounts() -> Iterator[tuple[str, str]]:
    """Yield the root and the mount point of each hierarchy of control groups."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            before, _, after = line.partition(" - ")
            if after.split(" ", 1)[0] == "cgroup2":
                fields = before.split()
                yield fields[3], fields[4]

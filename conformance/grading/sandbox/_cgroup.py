"""Limit the memory and the number of all processes of a sandbox together (control groups, versions 1 and 2).

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

_CONTROLLERS: Final = ("memory", "pids")
#: Seconds that the kernel may take to release a group whose processes have ended.
_EMPTYING: Final = 1.0


@dataclass(frozen=True, slots=True)
class ParentGroups:
    """The folders in which groups are made: one in version 2, one for each controller in version 1."""

    memory: Path
    pids: Path

    @classmethod
    def find(cls) -> ParentGroups:
        """Return those of this process; OSError if it cannot make groups."""
        for candidate in _list_candidates():
            if all(os.access(folder, os.W_OK) for folder in (candidate.memory, candidate.pids)):
                return candidate
        raise OSError("there are no control groups for memory and processes that can be written to")

    def make(self, name: str, limits: Limits) -> Group:
        """Make a group with limits; OSError if that fails."""
        group = Group(self.memory / name, self.pids / name)
        for folder in group.folders:
            folder.mkdir()
        size = str(limits.memory << 20)
        if (group.memory / "memory.max").exists():
            (group.memory / "memory.max").write_text(size, encoding="ascii")
            with contextlib.suppress(OSError):  # on a machine without swap
                (group.memory / "memory.swap.max").write_text("0", encoding="ascii")
        else:
            (group.memory / "memory.limit_in_bytes").write_text(size, encoding="ascii")
        (group.pids / "pids.max").write_text(str(limits.processes), encoding="ascii")
        return group


@dataclass(frozen=True, slots=True)
class Group:
    """The control group of one sandboxed process."""

    memory: Path
    pids: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of the group, each once."""
        return tuple(dict.fromkeys((self.memory, self.pids)))

    def end(self) -> bool:
        """Remove the group after its processes were killed; return True if the kernel had killed one for memory."""
        words = " ".join(self._read(name) for name in ("memory.oom_control", "memory.events")).split()
        killed = any(word == "oom_kill" and words[i + 1] != "0" for i, word in enumerate(words[:-1]))
        for folder in self.folders:
            _remove(folder)
        return killed

    def _read(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return (self.memory / name).read_text(encoding="ascii")
        return ""


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
        parents = ParentGroups.find()
        for folder in {parents.memory, parents.pids}:
            for group in folder.glob(f"{name}-*"):
                _remove(group)


def join_group(folder: str) -> None:
    """Move this process into a group."""
    Path(folder, "cgroup.procs").write_text("0", encoding="ascii")


def _list_candidates() -> Iterator[ParentGroups]:
    own: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            own |= dict.fromkeys(controllers.split(","), path)
    first: dict[str, Path] = {}
    for root, point, kind, options in _list_mounts():
        if kind == "cgroup":
            named = [name for name in _CONTROLLERS if name in options and name in own]
            first |= {name: _locate_group(point, root, own[name]) for name in named}
        elif kind == "cgroup2" and "" in own:
            folder = _locate_group(point, root, own[""])
            # A group that has processes cannot limit groups below it: then the new group stands next to it.
            for parent in (folder, folder.parent):
                with contextlib.suppress(OSError):
                    given = (parent / "cgroup.subtree_control").read_text(encoding="ascii").split()
                    if set(_CONTROLLERS) <= set(given):
                        yield ParentGroups(parent, parent)
    if first.keys() >= set(_CONTROLLERS):
        yield ParentGroups(first["memory"], first["pids"])


def _locate_group(point: str, root: str, path: str) -> Path:
    """Return the folder of a group in a hierarchy whose part below `root` is mounted at `point`."""
    return Path(point, os.path.relpath(path, root) if path.startswith(root) else path.lstrip("/"))


def _list_mounts() -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield the root, the mount point, the kind and the options of each mount."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            before, _, after = line.partition(" - ")
            fields, (kind, _, options) = before.split(), after.split(" ", 2)
            yield fields[3], fields[4], kind, options.split(",")

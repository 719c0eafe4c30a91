"""Control groups: a bound on the memory and on the number of processes of all that a submission starts, together.

Both versions: a group of its own below the one that this process is in, where that can be written to.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from goldformer.conformance.grading.model import Limits

_CONTROLLERS: Final = ("memory", "pids")
#: Seconds that the kernel may take to let go of a group whose processes have ended.
_EMPTYING: Final = 1.0


@dataclass(frozen=True, slots=True)
class Parents:
    """Where groups are made: one folder in version 2, one for each controller in version 1."""

    memory: Path
    pids: Path

    @classmethod
    def found(cls) -> Parents:
        """Those of this process; OSError when it can make no groups."""
        for candidate in _candidates():
            if all(os.access(folder, os.W_OK) for folder in (candidate.memory, candidate.pids)):
                return candidate
        raise OSError("there are no control groups for memory and processes that can be written to")

    def make(self, name: str, limits: Limits) -> Group:
        """A group with limits; OSError when it cannot be made."""
        group = Group(self.memory / name, self.pids / name)
        for folder in group.folders:
            folder.mkdir()
        size = str(limits.memory << 20)
        if (group.memory / "memory.max").exists():
            (group.memory / "memory.max").write_text(size, encoding="ascii")
            with contextlib.suppress(OSError):  # where nothing is swapped
                (group.memory / "memory.swap.max").write_text("0", encoding="ascii")
        else:
            (group.memory / "memory.limit_in_bytes").write_text(size, encoding="ascii")
        (group.pids / "pids.max").write_text(str(limits.processes), encoding="ascii")
        return group


@dataclass(frozen=True, slots=True)
class Group:
    """The group of one submission."""

    memory: Path
    pids: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        """Its folders, each once."""
        return tuple(dict.fromkeys((self.memory, self.pids)))

    def end(self) -> bool:
        """Remove it, once its processes have been killed; whether the kernel had ended one for want of memory."""
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
        except OSError:  # a process in it has not ended quite
            time.sleep(0.001)
        else:
            return


def remove_all(name: str) -> None:
    """Remove the groups that whoever made them could not: those whose names begin so."""
    with contextlib.suppress(OSError):
        parents = Parents.found()
        for folder in {parents.memory, parents.pids}:
            for left in folder.glob(f"{name}-*"):
                _remove(left)


def join(folder: str) -> None:
    """Move this process into a group."""
    Path(folder, "cgroup.procs").write_text("0", encoding="ascii")


def _candidates() -> Iterator[Parents]:
    own: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, path = line.split(":", 2)
            own |= dict.fromkeys(controllers.split(","), path)
    first: dict[str, Path] = {}
    for root, point, kind, options in _mounts():
        if kind == "cgroup":
            first |= {name: _below(point, root, own[name]) for name in _CONTROLLERS if name in options and name in own}
        elif kind == "cgroup2" and "" in own:
            folder = _below(point, root, own[""])
            # A group that has processes cannot bound groups below it: then it is one beside it.
            for parent in (folder, folder.parent):
                with contextlib.suppress(OSError):
                    given = (parent / "cgroup.subtree_control").read_text(encoding="ascii").split()
                    if set(_CONTROLLERS) <= set(given):
                        yield Parents(parent, parent)
    if first.keys() >= set(_CONTROLLERS):
        yield Parents(first["memory"], first["pids"])


def _below(point: str, root: str, path: str) -> Path:
    """Where a group lies, of a hierarchy whose part below `root` is mounted at `point`."""
    return Path(point, os.path.relpath(path, root) if path.startswith(root) else path.lstrip("/"))


def _mounts() -> Iterator[tuple[str, str, str, list[str]]]:
    """The root, the mount point, the kind and the options of what is mounted."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            before, _, after = line.partition(" - ")
            fields, (kind, _, options) = before.split(), after.split(" ", 2)
            yield fields[3], fields[4], kind, options.split(",")

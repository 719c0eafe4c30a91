"""Processes for submissions: each shut in before it reads the submission, each ended with all that it started."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
import tempfile
import threading
import weakref
from collections.abc import Collection
from pathlib import Path
from typing import Final

from goldformer.conformance.grading.model import Isolation, Level, Limits
from goldformer.conformance.grading.sandbox import _linux as linux
from goldformer.conformance.grading.sandbox._client import Boxed, BoxPeer
from goldformer.conformance.grading.sandbox._levels import JailError, demand, isolation
from goldformer.conformance.grading.sandbox._mounts import remove
from goldformer.conformance.grading.sandbox._supervisor import Lost, Zygote

__all__ = ["Jail", "JailError", "probe"]

#: Numbers of users that no system gives out, above those of containers: 16 for each process that has a jail.
_USERS: Final = 1_900_000_000
_PROCESSES: Final = 1 << 22
_numbers: Final = itertools.count()
#: What a submission is left of its memory at least, in MiB.
_ROOM: Final = 64


class Jail:
    """Makes processes for submissions, all forked from one that has imported the library already.

    `isolation` says how they are kept apart: the same for all of them.
    """

    isolation: Isolation

    def __init__(
        self, limits: Limits, arrays: str, require: Level | None = None, *, without: Collection[str] = ()
    ) -> None:
        """Start it; JailError when it cannot be, or does not reach the level that is required.

        `arrays` is the library that adapters ask for; `without` names features that are not to be used.
        """
        self._limits = limits
        self._arrays = arrays
        self._without = tuple(without)
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._folder = Path(tempfile.mkdtemp(prefix="goldformer-jail-"))
        self._folder.chmod(0o755)
        self._removed = weakref.finalize(self, _removed, self._folder, os.getpid())
        self._zygote: Zygote | None = None
        try:
            self._zygote = self._started()
            left_out = dict.fromkeys(self._without, "left out")
            self.isolation = isolation(self._zygote.features, {**self._zygote.refused, **left_out})
            if require is not None:
                demand(self.isolation, require)
            self._check_memory(self._zygote.size)
            if "pid-namespace" not in self.isolation.features and os.geteuid() != 0:
                linux.refuse_tracers()  # a submission is a process of the same user, and what is expected is in here
        except BaseException:
            self.close()
            raise

    def client(self, box: Path) -> Boxed:
        """The client of a submission: of a folder that holds `adapter.py` and the folder `submission`.

        Every user may read that folder from then on. Calls start a process, and another one after a fault.
        """
        box = box.resolve()
        _let_read(box)
        return Boxed(lambda: self._spawned(box), self._limits)

    def close(self) -> None:
        """End everything that was started here."""
        zygote, self._zygote = self._zygote, None
        if zygote is not None:
            zygote.close()
        self._removed()

    def __enter__(self) -> Jail:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spawned(self, box: Path) -> BoxPeer:
        with self._lock:
            if self._zygote is None:
                raise JailError("the jail is closed")
            if self._owner != os.getpid():
                raise JailError("the jail belongs to the process that made it: this one needs its own")
            try:
                return self._zygote.fork(box, self._user(), self._limits)
            except Lost:
                self._zygote.close()
            self._zygote = self._started()
            try:
                return self._zygote.fork(box, self._user(), self._limits)
            except Lost as lost:
                raise JailError(f"the process that submissions are forked from {lost}") from lost

    def _started(self) -> Zygote:
        return Zygote(self._arrays, self._folder, self._without, self._user())

    def _check_memory(self, size: int) -> None:
        if self._limits.memory < size + _ROOM:
            what = f"limits.memory is {self._limits.memory} MiB, and {self._arrays} alone takes {size} MiB"
            raise JailError(f"{what} of address space: give at least {size + _ROOM}")

    def _user(self) -> int:
        return _USERS + os.getpid() % _PROCESSES * 16 + next(_numbers) % 16


def probe(arrays: str = "numpy") -> Isolation:
    """How submissions would be kept apart on this machine; JailError when they cannot be."""
    with Jail(Limits(), arrays) as jail:
        return jail.isolation


def _let_read(box: Path) -> None:
    """Let every user read what is in a folder."""
    for folder, _, files in os.walk(box):
        _add_mode(Path(folder), 0o555)
        for name in files:
            _add_mode(Path(folder, name), 0o444)


def _add_mode(path: Path, bits: int) -> None:
    found = path.lstat().st_mode
    if not stat.S_ISLNK(found) and found & bits != bits:
        path.chmod(stat.S_IMODE(found) | bits)


def _removed(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        with contextlib.suppress(OSError):
            remove(folder)

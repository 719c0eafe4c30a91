"""Temporary folders that the next process removes if their maker is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from goldformer.conformance.grading.sandbox._cgroup import remove_all
from goldformer.conformance.grading.sandbox._mounts import remove_folder

#: The number of attempts to make a folder that no other process removes before it is locked.
_ATTEMPTS: Final = 100


class SweptFolder:
    """A new temporary folder, after those of dead processes with the same prefix were removed.

    Its maker holds a lock on it, which the system releases when that process ends.
    """

    def __init__(self, prefix: str, mode: int) -> None:
        """Remove what is left, and make and lock a folder; OSError if that is impossible."""
        sweep_folders(prefix)
        for _ in range(_ATTEMPTS):
            self.path = Path(tempfile.mkdtemp(prefix=prefix))
            lock = _lock(self.path)
            if lock is not None:
                break
        else:
            raise OSError(f"{tempfile.gettempdir()}: no folder could be locked")
        self._lock: int | None = lock
        # Submissions run as other users, which have to pass through it.
        self.path.chmod(mode)

    def remove(self) -> None:
        """Remove it with all that it holds."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                remove_folder(self.path)
            os.close(lock)


def sweep_folders(prefix: str) -> None:
    """Remove the folders, and the control groups, whose makers have died."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            lock = _lock(path)
            if lock is not None:
                try:
                    remove_folder(path)
                    remove_all(path.name)
                finally:
                    os.close(lock)


def _lock(path: Path) -> int | None:
    """Lock a folder, and return the descriptor that holds the lock; None if another process has it or removed it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None

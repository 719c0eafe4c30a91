"""Reading and writing of files."""

from __future__ import annotations

import errno
import gzip
import io
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_FORBIDDEN: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
#: The disk is full or read-only: the work is not at fault, and can go on elsewhere or later.
DISK_FAULTS: Final = _FULL | {errno.EROFS}
#: Opens a pipe without waiting for a writer. Windows has no such pipes.
_NO_WAITING: Final[int] = getattr(os, "O_NONBLOCK", 0)


def read_regular_file(path: Path, most: int) -> bytes:
    """Return the bytes of a regular file; OSError if it is not one, or if it has more than `most` bytes.

    Reading a pipe would wait for a writer, and a device may have no end.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAITING)) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        # The files of some systems, such as /proc, have no size; others grow while they are read.
        raw = stream.read(most + 1) if status.st_size <= most else None
    if raw is None or len(raw) > most:
        raise OSError(errno.EOVERFLOW, f"has more than {most} bytes", str(path))
    return raw


def write_named_file(path: Path, content: str | bytes) -> None:
    """Write the file that a user names: replace a regular file, also behind a link, and write into anything else.

    Replacing /dev/null or the link /dev/stdout would take it away from every program of the machine.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    if not path.exists() or path.is_file():
        replace_file(resolve_path(path) if path.is_symlink() else path, data)
        return
    with open(path, "wb", opener=_open_without_waiting) as stream:
        stream.write(data)


def _open_without_waiting(name: str, flags: int) -> int:
    """Open a file to write it; a pipe that nothing reads is an error, which would be waited for."""
    try:
        handle = os.open(name, flags | _NO_WAITING, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(error.errno, "is a pipe or a socket that nothing reads", name) from error
        raise
    if _NO_WAITING:
        os.set_blocking(handle, True)
    return handle


def unpack_gzip(data: bytes, most: int) -> bytes:
    """Return what gzip packed; OSError, EOFError or zlib.error if that is damaged or has more than `most` bytes."""
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
        unpacked = file.read(most + 1)
    if len(unpacked) > most:
        raise gzip.BadGzipFile(f"it unpacks to more than {most >> 20} MiB")
    return unpacked


def resolve_path(path: Path) -> Path:
    """Return the path without links; unlike Path.resolve, it accepts a circle, on which opening then fails."""
    return Path(os.path.realpath(path))


def explain_os_error(error: OSError) -> str:
    """Say which file could not be read or written, why, and what to do."""
    if error.errno in _FULL:
        advice = "; free some space, and run the same command again"
    elif error.errno in _FORBIDDEN:
        advice = "; name another place, or change its permissions"
    elif error.errno == errno.EOVERFLOW:
        advice = "; name a smaller file"
    else:
        advice = ""
    # Only the current folder is looked for without its name.
    unnamed = "the current folder" if error.errno == errno.ENOENT else "a file"
    return f"{error.filename or unnamed}: {error.strerror or error}{advice}"


def replace_file(path: Path, content: str | bytes) -> None:
    """Write a temporary file in the same folder and move it into place, so that a reader never sees half of it.

    An OSError names `path`, not the temporary file.
    """
    try:
        _replace_file(path, content)
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace_file(path: Path, content: str | bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content.encode("utf-8") if isinstance(content, str) else content)
        Path(name).chmod(path.stat().st_mode if path.exists() else 0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

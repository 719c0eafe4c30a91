"""Reads what was handed in into memory, within limits: the files of a folder, or of a zip that nobody trusts.

Nothing is ever written by a name that an archive has. BadSubmission says in a sentence what is wrong.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from goldformer.adapters.process.faults import abbreviate
from goldformer.conformance.grading.model import Limits

_MIB: Final = 1 << 20
_CHUNK: Final = 64 << 10
#: What lists the files of an archive may take so much: thousands of names, of which most are ignored.
_LISTING: Final = 2 * _MIB
_LONGEST_NAME: Final = 240
_DEEPEST: Final = 16
#: What unpacks to more than so many times its size is no program text.
_RATIO: Final = 200
#: Below this size nothing is a bomb, however well it packs.
_HARMLESS: Final = _MIB
_ENCRYPTED: Final = 0x1
_PACKING: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_IGNORED: Final = ("__MACOSX", "__pycache__", "Icon\r")
#: What made an archive in which a backslash parts folders.
_WINDOWS: Final = 0


class BadSubmission(Exception):
    """What was handed in cannot be graded; the text says why, to the student."""


@dataclass
class _Room:
    """How much may still come."""

    limits: Limits
    files: int = 0
    size: int = 0

    def one_more(self) -> None:
        self.files += 1
        if self.files > self.limits.files:
            raise BadSubmission(f"has more than {self.limits.files} files")

    def take(self, size: int) -> None:
        self.size += size
        if self.size > self.limits.size * _MIB:
            raise BadSubmission(f"has more than {self.limits.size} MiB of files")


def read_folder(folder: Path, limits: Limits) -> dict[str, bytes]:
    """The files of a folder by their names in it; links are not followed."""
    room, files = _Room(limits), {}
    for name, path in _walk(folder, ""):
        room.one_more()
        files[name] = read_file(path, limits)
        room.take(len(files[name]))
    return files


def _walk(folder: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise BadSubmission(f"{prefix or 'the folder'} cannot be read: {error.strerror}") from error
    for entry in entries:
        if ignored(entry.name):
            continue
        name = checked_name(prefix + entry.name)
        if entry.is_symlink():
            raise BadSubmission(f"{abbreviate(name)} is a link: hand in the file itself")
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{name}/")
        elif entry.is_file(follow_symlinks=False):
            yield name, Path(entry.path)
        else:
            raise BadSubmission(f"{abbreviate(name)} is neither a file nor a folder")


def read_file(path: Path, limits: Limits) -> bytes:
    """One file, which is no link and no device."""
    with io.BufferedReader(_opened(path)) as stream:
        data = stream.read(limits.size * _MIB + 1)
    if len(data) > limits.size * _MIB:
        raise BadSubmission(f"{abbreviate(path.name)} is larger than {limits.size} MiB")
    return data


def _opened(path: Path) -> io.FileIO:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise BadSubmission(f"{abbreviate(path.name)} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadSubmission(f"{abbreviate(path.name)} is no file")
    return io.FileIO(descriptor)


def open_zip(path: Path) -> zipfile.ZipFile:
    """An archive that no student made."""
    with _reading(path):
        return zipfile.ZipFile(path)


@contextlib.contextmanager
def untrusted_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """An archive that a student made: the list of its files is of a sane size, whatever it says of it."""
    with _Sparing(_opened(path)) as stream:
        with _reading(path):
            archive = zipfile.ZipFile(stream)
        with archive:
            yield archive


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, UnicodeDecodeError) as error:
        raise BadSubmission(f"{abbreviate(path.name)} is no readable zip: {error}") from error


class _Sparing(io.BufferedReader):
    """A file of which nobody reads more at once than a list of files may take: one of a million takes a gigabyte."""

    def read(self, size: int | None = -1, /) -> bytes:
        """So many bytes, or all that are left."""
        most = _LISTING + 1
        data = super().read(most if size is None or size < 0 else min(size, most))
        if len(data) > _LISTING:
            raise BadSubmission("the zip lists too many files")
        return data


def read_zip(archive: zipfile.ZipFile, limits: Limits, under: str = "") -> dict[str, bytes]:
    """The files of an archive by their names, those below the folder `under` alone."""
    room, files = _Room(limits), {}
    for info in archive.infolist():
        if not info.filename.startswith(under):
            continue
        named = info.filename[len(under) :].rstrip("/")
        if info.create_system == _WINDOWS:
            named = named.replace("\\", "/")
        if not named or ignored(named):
            continue
        name = checked_name(named)
        if _is_folder(info, name):
            continue
        room.one_more()
        if name in files:
            raise BadSubmission(f"the zip has {abbreviate(name)} twice")
        files[name] = _inflated(archive, info, name, room)
    _refuse_file_and_folder(files)
    return files


def _is_folder(info: zipfile.ZipInfo, name: str) -> bool:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        what = "a link" if kind == stat.S_IFLNK else "no ordinary file"
        raise BadSubmission(f"{abbreviate(name)} is {what} in the zip: hand in the file itself")
    return info.is_dir()


def _inflated(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, room: _Room) -> bytes:
    """A file's bytes, counted as they come: what the archive says of their number is only said."""
    if info.flag_bits & _ENCRYPTED:
        raise BadSubmission(f"{abbreviate(name)} is encrypted in the zip")
    if info.compress_type not in _PACKING:
        raise BadSubmission(f"{abbreviate(name)} is packed in a way that is not read; use an ordinary zip")
    chunks, size = [], 0
    try:
        with archive.open(info) as stream:
            for chunk in _chunks(stream):
                size += len(chunk)
                room.take(len(chunk))
                if size > max(_HARMLESS, _RATIO * info.compress_size):
                    raise BadSubmission(f"{abbreviate(name)} unpacks to more than {_RATIO} times its size")
                chunks.append(chunk)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        raise BadSubmission(f"{abbreviate(name)} cannot be unpacked: {error}") from error
    return b"".join(chunks)


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(_CHUNK):
        yield chunk


def checked_name(name: str) -> str:
    """A relative name with forward slashes that means the same everywhere; BadSubmission for any other."""
    name = unicodedata.normalize("NFC", name)
    steps = name.split("/")
    if name.startswith("/") or "\\" in name or ":" in name:
        raise BadSubmission(f"the name {abbreviate(name)} is not relative, or has a backslash or a colon")
    if ".." in steps or "." in steps or "" in steps:
        raise BadSubmission(f"the name {abbreviate(name)} leads out of its folder or is none")
    if not name.isprintable():
        raise BadSubmission(f"the name {abbreviate(name)} has characters that cannot be printed")
    if len(name.encode()) > _LONGEST_NAME or len(steps) > _DEEPEST:
        raise BadSubmission(f"the name {abbreviate(name)} is too long or too deep")
    return name


def ignored(name: str) -> bool:
    """What editors and systems leave behind, and what is hidden."""
    steps = name.split("/")
    hidden = any(step.startswith(".") and step not in (".", "..") for step in steps)
    return hidden or not {*_IGNORED}.isdisjoint(steps) or name.endswith(".pyc")


def _refuse_file_and_folder(names: Iterable[str]) -> None:
    taken = {*names}
    for name in taken:
        steps = name.split("/")
        for depth in range(1, len(steps)):
            if (parent := "/".join(steps[:depth])) in taken:
                raise BadSubmission(f"the zip has {abbreviate(parent)} as a file and as a folder")

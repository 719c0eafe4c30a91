"""Read the files of a submission into memory within limits, from a folder or from an untrusted zip.

Nothing is ever written under a name from an archive. BadSubmission says in a sentence what is wrong.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from goldformer.adapters.untrusted_text import abbreviate, clip_text
from goldformer.conformance.grading.model import SubmissionLimits

_MIB: Final = 1 << 20
_CHUNK: Final = 64 << 10
#: The most bytes of an archive's list of files: thousands of names, most of which are ignored.
_LISTING: Final = 2 * _MIB
_LONGEST_NAME: Final = 240
#: The most characters of what the zip library says: it quotes names of 64 KiB.
_LONGEST_REASON: Final = 200
_DEEPEST: Final = 16
#: The highest compression ratio of program text.
_RATIO: Final = 200
#: A file below this size may have any compression ratio.
_HARMLESS: Final = _MIB
_ENCRYPTED: Final = 0x1
_PACKING: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_IGNORED: Final = ("__MACOSX", "__pycache__", "Icon\r")
#: The system whose archives may separate folders by a backslash.
_WINDOWS: Final = 0


class BadSubmission(Exception):
    """The submission cannot be graded; the text tells the student why."""


@dataclass
class _Budget:
    """Counts files and bytes against the limits."""

    limits: SubmissionLimits
    files: int = 0
    size: int = 0

    def add_file(self) -> None:
        self.files += 1
        if self.files > self.limits.files:
            raise BadSubmission(f"has more than {self.limits.files} files")

    def add_bytes(self, size: int) -> None:
        self.size += size
        if self.size > self.limits.size * _MIB:
            raise BadSubmission(f"has more than {self.limits.size} MiB of files")


def read_folder(folder: Path, limits: SubmissionLimits) -> dict[str, bytes]:
    """Return the files of a folder by their relative names; links are not followed."""
    budget, files = _Budget(limits), {}
    for name, path in walk_folder(folder):
        budget.add_file()
        if name in files:
            raise BadSubmission(f"the folder has {abbreviate(name)} twice, in two spellings of its letters")
        files[name] = read_file(path, limits)
        budget.add_bytes(len(files[name]))
    return files


def walk_folder(folder: Path, prefix: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the files of a folder with their relative names; BadSubmission at a link, a device or a bad name."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise BadSubmission(f"{prefix or 'the folder'} cannot be read: {error.strerror}") from error
    for entry in entries:
        if is_ignored(entry.name):
            continue
        name = check_name(prefix + entry.name)
        if entry.is_symlink():
            raise BadSubmission(f"{abbreviate(name)} is a link: hand in the file itself")
        if entry.is_dir(follow_symlinks=False):
            yield from walk_folder(Path(entry.path), f"{name}/")
        elif entry.is_file(follow_symlinks=False):
            yield name, Path(entry.path)
        else:
            raise BadSubmission(f"{abbreviate(name)} is neither a file nor a folder")


def read_file(path: Path, limits: SubmissionLimits) -> bytes:
    """Return the contents of a file that is no link and no device."""
    with io.BufferedReader(_open_file(path)) as stream:
        data = stream.read(limits.size * _MIB + 1)
    if len(data) > limits.size * _MIB:
        raise BadSubmission(f"{abbreviate(path.name)} is larger than {limits.size} MiB")
    return data


def _open_file(path: Path) -> io.FileIO:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise BadSubmission(f"{abbreviate(path.name)} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadSubmission(f"{abbreviate(path.name)} is no file")
    return io.FileIO(descriptor)


@contextlib.contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive that a student made, and read at most a list of files of reasonable size."""
    with _BoundedReader(_open_file(path)) as stream:
        with _translate_errors(path):
            archive = zipfile.ZipFile(stream)
        with archive:
            yield archive


@contextlib.contextmanager
def _translate_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, UnicodeDecodeError) as error:
        raise BadSubmission(
            f"{abbreviate(path.name)} is no readable zip: {clip_text(str(error), _LONGEST_REASON)}"
        ) from error


class _BoundedReader(io.BufferedReader):
    """A file that bounds the size of one read: a list of a million files would take a gigabyte of memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` bytes, or all that are left."""
        most = _LISTING + 1
        data = super().read(most if size is None or size < 0 else min(size, most))
        if len(data) > _LISTING:
            raise BadSubmission("the zip lists too many files")
        return data


def read_zip(archive: zipfile.ZipFile, limits: SubmissionLimits) -> dict[str, bytes]:
    """Return the files of an archive by their relative names."""
    budget, files = _Budget(limits), {}
    for info in archive.infolist():
        raw = info.filename.rstrip("/")
        if info.create_system == _WINDOWS:
            raw = raw.replace("\\", "/")
        if not raw or is_ignored(raw):
            continue
        name = check_name(raw)
        if _is_folder(info, name):
            continue
        budget.add_file()
        if name in files:
            raise BadSubmission(f"the zip has {abbreviate(name)} twice")
        files[name] = _read_counted(_inflate(archive, info, name), budget.add_bytes)
    _refuse_file_and_folder(files)
    return files


def _is_folder(info: zipfile.ZipInfo, name: str) -> bool:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        what = "a link" if kind == stat.S_IFLNK else "no ordinary file"
        raise BadSubmission(f"{abbreviate(name)} is {what} in the zip: hand in the file itself")
    return info.is_dir()


def _read_counted(chunks: Iterable[bytes], count: Callable[[int], None]) -> bytes:
    """Join chunks of a file; `count` gets the size of each, and raises BadSubmission before there are too many."""
    read = []
    for chunk in chunks:
        count(len(chunk))
        read.append(chunk)
    return b"".join(read)


def _inflate(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> Iterator[bytes]:
    """Yield a file's bytes, to be counted while they are unpacked: the size in the header is untrusted."""
    if info.flag_bits & _ENCRYPTED:
        raise BadSubmission(f"{abbreviate(name)} is encrypted in the zip")
    if info.compress_type not in _PACKING:
        raise BadSubmission(f"{abbreviate(name)} is compressed by an unsupported method; use an ordinary zip")
    size = 0
    try:
        with archive.open(info) as stream:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                if size > max(_HARMLESS, _RATIO * info.compress_size):
                    raise BadSubmission(f"{abbreviate(name)} unpacks to more than {_RATIO} times its size")
                yield chunk
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        # The zip library says nothing of an early end, and OSError begins with a number.
        why = (isinstance(error, OSError) and error.strerror) or str(error) or "the zip ends within it"
        why = clip_text(why, _LONGEST_REASON)
        raise BadSubmission(f"{abbreviate(name)} cannot be unpacked: {why}") from error


def check_name(name: str) -> str:
    """Return a relative name that means the same on every system; BadSubmission for any other name."""
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


def is_ignored(name: str) -> bool:
    """Return True for hidden files and for files that editors and systems create."""
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

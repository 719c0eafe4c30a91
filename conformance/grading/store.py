"""Keep results in a folder: one writer at a time, each file complete or absent, and finished grades are kept.

DIR/
├── .lock                the process that grades here now
├── fresh/               the fresh cases of this class, and the seed that they are drawn with
├── students/ID/         everything about one submission; grade.json.gz is written last
└── grades.csv, …        of the whole class
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pydantic

from goldformer.conformance.grading.model import Grade
from goldformer.conformance.grading.sandbox import SweptFolder
from goldformer.conformance.reports.json_data import replace_nonfinite
from goldformer.spec.files import read_regular_file, replace_file, resolve_path, unpack_gzip

_VERSION: Final = version("goldformer")

GRADE: Final = "grade.json.gz"
#: The error of the grader itself, if there was one.
PROBLEM: Final = "grader-error.txt"
#: The folder of the assignment and of what was required.
ASSIGNMENT: Final = "assignment"
_LOCK: Final = ".lock"
#: The folders that only their owner may read.
_PRIVATE: Final = ("fresh", ASSIGNMENT, "students")
#: The beginning of the names of folders that hold submissions while they run.
_RUNNING: Final = "goldformer-grade-"
#: Files that replace_file has written and not moved to their places yet.
_PARTIAL: Final = re.compile(r"\.(seed|.+\.(json|html|md|csv|xml|yaml|gz|zip))\.\w{8}$")
#: Higher levels hardly make a grade smaller.
_LEVEL: Final = 6
#: The most bytes of a grade's JSON. One of all components in which every check fails has a few million.
_LARGEST: Final = 64 << 20
_ADAPTER: Final = pydantic.TypeAdapter(Grade)


class InUse(Exception):
    """Another process grades into the same folder."""


class BadRecord(ValueError):
    """A file is not a grade; the text says what does not fit."""


def to_json(grade: Grade) -> str:
    """Return a grade as one JSON object, the same bytes for the same grade; infinities are "inf" and "-inf".

    Fields with their default values are left out.
    """
    plain = _ADAPTER.dump_python(grade, exclude_defaults=True)
    try:
        return _format_json(plain)
    except ValueError:  # only now search for numbers that are not finite
        return _format_json(replace_nonfinite(plain))


def _format_json(plain: Any) -> str:
    text = json.dumps(
        plain, default=_encode_enum, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")
    )
    return f"{text}\n"


def _encode_enum(item: Any) -> Any:
    if isinstance(item, Enum):
        return item.value
    raise TypeError(f"{type(item).__name__} is no part of a grade")


def from_json(text: str | bytes) -> Grade:
    """Return the grade that `to_json` wrote; BadRecord for anything else."""
    try:
        grade: Grade = _ADAPTER.validate_json(text)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = ".".join(map(str, first["loc"])) or "the record"
        raise BadRecord(f"{at}: {first['msg']}") from error
    numbers = [("the grade", grade.earned, grade.points), *((p.component, p.earned, p.points) for p in grade.parts)]
    for name, earned, points in numbers:
        # Grading itself never gives more than all points, and NaN is in no range.
        if not 0 <= earned <= points < math.inf:
            raise BadRecord(f"{name}: earned is {earned} of {points} points")
    return grade


def make_key(submission: str, assignment: str, fresh: str, spec: str, outputs: str) -> str:
    """Return one digest of everything that decides about a grade: the digests of its parts, and the version."""
    parts = json.dumps([submission, assignment, fresh, spec, outputs, _VERSION])
    return hashlib.sha256(parts.encode()).hexdigest()


def digest_folder(folder: Path) -> str:
    """Return a digest of the names and contents of the data files of a folder such as the spec."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".yaml", ".md") and p.is_file()):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}:{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


def pack_grade(grade: Grade) -> bytes:
    """Return the contents of a grade's file: its JSON compressed, the same bytes for the same grade."""
    return gzip.compress(to_json(grade).encode(), _LEVEL, mtime=0)


def unpack_grade(data: bytes) -> Grade:
    """Return the grade that `pack_grade` wrote; BadRecord for anything else."""
    try:
        return from_json(unpack_gzip(data, _LARGEST))
    except (OSError, EOFError, zlib.error) as error:
        raise BadRecord(f"is no compressed grade: {error}") from error


class Store:
    """A folder of results that only this process writes to, until it is closed."""

    def __init__(self, folder: Path) -> None:
        """Lock the folder; InUse while another process has it. Remove partial files of a process that died."""
        self.folder = resolve_path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        # Never remove the lock file: another process may be waiting for it.
        self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # The system releases it when this process dies.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._lock, 4096, 0).decode("utf-8", "replace").strip()
            os.close(self._lock)
            raise InUse(f"{self.folder}: process {owner or '?'} is grading into this folder") from error
        # Submissions at level `process` are other users if root grades: they must not read fresh cases or the seed.
        for name in _PRIVATE:
            (self.folder / name).mkdir(exist_ok=True)
            with contextlib.suppress(PermissionError):  # it belongs to somebody else, who decides
                (self.folder / name).chmod(0o700)
        self._clean()
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
        # The users of submissions must not list it.
        self._running = SweptFolder(_RUNNING, 0o711)
        #: The folder in which submissions run.
        self.running = self._running.path

    def close(self) -> None:
        """Unlock the folder."""
        self._running.remove()
        os.ftruncate(self._lock, 0)
        os.close(self._lock)

    def _clean(self) -> None:
        """Remove partial files of a process that died here."""
        for folder in (self.folder, self.folder / "fresh", *self._list_students()):
            for partial in folder.glob(".*.*"):
                if _PARTIAL.match(partial.name) and partial.is_file() and not partial.is_symlink():
                    partial.unlink()

    def _list_students(self) -> Iterator[Path]:
        students = self.folder / "students"
        listed = sorted(students.iterdir()) if students.is_dir() else ()
        return (path for path in listed if path.is_dir() and not path.is_symlink())

    def student(self, id_: str) -> Path:
        """Return the folder of one submission's results; replace a link in its place, which leads elsewhere."""
        folder = self.folder / "students" / id_
        if folder.is_symlink():
            folder.unlink()
            folder.mkdir()
        return folder

    def is_finished(self, id_: str, key: str) -> bool:
        """Return True if a submission has a grade with this key that is not a failure of grading."""
        grade = self.grade(id_)
        return grade is not None and grade.key == key and grade.outcome != "grader-error"

    def grade(self, id_: str) -> Grade | None:
        """Return the grade of a submission; None if there is none, one that cannot be read, or that of another."""
        try:
            grade = unpack_grade(read_regular_file(self.student(id_) / GRADE, _LARGEST))
        except (OSError, BadRecord):
            return None
        return grade if grade.submission == id_ else None

    def has_grade(self, id_: str) -> bool:
        """Return True if a submission has been graded, whatever has changed since."""
        return (self.student(id_) / GRADE).is_file()

    def keep(self, id_: str, files: Mapping[str, str | bytes]) -> None:
        """Write all files of one submission, its grade last: with it the submission is finished."""
        folder = self.student(id_)
        folder.mkdir(parents=True, exist_ok=True)
        if PROBLEM not in files:
            (folder / PROBLEM).unlink(missing_ok=True)
        for name in sorted(files, key=lambda name: (name == GRADE, name)):
            replace_file(folder / name, files[name])

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file of the whole class, such as grades.csv or fresh/cases.yaml."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)

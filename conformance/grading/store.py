"""The folder of results: one writer at a time, each file whole or not there, and what is finished stays finished.

DIR/
├── .lock                who grades here now
├── fresh/               the cases of this class, and the seed that they are drawn with
├── students/ID/         grade.json, written last, and what else there is of one submission
└── grades.csv, …        of the whole class
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from goldformer import __version__
from goldformer.conformance.grading.model import Grade
from goldformer.conformance.grading.records import BadRecord, from_json
from goldformer.spec.files import replace_file

GRADE: Final = "grade.json"
#: What went wrong in the grader itself, where something did.
PROBLEM: Final = "grader-error.txt"
_LOCK: Final = ".lock"
#: What folders begin with that hold submissions while they are graded.
_BOXES: Final = "goldformer-grade-"
#: What replace_file writes before it is moved to its place.
_HALF_WRITTEN: Final = re.compile(r"\.(seed|.+\.(json|html|md|csv|xml|yaml|gz))\.\w{8}$")


class InUse(Exception):
    """Another process grades into the same folder."""


def key_of(submission: str, assignment: str, fresh: str, spec: str, outputs: str) -> str:
    """Return one digest of everything that a grade is made of: the digests of its parts, and the version."""
    parts = json.dumps([submission, assignment, fresh, spec, outputs, __version__])
    return hashlib.sha256(parts.encode()).hexdigest()


def digest_of_folder(folder: Path) -> str:
    """A digest of the data files of a folder such as the spec: their names and contents."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".yaml", ".md") and p.is_file()):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}:{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()


class Store:
    """A folder of results, which is this process's alone until it is closed."""

    def __init__(self, folder: Path) -> None:
        """Take the folder; InUse while another process has it. What one that died left half done is removed."""
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        # Never removed: whoever waits for a file that is gone waits for nothing.
        self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # The system takes it back from whoever dies.
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._lock, 4096, 0).decode("utf-8", "replace").partition("\n")[0]
            os.close(self._lock)
            raise InUse(f"{self.folder}: process {owner or '?'} is grading into this folder") from error
        self._clean()
        self.boxes = Path(tempfile.mkdtemp(prefix=_BOXES))
        # Those who run submissions have to get through, and not to look around.
        self.boxes.chmod(0o711)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n{self.boxes}\n".encode(), 0)

    def close(self) -> None:
        """Give the folder back."""
        shutil.rmtree(self.boxes, ignore_errors=True)
        os.ftruncate(self._lock, 0)
        os.close(self._lock)

    def _clean(self) -> None:
        """Remove what a process left that died here: half-written files, and submissions that it was running."""
        for folder in (self.folder, self.folder / "fresh", *self._students()):
            for left in folder.glob(".*.*"):
                if _HALF_WRITTEN.match(left.name) and left.is_file() and not left.is_symlink():
                    left.unlink()
        boxes = Path(os.pread(self._lock, 4096, 0).decode("utf-8", "replace").partition("\n")[2].strip())
        if boxes.parent == Path(tempfile.gettempdir()) and boxes.name.startswith(_BOXES) and not boxes.is_symlink():
            shutil.rmtree(boxes, ignore_errors=True)

    def _students(self) -> Iterator[Path]:
        students = self.folder / "students"
        return (path for path in sorted(students.iterdir()) if path.is_dir()) if students.is_dir() else iter(())

    def student(self, id_: str) -> Path:
        """The folder of one submission's results."""
        return self.folder / "students" / id_

    def finished(self, id_: str, key: str) -> bool:
        """Whether a submission has a grade that was made of the same things, and was no failure of grading."""
        grade = self.grade(id_)
        return grade is not None and grade.key == key and grade.outcome != "grader-error"

    def grade(self, id_: str) -> Grade | None:
        """The grade that is kept for a submission; None without one, or with one that cannot be read."""
        try:
            return from_json((self.student(id_) / GRADE).read_bytes())
        except (OSError, BadRecord):
            return None

    def grades(self, ids: Iterable[str]) -> Iterator[Grade]:
        """The grades that are kept for some submissions, one in memory at a time."""
        return (grade for id_ in ids if (grade := self.grade(id_)) is not None)

    def keep(self, id_: str, files: Mapping[str, str | bytes]) -> None:
        """Write all that there is of one submission, its grade last: with it the submission is finished."""
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

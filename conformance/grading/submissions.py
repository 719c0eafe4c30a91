"""Find the submissions of a class: files, folders and zips, one for each student.

Only names are listed; each submission is read when its turn comes, so that a large class takes little memory.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from goldformer.adapters.notebook import SUFFIX, NotebookError, read_notebook, write_source
from goldformer.adapters.untrusted_text import abbreviate, printable, printable_name
from goldformer.conformance.grading.archive import (
    BadSubmission,
    open_zip,
    read_file,
    read_folder,
    read_zip,
)
from goldformer.conformance.grading.class_folder import Kind, find_kind, find_unrelated, list_entries
from goldformer.conformance.grading.model import Submission, SubmissionLimits
from goldformer.conformance.grading.python_files import MAIN, PACKAGE, SUBMISSION

#: The most characters and bytes of an id: file systems allow 255 bytes, with suffixes.
_LONGEST_ID: Final = 100
_LARGEST_ID: Final = 200
#: The names that Windows keeps for devices, with any suffix: a program that unpacks the results cannot make them.
_DEVICE: Final = re.compile(r"(CON|PRN|AUX|NUL|CONIN_|CONOUT_|(COM|LPT)[0-9¹²³]) *(?=\.|$)", re.IGNORECASE)
#: The suffix of an id that another submission has too.
_SUFFIX: Final = re.compile("~[0-9a-f]{16}$")
#: The number of files that a message names.
_NAMED: Final = 4

#: What the path of submissions holds: one submission, or a class.
Holds = Literal["one", "class"]


class NoSubmissions(Exception):
    """There is nothing to grade, or it is not clear what; the text says what was searched for."""


@dataclass(frozen=True)
class FoundSubmission:
    """A submission that was found and not read yet."""

    id: str
    path: Path
    kind: Kind

    def read(self, limits: SubmissionLimits) -> Submission:
        """Return its files, or the problem why it cannot be graded."""
        try:
            files = select_runnable(_strip_outer_folders(self._read_files(limits)))
        except BadSubmission as bad:
            return Submission(self.id, {}, _digest({}, str(bad)), str(bad))
        return Submission(self.id, files, _digest(files))

    def _read_files(self, limits: SubmissionLimits) -> dict[str, bytes]:
        if self.path.is_symlink():
            raise BadSubmission("is a link: hand in the file itself")
        if self.kind == "folder":
            return read_folder(self.path, limits)
        if self.kind == "zip":
            with open_zip(self.path) as archive:
                return read_zip(archive, limits)
        if self.kind == "file":
            return {self.path.name: read_file(self.path, limits)}
        raise BadSubmission(f"{printable(self.path.name)} is no .py file, no notebook, no folder and no zip")


@dataclass(frozen=True)
class ClassList:
    """All submissions of a class in the order of their ids.

    `left_out` are the names of files that lie next to them and are no submissions.
    """

    handed: tuple[FoundSubmission, ...]
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.handed)


def find_submissions(path: Path, holds: Holds | None = None) -> ClassList:
    """Return the class or the single submission at a path; NoSubmissions if there is none, or if it could be either.

    A class is a folder of .py files, notebooks, folders and zips. A folder with submission.py, and with nothing else
    that could be a submission and that it does not import, is a single one. `holds` says what is meant instead.
    """
    if path.is_dir():
        if holds == "one" or (holds is None and _is_one_submission(path)):
            return ClassList((FoundSubmission(_make_id(path.resolve().name), path, "folder"),))
        return _list_class(path)
    if not path.exists():
        raise NoSubmissions(f"{path}: there is nothing there")
    handed = FoundSubmission(_make_id(path.stem), path, find_kind(path))
    if handed.kind == "unknown":
        raise NoSubmissions(f"{path}: is no .py file, no notebook, no folder and no zip")
    if holds == "class":
        raise NoSubmissions(f"{path}: is one file, and a class is a folder: unpack it, or leave --class out")
    return ClassList((handed,))


def _is_one_submission(folder: Path) -> bool:
    """Return True for the folder of one student, False for that of a class; NoSubmissions if it could be either.

    A stray submission.py among the files of a class must not turn the class into one student.
    """
    entries, _ = list_entries(folder)
    main = next((entry for name in (MAIN, PACKAGE) for entry in entries if entry.name == name), None)
    if main is None:
        return False
    if others := find_unrelated(main, entries):
        names = _list_first([printable_name(entry.name) for entry in others])
        raise NoSubmissions(
            f"{folder}: holds {main.name} and what it does not import: {names}. Is this one submission, or a class of "
            f"{len(entries)}? Say --one or --class"
        )
    return True


def _list_class(folder: Path) -> ClassList:
    entries, left_out = list_entries(folder)
    if not entries:
        raise NoSubmissions(f"{folder}: holds no .py file, no notebook, no folder and no zip")
    kinds = [(entry, find_kind(entry)) for entry in entries]
    handed = [FoundSubmission(_make_id(e.name if kind == "folder" else e.stem), e, kind) for e, kind in kinds]
    return ClassList(_make_ids_unique(handed), left_out=tuple(printable_name(entry.name) for entry in left_out))


def _make_ids_unique(handed: list[FoundSubmission]) -> tuple[FoundSubmission, ...]:
    """Add a digest of the name to ids that are equal on a file system that ignores case.

    Ids that look as if they had such a digest get one too, so that no file can take the id of another.
    """
    taken = Counter(h.id.casefold() for h in handed)

    def unique(h: FoundSubmission) -> FoundSubmission:
        if taken[h.id.casefold()] == 1 and not _SUFFIX.search(h.id):
            return h
        return replace(
            h, id=f"{h.id}~{hashlib.sha256(h.path.name.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"
        )

    return tuple(sorted(map(unique, handed), key=lambda h: h.id))


def _make_id(name: str) -> str:
    """Return an id that can be the name of a folder on every system."""
    plain = re.sub(r"[^\w.@+~ -]", "_", unicodedata.normalize("NFC", name).encode("utf-8", "replace").decode())
    short = plain.strip(" .")[:_LONGEST_ID].encode()[:_LARGEST_ID].decode("utf-8", "ignore")
    safe = short.strip(" .") or "submission"
    device = _DEVICE.match(safe)
    return f"{device[1]}_{safe[device.end() :]}" if device else safe


def _strip_outer_folders(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Remove folders that contain everything: many programs make zips like that."""
    while files and len(tops := {name.partition("/")[0] for name in files}) == 1 and not tops & files.keys():
        files = {name.partition("/")[2]: data for name, data in files.items()}
    return dict(files)


def select_runnable(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of the module `submission`; BadSubmission without one.

    A single .py file becomes it, or else what is kept of a single notebook.
    """
    if MAIN in files or PACKAGE in files:
        _refuse_twin(files)
        return dict(files)
    homes = [name.removesuffix(MAIN) for name in files if name.endswith(f"/{MAIN}")]
    if len(homes) == 1:
        # Ignore files outside its folder, such as a report.
        return select_runnable(
            {name.removeprefix(homes[0]): data for name, data in files.items() if name.startswith(homes[0])}
        )
    modules = [name for name in files if name.lower().endswith(".py")]
    if len(modules) == 1:
        return {MAIN if name == modules[0] else name: data for name, data in files.items()}
    notebooks = [name for name in files if name.lower().endswith(SUFFIX)]
    if len(notebooks) == 1 and not modules:
        return _convert_notebook(notebooks[0], files)
    if modules := modules or notebooks:
        raise BadSubmission(f"there is no {MAIN} among {_list_first(modules)}")
    if not files:
        raise BadSubmission("nothing was handed in: it is empty")
    raise BadSubmission(f"there is no .py file and no notebook; what was handed in is {_list_first(files)}")


def _list_first(names: Collection[str]) -> str:
    """Return the first names in order, with an ellipsis for the others."""
    return ", ".join(sorted(names)[:_NAMED]) + ("…" if len(names) > _NAMED else "")


def _refuse_twin(files: Mapping[str, bytes]) -> None:
    """Raise BadSubmission if Python imports another file as the module `submission` than the one that people read."""
    for name in files:
        library = name.startswith(f"{SUBMISSION}.") and name.endswith((".so", ".pyd"))
        if library or name.startswith(f"{SUBMISSION}/__init__."):
            read = MAIN if MAIN in files else PACKAGE
            raise BadSubmission(f"Python imports {abbreviate(name)} instead of {read}: hand in one of them")


def _convert_notebook(name: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files with the notebook as submission.py; it is read and never run here."""
    try:
        source = write_source(read_notebook(files[name], name))
    except NotebookError as error:
        raise BadSubmission(str(error)) from error
    return {MAIN: source} | {other: data for other, data in files.items() if other != name}


def _digest(files: Mapping[str, bytes], problem: str = "") -> str:
    """Return the digest that identifies the contents of a submission."""
    digest = hashlib.sha256(problem.encode())
    for name in sorted(files):
        digest.update(f"{len(name)}:{name}:{len(files[name])}:".encode())
        digest.update(files[name])
    return digest.hexdigest()

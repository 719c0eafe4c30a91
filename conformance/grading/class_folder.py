"""Decide what the entries of a folder are: submissions of a class, parts of a single one, or no work of a student."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Final, Literal

from goldformer.adapters.notebook import SUFFIX
from goldformer.conformance.grading.archive import BadSubmission, is_ignored, read_file, walk_folder
from goldformer.conformance.grading.model import SubmissionLimits
from goldformer.conformance.grading.python_files import MOST_SOURCE, PACKAGE, has_code, list_imported_names

Kind = Literal["file", "folder", "zip", "unknown"]

#: Files that no student hands in: notes for people, tables of a platform, and what systems create.
_NO_WORK: Final = re.compile(
    r"(readme|licen[cs]e)(\.[\w.-]+)?|.*\.(csv|tsv|xlsx?|ods)|submission_metadata\.yml|thumbs\.db|desktop\.ini",
    re.IGNORECASE | re.DOTALL,
)
#: Stands for a file that cannot be read: it cannot be parsed either.
_UNREADABLE: Final = b"("


def find_kind(path: Path) -> Kind:
    """Return the form in which a submission is handed in."""
    if path.is_dir():
        return "folder"
    suffix = path.suffix.lower()
    return "file" if suffix in (".py", SUFFIX) else "zip" if suffix == ".zip" else "unknown"


def list_entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return what a folder holds, except hidden files: what students may have handed in, and what none has."""
    work: list[Path] = []
    left_out: list[Path] = []
    for entry in sorted(folder.iterdir()):
        if not is_ignored(entry.name):
            (work if _is_work(entry) else left_out).append(entry)
    return work, left_out


def _is_work(path: Path) -> bool:
    """Return False only where no student's work can be lost: anything else gets a grade, which says what is wrong."""
    if path.name == PACKAGE:
        return has_code(_read_source(path))  # editors create an empty one
    return find_kind(path) != "unknown" or not _NO_WORK.fullmatch(path.name)


def find_unrelated(main: Path, entries: Collection[Path]) -> list[Path]:
    """Return the entries next to a module that could be submissions themselves, because it does not import them."""
    imported = _list_imports(main)
    others = [entry for entry in entries if entry != main and entry.name.removesuffix(".py") not in imported]
    return [entry for entry in others if _can_hold_submission(entry)]


def _can_hold_submission(path: Path) -> bool:
    if (kind := find_kind(path)) != "folder" or path.is_symlink():
        return kind != "unknown"
    try:
        return any(find_kind(inner) != "unknown" for _, inner in walk_folder(path))
    except BadSubmission:
        return True


def _list_imports(main: Path) -> set[str]:
    """Return the first names that a module imports, itself and through the modules and packages next to it."""
    names: set[str] = set()
    waiting, left = [main], MOST_SOURCE
    while waiting and left:
        path = waiting.pop()
        source = _read_source(path)[:left]
        left -= len(source)
        # In a package next to it, a relative import names a part of the package.
        level = path.parent == main.parent
        new = {name for name, dots in list_imported_names(source) if dots <= level} - names
        names |= new
        for name in new:
            waiting += [main.with_name(f"{name}.py"), *_list_package(main.with_name(name))]
    return names


def _list_package(folder: Path) -> list[Path]:
    try:
        return [path for name, path in walk_folder(folder) if name.endswith(".py")]
    except BadSubmission:
        return []


def _read_source(path: Path) -> bytes:
    try:
        return read_file(path, SubmissionLimits())
    except BadSubmission:
        return _UNREADABLE

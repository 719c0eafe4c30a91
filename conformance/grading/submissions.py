"""Finds what a class handed in: files, folders and zips, one for each student, or an export of Gradescope.

Only names are listed; each submission is read when its turn comes, so that a large class takes no memory.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

import yaml

from goldformer.adapters.process.faults import printable
from goldformer.conformance.grading.archive import (
    BadSubmission,
    ignored,
    open_zip,
    read_file,
    read_folder,
    read_zip,
    untrusted_zip,
)
from goldformer.conformance.grading.model import Limits, Student, Submission

#: What lists the submissions of an export of Gradescope.
METADATA: Final = "submission_metadata.yml"

#: Characters, and bytes of UTF-8: a file system takes 255 with what is behind it.
_LONGEST_ID: Final = 100
_LARGEST_ID: Final = 200
#: How ids end that were told apart.
_TOLD_APART: Final = re.compile("~[0-9a-f]{16}$")
_MAIN: Final = "submission.py"
_PACKAGE: Final = "__init__.py"


class NoSubmissions(Exception):
    """There is nothing to grade at all; the text says what was looked for."""


@dataclass(frozen=True)
class Handed:
    """One student's submission before it is read: where it lies, and whose it is.

    `under` is its folder inside the zip `path`; `why_not` says that it cannot be read.
    """

    id: str
    path: Path
    kind: Literal["file", "folder", "zip", "unknown"]
    students: tuple[Student, ...] = ()
    under: str = ""

    def read(self, limits: Limits, export: zipfile.ZipFile | None = None) -> Submission:
        """Its files; with a `problem` where it cannot be graded. `export` is the open zip that it is part of."""
        try:
            files = runnable(_without_outer_folder(self._files(limits, export)))
        except BadSubmission as bad:
            return Submission(self.id, {}, _digest({}, str(bad)), str(bad))
        return Submission(self.id, files, _digest(files))

    def _files(self, limits: Limits, export: zipfile.ZipFile | None) -> dict[str, bytes]:
        if export is not None:
            return read_zip(export, limits, self.under)
        if self.path.is_symlink():
            raise BadSubmission("is a link: hand in the file itself")
        if self.kind == "folder":
            return read_folder(self.path, limits)
        if self.kind == "zip":
            with untrusted_zip(self.path) as archive:
                return read_zip(archive, limits)
        if self.kind == "file":
            return {self.path.name: read_file(self.path, limits)}
        raise BadSubmission(f"{printable(self.path.name)} is no .py file, no folder and no zip")


@dataclass(frozen=True)
class ClassList:
    """All that was handed in, in the order of the ids; `export` is the zip that holds all of it."""

    handed: tuple[Handed, ...]
    export: Path | None = None

    def __len__(self) -> int:
        return len(self.handed)

    @cached_property
    def _opened(self) -> zipfile.ZipFile | None:
        return open_zip(self.export) if self.export is not None else None

    def read(self, handed: Handed, limits: Limits) -> Submission:
        """One of them."""
        return handed.read(limits, self._opened)

    @property
    def students(self) -> Mapping[str, tuple[Student, ...]]:
        """Whose each submission is, where that is known, by its id."""
        return {handed.id: handed.students for handed in self.handed}


def find_submissions(path: Path, *, single: bool = False) -> ClassList:
    """What lies at a path: a class, or a single submission; NoSubmissions where nothing does.

    A class is a folder of .py files, folders and zips, or an export of Gradescope, as a folder or as a zip. A folder
    with submission.py in it is a single submission, and with `single` every folder is.
    """
    if path.is_dir() and single:
        return ClassList((Handed(_safe(path.resolve().name), path, "folder"),))
    if path.is_dir():
        if (path / METADATA).is_file():
            return _export(path, None)
        if (path / _MAIN).exists() or (path / _PACKAGE).exists():
            return ClassList((Handed(_safe(path.resolve().name), path, "folder"),))
        return _class(path)
    if not path.exists():
        raise NoSubmissions(f"{path}: there is nothing there")
    handed = Handed(_safe(path.stem), path, _kind(path))
    if handed.kind == "zip":
        try:
            with open_zip(path) as archive:
                listing = [name for name in archive.namelist() if Path(name).name == METADATA and name.count("/") <= 1]
            if listing:
                return _export(path, listing[0])
        except BadSubmission:
            pass  # which is what grading it says
    elif handed.kind == "unknown":
        raise NoSubmissions(f"{path}: is no .py file, no folder and no zip")
    return ClassList((handed,))


def _kind(path: Path) -> Literal["file", "folder", "zip", "unknown"]:
    if path.is_dir():
        return "folder"
    suffix = path.suffix.lower()
    return "file" if suffix == ".py" else "zip" if suffix == ".zip" else "unknown"


def _class(folder: Path) -> ClassList:
    found = [entry for entry in sorted(folder.iterdir()) if not ignored(entry.name)]
    if not found:
        raise NoSubmissions(f"{folder}: holds no .py file, no folder and no zip")
    handed = [Handed(_safe(e.name if _kind(e) == "folder" else e.stem), e, _kind(e)) for e in found]
    return ClassList(_told_apart(handed))


def _told_apart(handed: list[Handed]) -> tuple[Handed, ...]:
    """Ids that a file system with one case has twice get a digest of the name, whatever else is there.

    So do those that look as if they had one, or somebody's file could be named as another's id.
    """
    taken = Counter(h.id.casefold() for h in handed)

    def unique(h: Handed) -> Handed:
        if taken[h.id.casefold()] == 1 and not _TOLD_APART.search(h.id):
            return h
        name = h.path.name + h.under
        return replace(h, id=f"{h.id}~{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}")

    return tuple(sorted(map(unique, handed), key=lambda h: h.id))


def _safe(name: str) -> str:
    """A name that can be a folder's on every system."""
    plain = re.sub(r"[^\w.@+~ -]", "_", unicodedata.normalize("NFC", name).encode("utf-8", "replace").decode())
    short = plain.strip(" .")[:_LONGEST_ID].encode()[:_LARGEST_ID].decode("utf-8", "ignore")
    return short.strip(" .") or "submission"


# Gradescope


def _export(path: Path, listing: str | None) -> ClassList:
    """An export of Gradescope: a folder for each submission, and a file that says whose it is."""
    if listing is None:
        text = (path / METADATA).read_bytes()
        top = ""
    else:
        with open_zip(path) as archive:
            text = archive.read(listing)
        top = listing.removesuffix(METADATA)
    try:
        submitters = _submitters(yaml.compose(text.decode("utf-8"), yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise NoSubmissions(f"{path / METADATA}: is not YAML: {error}") from error
    if not submitters:
        raise NoSubmissions(f"{path / METADATA}: lists no submission")
    if listing is None:
        handed = [Handed(_safe(name), path / name, "folder", who) for name, who in submitters.items()]
        return ClassList(_told_apart(handed))
    handed = [Handed(_safe(name), path, "zip", who, f"{top}{name}/") for name, who in submitters.items()]
    return ClassList(_told_apart(handed), path)


def _submitters(node: yaml.Node | None) -> dict[str, tuple[Student, ...]]:
    """Who handed in what. Its nodes are read and not its values: an export has tags of Ruby that nobody needs."""
    found: dict[str, tuple[Student, ...]] = {}
    for name, about in _items(node):
        if "/" in name or name in ("", ".", ".."):
            raise NoSubmissions(f"{METADATA}: {name!r} is no name of a folder")
        listed = dict(_items(about)).get("submitters")
        people = listed.value if isinstance(listed, yaml.SequenceNode) else []
        found[name] = tuple(_student(dict(_items(person))) for person in people)
    return found


def _items(node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
    """The pairs of a mapping; Ruby's :name is name."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else []:
        if isinstance(key, yaml.ScalarNode):
            yield key.value.removeprefix(":"), value


def _student(about: Mapping[str, yaml.Node]) -> Student:
    def text(key: str) -> str:
        node = about.get(key)
        return node.value if isinstance(node, yaml.ScalarNode) and not node.tag.endswith(":null") else ""

    return Student(text("name"), text("email"), text("sid"))


# What is run


def _without_outer_folder(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """A folder that holds everything is how zips are made, and means nothing."""
    while files and len(tops := {name.partition("/")[0] for name in files}) == 1 and not tops & files.keys():
        files = {name.partition("/")[2]: data for name, data in files.items()}
    return dict(files)


def runnable(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Files among which the module `submission` is, which a lone .py file becomes; BadSubmission without one."""
    if _MAIN in files or _PACKAGE in files:
        return dict(files)
    homes = [name.removesuffix(_MAIN) for name in files if name.endswith(f"/{_MAIN}")]
    if len(homes) == 1:
        # Beside its folder lies a report, or a page that says what to read.
        return {name.removeprefix(homes[0]): data for name, data in files.items() if name.startswith(homes[0])}
    modules = [name for name in files if name.lower().endswith(".py")]
    if len(modules) == 1:
        return {_MAIN if name == modules[0] else name: data for name, data in files.items()}
    if modules:
        few = ", ".join(sorted(modules)[:4]) + ("…" if len(modules) > 4 else "")
        raise BadSubmission(f"there is no {_MAIN} among {few}")
    got = ", ".join(sorted(files)[:4]) + ("…" if len(files) > 4 else "")
    raise BadSubmission(
        f"there is no .py file; what was handed in is {got}" if files else "nothing was handed in: it is empty"
    )


def _digest(files: Mapping[str, bytes], problem: str = "") -> str:
    """What tells two submissions apart."""
    digest = hashlib.sha256(problem.encode())
    for name in sorted(files):
        digest.update(f"{len(name)}:{name}:{len(files[name])}:".encode())
        digest.update(files[name])
    return digest.hexdigest()

"""Find the submissions of a class: files, folders and zips, one for each student, or an export of Gradescope.

Only names are listed; each submission is read when its turn comes, so that a large class takes little memory.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Final, Literal

import yaml

from goldformer.adapters.notebook import SUFFIX, NotebookError, read_notebook, write_source
from goldformer.adapters.untrusted_text import abbreviate, printable, printable_name
from goldformer.conformance.grading.archive import (
    BadSubmission,
    open_untrusted_zip,
    open_zip,
    read_file,
    read_folder,
    read_member,
    read_zip,
)
from goldformer.conformance.grading.class_folder import Kind, find_kind, find_unrelated, list_entries
from goldformer.conformance.grading.model import Submission, SubmissionLimits, Submitter
from goldformer.conformance.grading.python_files import MAIN, PACKAGE, SUBMISSION
from goldformer.spec import SpecError
from goldformer.spec.files import read_regular_file
from goldformer.spec.yamlfile import LARGEST, compose_nodes

#: The file that lists the submissions of an export of Gradescope.
METADATA: Final = "submission_metadata.yml"

#: The most characters and bytes of an id: file systems allow 255 bytes, with suffixes.
_LONGEST_ID: Final = 100
_LARGEST_ID: Final = 200
#: The names that Windows keeps for devices, with any suffix: a program that unpacks the results cannot make them.
_DEVICE: Final = re.compile(r"(CON|PRN|AUX|NUL|CONIN_|CONOUT_|(COM|LPT)[0-9¹²³]) *(?=\.|$)", re.IGNORECASE)
#: The suffix of an id that another submission has too.
_SUFFIX: Final = re.compile("~[0-9a-f]{16}$")
#: The most students of one submission: an alias lets many submissions share one list.
_MOST_PEOPLE: Final = 100
#: The number of files that a message names.
_NAMED: Final = 4

#: What the path of submissions holds: one submission, a class, or an export of Gradescope.
Holds = Literal["one", "class", "export"]


class NoSubmissions(Exception):
    """There is nothing to grade, or it is not clear what; the text says what was searched for."""


@dataclass(frozen=True)
class FoundSubmission:
    """A submission that was found and not read yet: its path, and the students who handed it in.

    `under` is its folder inside the zip `path`.
    """

    id: str
    path: Path
    kind: Kind
    students: tuple[Submitter, ...] = ()
    under: str = ""

    def read(self, limits: SubmissionLimits, export: zipfile.ZipFile | None = None) -> Submission:
        """Return its files, or the problem why it cannot be graded. `export` is the open zip that contains it."""
        try:
            files = select_runnable(_strip_outer_folders(self._read_files(limits, export)))
        except BadSubmission as bad:
            return Submission(self.id, {}, _digest({}, str(bad)), str(bad))
        return Submission(self.id, files, _digest(files))

    def _read_files(self, limits: SubmissionLimits, export: zipfile.ZipFile | None) -> dict[str, bytes]:
        if export is not None:
            return read_zip(export, limits, self.under)
        if self.path.is_symlink():
            raise BadSubmission("is a link: hand in the file itself")
        if self.kind == "folder":
            return read_folder(self.path, limits)
        if self.kind == "zip":
            with open_untrusted_zip(self.path) as archive:
                return read_zip(archive, limits)
        if self.kind == "file":
            return {self.path.name: read_file(self.path, limits)}
        raise BadSubmission(f"{printable(self.path.name)} is no .py file, no notebook, no folder and no zip")


@dataclass(frozen=True)
class ClassList:
    """All submissions of a class in the order of their ids; `export` is the zip that contains all of them.

    `left_out` are the names of files that lie next to them and are no submissions.
    """

    handed: tuple[FoundSubmission, ...]
    export: Path | None = None
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.handed)

    @cached_property
    def _export_zip(self) -> zipfile.ZipFile | None:
        return open_zip(self.export) if self.export is not None else None

    def read(self, submission: FoundSubmission, limits: SubmissionLimits) -> Submission:
        """Read one of them."""
        return submission.read(limits, self._export_zip)

    @property
    def students(self) -> Mapping[str, tuple[Submitter, ...]]:
        """The students of each submission by its id, as far as they are known."""
        return {handed.id: handed.students for handed in self.handed}


def find_submissions(path: Path, holds: Holds | None = None) -> ClassList:
    """Return the class or the single submission at a path; NoSubmissions if there is none, or if it could be either.

    A class is a folder of .py files, notebooks, folders and zips, or a folder that Gradescope exported. A folder with
    submission.py, and with nothing else that could be a submission and that it does not import, is a single one. A zip
    is a single submission, whatever it says of itself, because students make zips. `holds` says what is meant instead.
    """
    if path.is_dir():
        if holds != "one" and (path / METADATA).is_file():
            return _list_export(path)
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
    return _list_zipped_export(path) if holds == "export" else ClassList((handed,))


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
        name = h.path.name + h.under
        return replace(h, id=f"{h.id}~{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}")

    return tuple(sorted(map(unique, handed), key=lambda h: h.id))


def _make_id(name: str) -> str:
    """Return an id that can be the name of a folder on every system."""
    plain = re.sub(r"[^\w.@+~ -]", "_", unicodedata.normalize("NFC", name).encode("utf-8", "replace").decode())
    short = plain.strip(" .")[:_LONGEST_ID].encode()[:_LARGEST_ID].decode("utf-8", "ignore")
    safe = short.strip(" .") or "submission"
    device = _DEVICE.match(safe)
    return f"{device[1]}_{safe[device.end() :]}" if device else safe


def _list_export(path: Path) -> ClassList:
    """List a folder that Gradescope exported: a folder for each submission, and a file that names its students."""
    try:
        raw = read_regular_file(path / METADATA, LARGEST)
    except OSError as error:
        raise NoSubmissions(f"{path / METADATA}: cannot be read: {error.strerror}") from error
    submitters = _read_submitters(path / METADATA, raw)
    handed = [FoundSubmission(_make_id(name), path / name, "folder", who) for name, who in submitters.items()]
    return ClassList(_make_ids_unique(handed))


def _list_zipped_export(path: Path) -> ClassList:
    """List a zip of such a folder."""
    try:
        with open_zip(path) as archive:
            listings = [name for name in archive.namelist() if Path(name).name == METADATA and name.count("/") <= 1]
            if not listings:
                raise NoSubmissions(f"{path}: is no export of Gradescope: it has no {METADATA}")
            raw = read_member(archive, listings[0], LARGEST)
    except BadSubmission as bad:
        raise NoSubmissions(f"{path}: {bad}") from bad
    top = listings[0].removesuffix(METADATA)
    submitters = _read_submitters(path / METADATA, raw)
    handed = [FoundSubmission(_make_id(name), path, "zip", who, f"{top}{name}/") for name, who in submitters.items()]
    return ClassList(_make_ids_unique(handed), path)


def _read_submitters(path: Path, raw: bytes) -> dict[str, tuple[Submitter, ...]]:
    """Return the students of each submission. Read nodes instead of values, because an export has Ruby tags."""
    submitters: dict[str, tuple[Submitter, ...]] = {}
    try:
        node = compose_nodes(path, raw)
    except SpecError as error:
        raise NoSubmissions(str(error)) from error
    # Each node once: an alias lets many submissions share one, however large.
    read_mapping = cache(lambda about: dict(_list_items(about)))
    read_person = cache(lambda person: _make_submitter(read_mapping(person)))

    @cache
    def read_people(listed: yaml.Node | None) -> tuple[Submitter, ...]:
        return tuple(map(read_person, listed.value)) if isinstance(listed, yaml.SequenceNode) else ()

    for name, about in _list_items(node):
        if "/" in name or "\0" in name or name in ("", ".", ".."):
            raise NoSubmissions(f"{path}: {abbreviate(name)} is no name of a folder")
        listed = read_mapping(about).get("submitters")
        if isinstance(listed, yaml.SequenceNode) and len(listed.value) > _MOST_PEOPLE:
            raise NoSubmissions(f"{path}: {abbreviate(name)} has more than {_MOST_PEOPLE} students")
        submitters[name] = read_people(listed)
    if not submitters:
        raise NoSubmissions(f"{path}: lists no submission")
    return submitters


def _list_items(node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
    """Yield the pairs of a mapping; Ruby's :name is name."""
    for key, value in node.value if isinstance(node, yaml.MappingNode) else []:
        if isinstance(key, yaml.ScalarNode):
            yield key.value.removeprefix(":"), value


def _make_submitter(about: Mapping[str, yaml.Node]) -> Submitter:
    def text(key: str) -> str:
        node = about.get(key)
        return node.value if isinstance(node, yaml.ScalarNode) and not node.tag.endswith(":null") else ""

    return Submitter(text("name"), text("email"))


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

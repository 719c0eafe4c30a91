"""The identity of the spec's data: its editions, and of each the version and a digest of cases and golden values.

version.json has a digest for each component, and one digest of these names those of an edition: two people who add
cases to two components change two lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from goldformer.spec.errors import SpecError
from goldformer.spec.strict import Name, StrictModel
from goldformer.spec.yamlfile import YamlFile

#: The number of hexadecimal digits of a digest.
_LENGTH: Final = 16

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
EditionName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Version = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]


class ComponentStamp(StrictModel):
    """The number of cases of a component, and the digest of what decides their verdicts."""

    cases: Annotated[int, Field(ge=1)]
    digest: Digest


class EditionEntry(StrictModel):
    """An edition of the spec: its version, the file of its clauses, and its components."""

    version: Version
    text: Annotated[str, Field(pattern=r"^[a-z0-9_]+\.md$")]
    components: dict[Name, ComponentStamp]


class VersionFile(StrictModel):
    """The schema of version.json: the editions by their names, first that of contracts which name none.

    People write versions and texts, programs the components.
    """

    editions: Annotated[dict[EditionName, EditionEntry], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Edition:
    """An edition with the version and the digest that a claim names, and the file of its clauses."""

    edition: str
    version: str
    digest: str
    text: str

    def __str__(self) -> str:
        return f"{self.edition}/{self.version}, cases {self.digest}"

    def as_json(self) -> dict[str, Any]:
        """Return what reports and exported files hold of it."""
        return {"edition": self.edition, "version": self.version, "digest": self.digest}


def locate_version_file(root: Path) -> Path:
    """Return the file that holds the identity of a spec."""
    return root / "version.json"


def read_version_file(root: Path) -> VersionFile:
    """Read version.json; SpecError if it is missing or wrong."""
    return YamlFile.read(locate_version_file(root)).parse(VersionFile)


def read_editions(root: Path) -> dict[str, Edition]:
    """Return the editions of a spec by their names, first the default one.

    SpecError if version.json is wrong, or if it names a text that does not exist or names one twice.
    """
    file = YamlFile.read(locate_version_file(root))
    entries = file.parse(VersionFile).editions
    texts = [entry.text for entry in entries.values()]
    problems = []
    for name, text in zip(entries, texts, strict=True):
        if not (root / text).is_file():
            message = f"is {text!r}, and there is no such file next to version.json: write its clauses into that file"
            problems.append(file.problem(("editions", name, "text"), message))
        elif texts.index(text) < list(entries).index(name):
            message = f"is {text!r}, the text of another edition: give each edition a text of its own"
            problems.append(file.problem(("editions", name, "text"), message))
    if problems:
        raise SpecError(problems)
    return {name: Edition(name, entry.version, _digest_stamps(entry), entry.text) for name, entry in entries.items()}


def _digest_stamps(entry: EditionEntry) -> str:
    return digest_data({name: stamp.model_dump() for name, stamp in entry.components.items()})


def join_editions(editions: Iterable[Edition]) -> str:
    """Return editions in one line, as a claim names them."""
    return "; ".join(map(str, editions))


def digest_data(data: Mapping[str, Any]) -> str:
    """Return the digest of parsed content, which does not depend on the order of keys or on layout."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]

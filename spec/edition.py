"""The identity of the spec's data: its edition, its version, and a digest of cases and golden values.

version.json has a digest for each component, and one digest of these names them all: two people who add cases to two
components change two lines.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

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


class VersionFile(StrictModel):
    """The schema of version.json. People write edition and version, programs the rest."""

    edition: EditionName
    version: Version
    components: dict[Name, ComponentStamp]


@dataclass(frozen=True, slots=True)
class Edition:
    """The edition, the version and the digest of a spec, which a claim names."""

    edition: str
    version: str
    digest: str

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


def read_edition(root: Path) -> Edition:
    """Return the edition, version and digest of a spec."""
    file = read_version_file(root)
    stamps = {name: stamp.model_dump() for name, stamp in file.components.items()}
    return Edition(file.edition, file.version, digest_data(stamps))


def digest_data(data: Mapping[str, Any]) -> str:
    """Return the digest of parsed content, which does not depend on the order of keys or on layout."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]

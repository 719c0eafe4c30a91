"""The nouns of the spec's tables, frozen: documents, clauses, errata, conventions, mistakes and properties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from goldformer.spec.errors import Problem


class Level(Enum):
    """How binding a clause is."""

    MUST = "MUST"
    SHOULD = "SHOULD"
    CONVENTION = "CONVENTION"


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the spec's files something is written."""

    file: Path
    line: int

    def problem(self, field: str, message: str) -> Problem:
        """A Problem at this place."""
        return Problem(self.file, self.line, field, message)


@dataclass(frozen=True, slots=True)
class Row:
    """One fact that a document defines."""

    id: str
    section: str
    says: str
    place: Place


@dataclass(frozen=True, slots=True)
class Document:
    """One of the source documents."""

    id: str
    title: str
    english: str
    kind: str
    about: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Citation:
    """A document with the rows (for the paper: sections) that say so; `this spec` has none."""

    document: str
    rows: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.document, *self.rows))


@dataclass(frozen=True, slots=True)
class Clause:
    """A numbered sentence of transformer.md."""

    id: str
    level: Level
    title: str
    text: str
    sources: tuple[Citation, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Digits:
    """The places of a case's printed output whose digits are wrong in the document."""

    case: str
    output: str
    indices: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Erratum:
    """Something a document says that is not so, with what proves it."""

    id: str
    document: str
    rows: tuple[str, ...]
    section: str
    printed: str
    correct: str
    why: str
    clauses: tuple[str, ...]
    proof: tuple[str, ...]
    digits: tuple[Digits, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Convention:
    """A choice that real, correct code makes differently.

    With `left_open` an adapter may declare it UNSPECIFIED: what depends on it is not compared. The text says for whom.
    """

    id: str
    title: str
    clause: str
    default: str
    options: Mapping[str, str]
    left_open: str = ""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A named mistake that people really make.

    `title` says what it is in a phrase, `does` how it is written, `symptom` what one sees of it, `why` why that is
    wrong, `hint` how to mend it; `reveals` is the smallest input that shows it, `hides` are inputs that do not, and
    `seen` are public places where it was made or discussed, as owner/name#thread.
    """

    id: str
    component: str
    title: str
    does: str
    symptom: str
    why: str
    hint: str
    reveals: str
    hides: str
    seen: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Property:
    """A relation that holds for every input; the suite draws the inputs. Component "*" means every one.

    `catches` are mistakes that it shows.
    """

    id: str
    component: str
    title: str
    clauses: tuple[str, ...]
    catches: tuple[str, ...]
    needs: tuple[str, ...]
    place: Place

"""The base of every model that is read from YAML or JSON, and the forms of names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from goldformer.spec.errors import Problem

Id = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
Option = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]*$")]
Param = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*(\.[a-z0-9_]+)*$")]
ClauseId = Annotated[str, Field(pattern=r"^[A-Z]+-[0-9]+$")]
Text = Annotated[str, Field(min_length=1)]

Item = TypeVar("Item")
#: A list in a file, and a tuple in the frozen model; its items are still read without conversions.
Items = Annotated[tuple[Item, ...], Field(strict=False)]


def is_part(part: str, name: str) -> bool:
    """Return True if `part` is `name` or a dotted part of it: `w_q` and `encoder.0` of encoder.0.self_attention.w_q."""
    return f".{part}." in f".{name}."


class StrictModel(BaseModel):
    """A mapping without unknown keys and without conversions."""

    # A run that reads one component's files builds only the validators of these.
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)


@dataclass(frozen=True, slots=True)
class Location:
    """A file and a line of the spec."""

    file: Path
    line: int

    def problem(self, field: str, message: str) -> Problem:
        """Return a Problem at this location."""
        return Problem(self.file, self.line, field, message)


class TableEntry(StrictModel):
    """An entry of a table, which knows where it is written."""

    _place: Location = PrivateAttr()

    @property
    def place(self) -> Location:
        """The file and the line of its id."""
        return self._place

    def set_place(self, place: Location) -> None:
        """Record where the entry is written: pydantic does not know lines."""
        self._place = place

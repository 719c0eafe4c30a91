"""The base of every model that is read from YAML or JSON, and the forms of names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, PrivateAttr
from pydantic_core import CoreSchema, core_schema

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


class _Key(NamedTuple):
    """The first key that a model requires, and its values if they are fixed; without a name for any mapping."""

    name: str = ""
    words: tuple[Any, ...] = ()


def _find_key(kind: Any) -> _Key | None:
    """Return the key by which a type is chosen; None for one that is no mapping."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return _Key() if get_origin(kind) is dict else None
    name, field = next((name, field) for name, field in kind.model_fields.items() if field.is_required())
    return _Key(name, get_args(field.annotation) if get_origin(field.annotation) is Literal else ())


@dataclass(frozen=True, slots=True)
class ByKeys:
    """The choice among the types of a union: the first model whose first required key a mapping has, or else the last.

    So the problems of one type are reported, and not those of all. What is no mapping is of the first other type, or is
    refused with a message.
    """

    message: str | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return the schema of the union."""
        kinds = {f"as:{index}": kind for index, kind in enumerate(get_args(source))}
        keys = {tag: key for tag, kind in kinds.items() if (key := _find_key(kind)) is not None}
        other = next((tag for tag in kinds if tag not in keys), [*keys][-1])

        def choose(value: Any) -> str | None:
            if not isinstance(value, dict):
                return other if self.message is None else None
            found = [tag for tag, key in keys.items() if key.name in value]
            exact = [tag for tag in found if value[keys[tag].name] in keys[tag].words]
            return next(iter(exact or found), [*keys][-1])

        return core_schema.tagged_union_schema(
            {tag: handler.generate_schema(kind) for tag, kind in kinds.items()},
            choose,
            custom_error_type="kind" if self.message else None,
            custom_error_message=self.message,
        )


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
